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
from duly.service.sessions import Viewer, viewer_of

LIVE_HEADER: Final = "x-duly-live"
_LONGEST_COOKIE = 200


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


async def reader(request: Request) -> Viewer:
    """Who looks, with the scope read. Otherwise to the sign-in, or 401 for a page that fetches itself."""
    viewer = await viewer_here(request)
    if viewer is None:
        if LIVE_HEADER in request.headers:
            raise HTTPException(401, "The session has ended.")
        raise HTTPException(303, headers={"location": f"{HOME}/sign-in"})
    if "read" not in viewer.scopes:
        raise HTTPException(403, "Your key lacks the scope read.")
    return viewer


async def writer(request: Request) -> tuple[Viewer, dict[str, str]]:
    """Who changes something, with the scope write and a form of this very session; and the form."""
    refuse_foreign(request)
    viewer = await viewer_here(request)
    if viewer is None:
        raise HTTPException(303, headers={"location": f"{HOME}/sign-in"})
    form = await read_form(request)
    if not viewer.sent(form.get("csrf", "")):
        raise HTTPException(403, "This form is not from your session. Go back, reload the page and try again.")
    if "write" not in viewer.scopes:
        raise HTTPException(403, "Your key may look and change nothing: it lacks the scope write.")
    return viewer, form


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
