"""What arrives at the target, byte by byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
import standardwebhooks
import uvloop

from duly.http import USER_AGENT, Deliverer, encode_secret, new_request
from duly.model import Bury, DeadReason, Success

from .servers import JOB_ID, OK, OPEN_LOOPBACK, deliver, make_job, raw_server, report_of


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/a?",
        "/a/../b/./c",
        "//double//",
        "/%7Euser/%2e%2E/%zz",
        "/a?b=c&d=%20+e?f",
        "/a;p=1/{x}|'()*",
        "/?next=http://10.0.0.1/",
    ],
)
async def test_path_and_query_are_sent_as_given(path: str) -> None:
    """No dot segment is resolved, nothing is requoted, an empty query keeps its question mark."""
    async with raw_server(OK) as server:
        assert isinstance(await deliver(make_job(server.url(path), "GET")), Success)
    assert server.received[0].line == f"GET {path} HTTP/1.1"


async def test_non_ascii_path_is_encoded_once() -> None:
    """é travels as %C3%A9, and %C3%A9 travels as itself."""
    async with raw_server(OK) as server:
        await deliver(make_job(server.url("/\u00e9/%C3%A9?q=\u00fc"), "GET"))
    assert server.received[0].line == "GET /%C3%A9/%C3%A9?q=%C3%BC HTTP/1.1"


async def test_headers_keep_order_and_case_and_nothing_is_made_up() -> None:
    """User headers come first, as written, repeats in other spellings too; no Accept or Content-Type is invented."""
    given = [("x-B", "1"), ("X-a", ""), ("X-b", "2"), ("Cookie", "a=b"), ("Authorization", "Bearer t")]
    async with raw_server(OK) as server:
        await deliver(make_job(server.url(), headers=given))
    sent = server.received[0].headers
    assert sent[1:6] == given
    assert [name for name, _ in sent] == [
        "Host", "x-B", "X-a", "X-b", "Cookie", "Authorization", "User-Agent", "Idempotency-Key", "Accept-Encoding",
        "Duly-Job-Id", "Duly-Attempt", "Duly-Max-Attempts", "Duly-Trigger", "Duly-Scheduled-At", "Duly-Hops",
        "webhook-id", "webhook-timestamp", "Content-Length",
    ]  # fmt: skip


async def test_service_headers_have_the_documented_values() -> None:
    """Job, attempt, budget, trigger, time, hops, key and identity are there."""
    async with raw_server(OK) as server:
        await deliver(make_job(server.url(), attempt=2, hops=3))
    got = server.received[0]
    expected = {
        "Host": f"127.0.0.1:{server.port}",
        "User-Agent": USER_AGENT,
        "Idempotency-Key": str(JOB_ID),
        "Accept-Encoding": "identity",
        "Duly-Job-Id": str(JOB_ID),
        "Duly-Attempt": "2",
        "Duly-Max-Attempts": "8",
        "Duly-Trigger": "schedule",
        "Duly-Scheduled-At": "2026-01-02T03:04:05.678900Z",
        "Duly-Hops": "4",
        "webhook-id": str(JOB_ID),
        "webhook-timestamp": "1767323045",
        "Content-Length": "2",
    }
    assert {name: got.header(name) for name in expected} == expected


async def test_caller_may_set_user_agent_and_idempotency_key() -> None:
    """What the caller set is sent once, in place of the default."""
    async with raw_server(OK) as server:
        await deliver(make_job(server.url(), headers=[("user-agent", "me"), ("idempotency-key", "k")]))
    names = [name.lower() for name, _ in server.received[0].headers]
    assert (server.received[0].header("User-Agent"), server.received[0].header("Idempotency-Key")) == ("me", "k")
    assert names.count("user-agent") == names.count("idempotency-key") == 1


@pytest.mark.parametrize(
    "body", [b"", b"\x00\xff\r\n\r\n", "\u2603".encode(), b'{"n":12345678901234567890.10}', b"x" * 300_000]
)
async def test_body_arrives_exactly_and_its_signature_holds(body: bytes) -> None:
    """The bytes are the stored ones, and the official library accepts them, with any of the rotating secrets."""
    secrets = [b"old-secret-0123456789abcdef", b"new-secret-0123456789abcdef"]
    async with raw_server(OK) as server:
        await deliver(make_job(server.url(), body=body), secrets)
    got = server.received[0]
    assert got.body == body
    assert got.header("Content-Length") == str(len(body))
    assert (got.header("webhook-signature") or "").count("v1,") == 2
    for secret in secrets:
        hook = standardwebhooks.Webhook(encode_secret(secret))
        signed = f"{got.header('webhook-id')}.{got.header('webhook-timestamp')}.".encode() + body
        assert any(_matches(hook, signed, part) for part in (got.header("webhook-signature") or "").split(" "))


def _matches(hook: standardwebhooks.Webhook, signed: bytes, part: str) -> bool:
    import base64
    import hashlib
    import hmac

    return part == "v1," + base64.b64encode(hmac.new(hook._whsecret, signed, hashlib.sha256).digest()).decode()


async def test_two_megabyte_body_is_sent_with_its_length() -> None:
    """An operator may raise the body limit: no warning, no chunked encoding."""
    body = b"z" * (2 << 20)
    async with raw_server(OK) as server:
        assert isinstance(await deliver(make_job(server.url(), body=body)), Success)
    assert server.received[0].body == body
    assert server.received[0].header("Transfer-Encoding") is None


@pytest.mark.parametrize(
    ("method", "length"),
    [("GET", None), ("HEAD", None), ("POST", "0"), ("PUT", "0"), ("DELETE", "0"), ("OPTIONS", None)],
)
async def test_request_without_a_body(method: str, length: str | None) -> None:
    """Content-Length: 0 where a body is expected, no header where it is not."""
    async with raw_server(b"HTTP/1.1 204 No Content\r\n\r\n") as server:
        assert isinstance(await deliver(make_job(server.url(), method, body=None)), Success)
    assert server.received[0].header("Content-Length") == length


async def test_ipv6_literal_is_dialled_and_named_in_brackets() -> None:
    """FO-073: [::1] works as a target, in the Host header too."""
    async with raw_server(OK, host="::1") as server:
        outcome = await deliver(make_job(server.url()))
    assert isinstance(outcome, Success)
    assert server.received[0].header("Host") == f"[::1]:{server.port}"
    assert report_of(outcome).detail["remote_address"] == "::1"


async def test_connections_are_reused_within_an_account_and_never_between() -> None:
    """Two jobs of one account share a connection; another account to the same host gets its own."""
    async with raw_server(OK, closes=False) as server, Deliverer(OPEN_LOOPBACK) as deliverer:
        for account in (1, 1, 2, 2):
            assert isinstance(await deliverer.deliver(make_job(server.url(), account_id=account)), Success)
        assert len(server.received) == 4
        assert server.connections == 2


async def test_fo_069_trailers_do_not_spoil_the_next_answer() -> None:
    """FO-069: a chunked answer with trailers, twice on one connection: both read correctly."""
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n2\r\nok\r\n0\r\nX-T: 1\r\n\r\n"
    async with raw_server(chunked, closes=False) as server, Deliverer(OPEN_LOOPBACK) as deliverer:
        outcomes = [await deliverer.deliver(make_job(server.url())) for _ in range(2)]
        assert server.connections == 1
    assert [report_of(outcome).excerpt for outcome in outcomes] == [b"ok", b"ok"]


async def test_no_cookie_is_carried_to_the_next_request() -> None:
    """Set-Cookie is masked in the record and sent back to nobody."""
    cookie = b"HTTP/1.1 200 OK\r\nSet-Cookie: s=secret; Path=/\r\nContent-Length: 0\r\n\r\n"
    async with raw_server(cookie, closes=False) as server, Deliverer(OPEN_LOOPBACK) as deliverer:
        first = await deliverer.deliver(make_job(server.url()))
        await deliverer.deliver(make_job(server.url()))
    assert server.received[1].header("Cookie") is None
    assert ["set-cookie", "***"] in report_of(first).detail["response_headers"]


async def test_connect_phase_tells_a_new_connection_from_a_kept_one() -> None:
    """The first delivery takes time to connect, the next on the same connection takes none."""
    async with raw_server(OK, closes=False) as server, Deliverer(OPEN_LOOPBACK) as deliverer:
        reports = [report_of(await deliverer.deliver(make_job(server.url()))) for _ in range(2)]
    took = [report.detail["phases"]["connect"] for report in reports]
    assert took[0] > 0
    assert (took[1], server.connections) == (0.0, 1)


async def test_report_has_status_phases_headers_and_excerpt() -> None:
    """The ledger learns what happened and how long it took."""
    data = (
        b"HTTP/1.1 201 Made\r\nContent-Type: text/plain\r\nX-Request-Id: r1\r\nX-Other: o\r\n"
        b"Content-Length: 4\r\n\r\nmade"
    )
    async with raw_server(data) as server:
        report = report_of(await deliver(make_job(server.url())))
    assert (report.result, report.status_code, report.excerpt, report.error) == ("success", 201, b"made", None)
    assert set(report.detail["phases"]) == {"dns", "connect", "first_byte", "total"}
    assert report.detail["response_headers"] == [
        ["content-type", "text/plain"],
        ["x-request-id", "r1"],
        ["content-length", "4"],
    ]
    assert json.dumps(report.detail)


async def test_stored_request_is_parsed_strictly_again() -> None:
    """A payload that no creation would accept is buried, not sent."""
    async with raw_server(OK) as server:
        payloads: list[Any] = [
            {"url": f"http://a@127.0.0.1:{server.port}/"},
            {"url": 5},
            [],
            {"url": server.url(), "headers": [["Host", "x"]]},
        ]
        for payload in payloads:
            outcome = await deliver(make_job("", payload=payload))
            assert isinstance(outcome, Bury)
            assert outcome.reason is DeadReason.PERMANENT
    assert server.connections == 0


def test_it_works_on_uvloop() -> None:
    """The same code on the other event loop: success, and a refused address stays refused."""

    async def both() -> None:
        async with raw_server(OK) as server:
            assert isinstance(await deliver(make_job(server.url())), Success)
            report = report_of(await deliver(make_job("http://10.0.0.1/")))
            assert report.result == "target_not_allowed"

    with_uvloop = uvloop.new_event_loop()
    try:
        with_uvloop.run_until_complete(both())
    finally:
        with_uvloop.close()


def test_payload_round_trip() -> None:
    """What is stored is what is read."""
    request = new_request("HTTPS://Example.com:443/a?b#"[:-1], "PUT", [("X-A", "1")], b"x", 2)
    assert type(request).from_payload(json.loads(json.dumps(request.to_payload())), b"x") == request
    assert request.to_payload()["url"] == "https://example.com/a?b"
