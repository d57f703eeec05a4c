"""A target that keeps failing is left alone: held, probed, and delivered to when it is back; nobody else notices."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from duly import queue
from duly.cli.parts import WorkerSettings, work
from duly.http import BreakerSettings, EgressPolicy
from duly.http.breaker import Key
from duly.model import Backoff, ClaimedJob, Hold, Outcome, Report, Retry, RetryPolicy, Snooze, Success
from duly.model.errors import DatabaseUnavailableError
from duly.queue import Database
from duly.queue.breaker import claim_probe, list_breakers, open_breaker
from duly.service import breaking
from duly.service.breaking import Breaker
from duly.tasks.worker import Serving
from support.claimed import claimed
from support.engine import Engine, new_job, new_owner
from support.sessions import held_up, holding, until, until_true

MS = timedelta(milliseconds=1)
QUICK = BreakerSettings(failures=5, over=timedelta(0), pause=100 * MS, longest_pause=400 * MS)
POLICY = EgressPolicy.parse(allow_loopback=True)
AGAIN = RetryPolicy(max_attempts=50, backoff=Backoff(kind="fixed", base=50 * MS, jitter=0))
KEY: Key = (1, "example.com")
FAILED = Retry(Report("connect_refused", "it refused"))


# The whole worker, over real connections ----------------------------------------------------------------------------


@dataclass
class Site:
    """A server whose paths answer as told, 200 otherwise, and that counts what comes."""

    url: str = ""
    answers: dict[str, int] = field(default_factory=dict)
    came: Counter[str] = field(default_factory=Counter)
    at_once: Counter[str] = field(default_factory=Counter)
    most_at_once: Counter[str] = field(default_factory=Counter)


@asynccontextmanager
async def site(address: str) -> AsyncIterator[Site]:
    here = Site()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        here.came[path] += 1
        here.at_once[path] += 1
        here.most_at_once[path] = max(here.most_at_once[path], here.at_once[path])
        await asyncio.sleep(0.02)  # long enough that another one would be seen beside it
        here.at_once[path] -= 1
        writer.write(b"HTTP/1.1 %d x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % here.answers.get(path, 200))
        writer.close()

    async with await asyncio.start_server(serve, address, 0) as server:
        here.url = f"http://{address}:{server.sockets[0].getsockname()[1]}"
        yield here


@asynccontextmanager
async def workers(url: str, n: int, settings: WorkerSettings) -> AsyncIterator[None]:
    """n whole workers, each with a pool of its own, drained at the end."""
    draining, aborting = asyncio.Event(), asyncio.Event()
    pools = [await Database.open(url, max_size=4) for _ in range(n)]
    running = [asyncio.create_task(work(db, url, POLICY, settings, draining, aborting)) for db in pools]
    try:
        yield
        draining.set()
        assert [(await run).clean for run in running] == [True] * n
    finally:
        draining.set()
        aborting.set()
        await asyncio.gather(*running, return_exceptions=True)
        for db in pools:
            await db.close()


def to(url: str) -> dict[str, Any]:
    return {"kind": "http", "retry": AGAIN, "payload": {"url": url, "method": "POST"}}


async def test_a_failing_target_is_held_and_probed_until_it_is_back(
    database: Database, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Two workers, one breaker: after the failures nothing comes but one probe at a time; held jobs are scheduled and
    use up nothing; another account at the same host and the same account at another host are served; then all arrive.
    """
    engine = await Engine.start(database)
    neighbour = await new_owner(database)
    settings = WorkerSettings(serving=Serving(concurrency=4), breaker=QUICK)
    async with site("127.0.0.1") as target, site("127.0.0.2") as other, workers(database_url, 2, settings):
        target.answers["/bad"] = 503
        jobs = await engine.enqueue(40, **to(f"{target.url}/bad"))
        await until(lambda: list_breakers(database))
        await until_true(lambda: target.at_once["/bad"] == 0)
        await until(lambda: _probes(database, 1))  # both workers have heard of it by then, or hear of it now
        await until(lambda: _all_held(database, jobs))
        target.most_at_once.clear()
        before, first = target.came["/bad"], await _probes(database)
        await until(lambda: _probes(database, first + 4))
        came = target.came["/bad"] - before
        assert 0 < came <= await _probes(database) - first + 1
        assert target.most_at_once["/bad"] == 1
        assert (await queue.conservation(database)).faults == {}

        await engine.enqueue(1, owner=neighbour, **to(f"{target.url}/good"))
        await engine.enqueue(1, **to(f"{other.url}/good"))
        await until_true(lambda: target.came["/good"] == other.came["/good"] == 1)
        [row] = await list_breakers(database)
        assert (row.account_id, row.host) == (engine.owner.account_id, "127.0.0.1")
        assert row.last_error == "the target answered 503"
        assert row.failures >= 5 + 4

        target.answers.clear()
        await until(lambda: _succeeded(database, 42))
        assert await list_breakers(database) == []
    ledger = await database.fetch("select job_id, number, outcome from duly.attempt order by job_id, number")
    assert {row["outcome"] for row in ledger} == {"http_error", "success"}
    assert len(ledger) == target.came["/bad"] + target.came["/good"] + other.came["/good"]
    for job_id in jobs:
        numbers = [row["number"] for row in ledger if row["job_id"] == job_id]
        assert numbers == list(range(1, len(numbers) + 1))
    said = Counter(record.getMessage() for record in caplog.records if record.name == "duly.breaker")
    assert said == {"breaker opened: deliveries are held": 1, "breaker closed": 1}
    [opened] = [record.__dict__ for record in caplog.records if record.getMessage().startswith("breaker opened")]
    assert (opened["account_id"], opened["host"]) == (engine.owner.account_id, "127.0.0.1")
    assert (await queue.conservation(database)).faults == {}


async def test_a_worker_that_starts_finds_what_is_open(database: Database, database_url: str) -> None:
    """The breaker outlives whoever opened it: the first delivery of a new worker is the probe, and closes it."""
    engine = await Engine.start(database)
    await open_breaker(database, engine.owner.account_id, "127.0.0.1", 20, "it failed", 100 * MS, timedelta(0))
    async with site("127.0.0.1") as target:
        jobs = await engine.enqueue(5, **to(f"{target.url}/"))
        async with workers(database_url, 1, WorkerSettings(breaker=QUICK)):
            await until(lambda: _succeeded(database, 5))
    assert await list_breakers(database) == []
    assert target.came["/"] == len(jobs)


async def test_held_jobs_reach_the_end_of_their_age(database: Database, database_url: str) -> None:
    """Nothing is tried, and max_age goes on counting: dead for that reason, with no attempt, and told so."""
    engine = await Engine.start(database)
    await open_breaker(database, engine.owner.account_id, "127.0.0.1", 20, "x", timedelta(hours=1), timedelta(hours=1))
    async with site("127.0.0.1") as target, workers(database_url, 1, WorkerSettings(breaker=QUICK)):
        job_to_hold = new_job(
            kind="http",
            payload={"url": f"{target.url}/", "method": "POST"},
            retry=RetryPolicy(max_age=500 * MS),
            on_dead={"url": "http://127.0.0.2:9/", "method": "POST"},
        )
        [answer] = await engine.put(job_to_hold)
        await until(lambda: _state_is(engine, answer.job_id, "dead"))
    view = await engine.view(answer.job_id)
    assert (view.reason, view.attempts, target.came["/"]) == ("max_age", 0, 0)
    [told] = await database.fetch("select callback_of from duly.job where callback_of is not null")
    assert told["callback_of"] == answer.job_id


# One process, by hand -----------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def breaker(db: Database, clock: Clock | None = None, **settings: Any) -> Breaker:
    rules = BreakerSettings(**{"failures": 3, "over": timedelta(0), "pause": timedelta(seconds=10), **settings})
    return Breaker(db, rules, clock=clock or Clock(), rng=random.Random(1))


def job(host: str = "example.com", account: int = 1) -> ClaimedJob:
    return claimed(kind="http", account_id=account, payload_json=f'{{"url": "https://{host}/a"}}')


async def deliver(here: Breaker, outcome: Outcome, which: ClaimedJob | None = None) -> Outcome:
    async def send() -> Outcome:
        return outcome

    return await here.deliver(which or job(), send)


async def trip(here: Breaker) -> None:
    for _ in range(3):
        assert await deliver(here, FAILED) is FAILED
    assert here.open_now == 1
    await here.step()


async def due(db: Database) -> None:
    """As if it were time for a probe."""
    await db.execute("update duly.breaker set probe_at = now() - interval '1 second'")


async def test_a_look_at_a_database_that_is_away_fails_nothing(database: Database, database_url: str) -> None:
    """The worker starts all the same, and knows of no breaker yet."""
    await open_breaker(database, *KEY, 20, None, timedelta(hours=1), timedelta(hours=1))
    async with await Database.open(database_url, limit=100 * MS) as impatient, holding(database_url) as (lock, _):
        await lock.execute("lock table duly.breaker in access exclusive mode")
        here = breaker(impatient)
        await here.look()
    assert here.open_now == 0


async def test_from_the_last_failure_on_nothing_is_sent(database: Database) -> None:
    """At once where it was found out, elsewhere with the next look; another account, another host go on."""
    first, second = breaker(database), breaker(database)
    for _ in range(3):
        assert await deliver(first, FAILED) is FAILED
    assert isinstance(await deliver(first, Success()), Hold)
    assert await deliver(second, FAILED) is FAILED
    await first.step()
    await second.step()
    held = await deliver(second, Success())
    assert isinstance(held, Hold)
    assert timedelta(seconds=7.5 + 0.5) <= held.delay <= timedelta(seconds=12.5 + 10)
    assert await deliver(second, Success(), job(account=2)) == Success()
    assert await deliver(second, Success(), job("example.org")) == Success()
    assert (first.held_total, first.opened_total, second.held_total, second.opened_total) == (1, 1, 1, 0)


async def test_a_probe_that_fails_doubles_the_pause_and_one_that_passes_closes(database: Database) -> None:
    """Ten seconds, twenty, forty; then everybody is let through, at once here, elsewhere with the next look."""
    clock = Clock()
    here, there = breaker(database, clock), breaker(database)
    await trip(here)
    for pause_s in (20, 40):
        await due(database)
        await here.step()
        assert await deliver(here, FAILED) is FAILED
        assert isinstance(await deliver(here, FAILED), Hold)
        await here.step()
        [row] = await list_breakers(database)
        assert row.pause == timedelta(seconds=pause_s)
        assert timedelta(seconds=pause_s * 0.74) < row.wait <= timedelta(seconds=pause_s * 1.25)
        assert row.probing == timedelta(0)
    await there.step()
    await due(database)
    await here.step()
    assert await deliver(here, Success()) == Success()
    assert await deliver(here, Success()) == Success()
    await here.step()
    assert await list_breakers(database) == []
    await there.step()
    assert there.open_now == 0
    assert (here.probes_total, here.opened_total, here.closed_total) == (3, 1, 1)


async def test_others_are_held_while_a_probe_is_out(database: Database) -> None:
    """Here and elsewhere, however many ask at once: one request."""
    here, there = breaker(database), breaker(database)
    await trip(here)
    await due(database)
    await here.step()
    await there.step()
    sent = 0
    go = asyncio.Event()

    async def send() -> Outcome:
        nonlocal sent
        sent += 1
        await go.wait()
        return Success()

    asked = [asyncio.create_task(which.deliver(job(), send)) for which in (here, there) for _ in range(50)]
    await until_true(lambda: sum(task.done() for task in asked) == 99)
    assert sent == 1
    go.set()
    assert Counter(type(outcome).__name__ for outcome in await asyncio.gather(*asked)) == {"Hold": 99, "Success": 1}


async def test_a_probe_that_did_not_get_to_ask_changes_nothing(database: Database) -> None:
    """Snoozed, or cut off: open, with the same pause, and another one may go."""
    here = breaker(database)
    await trip(here)

    async def cut_off() -> Outcome:
        raise asyncio.CancelledError

    for n in range(2):
        await due(database)
        await here.step()
        if n:
            with pytest.raises(asyncio.CancelledError):
                await here.deliver(job(), cut_off)
        else:
            assert isinstance(await deliver(here, Snooze(MS)), Snooze)
        await here.step()
        [row] = await list_breakers(database)
        assert (row.failures, row.pause, row.probing) == (3, timedelta(seconds=10), timedelta(0))
    assert here.probes_total == 2


async def test_a_late_success_closes_too(database: Database) -> None:
    """It was under way when the breaker opened: the target answers."""
    here = breaker(database)
    go = asyncio.Event()

    async def send() -> Outcome:
        await go.wait()
        return Success()

    late = asyncio.create_task(here.deliver(job(), send))
    await asyncio.sleep(0)
    await trip(here)
    go.set()
    assert await late == Success()
    assert here.open_now == 0
    await here.step()
    assert await list_breakers(database) == []


async def test_late_failures_do_not_count_for_the_next_time(database: Database) -> None:
    """Under way when it opened: while it is open they say nothing new."""
    here = breaker(database)
    go = asyncio.Event()

    async def send() -> Outcome:
        await go.wait()
        return FAILED

    late = [asyncio.create_task(here.deliver(job(), send)) for _ in range(10)]
    await asyncio.sleep(0)
    await trip(here)
    go.set()
    await asyncio.gather(*late)
    await here.step()
    [row] = await list_breakers(database)
    assert (row.failures, row.pause) == (3, timedelta(seconds=10))


async def test_failures_from_before_do_not_count_after_somebody_else_opened_it(database: Database) -> None:
    """Two of three here, and it was opened and closed elsewhere: three more are needed."""
    here = breaker(database)
    for _ in range(2):
        await deliver(here, FAILED)
    await open_breaker(database, *KEY, 3, None, timedelta(hours=1), timedelta(hours=1))
    await here.step()
    await database.execute("delete from duly.breaker")
    await here.step()
    for opens in (0, 0, 1):
        await deliver(here, FAILED)
        assert here.open_now == opens


async def test_somebody_else_closed_it_meanwhile(database: Database) -> None:
    """The look is a second old: whoever asks to be a probe hears that there is none needed, and delivers."""
    here = breaker(database)
    await trip(here)
    await due(database)
    await here.step()
    await database.execute("delete from duly.breaker")
    assert await deliver(here, Success()) == Success()
    assert (here.open_now, here.probes_total) == (0, 0)


async def test_somebody_else_probes(database: Database) -> None:
    """Held, and not asked again while that probe counts."""
    here = breaker(database)
    await trip(here)
    await due(database)
    await here.step()
    assert (await claim_probe(database, *KEY, timedelta(hours=1))).state == "probe"
    assert isinstance(await deliver(here, Success()), Hold)
    await database.execute("update duly.breaker set probe_until = null")
    assert isinstance(await deliver(here, Success()), Hold)
    await here.step()
    assert await deliver(here, Success()) == Success()


async def test_without_a_database_nothing_is_probed_and_nothing_forgotten(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who cannot ask is held, within a moment; what was found out is told when it is back."""
    monkeypatch.setattr(breaking, "ASK_LIMIT_S", 0.1)
    here = breaker(database)
    await trip(here)
    await due(database)
    await here.step()
    async with held_up(database_url, "breaker"):
        assert isinstance(await deliver(here, Success()), Hold)
    async with await Database.open(database_url, limit=200 * MS) as impatient:
        other = breaker(impatient)
        for _ in range(3):
            await deliver(other, FAILED, job("example.org"))
        async with holding(database_url) as (lock, _):
            await lock.execute("lock table duly.breaker in exclusive mode")
            with pytest.raises(DatabaseUnavailableError):
                await other.step()
        await other.step()
    assert [row.host for row in await list_breakers(database)] == ["example.com", "example.org"]


async def test_the_loop_tells_at_once_and_the_last_word_at_the_end(database: Database) -> None:
    """What opens is not told a second later; what closes while the worker ends is told too."""
    here = Breaker(database, BreakerSettings(failures=1, over=timedelta(0)))
    stopping = asyncio.Event()
    run = asyncio.create_task(here.run(stopping))
    await deliver(here, FAILED)
    await until(lambda: list_breakers(database))
    stopping.set()
    here._learn(KEY, None, Success())
    await run
    assert await list_breakers(database) == []


async def test_breakers_nobody_probes_are_forgotten_by_the_loop(database: Database) -> None:
    """Looked at once an hour."""
    clock = Clock()
    here = breaker(database, clock)
    await trip(here)
    await database.execute("update duly.breaker set probe_at = now() - interval '2 days'")
    await here.step()
    assert here.open_now == 1
    clock.now_s += 3601
    await here.step()
    assert here.open_now == 0


async def test_what_is_switched_off_and_what_has_no_host_is_just_sent(database: Database) -> None:
    """No counting, no holding."""
    off, here = breaker(database, failures=0), breaker(database)
    await open_breaker(database, *KEY, 20, None, timedelta(hours=1), timedelta(hours=1))
    await off.step()
    assert await deliver(off, Success()) == Success()
    for _ in range(9):
        assert await deliver(here, FAILED, claimed(payload_json="{}")) is FAILED
    assert here.open_now == 0


async def _probes(db: Database, at_least: int = 0) -> int:
    """How many probes were sent so far; 0 while there are fewer than asked for."""
    sent: int = await db.fetchval("select coalesce(max(probe), 0) from duly.breaker")
    return sent if sent >= at_least else 0


async def _all_held(db: Database, jobs: list[UUID]) -> bool:
    """Every one of them waits, most because they are held, the others for their retry or as the probe."""
    held: int = await db.fetchval("select count(*) from duly.scheduled where job_id = any ($1) and held", jobs)
    return held >= len(jobs) - 5


async def _succeeded(db: Database, n: int) -> bool:
    done: int = await db.fetchval("select count(*) from duly.outcome where state = 'succeeded'")
    return done == n


async def _state_is(engine: Engine, job_id: UUID, state: str) -> bool:
    return str((await engine.view(job_id)).state) == state
