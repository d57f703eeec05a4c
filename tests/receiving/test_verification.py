"""What is from Duly is known as such, and nothing else is."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from duly import InvalidInputError, VerificationError, uuid7, verify
from duly.http import encode_secret, sign

SECRET = b"s" * 32
OTHER = b"o" * 32
TEXT = encode_secret(SECRET)
NOW_S = 1_800_000_000
JOB = uuid7()


def signed(body: bytes, *secrets: bytes, job: UUID = JOB, at_s: int = NOW_S) -> dict[str, str]:
    return {"Duly-Attempt": "2", "Duly-Trigger": "retry", **dict(sign(secrets, str(job), at_s, body))}


def checked(body: bytes, headers: Any, secrets: Any = TEXT, now_s: float = NOW_S) -> Any:
    return verify(body, headers, secrets, now_s=now_s)


@given(st.binary(max_size=200))
def test_what_duly_signs_is_verified(body: bytes) -> None:
    """Any bytes; and the library of Standard Webhooks signs the same."""
    found = checked(body, signed(body, SECRET))
    assert (found.job_id, found.body, found.attempt, found.trigger) == (JOB, body, 2, "retry")


def test_the_reference_library_signs_the_same() -> None:
    """A request that it signed is verified."""
    text = '{"a": "ü"}'
    theirs = Webhook(encode_secret(SECRET)).sign(str(JOB), datetime.fromtimestamp(NOW_S, UTC), text)
    headers = {"WEBHOOK-ID": str(JOB), "Webhook-Timestamp": str(NOW_S), "webhook-signature": theirs}
    assert checked(text.encode(), headers).job_id == JOB


def test_secrets_change_without_a_gap() -> None:
    """Signed with both, or known by both: one match is enough."""
    assert checked(b"x", signed(b"x", OTHER, SECRET)).job_id == JOB
    assert checked(b"x", signed(b"x", SECRET), [encode_secret(OTHER), encode_secret(SECRET)]).job_id == JOB


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"webhook-id": str(uuid7())}, "not of one of the secrets"),
        ({"webhook-timestamp": str(NOW_S + 1)}, "not of one of the secrets"),
        ({"webhook-signature": "v1,AAAA"}, "not of one of the secrets"),
        ({"webhook-signature": "v1a," + base64.b64encode(b"x" * 64).decode()}, "not of one of the secrets"),
        ({"webhook-signature": "ü"}, "not of one of the secrets"),
        ({"webhook-signature": " ".join(["v1,x"] * 1000)}, "not of one of the secrets"),
        ({"webhook-id": ""}, "webhook-id is missing"),
        ({"webhook-timestamp": ""}, "webhook-timestamp is missing"),
        ({"webhook-signature": ""}, "webhook-signature is missing"),
    ],
)
def test_what_was_changed_is_refused(change: dict[str, str], says: str) -> None:
    """A header that is missing, and one that was changed."""
    with pytest.raises(VerificationError, match=says):
        checked(b"x", signed(b"x", SECRET) | change)


def test_another_body_or_secret_is_refused() -> None:
    """A byte more, and a project's other secret."""
    with pytest.raises(VerificationError):
        checked(b"x ", signed(b"x", SECRET))
    with pytest.raises(VerificationError):
        checked(b"x", signed(b"x", OTHER))


@pytest.mark.parametrize("away_s", [-301, 301, -(10**9)])
def test_what_is_old_or_of_the_future_is_refused(away_s: int) -> None:
    """Five minutes either way, unless another tolerance is given."""
    headers = signed(b"x", SECRET, at_s=NOW_S + away_s)
    with pytest.raises(VerificationError, match=r"away from now|no time in seconds"):
        checked(b"x", headers)
    assert checked(b"x", signed(b"x", SECRET, at_s=NOW_S + 299)).job_id == JOB
    longer = timedelta(seconds=abs(away_s) + 1)
    if away_s > -1000:
        assert verify(b"x", headers, encode_secret(SECRET), tolerance=longer, now_s=NOW_S).job_id == JOB


@pytest.mark.parametrize("timestamp", ["1.8e9", "-1", " 1800000000", "١٨", "1" * 13, "nan"])
def test_a_time_that_is_none_is_refused(timestamp: str) -> None:
    """Though it is signed."""
    from duly.model.webhooks import signature

    headers = {
        "webhook-id": str(JOB),
        "webhook-timestamp": timestamp,
        "webhook-signature": signature(SECRET, str(JOB), timestamp, b"x"),
    }
    with pytest.raises(VerificationError, match="no time"):
        checked(b"x", headers)


def test_a_header_that_stands_there_twice_is_refused() -> None:
    """Which of them would be the one that was signed?"""
    headers = [*signed(b"x", SECRET).items(), ("Webhook-Id", str(uuid7()))]
    with pytest.raises(VerificationError, match="twice"):
        checked(b"x", headers)


def test_what_is_no_secret_or_no_body_is_the_programs_mistake() -> None:
    """InvalidInputError, before the request is looked at."""
    wrong: list[tuple[Any, Any]] = [(b"x", "whsec_!"), (b"x", []), ("x", encode_secret(SECRET)), (b"x", "")]
    for body, secrets in wrong:
        with pytest.raises(InvalidInputError):
            checked(body, signed(b"x", SECRET), secrets)


def test_headers_that_are_not_signed_are_only_told() -> None:
    """An attempt that is no number is None."""
    found = checked(b"x", signed(b"x", SECRET) | {"Duly-Attempt": "٣"})
    assert found.attempt is None
