"""Jobs and attempts as JSON. The fields are `documents`' fields; what is not named here is not shown."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from duly.model import Backoff, RetryPolicy, Unique
from duly.queue import AttemptView, JobView, Operation, QueueSettings
from duly.service.jobs import KIND
from duly.service.moments import show_moment
from duly.service.redaction import Redaction
from duly.service.views import MASK, lag, retry_plan

_MILLISECOND = timedelta(milliseconds=1)


def job_json(job: JobView) -> dict[str, Any]:
    """A job in the clear, or closed (see `sealing`), without its body."""
    request = job.payload if job.kind == KIND and isinstance(job.payload, dict) else {}
    redaction = Redaction.of(request)
    late = lag(job)
    return {
        "id": str(job.id),
        "kind": job.kind,
        "state": str(job.state),
        "reason": job.reason,
        "url": request.get("url"),
        "method": request.get("method"),
        "headers": redaction.masked(request.get("headers", ())),
        "redact": redaction.to_json() if "redact" in request else None,
        "has_body": job.has_body,
        "queue": job.queue,
        "concurrency_key": job.concurrency_key,
        "priority": job.priority,
        "tags": list(job.tags),
        "metadata": job.metadata,
        "timeout": round(_seconds(job.timeout), 3),  # a four-byte float in the table
        "retry": _retry_json(job.retry),
        "run_at": show_moment(job.run_at),
        "next_run_at": _moment(job.next_run_at),
        "expires_at": _moment(job.expires_at),
        "unique_key": job.unique and job.unique.key,
        "unique_for": job.unique and _unique_for(job.unique),
        "on_success": _callback_url(job.on_success),
        "on_dead": _callback_url(job.on_dead),
        "callback_of": None if job.callback_of is None else str(job.callback_of),
        "replay_of": None if job.replay_of is None else str(job.replay_of),
        "created_at": show_moment(job.created_at),
        "started_at": _moment(job.started_at),
        "finished_at": _moment(job.finished_at),
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
        "retry_plan": _all_seconds(retry_plan(job)),
        "last_outcome": job.last_outcome,
        "last_status_code": job.last_status_code,
        "last_error": job.last_error,
        "lag_ms": None if late is None else late // _MILLISECOND,
        "cancel_requested": job.cancel_requested,
        "held": job.held,
    }


def etag(job: JobView) -> str:
    """The entity tag of a job as it is shown: another one whenever anything of it is different, its body too, which
    changes with the revision.
    """
    shown = json.dumps([job.revision, job_json(job)], sort_keys=True, ensure_ascii=False).encode()
    return f'"{hashlib.sha256(shown).hexdigest()[:32]}"'


def operation_json(operation: Operation) -> dict[str, Any]:
    """An operation as its owner may see it."""
    return {
        "id": str(operation.id),
        "call": operation.call,
        "state": "running" if operation.finished_at is None else "finished",
        "filter": operation.filter,
        "limit": operation.most,
        "rate": round(operation.rate, 3),
        "requested_by": operation.requested_by,
        "requested_at": show_moment(operation.requested_at),
        "looked": operation.looked,
        "done": operation.done,
        "refused": operation.refused,
        "finished_at": _moment(operation.finished_at),
    }


def _callback_url(payload: Any) -> str | None:
    return payload.get("url") if isinstance(payload, dict) else None


def _unique_for(unique: Unique) -> str | float:
    return _seconds(unique.until) if isinstance(unique.until, timedelta) else f"until_{unique.until}"


def body_json(job: JobView) -> dict[str, str | None]:
    """A job's body in the clear: as text if it is UTF-8, else in base64; "***" if it is to be redacted."""
    body = job.body
    if body is None:
        return {"request_body": None}
    if Redaction.of(job.payload).body:
        return {"request_body": MASK}
    try:
        return {"request_body": body.decode("utf-8")}
    except UnicodeDecodeError:
        return {"request_body_base64": base64.b64encode(body).decode("ascii")}


def attempt_json(attempt: AttemptView) -> dict[str, Any]:
    """An attempt as its owner may see it: no worker, no remote address."""
    detail = attempt.detail
    duration_ms = detail.get("duration_ms", (attempt.finished_at - attempt.started_at) / _MILLISECOND)
    return {
        "number": attempt.number,
        "trigger": attempt.trigger,
        "started_at": show_moment(attempt.started_at),
        "finished_at": show_moment(attempt.finished_at),
        "duration_ms": duration_ms,
        "phases": detail.get("phases", {}),
        "resent": bool(detail.get("resent", False)),
        "outcome": attempt.outcome,
        "status_code": attempt.status_code,
        "error": attempt.error,
        "response_headers": detail.get("response_headers", []),
        "response_excerpt": None if attempt.excerpt is None else attempt.excerpt.decode("utf-8", "replace"),
        "response_truncated": bool(detail.get("excerpt_truncated", False)),
        "retry_after_s": detail.get("retry_after_s"),
        "next_run_at": _moment(attempt.next_run_at),
    }


def queue_json(name: str, settings: QueueSettings) -> dict[str, Any]:
    """A queue and what applies to it."""
    rate, defaults = settings.rate, settings.defaults
    return {
        "name": name,
        "concurrency": settings.concurrency,
        "key_concurrency": settings.key_concurrency,
        "rate": None if rate is None else {"limit": rate.limit, "per": _seconds(rate.per)},
        "timeout": None if defaults.timeout is None else _seconds(defaults.timeout),
        "retry": {
            "max_attempts": defaults.max_attempts,
            "backoff": None if defaults.backoff is None else _backoff_json(defaults.backoff),
            "max_age": None if defaults.max_age is None else _seconds(defaults.max_age),
            "on": list(defaults.on) if isinstance(defaults.on, tuple) else defaults.on,
        },
        "paused": settings.paused,
    }


@lru_cache(maxsize=1024)
def _all_seconds(durations: tuple[timedelta, ...]) -> Sequence[int | float]:
    """Remembered, as most jobs have the same plan."""
    return [_seconds(duration) for duration in durations]


@lru_cache(maxsize=1024)
def _retry_json(retry: RetryPolicy) -> Mapping[str, Any]:
    """Remembered, as most jobs have the same policy."""
    return {
        "max_attempts": retry.max_attempts,
        "backoff": _backoff_json(retry.backoff),
        "max_age": _seconds(retry.max_age),
        "on": retry.on if isinstance(retry.on, str) else list(retry.on),
    }


def _backoff_json(backoff: Backoff) -> dict[str, Any]:
    return {
        "kind": backoff.kind,
        "base": _seconds(backoff.base),
        "factor": backoff.factor,
        "max": _seconds(backoff.max),
        "jitter": backoff.jitter,
        "steps": [_seconds(step) for step in backoff.steps],
    }


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else show_moment(moment)


def _seconds(duration: timedelta) -> int | float:
    seconds = duration.total_seconds()
    return int(seconds) if seconds.is_integer() else seconds
