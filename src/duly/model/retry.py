"""When to try again: backoff and its limits.

The delay saturates at `max` and never overflows: exponents are capped before they are raised, since 2.0 ** 1024 raises
OverflowError and a huge timedelta does too.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import Any, Literal, get_args

BackoffKind = Literal["exponential", "linear", "fixed", "steps"]

LONGEST = timedelta(days=365)
_MILLENNIUM_S = timedelta(days=365_000).total_seconds()


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delay before each retry.

    exponential: base × factor^(n−1) · linear: base × n · fixed: base · steps: `steps[n−1]`, the last one repeating;
    n is the number of failed attempts of the present budget, from 1. All capped at `max`, then spread by `jitter` (0
    to 1): × uniform(1−j, 1+j).
    Default plan: 10 s, 40 s, 2 m 40 s, 10 m 40 s, 42 m 40 s, 2 h 50 m 40 s, 6 h.
    """

    kind: BackoffKind = "exponential"
    base: timedelta = timedelta(seconds=10)
    factor: float = 4.0
    max: timedelta = timedelta(hours=6)
    jitter: float = 0.25
    steps: tuple[timedelta, ...] = ()

    def ceiling(self, failures: int) -> timedelta:
        """The delay after the given number of failures (1 or more), before jitter."""
        n = max(failures, 1)
        match self.kind:
            case "exponential":
                return self._saturate(_exponential_s(self.base.total_seconds(), self.factor, n - 1))
            case "linear":
                return self._saturate(self.base.total_seconds() * n)
            case "fixed":
                return self._saturate(self.base.total_seconds())
            case "steps":  # pragma: no branch (the last kind)
                return (
                    self._saturate(self.steps[min(n, len(self.steps)) - 1].total_seconds())
                    if self.steps
                    else timedelta(0)
                )

    def delay(self, failures: int, rng: random.Random) -> timedelta:
        """The delay after the given number of failures, spread by jitter so that retries do not go off in lockstep."""
        ceiling_s = self.ceiling(failures).total_seconds()
        return timedelta(seconds=ceiling_s * rng.uniform(1.0 - self.jitter, 1.0 + self.jitter))

    def to_json(self) -> dict[str, Any]:
        """All its parts, durations in seconds."""
        return {
            "kind": self.kind,
            "base": self.base.total_seconds(),
            "factor": self.factor,
            "max": self.max.total_seconds(),
            "jitter": self.jitter,
            "steps": [step.total_seconds() for step in self.steps],
        }

    def _saturate(self, seconds: float) -> timedelta:
        return timedelta(seconds=max(0.0, min(seconds, self.max.total_seconds(), LONGEST.total_seconds())))


def _exponential_s(base_s: float, factor: float, exponent: int) -> float:
    if base_s <= 0.0 or factor <= 0.0:
        return 0.0
    if math.log(base_s) + exponent * math.log(factor) > math.log(LONGEST.total_seconds()):
        return LONGEST.total_seconds()
    return base_s * factor**exponent


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, how long and on what a job is tried again.

    `max_attempts` counts every attempt of one budget, the first included. `max_age` runs from the time the job was due;
    whichever limit comes first ends the job. `on` is "default", "all_non_2xx" or codes and classes such as (404,
    "5xx").
    """

    max_attempts: int = 8
    backoff: Backoff = field(default_factory=Backoff)
    max_age: timedelta = timedelta(hours=24)
    on: str | tuple[int | str, ...] = "default"

    def to_json(self) -> dict[str, Any] | None:
        """What to store: parts that differ from the defaults, durations in seconds; None for the default policy.

        `max_attempts` is a column of its own and left out.
        """
        default = _DEFAULT
        if self.backoff == default.backoff and self.max_age == default.max_age and self.on == default.on:
            return None
        stored: dict[str, Any] = {}
        if self.backoff != default.backoff:
            stored["backoff"] = self.backoff.to_json()
        if self.max_age != default.max_age:
            stored["max_age"] = self.max_age.total_seconds()
        if self.on != default.on:
            stored["on"] = self.on if isinstance(self.on, str) else list(self.on)
        return stored

    @classmethod
    def from_json(cls, stored: object, max_attempts: int) -> RetryPolicy:
        """Read what `to_json` stored; a part left out takes its default.

        So does a part that makes no sense, as SQL may have stored it: a job with a strange policy must not stop the
        claim of those beside it. Durations saturate at 1,000 years.
        """
        default = cls(max_attempts=max_attempts)
        if not isinstance(stored, dict):
            return default
        return cls(
            max_attempts=max_attempts,
            backoff=_read_backoff(stored.get("backoff")),
            max_age=_read_duration(stored.get("max_age"), default.max_age),
            on=_read_on(stored.get("on"), default.on),
        )

    def plan(self, failures: int, attempts_left: int) -> tuple[timedelta, ...]:
        """The delays still to come (before jitter) after `failures` failed attempts, at most `attempts_left` of
        them.
        """
        return _plan(self.backoff, failures, attempts_left)


_DEFAULT = RetryPolicy()


@lru_cache(maxsize=1024)
def _plan(backoff: Backoff, failures: int, attempts_left: int) -> tuple[timedelta, ...]:
    """Remembered: every job that is shown needs one, and most have the same."""
    return tuple(backoff.ceiling(failures + k) for k in range(1, attempts_left + 1))


def _read_backoff(stored: object) -> Backoff:
    default = Backoff()
    if not isinstance(stored, dict):
        return default
    steps = stored.get("steps")
    return Backoff(
        kind=next((kind for kind in get_args(BackoffKind) if kind == stored.get("kind")), default.kind),
        base=_read_duration(stored.get("base"), default.base),
        factor=_read_number(stored.get("factor"), default.factor),
        max=_read_duration(stored.get("max"), default.max),
        jitter=min(1.0, _read_number(stored.get("jitter"), default.jitter)),
        steps=tuple(_read_duration(step, default.base) for step in steps) if isinstance(steps, list) else (),
    )


def _read_number(stored: object, default: float) -> float:
    """0 or more; the default for what is none."""
    if isinstance(stored, bool) or not isinstance(stored, int | float):
        return default
    try:
        number = float(stored)
    except OverflowError:  # an integer beyond any float
        return default
    return number if 0.0 <= number < math.inf else default


def _read_duration(stored: object, default: timedelta) -> timedelta:
    return timedelta(seconds=min(_read_number(stored, default.total_seconds()), _MILLENNIUM_S))


def _read_on(stored: object, default: str | tuple[int | str, ...]) -> str | tuple[int | str, ...]:
    if isinstance(stored, list):
        return tuple(item for item in stored if isinstance(item, int | str))
    return stored if isinstance(stored, str) else default
