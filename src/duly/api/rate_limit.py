"""The request rate of an account: 429 beyond it, and RateLimit header fields on every answer under it.

The fields are those of draft-ietf-httpapi-ratelimit-headers-10.
"""

from __future__ import annotations

import math

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duly.api.services import services_of
from duly.service import Principal
from duly.service.faults import OverLimitError
from duly.service.rates import Rate

REQUEST_RATE = "request_rate"


def count_call(request: Request, caller: Principal) -> None:
    """Count a call of a living key. Raises OverLimitError if it is one too many."""
    per_second = caller.limits.request_rate
    if per_second is None:
        return
    rate = services_of(request).rates.take(caller.owner.account_id, per_second)
    if rate.refused:
        raise OverLimitError(
            REQUEST_RATE,
            rate.quota,
            f"the account may make {per_second:g} calls a second: slow down",
            retry_after_s=rate.retry_after_s,
            window_s=rate.window_s,
        )
    request.state.rate = rate


class RateHeaders:
    """Puts what `count_call` found on the answer, whatever the answer is."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                rate = scope.get("state", {}).get("rate")
                if rate is not None and not any(name == b"ratelimit" for name, _ in message["headers"]):
                    message["headers"] = [*message["headers"], *_fields(rate)]
            await send(message)

        await self._app(scope, receive, sending if scope["type"] == "http" else send)


def _fields(rate: Rate) -> list[tuple[bytes, bytes]]:
    policy = f'"{REQUEST_RATE}";q={rate.quota};w={math.ceil(rate.window_s)}'
    now = f'"{REQUEST_RATE}";r={rate.remaining};t={math.ceil(rate.reset_s)}'
    return [(b"ratelimit-policy", policy.encode()), (b"ratelimit", now.encode())]
