"""What is shown of a job and of an attempt beyond the stored fields. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Any

from duly.model import FINAL, NewJob, State, Unique
from duly.queue import JobView, Owner

MASK = "***"

# A header's value is a credential if a word of its name says so (X-Session-Id), or if it is a key of one of these kinds
# (X-Goog-Api-Key, but not Idempotency-Key). Delivered intact, hidden on read.
SECRET_WORDS = frozenset(
    {
        "accesskey", "apikey", "assertion", "auth", "authentication", "authorization", "bearer", "cookie", "cookie2",
        "credential", "credentials", "csrf", "dpop", "hmac", "jwt", "otp", "pass", "passcode", "passphrase", "passwd",
        "password", "pin", "privatekey", "pwd", "secret", "secretkey", "session", "sessionid", "sid", "signature",
        "sso", "token", "xsrf",
    }
)  # fmt: skip
SECRET_KINDS_OF_KEY = frozenset(
    {
        "access", "account", "admin", "api", "app", "auth", "client", "encryption", "functions", "license", "master",
        "private", "secret", "service", "signature", "signing", "subscription", "token", "user", "webhook",
    }
)  # fmt: skip
_SECRET_ENDINGS = ("token", "secret", "password", "apikey")  # XToken, AccessToken
_REMEMBERED_LENGTH = 256


def masked_headers(headers: Iterable[Any]) -> list[list[str]]:
    """Name and value pairs in their order, "***" for the values of secret headers and for those not known (None)."""
    return [[name, MASK if value is None or is_secret_header(name) else value] for name, value in headers]


def is_secret_header(name: str) -> bool:
    """Whether a header's value is a credential, by its name. Remembered: the same names come again."""
    return _is_remembered_secret(name) if len(name) <= _REMEMBERED_LENGTH else _is_secret(name)


def _is_secret(name: str) -> bool:
    words = name.lower().replace("_", "-").replace(".", "-").split("-")
    if not SECRET_WORDS.isdisjoint(words) or words[-1].endswith(_SECRET_ENDINGS):
        return True
    return any(word == "key" and before in SECRET_KINDS_OF_KEY for before, word in pairwise(words))


_is_remembered_secret = lru_cache(maxsize=2048)(_is_secret)


def retry_plan(job: JobView) -> tuple[timedelta, ...]:
    """The delays that may still come, before jitter; not the one that a waiting retry is in.

    While an attempt runs, the delay after its failure is the first.
    """
    if job.state in FINAL:
        return ()
    failures = job.attempts - (job.final_attempt - job.max_attempts)
    left = job.final_attempt - job.attempts
    if job.state is not State.RUNNING:
        return job.retry.plan(max(failures, 0), max(left - 1, 0))
    return job.retry.plan(max(failures - 1, 0), max(left, 0))


def lag(job: JobView) -> timedelta | None:
    """How late the first attempt started; None before it, and after it, when only the last one's start is at hand."""
    if job.attempts != 1 or job.started_at is None:
        return None
    return max(job.started_at - job.run_at, timedelta(0))


def as_created(owner: Owner, job: NewJob, now: datetime) -> JobView:
    """A job as it stands right after it was stored at `now`, by the database's clock."""
    run_at = job.run_at or now + (job.delay or timedelta(0))
    return JobView(
        id=job.id,
        account_id=owner.account_id,
        project_id=owner.project_id,
        queue=job.queue,
        concurrency_key=job.concurrency_key,
        kind=job.kind,
        payload=job.payload,
        body=job.body,
        has_body=job.body is not None,
        priority=job.priority,
        state=State.SCHEDULED if run_at > now else State.READY,
        reason=None,
        attempts=0,
        final_attempt=job.retry.max_attempts,
        max_attempts=job.retry.max_attempts,
        run_at=run_at,
        next_run_at=run_at,
        timeout=job.timeout,
        retry=job.retry,
        tags=job.tags,
        metadata=job.metadata,
        expires_at=job.expires_at,
        unique=job.unique and Unique(job.unique.key, job.unique.until),
        created_at=now,
        started_at=None,
        finished_at=None,
        last_outcome=None,
        last_status_code=None,
        last_error=None,
        cancel_requested=False,
        held=False,
        result=None,
        on_success=job.on_success,
        on_dead=job.on_dead,
        callback_of=None,
        replay_of=job.replay_of,
    )
