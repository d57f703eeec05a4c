"""What every page works with: the services, the figures that all tabs share, and how a page is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from duly.api.services import Services
from duly.dashboard import charts, words
from duly.dashboard.figures import Figures
from duly.dashboard.guarding import COOKIE, HOME, Throttle, read_form, refuse_foreign
from duly.service import Scope
from duly.service.sessions import Viewer, viewer_of

LIVE_HEADER: Final = "x-duly-live"
_LONGEST_COOKIE = 200
_PAGES: Final[tuple[tuple[str, str, str, Scope, bool], ...]] = (
    ("/", "Overview", "o", "read", True),
    ("/jobs", "Jobs", "j", "read", True),
    ("/dead", "Dead letters", "d", "read", True),
    ("/operations", "Operations", "r", "read", True),
    ("/schedules", "Schedules", "s", "read", True),
    ("/queues", "Queues", "q", "read", True),
    ("/workers", "Workers", "w", "read", False),
    ("/breakers", "Breakers", "b", "read", True),
    ("/accounts", "Accounts", "a", "admin", False),
    ("/keys", "Keys", "k", "admin", True),
    ("/secrets", "Secrets", "e", "admin", True),
)


@dataclass(frozen=True, slots=True)
class Parts:
    """One per dashboard."""

    services: Services
    figures: Figures
    templates: Environment
    throttle: Throttle = field(default_factory=Throttle)

    @classmethod
    def of(cls, services: Services) -> Parts:
        """On the services of an API."""
        return cls(services, Figures(services.database), _templates())

    def page(self, request: Request, name: str, viewer: Viewer | None, status: int = 200, **values: Any) -> Response:
        """A template as an answer."""
        text = self.templates.get_template(name).render(
            viewer=viewer,
            here=request.url.path.removeprefix(HOME) or "/",
            now=self.services.clock.now(),
            said=words.SAID.get(request.query_params.get("said", ""), ""),
            pages=_pages(viewer),
            **values,
        )
        return HTMLResponse(text, status)

    def trouble_page(self, request: Request, status: int, title: str, text: str) -> Response:
        """A page that says what went wrong."""
        return self.page(
            request, "trouble.html", None, status, title=title, text=text, phrase=HTTPStatus(status).phrase
        )


def parts_of(request: Request) -> Parts:
    """The parts of the dashboard that the request came to."""
    parts: Parts = request.app.state.parts
    return parts


async def viewer_here(request: Request) -> Viewer | None:
    """Who asks, by the cookie. Pages that fetch themselves again do not keep a session alive."""
    secret = request.cookies.get(COOKIE, "")
    if not 0 < len(secret) <= _LONGEST_COOKIE:
        return None
    return await viewer_of(parts_of(request).services.database, secret, active=LIVE_HEADER not in request.headers)


async def reader(request: Request, scope: Scope = "read") -> Viewer:
    """Who looks, with the scope. Otherwise to the sign-in, or 401 for a page that fetches itself."""
    viewer = await viewer_here(request)
    if viewer is None:
        if LIVE_HEADER in request.headers:
            raise HTTPException(401, "The session has ended.")
        raise HTTPException(303, headers={"location": f"{HOME}/sign-in"})
    _refuse_disabled(viewer)
    if scope not in viewer.scopes:
        raise HTTPException(403, f"Your key lacks the scope {scope}.")
    return viewer


async def writer(request: Request, scope: Scope = "write") -> tuple[Viewer, dict[str, str]]:
    """Who changes something, with the scope and a form of this very session; and the form."""
    refuse_foreign(request)
    viewer = await viewer_here(request)
    if viewer is None:
        raise HTTPException(303, headers={"location": f"{HOME}/sign-in"})
    form = await read_form(request)
    if not viewer.sent(form.get("csrf", "")):
        raise HTTPException(403, "This form is not from your session. Go back, reload the page and try again.")
    _refuse_disabled(viewer)
    if scope not in viewer.scopes:
        raise HTTPException(403, f"Your key may not change this: it lacks the scope {scope}.")
    return viewer, form


def operator_only(viewer: Viewer, why: str) -> Viewer:
    """The viewer, who is an operator. Raises 403 saying why."""
    if not viewer.is_operator:
        raise HTTPException(403, why)
    return viewer


def _refuse_disabled(viewer: Viewer) -> None:
    if viewer.disabled:
        raise HTTPException(403, "The account is disabled: ask its operator.")


def _pages(viewer: Viewer | None) -> list[tuple[str, str, str]]:
    """What the viewer may look at: path, name, key."""
    if viewer is None:
        return []
    return [
        (path, name, key)
        for path, name, key, scope, for_all in _PAGES
        if scope in viewer.scopes and (for_all or viewer.is_operator)
    ]


def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("duly.dashboard"),
        autoescape=True,
        auto_reload=False,
        undefined=StrictUndefined,
        finalize=words.visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(home=HOME, charts=charts, pairs=charts.column)
    environment.filters.update(words.FILTERS)
    return environment
