"""What is shown of a job: the plan, the lag, masked headers."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from duly.model import NewJob, RetryPolicy, State
from duly.queue import JobView, Owner
from duly.service.views import as_created, is_secret_header, lag, masked_headers, retry_plan

NOW = datetime(2030, 1, 1, tzinfo=UTC)
DEFAULT_PLAN = [10, 40, 160, 640, 2560, 10240, 21600]


def job(state: State = State.READY, attempts: int = 0, final_attempt: int = 8, **fields: object) -> JobView:
    made = as_created(Owner(1, 1), NewJob("http", {}, retry=RetryPolicy()), NOW)
    return replace(made, state=state, attempts=attempts, final_attempt=final_attempt, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "attempts", "final_attempt", "plan"),
    [
        (State.SCHEDULED, 0, 8, DEFAULT_PLAN),
        (State.READY, 0, 8, DEFAULT_PLAN),
        (State.RUNNING, 1, 8, DEFAULT_PLAN),
        (State.SCHEDULED, 1, 8, DEFAULT_PLAN[1:]),
        (State.RUNNING, 2, 8, DEFAULT_PLAN[1:]),
        (State.SCHEDULED, 7, 8, []),
        (State.RUNNING, 8, 8, []),
        (State.SCHEDULED, 1, 9, DEFAULT_PLAN),  # snoozed once: the attempt was not used up
        (State.READY, 8, 16, DEFAULT_PLAN),  # redriven
        (State.RUNNING, 9, 16, DEFAULT_PLAN),
        (State.DEAD, 8, 8, []),
        (State.SUCCEEDED, 1, 8, []),
        (State.CANCELLED, 0, 8, []),
    ],
)
def test_the_plan_is_what_may_still_come(state: State, attempts: int, final_attempt: int, plan: list[int]) -> None:
    """The delays after failures to come; the one that a waiting retry is in is over."""
    assert [delay.total_seconds() for delay in retry_plan(job(state, attempts, final_attempt))] == plan


def test_lag_is_the_first_attempts() -> None:
    """Start minus run_at, never negative, and only where the start at hand is the first attempt's."""
    late = NOW + timedelta(seconds=3)
    assert lag(job()) is None
    assert lag(job(State.RUNNING, 1, started_at=late)) == timedelta(seconds=3)
    assert lag(job(State.RUNNING, 1, started_at=NOW - timedelta(seconds=1))) == timedelta(0)
    assert lag(job(State.RUNNING, 2, started_at=late)) is None


@pytest.mark.parametrize(
    "name",
    [
        "Authorization", "COOKIE", "X-API-Key", "x_api_key", "X-Any-Token", "My-Secret", "Token", "X-Secret-Key",
        "X-Session", "X-Jwt", "DPoP", "Authentication", "X-Passwd", "X-Credentials", "Cookie2",
        "X-Webhook-Signature-Key", "X-Goog-Iap-Jwt-Assertion", "X-Signature", "X.Access.Token", "XToken",
        "X-Session-Id", "X-Hub-Signature-256",
        "Ocp-Apim-Subscription-Key", "X-Goog-Api-Key",
    ],
)  # fmt: skip
def test_secret_headers(name: str) -> None:
    """Credentials by name, in any case and writing."""
    assert is_secret_header(name)
    assert masked_headers([[name, "value"]]) == [[name, "***"]]


@pytest.mark.parametrize(
    "name",
    ["Content-Type", "X-Request-Id", "Accept", "Tokens-Left", "Idempotency-Key", "X-Cache-Key", "X-Author"],
)
def test_other_headers(name: str) -> None:
    """Everything else shows."""
    assert masked_headers([[name, "value"]]) == [[name, "value"]]
