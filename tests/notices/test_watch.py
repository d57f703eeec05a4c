"""What is told to whom, once an episode; by whichever process looks, killed or not."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

from duly.http import EgressPolicy
from duly.model.errors import DatabaseUnavailableError
from duly.queue import Database, redrive, take_quota
from duly.queue.breaker import close_breaker
from duly.service import change_account, create_account, create_project, disable_account
from duly.service.notices import NoticeSettings, put_notice
from duly.service.noticing import LOOK_EVERY
from notices.stage import MINUTE, URL, Stage, types_of
from schedules.stage import Stage as Schedules

DAY = timedelta(days=1)


async def test_dead_letters_are_told_at_their_threshold_and_once(stage: Stage) -> None:
    """Not below it; at it with where and how the most died and since when; then nothing more while it lasts, however
    many die. Neither the URL's user nor its query is told.
    """
    notice = await stage.notice("dead_letters", dead_letters=3)
    await stage.die(2)
    assert await stage.look() == []
    await stage.die(2, "b.example", 404)
    await stage.die(1, "b.example", 404)
    [told] = await stage.look()
    assert (told["type"], told["notice_id"], told["about"]) == ("dead_letters", str(notice.id), "project")
    assert told["project"] == {"id": str(stage.project.id), "name": "main"}
    figures = told["figures"]
    assert (figures["dead"], figures["threshold"], figures["within_seconds"], figures["again"]) == (5, 3, 600, False)
    assert figures["hosts"] == [{"host": "b.example", "dead": 3}, {"host": "a.example", "dead": 2}]
    assert figures["errors"][0] == {
        "outcome": "http_error", "status_code": 404, "reason": "attempts_exhausted", "dead": 3
    }  # fmt: skip
    assert told["what"] == f"5 jobs died since {figures['since']}, 3 of them for b.example"
    assert "hidden" not in str(told)
    assert "pass" not in str(told)
    await stage.die(50)
    assert await stage.look() == []


async def test_an_episode_ends_below_half_of_its_threshold_and_another_is_told(stage: Stage) -> None:
    """So a number that wavers about the threshold is one episode."""
    await stage.notice("dead_letters", dead_letters=4)
    first = await stage.die(4)
    assert len(await stage.look()) == 1
    for job in first[:2]:
        await redrive(stage.db, stage.owner, job)
    assert await stage.look() == []  # two are left: it goes on
    await stage.die(2)
    assert await stage.look() == []
    await stage.age(11 * MINUTE)
    assert await stage.look() == []  # it is over
    await stage.die(4)
    assert types_of(await stage.look()) == ["dead_letters"]


async def test_what_lasts_is_told_again_each_day(stage: Stage) -> None:
    """Once a day, and as the same thing."""
    await stage.notice("breaker_opened")
    await stage.open("a.example")
    await stage.look()
    await stage.age(DAY - MINUTE)
    assert await stage.look() == []
    await stage.age(MINUTE)
    [told] = await stage.look()
    assert told["figures"]["again"]
    assert told["what"].startswith("still: ")
    assert await stage.look() == []


async def test_breakers_are_told_together_when_they_open_and_when_they_close(stage: Stage) -> None:
    """Those that a look finds are one notice; a breaker that is open already is not told again with another."""
    await stage.notice()
    await stage.open(*(f"h{n}.example" for n in range(30)))
    [told] = await stage.look()
    assert (told["type"], told["figures"]["count"], len(told["figures"]["breakers"])) == ("breaker_opened", 30, 20)
    assert told["what"].endswith(" and 27 more")
    await stage.open("new.example")
    [told] = await stage.look()
    assert [one["host"] for one in told["figures"]["breakers"]] == ["new.example"]
    assert "account_number" not in str(told)
    await close_breaker(stage.db, stage.owner.account_id, "new.example")
    [told] = await stage.look()
    assert (told["type"], told["what"]) == ("breaker_closed", "deliveries go again: new.example")
    assert await stage.look() == []
    await stage.open("new.example")
    assert types_of(await stage.look()) == ["breaker_opened"]


async def test_a_closing_is_told_only_to_who_wants_it(stage: Stage) -> None:
    """And one who wants only that is not told of the opening."""
    await stage.notice("breaker_closed")
    await stage.notice("breaker_opened", url=f"{URL}/opened")
    await stage.open("a.example")
    assert types_of(await stage.look()) == ["breaker_opened"]
    await close_breaker(stage.db, stage.owner.account_id, "a.example")
    assert types_of(await stage.look()) == ["breaker_closed"]


async def test_a_quota_is_told_when_near_and_when_met(stage: Stage) -> None:
    """At 80 and at 100 percent, once each; a new month is a new episode."""
    await change_account(stage.db, stage.project.account_id, {"limits": {"monthly_quota": 100}})
    await stage.notice("quota_near")
    account = stage.owner.account_id
    await take_quota(stage.db, account, 100, 79, 0)
    assert await stage.look() == []
    await take_quota(stage.db, account, 100, 1, 0)
    [told] = await stage.look()
    assert told["figures"]["quotas"][0]["percent"] == 80
    await take_quota(stage.db, account, 100, 19, 0)
    assert await stage.look() == []
    await take_quota(stage.db, account, 100, 1, 0)
    [told] = await stage.look()
    assert told["what"] == "near a limit: 100 of 100 (monthly_quota)"
    assert await stage.look() == []
    await stage.db.execute("update duly.quota_block set month = month - 60")
    assert await stage.look() == []
    await take_quota(stage.db, account, 100, 85, 0)
    assert types_of(await stage.look()) == ["quota_near"]


async def test_stored_jobs_near_their_limit_are_told(stage: Stage) -> None:
    """Wavering about 80 percent is one episode; the notices themselves do not make it a new one."""
    await change_account(stage.db, stage.project.account_id, {"limits": {"stored": 10}})
    await stage.notice("quota_near")
    jobs = await stage.engine.enqueue(8, delay=timedelta(hours=1))
    [told] = await stage.look()
    assert told["figures"]["quotas"][0]["name"] == "stored"
    await stage.db.execute("delete from duly.scheduled where job_id = $1", jobs[0])
    await stage.db.execute("delete from duly.ready")
    assert await stage.look() == []
    await stage.engine.enqueue(1, delay=timedelta(hours=1))
    assert await stage.look() == []


async def test_a_silent_schedule_is_told_and_a_parked_one(stage: Stage) -> None:
    """Overdue, then parked, which is worse; fired again it is over. Those of a disabled account are silent on
    purpose."""
    await stage.notice("schedule_silent")
    schedules = Schedules(stage.db, stage.owner)
    schedule = await schedules.schedule(cron="* * * * *", name="nightly")
    assert await stage.look() == []
    await schedules.move_back(schedule, 5 * MINUTE)
    [told] = await stage.look()
    assert told["what"] == "schedules do not fire: nightly"
    assert (
        told["figures"]["schedules"][0] | {"id": str(schedule.id), "state": "overdue"}
        == (told["figures"]["schedules"][0])
    )
    await stage.db.execute(
        """update duly.schedule_turn set state = 'parked', parked_why = 'no', next_fire_at = null, look_at = null"""
    )
    [told] = await stage.look()
    assert [(one["state"], one["why"]) for one in told["figures"]["schedules"]] == [("parked", "no")]
    assert await stage.look() == []


async def test_notices_of_an_account_and_of_everything(stage: Stage) -> None:
    """Each is told of what it is about and names where it is; a project's neighbours are not told."""
    other = await create_project(stage.db, stage.project.account_id, "other")
    stranger = await Stage.of(stage.db)
    await put_notice(stage.db, other.id, "project", None, NoticeSettings(f"{URL}/sibling"), within=None)
    await stage.notice(about="account", dead_letters=1, url=f"{URL}/account")
    await stranger.notice(dead_letters=1, url=f"{URL}/stranger")
    operator = await create_project(stage.db, (await create_account(stage.db, "operators")).id, "main")
    everything = NoticeSettings(f"{URL}/everything", dead_letters=1)
    await put_notice(stage.db, operator.id, "everything", None, everything, within=None)
    watched = NoticeSettings(f"{URL}/watched", dead_letters=1)
    await put_notice(stage.db, operator.id, "account", stage.project.account_id, watched, within=None)
    await stage.die(1)
    await change_account(stage.db, stage.project.account_id, {"limits": {"monthly_quota": 10}})
    await take_quota(stage.db, stage.owner.account_id, 10, 10, 0)
    schedule = await Schedules(stage.db, stage.owner).schedule(cron="* * * * *")
    await Schedules(stage.db, stage.owner).move_back(schedule, 5 * MINUTE)
    told = await stage.look()
    of: dict[str, list[str]] = {}
    for message in told:
        of.setdefault(message["about"], []).append(message["type"])
        of[message["about"]].sort()
        assert (message["project"] is None) == (message["about"] != "project")
    wide = ["dead_letters", "quota_near", "schedule_silent"]
    assert of == {"project": ["quota_near"], "account": sorted(wide * 2), "everything": wide}
    [wider] = [one for one in told if one["about"] == "everything" and one["type"] == "dead_letters"]
    assert wider["figures"]["projects"][0]["project"]["id"] == str(stage.project.id)
    [late] = [one for one in told if one["about"] == "everything" and one["type"] == "schedule_silent"]
    assert late["figures"]["schedules"][0]["account"]["id"] == str(stage.project.account_id)
    assert await stage.look() == []
    await disable_account(stage.db, stage.project.account_id)
    assert await stage.look() == []  # its own notices are silent as all its jobs are


async def test_everybodys_quotas_have_their_turn(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many accounts there are, a look sees to some; an episode of the others goes on meanwhile."""
    monkeypatch.setattr("duly.service.noticing.MOST_ACCOUNTS", 2)
    await stage.notice("quota_near", about="everything")
    for n in range(3):
        project = await create_project(
            stage.db, (await create_account(stage.db, f"c{n}", limits={"monthly_quota": 10})).id, "p"
        )
        await take_quota(stage.db, project.owner.account_id, 10, 9, 0)
    counts = [[one["figures"]["count"] for one in await stage.look()] for _ in range(5)]
    assert counts == [[2], [1], [], [], []]


async def test_a_notice_that_fails_is_not_told_of(stage: Stage) -> None:
    """No loop: neither the death of a delivery of a notice nor the breaker of its own target makes another; the
    breaker is told to others."""
    await stage.notice(dead_letters=1)
    await stage.notice("dead_letters", dead_letters=1, url="https://other.dev/")
    await stage.die(1)
    assert len(await stage.look()) == 2
    jobs = await stage.engine.claim(10, kinds=["http"], queues=["notices"])
    assert len(jobs) == 2
    for job in jobs:
        await stage.engine.finish(job, "dead")
    await stage.age(11 * MINUTE)
    assert await stage.look() == []
    await stage.db.execute("update duly.outcome set finished_at = now()")
    await stage.db.execute(
        "delete from duly.outcome where job_id not in (select id from duly.job where payload ? 'notice')"
    )
    assert await stage.look() == []
    await stage.open("127.0.0.1")
    assert await stage.look() == []
    await stage.notice("breaker_opened", url="https://third.dev/")
    assert types_of(await stage.look()) == ["breaker_opened"]


async def test_payloads_of_others_do_not_pass_for_notices(stage: Stage) -> None:
    """A task whose arguments have a member of that name counts as any other."""
    await stage.notice("dead_letters", dead_letters=1)
    await stage.die(1, kind="task:t", payload={"notice": 1})
    [told] = await stage.look()
    assert told["figures"]["hosts"] == [{"host": None, "dead": 1}]
    assert told["what"] == f"1 job died since {told['figures']['since']}"


async def test_many_watches_at_once_tell_once(stage: Stage) -> None:
    """Eight processes that look at the same time, and again; one at a time, and what one told no other tells."""
    await stage.notice()
    await stage.open("a.example")
    for _ in range(5):
        await stage.due()
        await asyncio.gather(*(stage.watch().step() for _ in range(8)))
    assert types_of(await stage.told()) == ["breaker_opened"]


async def test_who_finds_another_at_it_leaves(stage: Stage) -> None:
    """It waits for nothing; and before its time nobody looks at all."""
    await stage.notice()
    await stage.open("a.example")
    async with stage.db.transaction() as rival:
        await rival.execute("select from duly.notice_watch for update")
        assert timedelta(0) < await stage.watch().step() < LOOK_EVERY
        assert await stage.told() == []
    assert await stage.watch().step() == LOOK_EVERY
    assert len(await stage.told()) == 1
    assert timedelta(0) < await stage.watch().step() <= 1.25 * LOOK_EVERY


async def test_a_process_killed_between_deciding_and_committing_tells_once(stage: Stage, database_url: str) -> None:
    """SIGKILL when the jobs are made and nothing is committed: nothing was told. The next one tells, once."""
    await stage.notice()
    await stage.open("a.example")
    process = subprocess.Popen([sys.executable, "-c", _VICTIM, database_url], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert await asyncio.to_thread(process.stdout.readline) == b"made\n"
        assert await stage.told() == []
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    async with asyncio.timeout(30):
        while not await stage.look():  # the server may still be ending the dead one's session
            await asyncio.sleep(0.05)
    assert types_of(await stage.told()) == ["breaker_opened"]
    assert await stage.look() == []


_VICTIM = """
import asyncio, sys
from duly.http import EgressPolicy
from duly.queue import Database
from duly.service.noticing import NoticeWatch

async def main():
    async with await Database.open(sys.argv[1]) as db:
        watch = NoticeWatch(db, policy=EgressPolicy.parse(allow_loopback=True))
        create_all = watch._creator.create_all
        async def stuck(*args, **settings):
            await create_all(*args, **settings)
            print("made", flush=True)
            await asyncio.sleep(60)
        watch._creator.create_all = stuck
        await watch.step()

asyncio.run(main())
"""


async def test_a_rollback_tells_nothing_and_the_next_look_tells_once(stage: Stage) -> None:
    """The connection is cut when the jobs are made."""
    await stage.notice()
    await stage.open("a.example")
    watch = stage.watch()
    create_all = watch._creator.create_all

    async def cut(*args: Any, **settings: Any) -> Any:
        await create_all(*args, **settings)
        await stage.db.execute(
            """select pg_terminate_backend(pid) from pg_locks
               where relation = 'duly.notice_watch'::regclass and pid <> pg_backend_pid()"""
        )
        return await settings["session"].fetchval("select 1")

    watch._creator.create_all = cut  # type: ignore[method-assign]
    with pytest.raises(DatabaseUnavailableError):
        await watch.step()
    assert await stage.told() == []
    assert types_of(await stage.look()) == ["breaker_opened"]
    assert await stage.look() == []


async def test_one_that_cannot_be_told_keeps_nobody_else_from_it(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """A URL that the policy does not allow any more: nothing is stored for it, the log says so once, the others are
    told; and it is told when the policy allows it again."""
    await stage.notice("breaker_opened", url="http://127.0.0.1:9999/closed")
    await stage.notice("breaker_opened", url="https://b.dev/")
    await stage.open("a.example")
    watch = stage.watch(policy=EgressPolicy.parse())
    await watch.step()
    await stage.due()
    await watch.step()
    assert len(await stage.told()) == 1
    assert [record.getMessage() for record in caplog.records].count("a notice cannot be told") == 1
    assert len(await stage.look()) == 1


async def test_more_notices_than_a_step_sees_to(stage: Stage) -> None:
    """A round goes on at once, and each is told once."""
    for n in range(5):
        await stage.notice("breaker_opened", url=f"{URL}/{n}")
    await stage.open("a.example")
    watch = stage.watch(batch=2)
    pauses = [await watch.step() for _ in range(3)]
    assert pauses[0] == pauses[1] < LOOK_EVERY == pauses[2]
    assert len(await stage.told()) == watch.told_total == 5
    assert await stage.look(batch=2) == []


async def test_jobs_stored_sealed_carry_their_mark(stage: Stage, database: Database) -> None:
    """With keys, the body of a notice is sealed as any other is, and its death still counts for nothing."""
    from schedules.stage import KEYRING

    await stage.notice(dead_letters=1)
    await stage.open("a.example")
    await stage.watch(keyring=KEYRING).step()
    row = await database.fetchrow("select payload ? 'notice' and payload ? 'sealed' as marked, body from duly.job")
    assert row is not None
    assert row["marked"]
    assert b"breaker" not in row["body"]
