"""A claimed job made by hand, for rules that need no database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from duly.model import Backoff, ClaimedJob, RetryPolicy, Trigger, uuid7


def claimed(**settings: Any) -> ClaimedJob:
    """A job under a lease: attempt 1 of 3, due just now, without jitter."""
    plain: dict[str, Any] = {
        "id": uuid7(),
        "attempt": 1,
        "final_attempt": 3,
        "max_attempts": 3,
        "account_id": 1,
        "project_id": 1,
        "lane_id": 1,
        "queue": "default",
        "kind": "k",
        "priority": 5,
        "payload_json": "{}",
        "body": None,
        "timeout": timedelta(seconds=30),
        "retry": RetryPolicy(max_attempts=3, backoff=Backoff(jitter=0)),
        "run_at": datetime(2026, 1, 1, tzinfo=UTC),
        "trigger": Trigger.SCHEDULE,
        "age": timedelta(0),
        "expired": False,
    }
    return ClaimedJob(**{**plain, **settings})
