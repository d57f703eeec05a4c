"""The creates answered directly, past the framework's routing and dependencies, which cost twice what a create does.

The routes stay: they are the document, and the same functions. Whatever is not exactly one of these calls goes on to
them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fastapi import Request
from fastapi.responses import Response
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from duly.api.auth import authorized
from duly.api.batch import create_jobs
from duly.api.jobs import create_job
from duly.api.problems import answer_to
from duly.api.services import Services, services_of
from duly.service import Principal, Scope


@dataclass(frozen=True, slots=True)
class Call:
    """A POST of one path without parameters. It stands where others have their route: its `path` is what idempotency
    keys and metrics know it by.
    """

    path: str
    scope: Scope
    act: Callable[[Request, Principal, Services], Awaitable[Response]]


CALLS = (Call("/v1/jobs", "write", create_job), Call("/v1/jobs/batch", "write", create_jobs))


class Direct:
    """Answers the calls, each problem as the routes do; an error that is no problem goes up, to be told and logged."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._calls = {call.path: call for call in CALLS}

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        call = self._calls.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if call is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = call
        request = Request(scope, receive)
        try:
            answer = await call.act(request, await authorized(request, call.scope), services_of(request))
        except Exception as error:
            found = answer_to(request, error)
            if found is None:
                raise
            answer = found
        await answer(scope, receive, send)
