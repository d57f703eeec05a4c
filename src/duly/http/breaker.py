"""When a target counts as failing, and how long to leave it alone. Pure: what workers share is in `duly.queue.breaker`.

A key is an account and a host: whoever fails there is held, and nobody else.
"""

from __future__ import annotations

import json
import random
from collections import OrderedDict
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from urllib.parse import urlsplit

from duly.model.errors import InvalidInputError
from duly.model.outcomes import Bury, Outcome, Report, Retry, Success
from duly.model.storable import storable_text

Key = tuple[int, str]

JITTER = 0.25
_REMEMBERED_LENGTH = 512  # of a URL, as `url` has it
_NO_ANSWER = frozenset({"dns_error", "connect_refused", "connect_timeout", "tls_error", "timeout", "protocol_error"})


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """`failures` in a row, over at least the time `over`, open a breaker (0: never). Then one probe goes after `pause`,
    and after each that fails the pause doubles, up to `longest_pause`.
    """

    failures: int = 20
    over: timedelta = timedelta(seconds=10)
    pause: timedelta = timedelta(seconds=10)
    longest_pause: timedelta = timedelta(minutes=10)

    def __post_init__(self) -> None:
        if self.failures < 0 or self.over < timedelta(0) or self.pause <= timedelta(0):
            raise InvalidInputError("breaker: failures and over are 0 or more, pause is more than 0")
        if self.longest_pause < self.pause:
            raise InvalidInputError(
                f"breaker: longest_pause {self.longest_pause} is shorter than pause {self.pause}: "
                "raise the one, or lower the other"
            )

    def next_pause(self, pause: timedelta) -> timedelta:
        """The pause after a probe that failed at the end of `pause`."""
        return min(max(pause, self.pause) * 2, max(self.longest_pause, self.pause))


def wait_for_probe(pause: timedelta, rng: random.Random) -> timedelta:
    """How long until the next probe may go: the pause, spread by a quarter."""
    return pause * rng.uniform(1 - JITTER, 1 + JITTER)


def hold_for(wait: timedelta, pause: timedelta, rng: random.Random) -> timedelta:
    """How long to hold one delivery: until a probe may go, and a part of a pause more, so that those which are held
    together do not come back together.
    """
    return max(wait, timedelta(0)) + pause * rng.uniform(0.1, 1.0)


def gets_through(outcome: Outcome) -> bool | None:
    """What a delivery tells of its target: True, it answers; False, it does not, or says that it cannot (5xx, 429);
    None, it was not asked. A 4xx is about the request, so the target is well.
    """
    match outcome:
        case Success():
            return True
        case Retry(report=report) | Bury(report=report):
            return _answers(report)
    return None


def error_of(outcome: Outcome) -> str | None:
    """One line on what failed, as it can be stored."""
    error = outcome.report.error if isinstance(outcome, Retry | Bury) else None
    return None if error is None else storable_text(error)


def host_of(payload_json: str) -> str | None:
    """The host that a stored request goes to; None if it names none, which the delivery will refuse by itself."""
    try:
        url = json.loads(payload_json)["url"]
        return _host(url) if isinstance(url, str) else None
    except (ValueError, TypeError, KeyError):
        return None


def _host(url: str) -> str | None:
    return _remembered_host(url) if len(url) <= _REMEMBERED_LENGTH else urlsplit(url).hostname


@lru_cache(maxsize=4096)
def _remembered_host(url: str) -> str | None:
    return urlsplit(url).hostname


def _answers(report: Report) -> bool | None:
    if report.result in _NO_ANSWER:
        return False
    if report.result == "http_error" and report.status_code is not None:
        return report.status_code < 500 and report.status_code != 429
    return None


@dataclass(slots=True)
class _Run:
    count: int
    since_s: float


class Tally:
    """Failures in a row for each key, as one process sees them. Keys without a failure take no room; the ones that
    failed longest ago are forgotten beyond `most`.
    """

    def __init__(self, settings: BreakerSettings, most: int = 10_000) -> None:
        self._settings = settings
        self._most = most
        self._runs: OrderedDict[Key, _Run] = OrderedDict()

    def __len__(self) -> int:
        return len(self._runs)

    def passed(self, key: Key) -> None:
        """It got through: the run is over."""
        self._runs.pop(key, None)

    def failed(self, key: Key, now_s: float) -> int | None:
        """Count one. Returns how many there were if that opens the breaker, and begins anew; None otherwise."""
        if not self._settings.failures:
            return None
        run = self._runs.setdefault(key, _Run(0, now_s))
        self._runs.move_to_end(key)
        run.count += 1
        if run.count >= self._settings.failures and now_s - run.since_s >= self._settings.over.total_seconds():
            del self._runs[key]
            return run.count
        if len(self._runs) > self._most:
            self._runs.popitem(last=False)
        return None
