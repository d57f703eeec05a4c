"""How an attempt ended: what a handler returns.

`Outcome = Success | Retry | Snooze | Hold | Bury | Cancel | Interrupted`, matched exhaustively. Each but `Hold` may
carry a `Report`, the part of the ledger that the handler knows: status code, timings, excerpt, error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

from duly.model.states import DeadReason


@dataclass(frozen=True, slots=True)
class Report:
    """What the ledger keeps of one attempt, as the handler saw it.

    `result`: the attempt's class (success, http_error, dns_error, connect_refused, connect_timeout, tls_error, timeout,
    protocol_error, target_not_allowed, error, interrupted …). `error`: one line for people, or None. `excerpt`: the
    first bytes of the answer, raw.
    `detail`: JSON for the ledger: phases in milliseconds, kept response headers, retry_after_s, remote_address.

    What cannot be stored is mended and never fails the attempt: long texts are cut, parts of a wrong type left out (see
    `recording.sound_report`), NaN and foreign values in `detail` become text.
    """

    result: str
    error: str | None = None
    status_code: int | None = None
    duration: timedelta | None = None
    excerpt: bytes | None = None
    excerpt_truncated: bool = False
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Success:
    """The work is done. `result` is a JSON value kept with the job, or None.

    None, bool, int of at most 1,024 bits, finite float, text, list, tuple, dict with texts as keys; at most 64 levels
    and 1 MB as JSON. Anything else (NaN, bytes, a larger one …) is a failed attempt whose error names the place, as
    `$.a[3].b`: the job runs again by its policy. NUL and half a surrogate pair in its texts become U+2400 and U+FFFD.
    """

    result: Any = None
    report: Report | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """The attempt failed and may be repeated: after the policy's backoff, or `at_least` if that is longer."""

    report: Report
    at_least: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Snooze:
    """Not now: run again after `delay`; the attempt's budget is not used up."""

    delay: timedelta
    report: Report | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """Nothing was tried: look again after `delay`, under the same attempt number, and leave no trace in the ledger.

    The policy's `max_age` bounds it: the delay ends there at the latest, and held past it the job is dead.
    """

    delay: timedelta
    report: ClassVar[None] = None


@dataclass(frozen=True, slots=True)
class Bury:
    """Never will: straight to the dead letters, for `reason`."""

    reason: DeadReason
    report: Report


@dataclass(frozen=True, slots=True)
class Cancel:
    """The job is not wanted any more."""

    report: Report | None = None


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The worker stopped while the attempt ran. Given back without using up the budget, a bounded number of times."""

    report: Report | None = None


Outcome = Success | Retry | Snooze | Hold | Bury | Cancel | Interrupted
