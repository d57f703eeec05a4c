"""The breaker of a worker process: who is held, who probes, and what it tells the others.

A delivery never waits for the database here, but for the moment in which it asks to be a probe: what is open is read by
a loop, about once a second, and what it finds out is written by the same loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

import asyncpg

from duly.http.breaker import (
    BreakerSettings,
    Key,
    Tally,
    error_of,
    gets_through,
    hold_for,
    host_of,
    wait_for_probe,
)
from duly.model.errors import DatabaseUnavailableError
from duly.model.jobs import ClaimedJob
from duly.model.outcomes import Hold, Outcome
from duly.queue import Database
from duly.queue.breaker import claim_probe, close_breaker, end_probe, forget_breakers, list_breakers, open_breaker
from duly.upkeep.running import every

log = logging.getLogger("duly.breaker")

READ_EVERY = timedelta(seconds=1)
FORGET_EVERY_S = 3600.0
UNUSED_FOR = timedelta(days=1)
ASK_LIMIT_S = 1.0
PROBE_GRACE = timedelta(seconds=5)
"""A probe counts for its job's time limit and this much longer: to get from the claim to the target, and to be told."""


@dataclass(slots=True)
class _Open:
    """What this process knows of an open breaker; times by its own monotonic clock."""

    pause: timedelta
    probe_at_s: float
    probing_until_s: float


@dataclass(frozen=True, slots=True)
class _Opened:
    failures: int
    error: str | None
    wait: timedelta


@dataclass(frozen=True, slots=True)
class _Probed:
    number: int
    failed: bool
    error: str | None
    pause: timedelta
    wait: timedelta


@dataclass(frozen=True, slots=True)
class _Passed:
    pass


class Breaker:
    """Lets deliveries through, holds them, or sends one as a probe. One per process; `run` it beside the worker.

    The counters are of this process, since its start.
    """

    def __init__(
        self,
        db: Database,
        settings: BreakerSettings | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._db = db
        self._settings = settings or BreakerSettings()
        self._clock = clock
        self._rng = rng or random.Random()
        self._tally = Tally(self._settings)
        self._open: dict[Key, _Open] = {}
        self._asking: set[Key] = set()
        self._to_tell: dict[Key, _Opened | _Probed | _Passed] = {}
        self._woken = asyncio.Event()
        self._forgot_at_s = clock()
        self.opened_total = 0
        self.closed_total = 0
        self.held_total = 0
        self.probes_total = 0

    @property
    def open_now(self) -> int:
        """How many breakers this process knows to be open."""
        return len(self._open)

    async def look(self) -> None:
        """Read what is open before the first delivery. A database that does not answer is for `run` to tell."""
        with contextlib.suppress(DatabaseUnavailableError, asyncpg.PostgresError):
            await self.step()

    async def run(self, stopping: asyncio.Event) -> None:
        """Read and tell until `stopping`, then tell what is left."""
        await every(self.step, stopping, self._db.trouble, "breaker", self._woken)
        with contextlib.suppress(DatabaseUnavailableError, asyncpg.PostgresError):
            await self._tell()

    async def step(self) -> timedelta:
        """Tell what was found out here, then read what is open."""
        await self._tell()
        if self._clock() - self._forgot_at_s > FORGET_EVERY_S:
            if forgotten := await forget_breakers(self._db, UNUSED_FOR):
                log.info("forgot breakers that nobody probed", extra={"breakers": forgotten})
            self._forgot_at_s = self._clock()
        asked_at_s = self._clock()
        known = {
            (row.account_id, row.host): _Open(
                row.pause, asked_at_s + row.wait.total_seconds(), asked_at_s + row.probing.total_seconds()
            )
            for row in await list_breakers(self._db)
        }
        for key, told in self._to_tell.items():  # found out while the answer was on its way
            if isinstance(told, _Passed):
                known.pop(key, None)
            elif key in self._open:
                known[key] = self._open[key]
        for key in known:  # failures from before do not count for the next time
            self._tally.passed(key)
        self._open = known
        return READ_EVERY * self._rng.uniform(0.75, 1.25)

    async def deliver(self, job: ClaimedJob, send: Callable[[], Awaitable[Outcome]]) -> Outcome:
        """Send the job's request unless its target is left alone just now, and learn from what comes of it."""
        host = host_of(job.payload_json)
        if host is None or not self._settings.failures:
            return await send()
        key = (job.account_id, host)
        probe: int | None = None
        if key in self._open:
            admitted = await self._ask(key, job.timeout)
            if isinstance(admitted, Hold):
                self.held_total += 1
                return admitted
            probe = admitted
        try:
            outcome = await send()
        except BaseException:
            if probe is not None:
                self._end_probe(key, probe, failed=False, error=None)
            raise
        self._learn(key, probe, outcome)
        return outcome

    async def _ask(self, key: Key, timeout: timedelta) -> Hold | int | None:
        """The number of a probe, None if it is closed by now, or for how long to hold."""
        known, now_s = self._open[key], self._clock()
        if key in self._asking or key in self._to_tell or now_s < max(known.probe_at_s, known.probing_until_s):
            return self._hold(known, now_s)
        self._asking.add(key)
        try:
            async with asyncio.timeout(ASK_LIMIT_S):
                answer = await claim_probe(self._db, *key, timeout + PROBE_GRACE)
        except (DatabaseUnavailableError, asyncpg.PostgresError, TimeoutError):
            return self._hold(known, now_s)
        finally:
            self._asking.discard(key)
        if answer.state == "closed":
            self._open.pop(key, None)
            return None
        now_s = self._clock()
        known = _Open(answer.pause, now_s + answer.wait.total_seconds(), now_s + answer.probing.total_seconds())
        self._open[key] = known
        if answer.state == "held":
            return self._hold(known, now_s)
        self.probes_total += 1
        return answer.number

    def _hold(self, known: _Open, now_s: float) -> Hold:
        return Hold(hold_for(timedelta(seconds=known.probe_at_s - now_s), known.pause, self._rng))

    def _learn(self, key: Key, probe: int | None, outcome: Outcome) -> None:
        passed = gets_through(outcome)
        if passed:
            self._tally.passed(key)
            if self._open.pop(key, None) is not None or probe is not None:
                self._found_out(key, _Passed())
        elif probe is not None:
            self._end_probe(key, probe, failed=passed is False, error=error_of(outcome))
        elif passed is False and key not in self._open:
            failures = self._tally.failed(key, self._clock())
            if failures is not None:
                pause = self._settings.pause
                wait = wait_for_probe(pause, self._rng)
                self._open[key] = _Open(pause, self._clock() + wait.total_seconds(), 0.0)
                self._found_out(key, _Opened(failures, error_of(outcome), wait))

    def _end_probe(self, key: Key, number: int, *, failed: bool, error: str | None) -> None:
        """Not through: leave it alone for longer. Not asked: for as long as before."""
        known = self._open.get(key)
        pause = self._settings.pause if known is None else known.pause
        if failed:
            pause = self._settings.next_pause(pause)
        wait = wait_for_probe(pause, self._rng)
        self._open[key] = _Open(pause, self._clock() + wait.total_seconds(), 0.0)
        self._found_out(key, _Probed(number, failed, error, pause, wait))

    def _found_out(self, key: Key, what: _Opened | _Probed | _Passed) -> None:
        self._to_tell[key] = what
        self._woken.set()

    async def _tell(self) -> None:
        """Write what was found out, the first first; what was found out later about the same target replaces it."""
        while self._to_tell:
            key, what = next(iter(self._to_tell.items()))
            await self._write(key, what)
            if self._to_tell.get(key) is what:
                del self._to_tell[key]

    async def _write(self, key: Key, what: _Opened | _Probed | _Passed) -> None:
        fields = {"account_id": key[0], "host": key[1]}
        match what:
            case _Opened(failures=failures, error=error, wait=wait):
                if await open_breaker(self._db, *key, failures, error, self._settings.pause, wait):
                    self.opened_total += 1
                    log.warning(
                        "breaker opened: deliveries are held", extra={**fields, "failures": failures, "error": error}
                    )
            case _Probed(number=number, failed=failed, error=error, pause=pause, wait=wait):
                await end_probe(self._db, *key, number, failed=failed, error=error, pause=pause, wait=wait)
            case _Passed():
                lasted = await close_breaker(self._db, *key)
                if lasted is not None:
                    self.closed_total += 1
                    log.warning("breaker closed", extra={**fields, "seconds": round(lasted.total_seconds(), 1)})
