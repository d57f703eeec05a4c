"""The breakers that workers share: a row for each account and host whose deliveries are held."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from duly.queue.database import Executor

MOST = 10_000

_OPEN = f"""
    select b.account_id, b.host, b.opened_at, b.failures, b.last_error, b.pause_seconds,
           greatest(0, extract(epoch from b.probe_at - clock_timestamp()))::float8 as wait_seconds,
           coalesce(greatest(0, extract(epoch from b.probe_until - clock_timestamp())), 0)::float8 as probing_seconds
    from duly.breaker b where $1::integer is null or b.account_id = $1
    order by b.account_id, b.host limit {MOST}
"""
_CLAIM_PROBE = """
    select state, probe, wait_seconds, probing_seconds, pause_seconds from duly.claim_probe($1, $2, $3)
"""


@dataclass(frozen=True, slots=True)
class OpenBreaker:
    """Deliveries for an account to a host are held. `wait`: until the next probe may go; `probing`: how much longer one
    that is out counts, zero if none is; `pause`: between the last probe and the next.
    """

    account_id: int
    host: str
    opened_at: datetime
    failures: int
    last_error: str | None
    pause: timedelta
    wait: timedelta
    probing: timedelta


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """`probe`: the caller is the one that may ask the target, under this number. `held`: not now. `closed`: everybody
    may; the other parts mean nothing then.
    """

    state: Literal["probe", "held", "closed"]
    number: int = 0
    pause: timedelta = timedelta(0)
    wait: timedelta = timedelta(0)
    probing: timedelta = timedelta(0)


async def list_breakers(db: Executor, account_id: int | None = None) -> list[OpenBreaker]:
    """The open breakers of an account (None: all), 10,000 at most, by account and host."""
    return [
        OpenBreaker(
            row["account_id"],
            row["host"],
            row["opened_at"],
            row["failures"],
            row["last_error"],
            timedelta(seconds=row["pause_seconds"]),
            timedelta(seconds=row["wait_seconds"]),
            timedelta(seconds=row["probing_seconds"]),
        )
        for row in await db.fetch(_OPEN, account_id)
    ]


async def open_breaker(
    db: Executor, account_id: int, host: str, failures: int, error: str | None, pause: timedelta, wait: timedelta
) -> bool:
    """Hold deliveries from now on; the first probe may go after `wait`. False: it was open already."""
    opened: bool = await db.fetchval(
        "select duly.open_breaker($1, $2, $3, $4, $5, $6)",
        account_id,
        host,
        failures,
        error,
        pause.total_seconds(),
        wait.total_seconds(),
    )
    return opened


async def claim_probe(db: Executor, account_id: int, host: str, lasts: timedelta) -> ProbeAnswer:
    """Ask to be the probe: one at a time over all workers, each for as long as it `lasts` and no longer."""
    row = await db.fetchrow(_CLAIM_PROBE, account_id, host, lasts.total_seconds())
    assert row is not None  # a function with out parameters returns one row
    if row["state"] == "closed":
        return ProbeAnswer("closed")
    return ProbeAnswer(
        row["state"],
        row["probe"],
        timedelta(seconds=row["pause_seconds"]),
        timedelta(seconds=row["wait_seconds"]),
        timedelta(seconds=row["probing_seconds"]),
    )


async def end_probe(
    db: Executor,
    account_id: int,
    host: str,
    number: int,
    *,
    failed: bool,
    error: str | None,
    pause: timedelta,
    wait: timedelta,
) -> bool:
    """The probe is over and did not get through (`failed`), or did not get to ask. The next may go after `wait`.

    False: nothing was changed, because another probe has been sent since, or the breaker is closed.
    """
    ended: bool = await db.fetchval(
        "select duly.end_probe($1, $2, $3, $4, $5, $6, $7)",
        account_id,
        host,
        number,
        failed,
        error,
        pause.total_seconds(),
        wait.total_seconds(),
    )
    return ended


async def close_breaker(db: Executor, account_id: int, host: str) -> timedelta | None:
    """Deliver again. Returns for how long it was open; None: it was closed already."""
    seconds = await db.fetchval("select duly.close_breaker($1, $2)", account_id, host)
    return None if seconds is None else timedelta(seconds=seconds)


async def forget_breakers(db: Executor, unused_for: timedelta) -> int:
    """Remove the breakers whose next probe was due that long ago and never went: nobody calls there any more."""
    gone: int = await db.fetchval("select duly.forget_breakers($1)", unused_for.total_seconds())
    return gone
