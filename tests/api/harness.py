"""What the tests of the API share: a client with a key, a worker that is moved by hand, what a problem looks like."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx

from duly.model import ClaimedJob, DeadReason, Report, Settlement
from duly.queue import ClaimCursor, Database, claim, live_segments, settle
from duly.service import Project, Scope, create_account, create_key, create_project

TARGET = "http://127.0.0.1:9999/hook"


@dataclass
class Worker:
    """Claims and settles one job at a time, when told."""

    database: Database
    id: int
    cursor: ClaimCursor = field(default_factory=ClaimCursor)

    async def claim(self) -> ClaimedJob:
        [job] = await claim(
            self.database, self.id, 1, ["http"], None, self.cursor, await live_segments(self.database, "ready")
        )
        return job

    async def succeed(self) -> None:
        job = await self.claim()
        report = Report("success", status_code=200, excerpt=b"ok")
        await self._settle(Settlement(job.id, job.attempt, "succeeded", result=None, report=report))

    async def fail(self, report: Report, delay: timedelta = timedelta(hours=1)) -> None:
        job = await self.claim()
        await self._settle(Settlement(job.id, job.attempt, "retry", delay=delay, report=report))

    async def bury(self, reason: DeadReason = DeadReason.PERMANENT) -> None:
        job = await self.claim()
        report = Report("http_error", "the target answered 404", 404)
        await self._settle(Settlement(job.id, job.attempt, "dead", reason=reason, report=report))

    async def _settle(self, settlement: Settlement) -> None:
        assert not await settle(self.database, self.id, [settlement])


class Api:
    """An HTTP client with a key, and the project that the key belongs to."""

    def __init__(self, client: httpx.AsyncClient, project: Project, key: str) -> None:
        self.client = client
        self.project = project
        self.key = key

    async def post(self, path: str, content: Any = None, **options: Any) -> httpx.Response:
        """POST JSON: text and bytes go as they are."""
        if content is not None and not isinstance(content, (str, bytes)):
            content = json.dumps(content)
        headers = {
            "authorization": f"Bearer {self.key}",
            "content-type": "application/json",
            **options.pop("headers", {}),
        }
        return await self.client.post(path, content=content, headers=headers, **options)

    async def get(self, path: str, **options: Any) -> httpx.Response:
        return await self.client.get(path, headers={"authorization": f"Bearer {self.key}"}, **options)

    async def create(self, **members: Any) -> dict[str, Any]:
        answer = await self.post("/v1/jobs", {"url": TARGET, **members})
        assert answer.status_code == 201, answer.text
        return answer.json()  # type: ignore[no-any-return]

    async def job(self, job_id: str | UUID) -> dict[str, Any]:
        answer = await self.get(f"/v1/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        return answer.json()  # type: ignore[no-any-return]


async def new_api(
    database: Database, client: httpx.AsyncClient, name: str, scopes: Sequence[Scope] = ("read", "write")
) -> Api:
    """An account, a project and a key of its own."""
    account = await create_account(database, name)
    project = await create_project(database, account.id, "default")
    key = await create_key(database, project.owner.project_id, "test", scopes=scopes)
    return Api(client, project, key.key)


def assert_problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The answer is a problem of this status; returns it."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert problem["status"] == status
    assert problem["type"].startswith("urn:duly:problem:")
    assert problem["title"]
    assert problem["detail"]
    return problem


def pointers(problem: dict[str, Any]) -> set[str]:
    return {error["pointer"] for error in problem["errors"]}
