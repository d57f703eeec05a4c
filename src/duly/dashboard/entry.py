"""Signing in with a key or an operator's token, and out."""

from __future__ import annotations

from http.client import SEE_OTHER

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from duly.dashboard.guarding import COOKIE, HOME, forget_cookie, read_form, refuse_foreign, set_cookie
from duly.dashboard.parts import parts_of, viewer_here
from duly.service.sessions import LONGEST, TOKEN_PREFIX, begin_with_key, begin_with_token, end_session

_LONGEST_KEY = 200


async def show_sign_in(request: Request) -> Response:
    if await viewer_here(request) is not None:
        return RedirectResponse(f"{HOME}/", SEE_OTHER)
    return parts_of(request).page(request, "sign_in.html", None, error="")


async def sign_in(request: Request) -> Response:
    """A right key becomes a cookie; what is wrong is said, and counted by the peer that holds the connection."""
    refuse_foreign(request)
    parts = parts_of(request)
    peer = request.client.host if request.client else ""
    if (wait_s := parts.throttle.wait_s(peer)) > 0:
        answer = _again(request, 429, f"Too many wrong keys from your address. Try again in {wait_s:.0f} s.")
        answer.headers["retry-after"] = str(int(wait_s) + 1)
        return answer
    key = (await read_form(request)).get("key", "").strip()
    secret, error = await _begun(request, key) if 0 < len(key) <= _LONGEST_KEY else (None, "Paste a key.")
    if secret is None:
        parts.throttle.was_wrong(peer)
        return _again(request, 403, error)
    parts.throttle.was_right(peer)
    before = request.cookies.get(COOKIE, "")
    if before:
        await end_session(parts.services.database, before)
    answer = RedirectResponse(f"{HOME}/", SEE_OTHER)
    set_cookie(answer, request, parts.services.settings.base_url, secret, int(LONGEST.total_seconds()))
    return answer


async def sign_out(request: Request) -> Response:
    """The session ends for good, here and wherever else its cookie may be."""
    refuse_foreign(request)
    viewer = await viewer_here(request)
    answer = RedirectResponse(f"{HOME}/sign-in?said=signed_out", SEE_OTHER)
    if viewer is not None:
        if not viewer.sent((await read_form(request)).get("csrf", "")):
            return parts_of(request).trouble_page(
                request, 403, "Not allowed", "This form is not from your session. Reload the page and try again."
            )
        await end_session(parts_of(request).services.database, viewer.secret)
    forget_cookie(answer)
    return answer


async def _begun(request: Request, key: str) -> tuple[str | None, str]:
    services = parts_of(request).services
    if key.startswith(TOKEN_PREFIX):
        secret = await begin_with_token(services.database, key)
        return secret, "The token is unknown, used already or too old. Print another: duly dashboard token."
    principal = await services.gatekeeper.authenticate(key)
    if principal is None:
        return None, "The key is unknown, expired or revoked."
    if principal.disabled:
        return None, "The account is disabled: ask its operator."
    if "read" not in principal.scopes:
        return None, "This key may not look: it lacks the scope read."
    return await begin_with_key(services.database, principal), ""


def _again(request: Request, status: int, error: str) -> Response:
    return parts_of(request).page(request, "sign_in.html", None, status, error=error)


ROUTES = [
    Route("/sign-in", show_sign_in, methods=["GET"]),
    Route("/sign-in", sign_in, methods=["POST"]),
    Route("/sign-out", sign_out, methods=["POST"]),
]
