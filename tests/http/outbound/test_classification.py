"""What each status means, what Retry-After asks for, what a signature proves."""

from __future__ import annotations

import contextlib
import html
import json
import urllib.parse
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import standardwebhooks
import svix

from duly.http import classify_response, decode_secret, encode_secret, masked, retry_after, sign
from duly.http.classification import RetryOn
from duly.model import DeadReason
from duly.model.errors import InvalidInputError
from duly.model.retry import LONGEST

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RETRIED = {408, 425, 429, *range(500, 600)} - {501, 505}


@pytest.mark.parametrize("status", range(100, 600))
def test_default_plan(status: int) -> None:
    """2xx success; 408, 425, 429 and 5xx but 501 and 505 retried; 410 gone; the rest permanent; 1xx a protocol
    error."""
    verdict = classify_response(status, [], "default", NOW)
    if status < 200:
        assert (verdict.kind, verdict.result) == ("retry", "protocol_error")
    elif status < 300:
        assert (verdict.kind, verdict.result, verdict.error) == ("success", "success", None)
    elif status in RETRIED:
        assert (verdict.kind, verdict.result) == ("retry", "http_error")
    else:
        gone = DeadReason.TARGET_GONE if status == 410 else DeadReason.PERMANENT
        assert (verdict.kind, verdict.reason) == ("bury", gone)


@pytest.mark.parametrize(
    ("retry_on", "retried", "not_retried"),
    [
        ("all_non_2xx", {301, 400, 404, 410, 501, 503}, set()),
        ((404, "5xx"), {404, 500, 501, 505}, {408, 410, 429, 302}),
        (("4xx",), {400, 410, 429}, {500, 503}),
        ((), set(), {408, 429, 500, 503}),
    ],
)
def test_retry_on_replaces_the_default(retry_on: RetryOn, retried: set[int], not_retried: set[int]) -> None:
    """A job's own list says what is worth another attempt, and nothing else is."""
    for status in retried:
        assert classify_response(status, [], retry_on, NOW).kind == "retry"
    for status in not_retried:
        assert classify_response(status, [], retry_on, NOW).kind == "bury"
    assert classify_response(204, [], retry_on, NOW).kind == "success"


def test_target_may_stop_further_attempts() -> None:
    """Duly-Retry: no ends the job on any failure, whatever retry.on says; on success it means nothing."""
    for status, on in [(500, "default"), (429, "all_non_2xx"), (302, "default"), (404, "default")]:
        verdict = classify_response(status, [("DULY-Retry", " No ")], on, NOW)
        assert (verdict.kind, verdict.reason) == ("bury", DeadReason.STOPPED_BY_TARGET)
    assert classify_response(200, [("Duly-Retry", "no")], "default", NOW).kind == "success"
    assert classify_response(500, [("Duly-Retry", "yes")], "default", NOW).kind == "retry"


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        (["120"], 120),
        ([" 7 "], 7),
        (["Fri, 02 Jan 2026 03:05:35 GMT"], 90),
        (["Friday, 02-Jan-26 03:05:35 GMT"], 90),
        (["Fri Jan  2 03:05:35 2026"], 90),
        (["10", "30"], 30),
        (["10, 30"], 30),
        (["abc", "5"], 5),
        (["9999999999"], LONGEST.total_seconds()),
        (["9" * 100], LONGEST.total_seconds()),
        (["Fri, 31 Dec 9999 23:59:59 GMT"], LONGEST.total_seconds()),
        (["0"], None),
        (["-1"], None),
        (["+5"], None),
        (["1.5"], None),
        (["1e3"], None),
        (["NaN"], None),
        (["inf"], None),
        (["abc"], None),
        ([""], None),
        (["\u0663"], None),
        (["9" * 5000], None),
        (["Wed, 01 Jan 1990 00:00:00 GMT"], None),
        (["Fri, 32 Jan 2026 03:05:35 GMT"], None),
        (["Fri, 02 Jan 99999 03:05:35 GMT"], None),
        ([], None),
    ],
)
def test_fo_078_retry_after(values: list[str], seconds: float | None) -> None:
    """FO-078: both forms are read; zero, past, negative and garbage are ignored; huge ones saturate; the longest of
    several counts."""
    wait = retry_after(values, NOW)
    assert wait == (None if seconds is None else timedelta(seconds=seconds))
    verdict = classify_response(429, [("retry-after", value) for value in values], "default", NOW)
    assert verdict.at_least == wait


def test_retry_after_counts_on_retryable_answers_only() -> None:
    """A 404 with Retry-After is still permanent."""
    assert classify_response(404, [("Retry-After", "5")], "default", NOW).at_least is None


BODIES = [
    b"",
    b'{"a":1}',
    '{"\u2603":"\u00e9\U0001f600"}'.encode(),
    b'{"n":123456789012345678901234567890.000}',
]


@pytest.mark.parametrize("body", BODIES)
def test_official_libraries_accept_the_signature(body: bytes) -> None:
    """standardwebhooks and svix verify the exact text, with either secret during rotation, and refuse a changed
    byte."""
    secrets = [b"old" * 8, b"new" * 8]
    now_s = int(datetime.now(UTC).timestamp())
    headers = dict(sign(secrets, "01890a5d-ac96-774b-bcce-b302099a8057", now_s, body))
    for secret in secrets:
        for library, error in (
            (standardwebhooks.Webhook, standardwebhooks.WebhookVerificationError),
            (svix.Webhook, svix.WebhookVerificationError),
        ):
            hook = library(encode_secret(secret))
            _verify(hook, body, headers)
            with pytest.raises(error):
                hook.verify(body + b" ", headers)
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(encode_secret(b"other" * 5)).verify(body, headers)


def _verify(hook: standardwebhooks.Webhook | svix.Webhook, body: bytes, headers: dict[str, str]) -> None:
    """Both libraries decode the body after the check; what then fails on binary is not the signature."""
    with contextlib.suppress(json.JSONDecodeError, UnicodeDecodeError):
        hook.verify(body, headers)


def test_without_secrets_there_is_no_signature() -> None:
    """Id and time are still sent."""
    assert [name for name, _ in sign([], "id", 1, b"")] == ["webhook-id", "webhook-timestamp"]


def test_secret_text_form() -> None:
    """whsec_ and base64, both ways; the prefix is optional on reading; anything else is refused."""
    assert decode_secret(encode_secret(b"\x00\xff" * 12)) == b"\x00\xff" * 12
    assert decode_secret("c2VjcmV0") == b"secret"
    for bad in ("whsec_", "whsec_!!!", "whsec_abc", "\u2603"):
        with pytest.raises(InvalidInputError):
            decode_secret(bad)


def test_masking_covers_every_text_form_and_keeps_the_length() -> None:
    """Raw, base64 with and without padding, URL-safe, JSON-escaped, hex in both cases."""
    import base64

    secret = b"\xfb\xff\xfe-secret-0123456789\xff"
    plain = base64.b64encode(secret)
    padless = plain.rstrip(b"=")
    hexed = secret.hex()
    forms = [secret, plain, padless, base64.urlsafe_b64encode(secret), plain.replace(b"/", b"\\/"), hexed.encode()]
    for form in [*forms, hexed.upper().encode()]:
        data = b"<" + form + b">"
        assert masked(data, [secret]) == b"<" + b"*" * len(form) + b">"
    assert masked(b"nothing here", [secret, b"short"]) == b"nothing here"


@pytest.mark.parametrize(
    "echo",
    [
        lambda text: text,
        lambda text: text.replace("tok", "TOK"),
        json.dumps,
        lambda text: json.dumps(text, ensure_ascii=False),
        lambda text: json.dumps(text).replace("/", "\\/"),
        urllib.parse.quote,
        lambda text: urllib.parse.quote(text, safe=""),
        urllib.parse.quote_plus,
        lambda text: urllib.parse.quote(text).lower(),
        html.escape,
        lambda text: html.escape(text).replace("&#x27;", "&#39;"),
    ],
)
def test_masking_covers_what_targets_echo(echo: Callable[[str], str]) -> None:
    """As text in other letters, in JSON, in a URL, in a page; what stands around it stays."""
    secret = "tok-S3CR3T é/&\"q'+x="
    shown = masked(f"before {echo(secret)} after".encode(), [secret.encode()])
    assert b"s3cr3t" not in shown.lower()
    assert shown.startswith(b"before ")
    assert shown.endswith(b" after")
    assert len(shown) == len(f"before {echo(secret)} after".encode())


@pytest.mark.parametrize("status", [0, 99, 600, 999])
def test_what_is_no_status_counts_as_a_server_error(status: int) -> None:
    """RFC 9110, section 15; also in a list of classes."""
    assert classify_response(status, [], "default", NOW).kind == "retry"
    assert classify_response(status, [], ("5xx",), NOW).kind == "retry"
    assert classify_response(status, [], ("4xx",), NOW).kind == "bury"
