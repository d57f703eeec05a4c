"""What keeps pages safe in a browser: headers on every answer, the cookie, where a POST came from, forms, a limit on
wrong sign-ins.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOME: Final = "/dashboard"
COOKIE: Final = "duly_session"
FORM_LIMIT_BYTES: Final = 64 * 1024
FORM_LIMIT_S: Final = 10.0

_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class SafeHeaders:
    """Every answer says that nothing from elsewhere runs in it, that nobody may frame it, and that nobody may keep it;
    scripts and styles of ours may be kept, and are asked for again.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                is_static = scope["path"].startswith(f"{HOME}/static/") and message["status"] in (200, 304)
                headers["cache-control"] = "no-cache" if is_static else "no-store"
            await send(message)

        await self._app(scope, receive, guarded)


def set_cookie(response: Response, request: Request, base_url: str, secret: str, lasts_s: int) -> None:
    """The session's cookie: for no script, for no other site, for no plain connection where this one is not plain."""
    response.set_cookie(
        COOKIE, secret, max_age=lasts_s, path=HOME, httponly=True, samesite="strict", secure=is_https(request, base_url)
    )


def forget_cookie(response: Response) -> None:
    response.delete_cookie(COOKIE, path=HOME, httponly=True, samesite="strict")


def is_https(request: Request, base_url: str) -> bool:
    """Whether the browser came by https, as far as we or a proxy in front can tell. Who lies here harms themselves:
    their cookie is stricter.
    """
    return "https" in (
        request.url.scheme,
        urlsplit(base_url).scheme,
        request.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower(),
    )


def refuse_foreign(request: Request) -> None:
    """Raise 403 for a POST that a page of another site sent. Browsers say so; a program that says nothing is none."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    host = request.headers.get("host", "")
    is_ours = origin is None or (bool(host) and origin.lower().partition("://")[2] == host.lower())
    if site not in (None, "same-origin", "none") or not is_ours:
        raise HTTPException(403, "This form was sent from another site. Open the dashboard itself and try again.")


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form, the last of each name. Raises 413 or 400."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/x-www-form-urlencoded":
        raise HTTPException(400, "A form was expected.")
    body = b""
    try:
        async with asyncio.timeout(FORM_LIMIT_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > FORM_LIMIT_BYTES:
                    raise HTTPException(413, "The form is too long.", headers={"connection": "close"})
    except TimeoutError:
        raise HTTPException(400, "The form did not arrive in time.", headers={"connection": "close"}) from None
    try:
        return dict(parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=50))
    except ValueError:
        raise HTTPException(400, "The form cannot be read.") from None


class Throttle:
    """Wrong sign-ins by peer: after `most` of them within `over_s` nobody there gets in until the first is that old.

    A peer is whoever holds the connection. What a header says about somebody behind it counts for nothing: anybody can
    write it. Behind a proxy all share one count. The memory is bounded: the peer that was wrong longest ago is
    forgotten.
    """

    def __init__(
        self,
        most: int = 10,
        over_s: float = 60.0,
        peers: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._over_s = over_s
        self._peers = peers
        self._clock = clock
        self._wrong: OrderedDict[str, list[float]] = OrderedDict()

    def wait_s(self, peer: str) -> float:
        """How long this peer must wait; 0: it may try."""
        wrong = self._recent(peer)
        return 0.0 if len(wrong) < self._most else wrong[0] + self._over_s - self._clock()

    def was_wrong(self, peer: str) -> None:
        """Note a wrong sign-in."""
        self._wrong[peer] = [*self._recent(peer), self._clock()][-self._most :]
        self._wrong.move_to_end(peer)
        while len(self._wrong) > self._peers:
            self._wrong.popitem(last=False)

    def was_right(self, peer: str) -> None:
        """Forget what was wrong before."""
        self._wrong.pop(peer, None)

    def _recent(self, peer: str) -> list[float]:
        return [at for at in self._wrong.get(peer, ()) if at > self._clock() - self._over_s]
