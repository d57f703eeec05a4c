"""What an account may do, and plans: named sets of limits. What neither the account nor its plan limits is free."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import asyncpg

from duly.model.errors import InvalidInputError, NotFoundError
from duly.queue import Database, Executor, apply_plan
from duly.service.durations import parse_duration, show_duration
from duly.service.faults import Fault, FieldError, InUseError, InvalidFieldsError
from duly.service.jobs import Limits

_PLAN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)

LimitsJson = dict[str, Any]
"""Limits as they are stored: only those that were given, durations in seconds; null: none, whatever the plan says."""


@dataclass(frozen=True, slots=True)
class AccountLimits:
    """What applies to an account; None: no limit but the operator's own.

    `running`: jobs at once. `stored`: jobs that have not ended. `request_rate`: calls of the API a second.
    `monthly_quota`: jobs created a calendar month (UTC). `body_bytes`: the longest body of a job. `horizon`: how far
    ahead a job may be due. `keep`, `keep_dead`: how long a finished job, a dead letter is kept.
    """

    running: int | None = None
    stored: int | None = None
    request_rate: float | None = None
    monthly_quota: int | None = None
    body_bytes: int | None = None
    horizon: timedelta | None = None
    keep: timedelta | None = None
    keep_dead: timedelta | None = None

    def narrowed(self, operator: Limits) -> Limits:
        """What a job of the account may be: the operator's limits, where the account's are not narrower."""
        return Limits(
            operator.body_bytes if self.body_bytes is None else min(operator.body_bytes, self.body_bytes),
            operator.metadata_bytes,
            operator.horizon if self.horizon is None else min(operator.horizon, self.horizon),
        )


NO_LIMITS = AccountLimits()


@dataclass(frozen=True, slots=True)
class Plan:
    """A named set of limits."""

    name: str
    limits: LimitsJson
    created_at: datetime
    updated_at: datetime


def checked_limits(given: Mapping[str, Any], pointer: str = "/limits") -> LimitsJson:
    """Limits as people write them, as they are stored. Raises InvalidFieldsError with all that is wrong."""
    limits: LimitsJson = {}
    faults: list[Fault] = []
    for name, value in given.items():
        if name not in LIMIT_RULES:
            faults.append(Fault(f"{pointer}/{name[:100]}", f"is not a limit: there are {', '.join(LIMIT_RULES)}"))
            continue
        try:
            limits[name] = None if value is None else LIMIT_RULES[name](value)
        except FieldError as error:
            faults.append(Fault(f"{pointer}/{name}", str(error)))
    if faults:
        raise InvalidFieldsError(faults)
    return limits


@lru_cache(maxsize=4096)
def read_limits(stored: str) -> AccountLimits:
    """Limits from their stored JSON text."""
    limits: dict[str, Any] = {
        name: timedelta(seconds=value) if name in _DURATIONS and value is not None else value
        for name, value in json.loads(stored).items()
        if name in LIMIT_RULES
    }
    return AccountLimits(**limits)


async def put_plan(db: Database, name: str, limits: LimitsJson) -> Plan:
    """Make a plan, or change it for all its accounts at once."""
    if not _PLAN_NAME.fullmatch(name):
        raise InvalidInputError(
            "a plan's name is 1 to 64 letters, digits and . _ -, starting with a letter or digit", "/name"
        )
    async with db.transaction() as tx:
        row = await tx.fetchrow(
            """insert into duly.plan (name, limits) values ($1, $2)
               on conflict (name) do update set limits = excluded.limits, updated_at = now()
               returning name, limits, created_at, updated_at""",
            name,
            json.dumps(limits),
        )
        await apply_plan(tx, name)
    assert row is not None
    return _plan(row)


async def get_plan(db: Executor, name: str) -> Plan:
    """Raises NotFoundError."""
    row = await db.fetchrow("select name, limits, created_at, updated_at from duly.plan where name = $1", name)
    if row is None:
        raise NotFoundError("plan", name)
    return _plan(row)


async def list_plans(db: Executor) -> list[Plan]:
    """All plans, by name."""
    rows = await db.fetch("select name, limits, created_at, updated_at from duly.plan order by name")
    return [_plan(row) for row in rows]


async def delete_plan(db: Database, name: str) -> None:
    """Raises NotFoundError, or InUseError while an account has it."""
    async with db.transaction() as tx:
        await tx.execute("update duly.account set plan = null where plan = $1 and deleted_at is not null", name)
        try:
            gone = await tx.fetchval("delete from duly.plan where name = $1 returning name", name)
        except asyncpg.ForeignKeyViolationError as error:
            raise InUseError(f"plan {name} has accounts: give them another plan first") from error
    if gone is None:
        raise NotFoundError("plan", name)


def _plan(row: asyncpg.Record) -> Plan:
    return Plan(row["name"], json.loads(row["limits"]), row["created_at"], row["updated_at"])


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def checked(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise FieldError(f"must be a whole number from {low} to {high}, or null for no limit")
        return value

    return checked


def _rate(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.01 <= value <= 100_000:
        raise FieldError("must be a number of requests a second, from 0.01 to 100000, or null for no limit")
    return value


def _between(low: timedelta, high: timedelta) -> Callable[[Any], float]:
    def checked(value: Any) -> float:
        duration = parse_duration(value)
        if not low <= duration <= high:
            raise FieldError(f"must be from {show_duration(low)} to {show_duration(high)}, or null for no limit")
        seconds = duration.total_seconds()
        return int(seconds) if seconds.is_integer() else seconds

    return checked


_A_CENTURY = timedelta(days=36_500)
LIMIT_RULES: dict[str, Callable[[Any], Any]] = {
    "running": _whole(1, 1_000_000),
    "stored": _whole(0, 1_000_000_000),
    "request_rate": _rate,
    "monthly_quota": _whole(0, 1_000_000_000_000),
    "body_bytes": _whole(0, 1 << 30),
    "horizon": _between(timedelta(0), timedelta(days=366)),
    "keep": _between(timedelta(hours=1), _A_CENTURY),
    "keep_dead": _between(timedelta(hours=1), _A_CENTURY),
}
_DURATIONS = frozenset({"horizon", "keep", "keep_dead"})
