"""POST /v1/jobs/bulk/cancel and /redrive, and the operations they make."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import httpx
import pytest

from api.harness import TARGET, Api, Worker, assert_problem, new_api, pointers
from duly.api.documents import OperationDocument
from duly.model import uuid7
from duly.queue import Database, conservation, step_operation
from duly.upkeep import Upkeep
from duly.worker import Wakeups

NOW = "update duly.operation set next_at = now()"


async def made(api: Api, n: int, **members: Any) -> None:
    jobs = [{"url": f"{TARGET}/{k}", **members} for k in range(n)]
    assert (await api.post("/v1/jobs/batch", {"jobs": jobs})).status_code == 200


async def states(database: Database) -> dict[str, int]:
    rows = await database.fetch("select status, count(*) as n from duly.jobs group by 1")
    return {row["status"]: row["n"] for row in rows}


async def carried_out(api: Api, database: Database, location: str) -> dict[str, Any]:
    """Step without regard to the rate until it is finished."""
    for _ in range(100):
        await step_operation(database, 100, 2000)
        await database.execute(NOW)
        shown: dict[str, Any] = (await api.get(location)).json()
        if shown["state"] == "finished":
            return shown
    raise AssertionError("an operation without end")


async def test_a_dry_run_counts_and_changes_nothing(api: Api, database: Database) -> None:
    """As many as match, no further than the limit, and whether that is all."""
    await made(api, 7, delay=3600, tags=["t"])
    await made(api, 3)
    for asked, expected in (
        ({"filter": {"tag": "t"}}, {"count": 7, "complete": True}),
        ({"filter": {"tag": "t"}, "limit": 5}, {"count": 5, "complete": False}),
        ({"filter": {"state": ["ready"]}}, {"count": 3, "complete": True}),
        ({"filter": {"method": "POST"}}, {"count": 10, "complete": True}),
        ({"filter": {"url_prefix": "https:"}}, {"count": 0, "complete": True}),
    ):
        answer = await api.post("/v1/jobs/bulk/cancel", {**asked, "dry_run": True})
        assert (answer.status_code, answer.json()) == (200, expected), asked
    assert (await api.post("/v1/jobs/bulk/redrive", {"filter": {"tag": "t"}, "dry_run": True})).json()["count"] == 0
    assert await states(database) == {"scheduled": 7, "ready": 3}
    assert await database.fetchval("select count(*) from duly.operation") == 0


async def test_cancel_and_redrive_what_matches(api: Api, database: Database, worker: Worker) -> None:
    """Only that, up to the limit, with who and when; jobs of another project are not touched."""
    stranger = await new_api(database, api.client, "stranger")
    await made(stranger, 3, tags=["t"])
    await made(api, 6, tags=["t"], delay=3600)
    await made(api, 2)
    answer = await api.post("/v1/jobs/bulk/cancel", {"filter": {"tag": "t"}, "limit": 4, "rate": 1000})
    assert answer.status_code == 202
    OperationDocument.model_validate(answer.json())
    assert answer.json()["requested_by"].startswith("key ")
    assert answer.headers["location"] == f"/v1/operations/{answer.json()['id']}"
    shown = await carried_out(api, database, answer.headers["location"])
    OperationDocument.model_validate(shown)
    assert (shown["done"], shown["refused"], shown["call"]) == (4, 0, "cancel")
    assert shown["finished_at"] > shown["requested_at"]
    assert await states(database) == {"scheduled": 2, "cancelled": 4, "ready": 5}
    answer = await api.post("/v1/jobs/bulk/redrive", {"filter": {"tag": "t"}, "rate": 1000})
    shown = await carried_out(api, database, answer.headers["location"])
    assert shown["done"] == 4
    assert await states(database) == {"scheduled": 2, "ready": 9}
    by = await database.fetchval("select redriven_by from duly.redrive limit 1")
    assert by.startswith(f"operation {shown['id']} by key ")
    assert_problem(await stranger.get(answer.headers["location"]), 404)
    assert_problem(await api.get(f"/v1/operations/{uuid7()}"), 404)
    assert_problem(await api.get("/v1/operations/x"), 404)
    assert (await conservation(database)).holds


async def test_what_may_not_be_redriven_is_counted(api: Api, database: Database, worker: Worker) -> None:
    """A job whose unique key another one holds by now is refused, the others go."""
    await api.create(unique_key="k", tags=["t"])
    await worker.bury()
    await made(api, 1, tags=["t"])
    await worker.bury()
    await api.create(unique_key="k", delay=3600)
    answer = await api.post("/v1/jobs/bulk/redrive", {"filter": {"state": "dead"}})
    shown = await carried_out(api, database, answer.headers["location"])
    assert (shown["done"], shown["refused"]) == (1, 1)


async def test_the_rate_paces_it(api: Api, database: Database) -> None:
    """A step does about a second's worth and the next waits for its time; others come in between."""
    await made(api, 25, delay=3600, tags=["slow"])
    await made(api, 2, delay=3600, tags=["quick"])
    await api.post("/v1/jobs/bulk/cancel", {"filter": {"tag": "slow"}, "rate": 10})
    step = await step_operation(database, 100, 2000)
    assert step is not None
    assert (step.done, step.finished, step.wait) == (10, False, timedelta(seconds=1))
    assert await step_operation(database, 100, 2000) is None
    await api.post("/v1/jobs/bulk/cancel", {"filter": {"tag": "quick"}, "rate": 10})
    other = await step_operation(database, 100, 2000)
    assert other is not None
    assert (other.done, other.finished) == (2, True)
    assert (await states(database))["cancelled"] == 12


async def test_two_at_once_do_not_the_same(api: Api, database: Database) -> None:
    """One that is carried out just now is passed by, and what dies in the middle of a step leaves nothing of it: the
    next process goes on where the last one that committed was.
    """
    await made(api, 30, delay=3600, tags=["t"])
    answer = await api.post("/v1/jobs/bulk/cancel", {"filter": {"tag": "t"}, "rate": 1000})
    for n in range(1, 4):
        async with database.session() as first:
            transaction = first.connection.transaction()
            await transaction.start()
            step = await step_operation(first, 10, 10)
            assert step is not None
            assert step.done == 10
            assert await step_operation(database, 10, 10) is None  # passed by
            await transaction.rollback()  # as when its process dies
        assert (await states(database)).get("cancelled", 0) == 10 * (n - 1)
        again = await step_operation(database, 10, 10)
        assert again is not None
        assert again.done == 10
        await database.execute(NOW)
    shown = await carried_out(api, database, answer.headers["location"])
    assert (shown["done"], shown["refused"]) == (30, 0)
    assert await states(database) == {"cancelled": 30}


async def test_upkeep_carries_it_out(api: Api, database: Database) -> None:
    """The loop of any process, here two of them, until it is done; then there is nothing to do for a while."""
    await made(api, 40, delay=3600, tags=["t"])
    answer = await api.post("/v1/jobs/bulk/cancel", {"filter": {"tag": "t"}, "rate": 1000})
    two = [Upkeep(database, Wakeups("")) for _ in range(2)]
    for _ in range(20):
        await asyncio.gather(*(upkeep.operations_step() for upkeep in two))
        await database.execute(NOW)
    assert (await api.get(answer.headers["location"])).json()["done"] == 40
    assert await two[0].operations_step() > timedelta(0)


@pytest.mark.parametrize(
    ("asked", "where"),
    [
        ({}, "/filter"),
        ({"filter": {}}, "/filter"),
        ({"filter": {"state": None}}, "/filter"),
        ({"filter": []}, "/filter"),
        ({"filter": {"state": "succeeded"}}, "/filter/state"),
        ({"filter": {"state": ["dead"]}}, "/filter/state"),
        ({"filter": {"state": 1}}, "/filter/state"),
        ({"filter": {"colour": "red"}}, "/filter/colour"),
        ({"filter": {"tag": 7}}, "/filter/tag"),
        ({"filter": {"last_status_code": True}}, "/filter/last_status_code"),
        ({"filter": {"tag": "t"}, "limit": 0}, "/limit"),
        ({"filter": {"tag": "t"}, "limit": 1.5}, "/limit"),
        ({"filter": {"tag": "t"}, "rate": 0}, "/rate"),
        ({"filter": {"tag": "t"}, "rate": "fast"}, "/rate"),
        ({"filter": {"tag": "t"}, "dry_run": "yes"}, "/dry_run"),
        ({"filter": {"tag": "t"}, "more": 1}, "/more"),
    ],
)
async def test_what_is_refused(api: Api, database: Database, asked: dict[str, Any], where: str) -> None:
    """422 by pointer; above all a call without a filter."""
    assert where in pointers(assert_problem(await api.post("/v1/jobs/bulk/cancel", asked), 422))
    assert await database.fetchval("select count(*) from duly.operation") == 0


async def test_it_needs_the_scope_to_write(database: Database, client: httpx.AsyncClient) -> None:
    """Reading keys may look at operations, not make them."""
    reader = await new_api(database, client, "reader", ["read"])
    assert_problem(await reader.post("/v1/jobs/bulk/cancel", {"filter": {"tag": "t"}}), 403)
