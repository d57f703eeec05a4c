"""Signatures as receivers check them: with the official libraries, during a rotation, and a day later."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import standardwebhooks
import standardwebhooks.webhooks
import svix

from duly.http import Deliverer, encode_secret

from .servers import OK, OPEN_LOOPBACK, Received, make_job, raw_server

OLD, NEW, OTHER = b"old-secret-0123456789abcdef", b"new-\x00\xff-secret-0123456789", b"other-secret-0123456789abc"
LIBRARIES = [standardwebhooks.Webhook, svix.Webhook]
DAY = timedelta(days=1)
BODIES = {
    "empty object": b"{}",
    "big numbers": b'{"n":123456789012345678901234567890.10,"m":1e400,"k":-0.0,"i":9007199254740993}',
    "spaces and order": b'{ "b" : 1,\r\n\t"a":2 , "a":3 }\n',
    "Unicode": '{"\u2603":"\u00e9\U0001f600\u202e\ufeff"}'.encode(),
    "escapes": b'{"s":"\\u2603\\ud800\\/"}',
    "binary": bytes(range(128)),
    "form": b"a=1&b=%00",
    "empty": b"",
    "large": b'{"x":"' + b"y" * 250_000 + b'"}',
}


class Clock:
    """The time of both sides."""

    def __init__(self) -> None:
        self.now = datetime(2026, 3, 4, 5, 6, 7, 890000, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that the libraries read, too."""
    both = Clock()

    class Datetime(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return both.now

    monkeypatch.setattr(standardwebhooks.webhooks, "datetime", Datetime)
    return both


def _is_accepted(library: Any, secret: bytes, got: Received, body: bytes | None = None) -> bool:
    headers = {name: value for name, value in got.headers if name.startswith("webhook-")}
    text = (got.body if body is None else body).decode()
    try:
        hook = library(encode_secret(secret))
        hook.verify(text, headers) if library is svix.Webhook else hook.verify(text, headers, json_parse=False)
    except standardwebhooks.WebhookVerificationError:
        return False
    return True


async def _delivered(
    clock: Clock, attempts: Sequence[tuple[timedelta, Sequence[bytes]]], body: bytes
) -> list[Received]:
    """One job, attempt after attempt: how much later, and with which secrets."""
    async with raw_server(OK) as server, Deliverer(OPEN_LOOPBACK, clock=clock) as deliverer:
        for number, (later, secrets) in enumerate(attempts, 1):
            clock.now += later
            await deliverer.deliver(make_job(server.url(), body=body, attempt=number), secrets)
    return server.received


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
async def test_both_secrets_hold_during_a_rotation(library: Any, body: bytes, clock: Clock) -> None:
    """What arrived is what was signed: receivers with the old and with the new secret accept it, one with another does
    not, nor does any accept a changed body."""
    [got] = await _delivered(clock, [(timedelta(0), [OLD, NEW])], body)
    assert got.body == body
    assert [_is_accepted(library, secret, got) for secret in (OLD, NEW, OTHER)] == [True, True, False]
    assert not _is_accepted(library, NEW, got, body + b" ")
    assert not _is_accepted(library, NEW, got, body[:-1] + b"~")


@pytest.mark.parametrize("library", LIBRARIES)
async def test_a_retry_a_day_later_is_signed_anew(library: Any, clock: Clock) -> None:
    """The id stays, the time and the signature are those of the attempt: the first is too old by then, the second is
    accepted, by the secret that there is by then."""
    first, second = await _delivered(clock, [(timedelta(0), [OLD, NEW]), (DAY, [NEW])], b'{"n":1}')
    assert first.header("webhook-id") == second.header("webhook-id") == second.header("Duly-Job-Id")
    times = [int(got.header("webhook-timestamp") or 0) for got in (first, second)]
    assert times[1] - times[0] == 86400
    assert times[1] == int(clock.now.timestamp())
    assert [_is_accepted(library, NEW, got) for got in (first, second)] == [False, True]
    assert not _is_accepted(library, OLD, second)
    clock.now -= DAY
    assert [_is_accepted(library, secret, first) for secret in (OLD, NEW)] == [True, True]


async def test_bytes_that_are_no_text_are_signed_as_they_are(clock: Clock) -> None:
    """The libraries take text only; their own arithmetic over the bytes agrees all the same."""
    body = bytes(range(256))
    [got] = await _delivered(clock, [(timedelta(0), [OLD])], body)
    signed = f"{got.header('webhook-id')}.{got.header('webhook-timestamp')}.".encode() + body
    key = standardwebhooks.Webhook(encode_secret(OLD))._whsecret
    import base64

    digest = standardwebhooks.webhooks.hmac_data(key, signed)
    assert got.header("webhook-signature") == "v1," + base64.b64encode(digest).decode()
