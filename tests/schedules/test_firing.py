"""Firing: due by the database's clock, one job a fire, by policy where fires were missed or overlap."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest

from duly.model import NewJob, Unique, uuid7
from duly.model.errors import DatabaseUnavailableError
from duly.queue import enqueue, schedule_health
from duly.service import Keyring, firing
from duly.service.accounts import delete_project
from duly.service.fire_plan import plan_fires
from duly.service.sealing import opened_view
from duly.service.templates import fire_id
from duly.service.timing import Timing
from schedules.stage import HOUR, KEYRING, MINUTE, SECOND, Stage, key, template
from support.sessions import holding

# By policy -----------------------------------------------------------------------------------------------------------


async def test_down_for_an_hour_with_each_policy(stage: Stage) -> None:
    """FO-054: skip makes none of the sixty fires, one the last of them, all the last ones up to its bound; each turns
    to the next minute, and the ledger tells of every fire.
    """
    skip = await stage.schedule(name="skip", ago=HOUR, missed="skip")
    one = await stage.schedule(name="one", ago=HOUR)
    every = await stage.schedule(name="all", ago=HOUR, missed="all")
    some = await stage.schedule(name="some", ago=HOUR, missed="all", missed_limit=7)
    begun = await stage.now()
    await stage.fire()
    made = {}
    for schedule in (skip, one, every, some):
        fires = await stage.fires(schedule)
        made[schedule.name] = sum(fire.outcome == "made" for fire in fires)
        assert sum(fire.covers for fire in fires) in (60, 61)  # the hour, and the minute it may have taken
        after = await stage.read(schedule)
        assert after.next_fire_at is not None
        assert timedelta(0) < after.next_fire_at - begun <= MINUTE + SECOND
        assert after.made == made[schedule.name]
    assert made["skip"] == 0
    assert made["one"] == 1
    assert made["all"] in (60, 61)
    assert made["some"] == 7
    assert len(await stage.jobs()) == sum(made.values())


async def test_what_is_a_little_late_is_not_missed(stage: Stage) -> None:
    """FO-054: a tick that fell into a restart of seven seconds is made, late, whatever the policy; each of them."""
    for missed in ("skip", "one", "all"):
        schedule = await stage.schedule(ago=7 * SECOND, every=2 * SECOND, missed=missed)
        await stage.fire()
        fires = await stage.fires(schedule)
        assert [fire.outcome for fire in fires] == ["made"] * len(fires)
        assert len(fires) >= 3
        await stage.db.execute("update duly.schedule_turn set state = 'paused', next_fire_at = null, look_at = null")


async def test_restarts_more_often_than_it_fires(stage: Stage) -> None:
    """FO-054: a weekly schedule fires once a week though every process lives for one step only."""
    schedule = await stage.schedule(cron="0 6 * * 1", ago=timedelta(days=7))
    for _ in range(5):
        await stage.fire()
    assert len(await stage.jobs()) == 1
    for weeks in (1, 2):
        await stage.move_back(schedule, timedelta(days=7))
        for _ in range(3):
            await stage.fire()
        assert [fire.outcome for fire in await stage.fires(schedule)] == ["made"] * (1 + weeks)


async def test_no_storm(stage: Stage) -> None:
    """A step makes what one batch may hold, and at most twenty jobs of one schedule."""
    for _ in range(6):
        await stage.schedule(ago=HOUR, missed="all")
    firer = stage.firer(batch=4)
    await firer.step()
    assert firer.fired_total == 4 * 20


async def test_the_job_of_a_fire(stage: Stage) -> None:
    """Due at its fire, sealed at rest, with the id that the fire gives it; a late one loses nothing of its age."""
    schedule = await stage.schedule(every=timedelta(days=2), ago=timedelta(days=3), made_of=template(tags=("a",)))
    await stage.fire()
    [job] = await stage.jobs()
    fires = await stage.fires(schedule)
    assert job.run_at == fires[-1].fire_at
    assert job.id == fires[-1].job_id
    assert job.retry.max_age > timedelta(hours=24)
    assert "for-nobody-else" not in str(job.payload)
    opened = opened_view(KEYRING, job)
    assert opened.payload["headers"] == [["X-Api-Key", "for-nobody-else"]]
    assert job.tags == ("a",)


async def test_a_kind_of_any_sort(stage: Stage) -> None:
    """A job that is no request has its payload as it is: a Python function's schedule is the same row."""
    made_of = template(kind="task", payload={"name": "report", "args": [1]}, body=None, queue="reports")
    await stage.schedule(ago=2 * MINUTE, made_of=made_of)
    await stage.fire()
    [job] = await stage.jobs()
    assert (job.kind, job.payload, job.queue) == ("task", {"name": "report", "args": [1]}, "reports")


# Overlaps ------------------------------------------------------------------------------------------------------------


async def test_skip_while_a_job_goes_on(stage: Stage) -> None:
    """The fire is skipped and shows as that; when the job has ended the next one is made."""
    schedule = await stage.schedule(every=MINUTE, overlap="skip", ago=MINUTE)
    await stage.fire()
    await stage.move_back(schedule, MINUTE + SECOND)
    await stage.fire()
    assert [fire.outcome for fire in await stage.fires(schedule)] == ["made", "skipped"]
    assert len(await stage.jobs()) == 1
    assert await stage.end_jobs() == 1
    await stage.move_back(schedule, MINUTE)
    await stage.fire()
    assert len(await stage.jobs()) == 2


async def test_wait_for_a_job_that_goes_on(stage: Stage) -> None:
    """The fire waits, and is made when the job has ended; of several that wait the last one, or each in turn with
    `all`. Waiting is no fault.
    """
    one = await stage.schedule(every=MINUTE, overlap="wait", ago=MINUTE)
    each = await stage.schedule(every=MINUTE, overlap="wait", missed="all", ago=MINUTE)
    await stage.fire()
    for schedule in (one, each):
        await stage.move_back(schedule, 5 * MINUTE)
    await stage.fire()
    assert len(await stage.jobs()) == 2
    assert (await stage.read(one)).waiting_since is not None
    assert (await schedule_health(stage.db)).overdue == 0
    made = []
    for _ in range(4):
        await stage.end_jobs()
        await stage.db.execute("update duly.schedule_turn set look_at = clock_timestamp() where look_at is not null")
        made.append(await stage.fire())
    assert made[0] == 2
    assert [fire.outcome for fire in await stage.fires(one)].count("made") == 2
    assert sum(fire.covers for fire in await stage.fires(one) if fire.outcome == "skipped") == 4
    assert [fire.outcome for fire in await stage.fires(each)] == ["made"] * 5


# Jitter --------------------------------------------------------------------------------------------------------------


async def test_jitter_spreads_the_jobs(stage: Stage) -> None:
    """FO-059: of a hundred schedules on the same minute the jobs are spread over the jitter, evenly."""
    for _ in range(100):
        await stage.schedule(cron="0 0 * * *", ago=timedelta(days=1), jitter=40 * MINUTE)
    await stage.fire()
    jobs = await stage.jobs()
    midnight = min(job.run_at for job in jobs).replace(hour=0, minute=0, second=0, microsecond=0)
    delays = sorted(job.run_at - midnight for job in jobs)
    assert len(delays) == 100
    assert delays[0] >= timedelta(0)
    assert delays[-1] < 40 * MINUTE
    assert delays[25] < 20 * MINUTE < delays[75]


# Nothing is lost or doubled ------------------------------------------------------------------------------------------


async def test_many_firers_at_once_make_one_each(stage: Stage) -> None:
    """Eight firers on the same two hundred fires."""
    for _ in range(200):
        await stage.schedule(ago=MINUTE)
    await asyncio.gather(*(stage.fire() for _ in range(8)))
    jobs = await stage.jobs()
    assert await stage.db.fetchval("select count(*) from duly.fire where outcome = 'made'") == len(jobs)
    assert len(jobs) in range(200, 401)  # a minute may pass meanwhile
    per_fire = await stage.db.fetchval(
        "select max(n) from (select count(*) n from duly.fire group by schedule_id, fire_at) x"
    )
    assert per_fire == 1


async def test_a_death_before_the_commit_leaves_it_due(stage: Stage) -> None:
    """FO-054: whatever was written, it is as if it had not been; the next step makes it."""
    schedule = await stage.schedule(ago=2 * MINUTE)

    async def dies(*_: Any, **__: Any) -> None:
        raise DatabaseUnavailableError("the link was cut")

    with patch("duly.service.firing._refuse", dies), pytest.raises(DatabaseUnavailableError):
        await stage.firer().step()
    assert await stage.jobs() == []
    assert await stage.fires(schedule) == []
    await stage.fire()
    assert len(await stage.jobs()) >= 1


async def test_a_lost_reply_makes_no_second_job(stage: Stage) -> None:
    """Committed, and the firer does not know: the next step finds it turned."""
    await stage.schedule(ago=2 * MINUTE)
    await stage.fire()
    before = len(await stage.jobs())
    await stage.db.execute(
        "update duly.schedule_turn set next_fire_at = last_fire_at, look_at = last_fire_at, since_at = last_fire_at"
    )  # as from a backup of just before
    await stage.fire()
    assert len(await stage.jobs()) in (before, before + 1)
    assert await stage.db.fetchval("select count(*) from duly.fire where outcome = 'made'") == len(await stage.jobs())


async def test_ids_are_those_of_the_fire() -> None:
    """The same schedule and moment have the same id, and no others; it carries the time of the fire."""
    schedule, now = uuid7(), datetime(2030, 1, 1, 12, tzinfo=UTC)
    ids = {fire_id(schedule, now - n * SECOND, now) for n in range(100)} | {fire_id(uuid7(), now, now)}
    assert len(ids) == 101
    assert fire_id(schedule, now - HOUR, now) == fire_id(schedule, now - HOUR, now + HOUR)
    old = fire_id(schedule, now - 100 * HOUR, now)
    assert (old.version, old.int >> 80) == (7, int(now.timestamp() * 1000))


async def test_a_taken_unique_key_skips_the_fire(stage: Stage) -> None:
    """The ledger says which job has it; others of the batch are made."""
    holder = NewJob("http", {}, unique=Unique("k"))
    await enqueue(stage.db, [(stage.owner, holder)])
    held = await stage.schedule(ago=2 * MINUTE, made_of=template(unique=Unique("k")))
    free = await stage.schedule(ago=2 * MINUTE)
    await stage.fire()
    assert {fire.outcome for fire in await stage.fires(held)} <= {"skipped", "missed"}
    assert str(holder.id) in str((await stage.fires(held))[-1].why)
    assert "made" in {fire.outcome for fire in await stage.fires(free)}


async def test_a_key_in_somebodys_open_transaction_holds_up_nobody_else(stage: Stage, database_url: str) -> None:
    """The others are made one by one; it is made when they are through."""
    held = await stage.schedule(ago=2 * MINUTE, made_of=template(unique=Unique("k")))
    free = await stage.schedule(ago=2 * MINUTE)
    holder = NewJob("http", {}, unique=Unique("k"))
    await enqueue(stage.db, [(stage.owner, NewJob("http", {}))])  # their lane is there
    async with holding(database_url) as (rival, transaction):
        await enqueue(rival, [(stage.owner, holder)])
        await stage.fire()
        assert "made" in {fire.outcome for fire in await stage.fires(free)}
        assert await stage.fires(held) == []
        await transaction.rollback()
    await stage.db.execute("update duly.schedule_turn set look_at = clock_timestamp() where look_at is not null")
    await stage.fire()
    assert "made" in {fire.outcome for fire in await stage.fires(held)}


# What cannot fire ----------------------------------------------------------------------------------------------------

SPOILT = {
    "a zone that has vanished": ("update duly.schedule set timezone = 'Mars/Olympus'", "IANA"),
    "a date that never comes": ("update duly.schedule set cron = '0 0 30 2 *'", "never comes"),
    "no cron at all": ("update duly.schedule set cron = 'x'", "cron expression"),
    "a target that is not allowed": (
        """update duly.schedule set payload = '{"url": "http://10.0.0.1/"}', body = null""", "private addresses"),
    "a target that is none": ("""update duly.schedule set payload = '{"url": 3}', body = null""", "url"),
    "options that are none": ("update duly.schedule set options = '{}'", "options"),
    "a secret that was changed": ("update duly.schedule set body = body || 'x'::bytea", "decrypted"),
    "a priority that no job has": (
        """update duly.schedule set options = jsonb_set(options, '{priority}', '77')""", "stored"),
}  # fmt: skip


@pytest.mark.parametrize("what", SPOILT)
async def test_what_cannot_fire_is_parked_and_the_others_fire(stage: Stage, what: str) -> None:
    """FO-053: shown with the reason, out of the round; beside it everything goes on."""
    statement, why = SPOILT[what]
    bad = await stage.schedule(ago=2 * MINUTE)
    await stage.db.execute(statement)
    good = [await stage.schedule(ago=2 * MINUTE) for _ in range(3)]
    await stage.fire()
    parked = await stage.read(bad)
    assert parked.state == "parked"
    assert why in str(parked.parked_why)
    for schedule in good:
        assert "made" in {fire.outcome for fire in await stage.fires(schedule)}
    assert (await schedule_health(stage.db)).parked == 1


async def test_an_error_that_nobody_foresaw_parks_the_one(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """And ends neither the round of the others nor the worker."""

    def planned(timing: Timing, *rest: Any) -> Any:
        return 1 / 0 if timing.cron == "*/2 * * * *" else plan_fires(timing, *rest)

    monkeypatch.setattr(firing, "plan_fires", planned)
    bad = await stage.schedule(cron="*/2 * * * *", ago=5 * MINUTE)
    good = await stage.schedule(ago=2 * MINUTE)
    await stage.fire()
    assert ((await stage.read(bad)).state, (await stage.read(good)).state) == ("parked", "active")
    assert "made" in {fire.outcome for fire in await stage.fires(good)}


async def test_a_disabled_account_fires_nothing(stage: Stage) -> None:
    """Nothing piles up; enabled again, what it has missed goes by the policy."""
    schedule = await stage.schedule(ago=5 * MINUTE)
    await stage.db.execute("update duly.account set disabled_at = now() where id = $1", stage.owner.account_id)
    await stage.fire()
    assert ((await stage.read(schedule)).state, await stage.jobs()) == ("active", [])
    await stage.db.execute("update duly.account set disabled_at = null")
    await stage.db.execute("update duly.schedule_turn set look_at = next_fire_at")
    await stage.fire()
    assert len(await stage.jobs()) == 1


async def test_a_deleted_project_fires_nothing(stage: Stage) -> None:
    """Its schedules go with it: nobody has a key to stop them by."""
    await stage.schedule()
    project = await stage.db.fetchval("select public_id from duly.project where id = $1", stage.owner.project_id)
    await delete_project(stage.db, project)
    assert await stage.db.fetchval("select count(*) from duly.schedule") == 0


async def test_a_missing_key_is_waited_for(stage: Stage) -> None:
    """Not parked: it may come tomorrow. Others fire, and health says that it is behind."""
    schedule = await stage.schedule(ago=5 * MINUTE)
    await stage.fire(keyring=Keyring([key(7)]))
    after = await stage.read(schedule)
    assert (after.state, await stage.jobs()) == ("active", [])
    assert (await schedule_health(stage.db)).overdue == 1
    await stage.db.execute("update duly.schedule_turn set look_at = next_fire_at")
    await stage.fire()
    assert len(await stage.jobs()) == 1


async def test_new_rules_of_a_zone_move_the_next_fire(stage: Stage) -> None:
    """A stored fire that is none any more is not made; the one that is takes its place, before or after."""
    later = await stage.schedule(cron="30 9 * * *")
    wrong = (await stage.read(later)).next_fire_at
    assert wrong is not None
    await stage.db.execute(
        """update duly.schedule_turn
           set next_fire_at = next_fire_at + interval '1 hour', look_at = look_at + interval '1 hour'"""
    )
    firer = stage.firer()
    await firer.recheck_step()
    assert (await stage.read(later)).next_fire_at == wrong
    due = await stage.schedule(every=HOUR)
    await stage.db.execute(  # between two of its fires
        """update duly.schedule_turn set next_fire_at = next_fire_at - interval '1 hour 7 seconds', look_at = now()
           where schedule_id = $1""",
        due.id,
    )
    await stage.fire()
    assert await stage.fires(due) == []
    assert (await stage.read(due)).next_fire_at == due.next_fire_at


async def test_the_ledger_is_kept_for_a_while(stage: Stage) -> None:
    """And forgotten in batches then; for ever if that is asked for."""
    schedule = await stage.schedule(ago=3 * MINUTE, missed="all")
    await stage.fire()
    before = len(await stage.fires(schedule))
    await stage.db.execute("update duly.fire set fire_at = fire_at - interval '31 days' where outcome = 'made'")
    await stage.firer(keep=None).prune_step()
    assert len(await stage.fires(schedule)) == before
    firer = stage.firer()
    assert await firer.prune_step() < MINUTE
    assert await firer.prune_step() > MINUTE
    assert await stage.fires(schedule) == []


async def test_the_loops_run_until_they_are_stopped(stage: Stage) -> None:
    """A schedule of every second fires by itself."""
    schedule = await stage.schedule(cron="* * * * * *")
    stopping = asyncio.Event()
    running = asyncio.create_task(stage.firer().run(stopping))
    async with asyncio.timeout(20):
        while len(await stage.fires(schedule)) < 3:
            await asyncio.sleep(0.05)
        stopping.set()
        await running
    fires = [fire.fire_at for fire in await stage.fires(schedule)]
    assert [later - fire for fire, later in pairwise(fires)] == [SECOND] * (len(fires) - 1)
