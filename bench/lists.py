"""What reading and claiming cost beside ten million finished and a million scheduled jobs."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import httpx

from bench.claims import Claims
from bench.figures import Spread, percentile, ratio
from bench.finding import Finding, Row
from bench.history import fill
from bench.processes import child
from bench.setting import Setting
from duly.queue import Database
from duly.service import create_key

ROUNDS = 3
GOAL = 1.5
FEW = (5_000, 500)  # enough for every page to be full
MANY = (10_000_000, 1_000_000)
NO_MATCH = "last_error=nowhere"

_WARM_UP = 20


@dataclass(slots=True)
class Side:
    """An API over one of the two databases, and a worker's claims in it."""

    http: httpx.AsyncClient
    claims: Claims
    paths: dict[str, str]

    async def measured(self, samples: int) -> dict[str, list[float]]:
        """Milliseconds of so many calls of each path, and of claims."""
        took: dict[str, list[float]] = {}
        for name, path in self.paths.items():
            took[name] = [await self._call(path) for _ in range(samples)]
        took["claim"] = await self.claims.measured(samples)
        return took

    async def _call(self, path: str) -> float:
        began = time.perf_counter()
        answer = await self.http.get(path)
        seconds = time.perf_counter() - began
        assert answer.status_code == 200, (path, answer.text)
        return seconds * 1e3


async def run(setting: Setting) -> Finding:
    """Alternate between the two databases."""
    many, samples = (FEW, 10) if setting.quick else (MANY, 200)
    rounds: dict[str, list[dict[str, list[float]]]] = {"few": [], "many": []}
    async with AsyncExitStack() as stack:
        sides = {
            "few": await stack.enter_async_context(_side(setting, *FEW)),
            "many": await stack.enter_async_context(_side(setting, *many)),
        }
        for side in sides.values():
            await side.measured(_WARM_UP)
        for _ in range(ROUNDS):
            for name, side in sides.items():
                rounds[name].append(await side.measured(samples))
    return _finding(many, samples, rounds["few"], rounds["many"])


@asynccontextmanager
async def _side(setting: Setting, finished: int, scheduled: int) -> AsyncIterator[Side]:
    async with AsyncExitStack() as stack:
        place = await stack.enter_async_context(setting.database())
        await fill(place, finished, scheduled)
        db = await stack.enter_async_context(await Database.open(place.dsn))
        key = (await create_key(db, place.owner.project_id, "bench")).key
        upkeep = {"dsn": place.dsn, "work": "upkeep"}
        await stack.enter_async_context(child("bench.worker_process", upkeep, setting.file("upkeep.log")))
        ready = setting.file("port")
        told = {"dsn": place.dsn, "ready": str(ready)}
        api = await stack.enter_async_context(child("bench.api_process", told, setting.file("api.log")))
        await api.until(lambda: ready.exists() and ready.read_text() != "", 30)
        http = await stack.enter_async_context(
            httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{ready.read_text()}", headers={"authorization": f"Bearer {key}"}, timeout=60
            )
        )
        yield Side(http, await Claims.on(db, place), await _paths(http))


async def _paths(http: httpx.AsyncClient) -> dict[str, str]:
    """What is asked for. Every list's page is full, but the last's, which finds nothing."""
    page = (await http.get("/v1/jobs?state=succeeded&limit=1")).json()
    job_id, cursor = page["data"][0]["id"], (await http.get("/v1/jobs?limit=200")).json()["next_cursor"]
    soon = (datetime.now(UTC) + timedelta(minutes=10)).strftime("%Y-%m-%dT%H:%M:%SZ")
    past = (datetime.now(UTC) - timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
    queries = [
        "",
        f"cursor={cursor}",
        "state=succeeded",
        "state=dead",
        "state=scheduled",
        "queue=q-1",
        "tag=t",
        "host=host-7.example.com",
        "url_prefix=https://host-7.example.com/",
        "method=PUT",
        f"created_from={past}&created_to={soon}",
        f"finished_from={past}&finished_to={soon}",
        "last_status_code=4xx",
        "last_error=answered",
        "min_attempts=1",
        "state=dead&queue=q-0&last_status_code=404",
        NO_MATCH,
    ]
    names = [
        query.partition("=")[0] if query.startswith(("cursor", "created", "finished")) else query for query in queries
    ]
    lists = {f"list {name}".strip(): f"/v1/jobs?{query}" for name, query in zip(names, queries, strict=True)}
    for name, path in lists.items():
        data = (await http.get(path)).json()["data"]
        assert len(data) == (0 if NO_MATCH in name else 50), (name, len(data))
    return {
        **lists,
        "get": f"/v1/jobs/{job_id}",
        "attempts": f"/v1/jobs/{job_id}/attempts",
        "usage": "/v1/usage",
        "queues": "/v1/queues",
    }


def _name(query: str) -> str:
    """Without what changes from run to run."""
    return query.partition("=")[0] if query.startswith(("cursor", "created", "finished")) else query


def _finding(
    many: tuple[int, int],
    samples: int,
    few_rounds: list[dict[str, list[float]]],
    many_rounds: list[dict[str, list[float]]],
) -> Finding:
    figures: dict[str, Spread | float] = {}
    rows = []
    worst = 0.0
    for name in few_rounds[0]:
        few, beside = ([percentile(took[name], 0.5) for took in rounds] for rounds in (few_rounds, many_rounds))
        times = ratio(beside, few)
        judged = NO_MATCH not in name
        if judged:
            worst = max(worst, times.median)
        figures |= {f"{name}_few_ms": Spread.of(few), f"{name}_many_ms": Spread.of(beside), f"{name}_ratio": times}
        told = f"few {Spread.of(few).shown(2)} ms, many {Spread.of(beside).shown(2)} ms: × {times.shown(2)}"
        rows.append(Row(name, told if judged else f"{told} (not judged: bounded by the jobs a call looks at)"))
    figures["worst_ratio"] = worst
    return Finding(
        program="lists",
        measured=f"The median time of lists of 50 jobs by every kind of filter, of single jobs, usage and queues, over"
        f" HTTP, and of a claim, with {many[0]:,} finished and {many[1]:,} scheduled jobs of one project, and with"
        f" {FEW[0]:,} and {FEW[1]:,}; {samples} calls of each a round, {ROUNDS} rounds, alternated.",
        rows=rows,
        rounds=[
            {"jobs": jobs, **{name: round(percentile(values, 0.5), 4) for name, values in took.items()}}
            for jobs, rounds in ((FEW[0], few_rounds), (many[0], many_rounds))
            for took in rounds
        ],
        figures=figures,
        goal=f"each at most × {GOAL:g}",
        met=worst <= GOAL,
    )
