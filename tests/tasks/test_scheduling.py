"""Schedules declared beside tasks: checked where declared, reconciled as one set, fired as jobs of the task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import duly
from duly.model.errors import InvalidInputError
from duly.queue import Database, list_jobs, task_owner
from duly.service.declaring import Change, ForeignScheduleError
from duly.service.faults import InvalidScheduleError
from duly.service.schedules import list_schedules
from duly.service.task_schedules import reconcile_apps

app = duly.App()


@app.task(queue="reports", max_attempts=3)
def report(month: str, *, top: int = 10) -> str:
    return f"{month} {top}"


@app.task
def tidy(job: duly.Context) -> None: ...


untyped: Any = report
SOON = datetime(2030, 1, 1, tzinfo=UTC)
WRONG: list[tuple[Callable[[Any], Any], str]] = [
    (lambda app: app.schedule("a", report, every=60), "missing a required argument: 'month'"),
    (lambda app: app.schedule("a", untyped.call("x", top="many"), every=60), "argument top"),
    (lambda app: app.schedule("a", tidy), "says not when: give one of cron, every, at"),
    (lambda app: app.schedule("a", tidy, cron="@daily", every=60), "has cron and every"),
    (lambda app: app.schedule("a", tidy, cron=5), "cron is 5: a text is needed"),
    (lambda app: app.schedule("a", tidy, crom="@daily"), "has no 'crom'"),
    (lambda app: app.schedule("a", tidy, every=0.5), "every is 0:00:00.500000"),
    (lambda app: app.schedule("a", tidy, every=True), "every is True"),
    (lambda app: app.schedule("a", tidy, at=datetime(2030, 1, 1)), "a datetime with a time zone is needed"),  # noqa: DTZ001
    (lambda app: app.schedule("a", tidy, every=60, count=0), "count is 0"),
    (lambda app: app.schedule("a", tidy, every=60, overlap="maybe"), "one of allow, skip, wait is needed"),
    (lambda app: app.schedule("a", tidy, every=60, missed_limit=3), "goes together with missed='all'"),
    (lambda app: app.schedule("a", tidy, every=60, jitter=-1), "jitter is"),
    (lambda app: app.schedule("", tidy, every=60), "name is ''"),
    (lambda app: app.schedule("a\nb", tidy, every=60), "a printable name"),
    (lambda app: app.schedule("a", tidy.using(delay=5), every=60), "delay is for one call"),
    (lambda app: app.schedule("a", tidy.using(id=duly.uuid7()), every=60), "id is for one call"),
    (lambda app: app.schedule("a", print, every=60), "give a task, or a call of one"),
    (lambda app: duly.App().schedule("a", tidy, every=60), "none of this app's"),
]


@pytest.mark.parametrize(("declare", "says"), WRONG, ids=[says for _, says in WRONG])
def test_what_cannot_be_right_is_refused_at_its_declaration(declare: Callable[[Any], Any], says: str) -> None:
    """And nothing is declared then."""
    with pytest.raises(InvalidInputError) as caught:
        declare(app)
    assert says in str(caught.value)
    assert app.schedules == ()


def test_declared_twice() -> None:
    """The same again, as by a module that is imported under two names, is no fault; another one of the name is."""
    mine = own_app()
    first = mine.schedule("a", task_of(mine), every=60)
    assert mine.schedule("a", task_of(mine), every=timedelta(minutes=1)).is_same(first)
    with pytest.raises(InvalidInputError, match="two schedules are named 'a'"):
        mine.schedule("a", task_of(mine), every=61)
    assert [schedule.name for schedule in mine.schedules] == ["a"]


async def test_every_option_is_stored_and_read_back_as_declared(database: Database) -> None:
    """Applied again it changes nothing, whatever was said of the task, of the call and of the times."""
    mine = own_app()
    busy = task_of(mine).using(
        queue="q", priority=1, max_attempts=900, backoff=[1, 2.5], max_age=3600, timeout=0.5, expires_after=60,
        unique=True, unique_until=30, on_conflict="replace", concurrency_key="k", tags=["b", "a"], retry_on=OSError,
        bury_on=(ValueError, KeyError), metadata={"a": (1, 2.0, None)},
    )  # fmt: skip
    mine.schedule("busy", busy, cron="*/5 1-4 * * *", timezone="Europe/London", missed="all", missed_limit=7, jitter=3)
    mine.schedule("once", task_of(mine).call(n=3), at=SOON)
    mine.schedule("often", task_of(mine), every=90, start_at=datetime(2029, 1, 1, tzinfo=UTC), end_at=SOON, count=4)
    mine.schedule("waits", task_of(mine), cron="@hourly", overlap="wait", missed="skip", missed_after=timedelta(days=1))
    added = [Change(name, "added") for name in ("busy", "often", "once", "waits")]
    assert await reconcile_apps(database, [mine], declared_by="s", dry_run=True, horizon=HORIZON) == added
    assert await list_schedules(database, None) == []
    assert await reconcile_apps(database, [mine], declared_by="s", horizon=HORIZON) == added
    assert await reconcile_apps(database, [mine], declared_by="s", horizon=HORIZON) == []
    stored = {schedule.name: schedule for schedule in await list_schedules(database, await task_owner(database))}
    assert stored["once"].template.payload == {"n": 3}
    assert stored["busy"].template.kind == "task:count"
    assert stored["busy"].template.unique == busy.call().unique


async def test_added_changed_removed(database: Database) -> None:
    """By the set's name; another program's schedules are not touched, and its names are refused."""
    before, after, other = own_app(), own_app(), own_app()
    before.schedule("kept", task_of(before), cron="@daily")
    before.schedule("changed", task_of(before), cron="@daily")
    before.schedule("removed", task_of(before), cron="@daily")
    after.schedule("kept", task_of(after), cron="@daily")
    after.schedule("changed", task_of(after).call(n=2), cron="@hourly")
    after.schedule("added", task_of(after), every=5)
    other.schedule("theirs", task_of(other), every=5)
    await reconcile_apps(database, [other], declared_by="other")
    await reconcile_apps(database, [before], declared_by="mine")
    assert await reconcile_apps(database, [after], declared_by="mine") == [
        Change("added", "added"), Change("changed", "changed", ("timing", "job")), Change("removed", "removed"),
    ]  # fmt: skip
    after.schedule("theirs", task_of(after), every=5)
    with pytest.raises(ForeignScheduleError, match="'theirs' is there already, of the set 'other'"):
        await reconcile_apps(database, [after], declared_by="mine")
    names = {schedule.name for schedule in await list_schedules(database, await task_owner(database))}
    assert names == {"kept", "changed", "added", "theirs"}


async def test_what_never_fires_is_told_by_name(database: Database) -> None:
    """A cron expression and a zone are read where they are applied; every fault at once, and nothing is stored."""
    mine = own_app()
    mine.schedule("good", task_of(mine), every=60)
    mine.schedule("never", task_of(mine), cron="0 0 30 2 *")
    mine.schedule("nowhere", task_of(mine), cron="@daily", timezone="Mars/Olympus")
    with pytest.raises(InvalidScheduleError) as caught:
        await reconcile_apps(database, [mine], declared_by="s")
    assert [fault.pointer for fault in caught.value.faults] == ["never/cron", "nowhere/timezone"]
    assert await list_schedules(database, None) == []


async def test_many_programs_that_apply_the_same_at_once(database: Database) -> None:
    """All succeed, and each schedule is there once."""
    mine = own_app()
    for n in range(5):
        mine.schedule(f"s{n}", task_of(mine), every=60)
    await asyncio.gather(*(reconcile_apps(database, [mine], declared_by="s") for _ in range(6)))
    assert len(await list_schedules(database, None)) == 5


async def test_a_worker_inside_a_program_fires_them(database: Database, database_url: str) -> None:
    """A fire becomes a job of the task, with its arguments, and runs; nobody else is there to fire."""
    mine = own_app()
    mine.schedule("now", task_of(mine).call(n=7), every=1)
    await reconcile_apps(database, [mine], declared_by="s")
    owner = await task_owner(database)
    async with duly.Worker(database_url, app=mine, concurrency=2, grace=timedelta(seconds=5)), asyncio.timeout(30):
        while not [job for job in await list_jobs(database, owner) if job.result == 14]:
            await asyncio.sleep(0.05)
    async with duly.Worker(database_url, app=mine, upkeep=False):
        made = await database.fetchval("select count(*) from duly.fire")
        await asyncio.sleep(1.5)
        assert await database.fetchval("select count(*) from duly.fire") == made


HORIZON = timedelta(days=3660)


def own_app() -> duly.App:
    """An app with one task, `count`."""
    mine = duly.App()

    @mine.task(name="count")
    async def count(n: int = 1) -> int:
        return 2 * n

    return mine


def task_of(mine: duly.App) -> Any:
    [task] = mine
    return task
