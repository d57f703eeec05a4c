"""A line for each request that the API answered: who asked what, by ids, and how that went. Never what was sent.

At INFO (`-v`): a quiet service says nothing. The answer carries the line's id as `Duly-Request-Id`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import MutableMapping
from typing import Any

from duly.model import uuid7
from duly.observe.routes import Application, Receive, Scope, Send, method_of, route_of

log = logging.getLogger("duly.api.requests")


def logged(app: Application) -> Application:
    """The application, each request told. A route is named by its template: neither path nor query is logged."""

    async def logging_app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        request_id = str(uuid7())
        status: int | None = None  # the client was gone before an answer

        async def noting(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"duly-request-id", request_id.encode())]
            await send(message)

        began = time.perf_counter()
        try:
            await app(scope, receive, noting)
        finally:
            if log.isEnabledFor(logging.INFO):
                fields = {"request_id": request_id, "method": method_of(scope), "route": route_of(scope)}
                took_ms = round(1000 * (time.perf_counter() - began), 1)
                log.info("request", extra={**fields, "status": status, "duration_ms": took_ms, **_caller(scope)})

    return logging_app


def _caller(scope: Scope) -> dict[str, str]:
    """The ids of a caller whose key is a living one."""
    caller = scope.get("state", {}).get("caller")
    if caller is None:
        return {}
    return {name: str(getattr(caller, name)) for name in ("account_id", "project_id", "key_id")}
