"""Every row of ssrf-cases.tsv: a verdict on text is evaluated, a behaviour is some named test's business."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path

import pytest

from duly.http import EgressPolicy

from .ssrf_rows import BEHAVIOUR, VARIANTS_PATH, Row, is_allowed, read_rows

HERE = Path(__file__).parent
EVALUATED = [row for row in read_rows() if row.prefix not in BEHAVIOUR]
VARIANTS = read_rows(VARIANTS_PATH)

_REDIRECTS = "test_redirects_and_environment.py::test_fo_062_second_request_of_a_redirect_row_is_not_sent"
_ENVIRONMENT = "test_redirects_and_environment.py::test_fo_064_environment_rows_have_no_effect"
_FIRST_PROCESS = "test_environment_of_a_process.py::test_fo_064_environment_of_a_process_has_no_effect"
_CERTIFICATES = "test_tls.py::test_fo_067_bad_certificates_are_refused"
_ENDLESS = "test_hostile_answers.py::test_endless_body_is_cut_and_the_connection_closed"
_RETRY_AFTER = "test_classification.py::test_fo_078_retry_after"
_CHARSETS = "test_hostile_answers.py::test_fo_070_charsets_do_not_matter"

# What stands at the wire for a row about behaviour. Keys are "prefix" for all rows of it, or "prefix:text".
WIRE: dict[str, tuple[str, ...]] = {
    "redirect": (_REDIRECTS,),
    "env": (_ENVIRONMENT, _FIRST_PROCESS),
    "self:db http://<own database address>/": (
        "test_own_addresses.py::test_own_database_is_refused_by_address_name_and_socket",
        "test_redirects_and_environment.py::test_own_listener_is_refused_on_an_open_loopback",
    ),
    "self:proxy http://<own egress proxy>/": (
        "test_redirects_and_environment.py::test_own_listener_is_refused_on_an_open_loopback",
    ),
    "tls:expired https://example.com/": (_CERTIFICATES,),
    "tls:self-signed https://example.com/": (_CERTIFICATES,),
    "tls:wrong-name https://example.com/": (
        _CERTIFICATES,
        "test_tls.py::test_name_that_stands_only_in_the_common_name_is_refused",
    ),
    "tls:1.0 https://example.com/": ("test_tls.py::test_tls_1_1_is_refused",),
    "tls:ip-san-missing https://8.8.8.8/": ("test_tls.py::test_literal_target_needs_an_ip_subject_name",),
    "response:endless body at full speed": (_ENDLESS, "test_hostile_suite.py::test_case"),
    "response:1 byte per second headers": (
        "test_hostile_answers.py::test_dripped_headers_end_at_the_deadline",
        "test_hostile_suite.py::test_case",
    ),
    "response:header block of 1 MB": (
        "test_hostile_answers.py::test_fo_071_a_head_of_1_mb_is_cut_off_with_its_status",
    ),
    "response:gzip bomb 97 KB to 100 MB": (
        "test_hostile_answers.py::test_fo_066_compressed_answers_are_never_unpacked",
        "test_hostile_suite.py::test_case",
    ),
    "response:101 Switching Protocols": ("test_hostile_answers.py::test_fo_068_a_stray_101_is_a_protocol_error",),
    "response:body contains own signing secret": ("test_hostile_answers.py::test_own_secret_in_an_answer_is_masked",),
    "response:Retry-After: 999999999": (_RETRY_AFTER,),
    "response:Retry-After: -1": (_RETRY_AFTER,),
    "response:Retry-After: Wed, 01 Jan 1990 00:00:00 GMT": (_RETRY_AFTER,),
    "response:Retry-After: NaN": (_RETRY_AFTER,),
    "response:NUL bytes in body": (_CHARSETS, "test_stored_answers.py::test_hostile_bytes_are_stored_as_they_came"),
    "response:invalid UTF-8 body": (_CHARSETS, "test_stored_answers.py::test_hostile_bytes_are_stored_as_they_came"),
    "error:resolved address in the message": ("test_dns.py::test_refusal_does_not_name_the_address",),
    "error:connect timing differs for blocked targets": (
        "test_redirects_and_environment.py::test_fo_063_blocked_ports_look_alike",
    ),
    "error:proxy error text": ("test_hostile_suite.py::test_case",),
}


@lru_cache
def names_in(name: str) -> frozenset[str]:
    """The names of a file's tests."""
    tree = ast.parse((HERE / name).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _id(row: Row) -> str:
    return ascii(f"{row.prefix}:{row.text}")[1:70]


def test_the_file_is_whole() -> None:
    """All 385 rows are read: nothing is lost to quoting or escapes."""
    assert len(read_rows()) == 385


def test_every_row_is_evaluated_or_has_a_test_at_the_wire() -> None:
    """No row is only data: it is among those evaluated below, or a test that exists is named for it; and no test is
    named for a row that is gone."""
    behaviours = [row for row in read_rows() if row.prefix in BEHAVIOUR]
    used = set()
    for row in behaviours:
        key = row.prefix if row.prefix in WIRE else f"{row.prefix}:{row.text}"
        assert key in WIRE, f"nothing tests {key}"
        used.add(key)
    assert used == set(WIRE)
    assert len(EVALUATED) + len(behaviours) == len(read_rows())
    for test in (test for tests in WIRE.values() for test in tests):
        path, _, name = test.partition("::")
        assert name in names_in(path), f"{test} does not exist"


def test_every_class_of_rows_that_are_evaluated_has_variants() -> None:
    """The rows are a sample: for each class of them there are others, made up here."""
    classes = [{row.why.split("]")[0] for row in rows} for rows in (EVALUATED, VARIANTS)]
    assert classes[0] <= classes[1]
    assert {row.prefix for row in EVALUATED} == {row.prefix for row in VARIANTS}
    assert not {(row.prefix, row.text) for row in EVALUATED} & {(row.prefix, row.text) for row in VARIANTS}


@pytest.mark.parametrize("row", EVALUATED, ids=_id)
async def test_row(row: Row) -> None:
    """The row's verdict is the code's verdict, under the default policy or the one that the row states."""
    assert await is_allowed(row, EgressPolicy()) is row.is_allowed, row.why


@pytest.mark.parametrize("row", VARIANTS, ids=_id)
async def test_variant(row: Row) -> None:
    """The same for the variants."""
    assert await is_allowed(row, EgressPolicy()) is row.is_allowed, row.why
