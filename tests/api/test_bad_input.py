"""What is refused: every field, every form; all at once, by place, and never repeated."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api.harness import TARGET, Api, assert_problem, pointers
from duly.model import uuid7

FAR = (datetime.now(UTC) + timedelta(days=400)).isoformat()

BAD_FIELDS: list[tuple[str, dict[str, Any]]] = [
    ("/url", {"url": ""}),
    ("/url", {"url": None}),
    ("/url", {"url": 5}),
    ("/url", {"url": "ftp://127.0.0.1/"}),
    ("/url", {"url": "http://user:pw@127.0.0.1/"}),
    ("/url", {"url": "http://127.0.0.1/\u0000"}),
    ("/url", {"url": "http://127.0.0.1/\r\nx"}),
    ("/url", {"url": "http://127.0.0.1:22/"}),
    ("/url", {"url": "http://10.0.0.1/"}),
    ("/url", {"url": "http://169.254.169.254/"}),
    ("/url", {"url": "http://127.0.0.1/" + "a" * 9000}),
    ("/method", {"method": "TRACE"}),
    ("/method", {"method": "post"}),
    ("/method", {"method": "GET\r\n"}),
    ("/headers", {"headers": "x"}),
    ("/headers/0", {"headers": ["x"]}),
    ("/headers/0", {"headers": [["a"]]}),
    ("/headers/0/1", {"headers": [["a", 1]]}),
    ("/headers/X", {"headers": {"X": ["a"]}}),
    ("/headers/Host", {"headers": {"A": "1", "Host": "x"}}),
    ("/headers/1", {"headers": [["a", "b"], ["Content-Length", "1"]]}),
    ("/headers/0", {"headers": [["a\r\nb", "c"]]}),
    ("/headers/0", {"headers": [["a", "b\r\nc: d"]]}),
    ("/headers/0", {"headers": [["a", "\u2603"]]}),
    ("/headers/0", {"headers": [["webhook-id", "x"]]}),
    ("/headers", {"headers": [["a", "b"]] * 65}),
    ("/headers", {"headers": [["a", "b" * 33_000]]}),
    ("/body", {"json": 1, "body": "x"}),
    ("/body_base64", {"body": "x", "body_base64": "eA=="}),
    ("/body", {"body": 5}),
    ("/body", {"body": {"a": 1}}),
    ("/body_base64", {"body_base64": "a"}),
    ("/body_base64", {"body_base64": "a-_="}),
    ("/body", {"method": "GET", "body": "x"}),
    ("/json", {"method": "HEAD", "json": {}}),
    ("/run_at", {"run_at": "2030-01-01T00:00:00"}),
    ("/run_at", {"run_at": 1893456000}),
    ("/run_at", {"run_at": "tomorrow"}),
    ("/run_at", {"run_at": FAR}),
    ("/delay", {"delay": "367d"}),
    ("/delay", {"delay": -1}),
    ("/delay", {"delay": True}),
    ("/delay", {"run_at": "2001-01-01T00:00:00Z", "delay": 1}),
    ("/run_at_local", {"run_at_local": "2026-12-01T09:00"}),
    ("/timezone", {"timezone": "Europe/Berlin"}),
    ("/timezone", {"run_at_local": "2026-12-01T09:00", "timezone": "Mars/Olympus"}),
    ("/run_at_local", {"run_at_local": "2026-12-01T09:00Z", "timezone": "UTC"}),
    ("/run_at_local", {"run_at_local": FAR[:19], "timezone": "UTC"}),
    ("/id", {"id": "x"}),
    ("/id", {"id": "00000000-0000-4000-8000-000000000000"}),
    ("/id", {"id": f"{{{uuid7()}}}"}),
    ("/id", {"id": str(uuid7(0))}),
    ("/timeout", {"timeout": 0.9}),
    ("/timeout", {"timeout": "16m"}),
    ("/retry", {"retry": 3}),
    ("/retry/max_attempts", {"retry": {"max_attempts": 0}}),
    ("/retry/max_attempts", {"retry": {"max_attempts": 51}}),
    ("/retry/max_attempts", {"retry": {"max_attempts": 2.5}}),
    ("/retry/max_attempts", {"retry": {"max_attempts": True}}),
    ("/retry/max_age", {"retry": {"max_age": 0}}),
    ("/retry/on", {"retry": {"on": "sometimes"}}),
    ("/retry/on", {"retry": {"on": []}}),
    ("/retry/on", {"retry": {"on": [99]}}),
    ("/retry/on", {"retry": {"on": ["6xx"]}}),
    ("/retry/on", {"retry": {"on": [True]}}),
    ("/retry/backoff/kind", {"retry": {"backoff": {"kind": "random"}}}),
    ("/retry/backoff/base", {"retry": {"backoff": {"base": "1x"}}}),
    ("/retry/backoff/factor", {"retry": {"backoff": {"factor": 0.5}}}),
    ("/retry/backoff/factor", {"retry": {"backoff": {"factor": "4"}}}),
    ("/retry/backoff/jitter", {"retry": {"backoff": {"jitter": 1.1}}}),
    ("/retry/backoff", {"retry": {"backoff": {"kind": "steps"}}}),
    ("/retry/backoff", {"retry": {"backoff": {"kind": "fixed", "factor": 2}}}),
    ("/retry/backoff/steps", {"retry": {"backoff": {"kind": "steps", "steps": []}}}),
    ("/retry/backoff/steps/1", {"retry": {"backoff": {"kind": "steps", "steps": [1, "x"]}}}),
    ("/retry/backoff/nope", {"retry": {"backoff": {"nope": 1}}}),
    ("/queue", {"queue": ""}),
    ("/queue", {"queue": "a b"}),
    ("/queue", {"queue": "q\u0000"}),
    ("/queue", {"queue": "q" * 101}),
    ("/queue", {"queue": "q\n"}),
    ("/concurrency_key", {"concurrency_key": ""}),
    ("/concurrency_key", {"concurrency_key": "a\nb"}),
    ("/priority", {"priority": 10}),
    ("/priority", {"priority": -1}),
    ("/priority", {"priority": "5"}),
    ("/tags", {"tags": "a"}),
    ("/tags", {"tags": [str(n) for n in range(21)]}),
    ("/tags/1", {"tags": ["a", ""]}),
    ("/tags/0", {"tags": ["a\u0000"]}),
    ("/metadata", {"metadata": "x" * 4095}),
    ("/metadata/a", {"metadata": {"a": "\u0000"}}),
    ("/expires_at", {"expires_at": "2001-01-01T00:00:00Z"}),
    ("/expires_at", {"delay": "2d", "expires_at": (datetime.now(UTC) + timedelta(days=1)).isoformat()}),
    ("/unknown", {"unknown": 1}),
    ("/json_text", {"json_text": "x"}),
    ("/state", {"state": "ready"}),
    ("/unique_key", {"unique_key": ""}),
    ("/unique_key", {"unique_key": "a\u0000b"}),
    ("/unique_key", {"unique_key": "x" * 201}),
    ("/unique_key", {"unique_key": 7}),
    ("/unique_for", {"unique_for": "1h"}),
    ("/unique_for", {"unique_key": "k", "unique_for": "until_final "}),
    ("/unique_for", {"unique_key": "k", "unique_for": 0}),
    ("/unique_for", {"unique_key": "k", "unique_for": "367d"}),
    ("/on_conflict", {"on_conflict": "keep"}),
    ("/run_at", {"run_at": "0001-01-01T00:00:00Z"}),
    ("/expires_at", {"expires_at": "9999-12-31T23:59:59Z"}),
    ("/on_conflict", {"unique_key": "k", "on_conflict": "ignore"}),
    ("/redact", {"redact": []}),
    ("/redact/headers", {"redact": {"headers": "X-Token"}}),
    ("/redact/headers/1", {"redact": {"headers": ["X-Token", "X Token"]}}),
    ("/redact/headers", {"redact": {"headers": ["X-Token"] * 65}}),
    ("/redact/body", {"redact": {"body": "yes"}}),
    ("/redact/url", {"redact": {"url": True}}),
    ("/on_success", {"on_success": 1}),
    ("/on_success", {"on_success": "ftp://example.com/"}),
    ("/on_success", {"on_success": "http://10.0.0.1/"}),
    ("/on_dead", {"on_dead": ""}),
    ("/on_dead", {"on_dead": "https://example.com:22/"}),
    ("/on_dead", {"on_dead": "https://example.com/" + "a" * 8192}),
]

BAD_TEXTS: list[tuple[int, str | None, bytes]] = [
    (400, None, b""),
    (400, None, b"{"),
    (400, None, b"[]"),
    (400, None, b'{"url": "x"} x'),
    (400, None, b'{"url": "\xff"}'),
    (400, None, b'\xef\xbb\xbf{"url": "x"}'),
    (400, None, '{"url": "x"}'.encode("utf-16")),
    (400, None, b'{"json": ' + b"[" * 200_000),
    (400, None, b'{"json": ' + b"9" * 10_000 + b"}"),
    (422, "/json", b'{"url": "http://127.0.0.1:9999/", "json": NaN}'),
    (422, "/json/a/0", b'{"url": "http://127.0.0.1:9999/", "json": {"a": [1e999]}}'),
    (422, "/json/a", b'{"url": "http://127.0.0.1:9999/", "json": {"a": "\\u0000"}}'),
    (422, "/json/a", b'{"url": "http://127.0.0.1:9999/", "json": {"a": 1, "a": 2}}'),
    (422, "/json/a", b'{"url": "http://127.0.0.1:9999/", "json": {"a": "\\ud800"}}'),
    (422, "/json/\ufffd", b'{"url": "http://127.0.0.1:9999/", "json": {"\\ud800": 1}}'),
    (422, "/body", b'{"url": "http://127.0.0.1:9999/", "body": "\\ud800"}'),
    (422, "/url", b'{"url": "http://127.0.0.1:9999/", "url": "http://127.0.0.1:9999/"}'),
    (422, "/metadata", b'{"url": "http://127.0.0.1:9999/", "metadata": Infinity}'),
]


async def test_bad_fields(api: Api) -> None:
    """FO-038, FO-039, FO-040: One wrong field is one fault, at its pointer, and nothing is stored."""
    wrong = []
    for where, members in BAD_FIELDS:
        problem = assert_problem(await api.post("/v1/jobs", {"url": TARGET, **members}), 422)
        if pointers(problem) != {where}:
            wrong.append((where, str(members)[:80], problem["errors"]))
    assert not wrong
    assert (await api.get("/v1/jobs")).json()["data"] == []


async def test_bad_texts(api: Api) -> None:
    """FO-038, FO-039, FO-040: What is not strict JSON is refused, by place where it has one."""
    wrong = []
    for status, where, content in BAD_TEXTS:
        answer = await api.post("/v1/jobs", content)
        if answer.status_code != status or (where is not None and pointers(answer.json()) != {where}):
            wrong.append((content[:60], answer.text))
    assert not wrong
    assert (await api.get("/v1/jobs")).json()["data"] == []


async def test_all_faults_at_once(api: Api) -> None:
    """Faults of every layer come together: JSON, shape, rules, target."""
    content = (
        '{"headers": {"Host": "x", "A": "b"}, "json": NaN, "priority": 11, "unique_for": "1d", "nope": 1, '
        '"run_at": "2001-01-01T00:00:00Z", "delay": 1, "expires_at": "2001-01-01T00:00:00Z"}'
    )
    problem = assert_problem(await api.post("/v1/jobs", content), 422)
    assert pointers(problem) == {
        "/url",
        "/headers/Host",
        "/json",
        "/priority",
        "/unique_for",
        "/nope",
        "/delay",
        "/expires_at",
    }


async def test_null_is_left_out(api: Api) -> None:
    """Clients that write every member send null for what they leave out."""
    members = dict.fromkeys(
        ["method", "headers", "body", "run_at", "timeout", "retry", "tags", "metadata", "unique_key"]
    )
    job = await api.create(**members, body_base64=None, expires_at=None, priority=None)
    assert job["method"] == "POST"


async def test_rejected_values_are_never_repeated(api: Api) -> None:
    """A rejected input may hold secrets: no problem shows one, whatever is wrong with it."""
    secret = "s3cr3t-t0ken"
    for members in (
        {"url": f"http://{secret}@127.0.0.1/"},
        {"url": f"gopher://{secret}/"},
        {"headers": {"A": f"{secret}\n"}},
        {"headers": [["A", [secret]]]},
        {"body": {"a": secret}},
        {"json": 1, "body": secret},
        {"body_base64": secret},
        {"run_at": secret},
        {"run_at_local": secret, "timezone": secret},
        {"delay": secret},
        {"id": secret},
        {"method": secret},
        {"queue": f"{secret} x"},
        {"priority": secret},
        {"tags": [f"{secret}\n"]},
        {"retry": secret},
        {"retry": {"on": secret, "max_attempts": secret, "backoff": {"kind": secret, "factor": secret}}},
        {"metadata": secret * 1000},
        {"unknown": secret},
        {"redact": secret},
    ):
        answer = await api.post("/v1/jobs", {"url": TARGET, **members})
        assert_problem(answer, 422)
        assert secret not in answer.text
    assert secret not in (await api.post("/v1/jobs", f'{{"url": "{secret}')).text


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/json; charset=latin-1"},
        {"content-encoding": "gzip"},
    ],
    ids=str,
)
async def test_other_media_types(api: Api, headers: dict[str, str]) -> None:
    """JSON in UTF-8 and nothing else."""
    assert_problem(await api.post("/v1/jobs", {"url": TARGET}, headers=headers), 415)


@pytest.mark.parametrize("content_type", ["application/json; charset=UTF-8", "application/vnd.x+json", ""])
async def test_json_media_types(api: Api, content_type: str) -> None:
    """A charset that says what JSON is anyway is fine."""
    assert (await api.post("/v1/jobs", {"url": TARGET}, headers={"content-type": content_type})).status_code == 201


async def test_hostile_strings_pass_through(api: Api) -> None:
    """Text that is legal comes back as it went in, however it looks."""
    texts = ["' or 1=1 --", "<script>alert(1)</script>", "{{7*7}}", "$(id)", "%00", "😀", "\u202egnp", "a" * 100]
    for text in texts:
        if text.isprintable():
            job = await api.create(concurrency_key=text, tags=[text], metadata={text: text})
            assert (job["concurrency_key"], job["tags"], job["metadata"]) == (text, [text], {text: text})
            listed = await api.get("/v1/jobs", params={"tag": text})
            assert [found["id"] for found in listed.json()["data"]] == [job["id"]]
