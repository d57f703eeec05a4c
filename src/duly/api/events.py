"""GET /v1/events: what happens to the project's jobs, as server-sent events."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from duly.api.answers import HEADERS, problem_answers
from duly.api.auth import Reader, is_still_allowed
from duly.api.problems import invalid
from duly.api.services import ServicesHere
from duly.queue import Event
from duly.service.listening import BATCH, EventHub
from duly.service.moments import show_moment

KEEP_ALIVE_S = 15.0
ALLOWED_S = 5.0
SEND_LIMIT_S = 10.0
LONGEST_GAP = timedelta(hours=1)
_AHEAD = timedelta(hours=1)  # the database's clock is another one
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ID = re.compile(r"([0-9]{1,17})-[a-z.]{1,20}-[0-9]{1,10}-[0-9a-f-]{36}", re.ASCII)

router = APIRouter(prefix="/v1", tags=["events"])

_LAST_ID: dict[str, Any] = {
    "name": "Last-Event-ID",
    "in": "header",
    "schema": {"type": "string"},
    "description": "the id of the last event that was received: those after it are sent first, an hour back at most",
}


@router.get(
    "/events",
    operation_id="events",
    summary="What happens to jobs, as it happens",
    response_class=Response,
    responses={
        200: {"description": "server-sent events", "content": {"text/event-stream": {"schema": {"type": "string"}}}},
        **problem_answers(422),
    },
    openapi_extra={"parameters": [_LAST_ID]},
)
async def stream(request: Request, caller: Reader, services: ServicesHere) -> Response:
    """job.created, attempt.ended, job.succeeded, job.dead, job.cancelled, each about a second after its commit.

    At least once within a connection that is resumed; in no promised order; what is committed more than three seconds
    after it happened may be left out. A `gap` event says that some are missing: read the list of jobs then.
    """
    since = _read_last_id(request, services.clock.now())
    project_id = caller.owner.project_id

    async def told() -> AsyncIterator[bytes]:
        async with services.hub.listening(project_id) as listener:
            yield b": duly\nretry: 2000\n\n"
            if since is not None:
                async for part in _past(services.hub, project_id, since):
                    yield part
            asked_s = time.monotonic()
            while not (listener.cut or services.ending.is_set()):
                part = b": still here\n\n"
                with suppress(TimeoutError):
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        part = _event_text(await listener.events.get())
                if time.monotonic() - asked_s >= ALLOWED_S:  # also while something happens all the time
                    if not await is_still_allowed(request):
                        return
                    asked_s = time.monotonic()
                yield part
            if listener.cut:
                yield b"event: gap\ndata: {}\n\n"

    return _EventStream(told(), services.ending)


class _EventStream(Response):
    """Sends what comes until it ends, the client goes, or the client does not read for a while."""

    media_type = "text/event-stream"

    def __init__(self, parts: AsyncIterator[bytes], ending: asyncio.Event) -> None:
        super().__init__(None, 200, {**HEADERS, "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._parts = parts
        self._ending = ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        sending = asyncio.create_task(self._send(send))
        gone = asyncio.create_task(_gone(receive))
        ending = asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait({sending, gone, ending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, gone, ending):
                task.cancel()
            await asyncio.gather(sending, gone, ending, return_exceptions=True)
        if not gone.done() or gone.cancelled():
            async with asyncio.timeout(SEND_LIMIT_S):
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send) -> None:
        try:
            async for part in self._parts:
                async with asyncio.timeout(SEND_LIMIT_S):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
        finally:
            await self._parts.aclose()  # type: ignore[attr-defined]


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _past(hub: EventHub, project_id: int, since: datetime) -> AsyncIterator[bytes]:
    events = await hub.past(project_id, since)
    for event in events:
        yield _event_text(event)
    if len(events) == BATCH:
        yield b"event: gap\ndata: {}\n\n"


def _event_text(event: Event) -> bytes:
    data = {
        "type": event.kind,
        "at": show_moment(event.at),
        "job_id": str(event.job_id),
        "queue": event.queue,
        "attempt": event.number or None,
        "state": event.state,
        "reason": event.reason,
        "outcome": event.outcome,
        "status_code": event.status_code,
        "next_run_at": None if event.next_run_at is None else show_moment(event.next_run_at),
    }
    microseconds = (event.at - _EPOCH) // timedelta(microseconds=1)
    event_id = f"{microseconds}-{event.kind}-{event.number}-{event.job_id}"
    return f"id: {event_id}\nevent: {event.kind}\ndata: {json.dumps(data)}\n\n".encode()


def _read_last_id(request: Request, now: datetime) -> datetime | None:
    given = request.headers.get("last-event-id")
    if not given:
        return None
    found = _ID.fullmatch(given)
    if found is None or not 0 <= int(found[1]) <= (now - _EPOCH + _AHEAD) // timedelta(microseconds=1):
        raise invalid([{"parameter": "Last-Event-ID", "detail": "is not the id of an event of this stream"}])
    return max(_EPOCH + timedelta(microseconds=int(found[1])), now - LONGEST_GAP)
