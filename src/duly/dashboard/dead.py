"""The dead letters by cause, and redriving those of one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from http.client import SEE_OTHER
from typing import Final
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from duly.api.inputs import read_uuid
from duly.dashboard.grouping import Group, grouped, key_of
from duly.dashboard.guarding import HOME
from duly.dashboard.parts import Parts, parts_of, reader, writer
from duly.queue import Owner, make_operation, overview, redrive
from duly.queue.overview import DeadLetter, DeadLetters, quick
from duly.service.sessions import Viewer

MOST_AT_ONCE: Final = 1_000
MOST_AT_A_RATE: Final = 100_000
FASTEST: Final = 1_000
MOST_PROJECTS: Final = 20
DEFAULT: Final = 100
_RATE: Final = re.compile(r"[0-9]{1,4}(\.[0-9]{1,3})?", re.ASCII)
SHOWN: Final = 100
LIMIT: Final = timedelta(seconds=2)
LASTS_S: Final = 15.0
"""A redrive of many ends after this long, says how far it came, and can be sent again."""


@dataclass(slots=True)
class Redriven:
    """What became of a redrive of many. `refused`: their unique key is taken, they have expired, or somebody was
    quicker. `is_whole`: nothing of the cause is left among what was looked at.
    """

    redriven: int = 0
    refused: int = 0
    is_whole: bool = True


async def show(request: Request) -> Response:
    """By cause; `group` shows the letters of one; `before` looks further back."""
    viewer = await reader(request)
    parts = parts_of(request)
    found, trouble = await _looked(request, parts, viewer)
    groups = grouped(found.letters if found else ())
    wanted = request.query_params.get("group", "")
    chosen = next((group for group in groups if group.key == wanted), None)
    return parts.page(
        request,
        "dead.html",
        viewer,
        groups=groups,
        chosen=chosen,
        letters=(chosen.letters if chosen else found.letters if found else ())[:SHOWN],
        total=len(found.letters) if found else 0,
        further=found.looked_to if found else None,
        before=request.query_params.get("before", ""),
        trouble=trouble,
        done=_done(request),
    )


async def preview(request: Request) -> Response:
    """How many would be redriven, and of what, before anybody says so."""
    viewer = await reader(request)
    group = await _group(request, viewer, request.query_params.get("group", ""))
    return parts_of(request).page(
        request,
        "redrive.html",
        viewer,
        group=group,
        most=MOST_AT_ONCE,
        most_at_a_rate=MOST_AT_A_RATE,
        limit=min(group.count, DEFAULT),
        letters=group.letters[:5],
        may="write" in viewer.scopes,
    )


async def redrive_many(request: Request) -> Response:
    """Redrive up to `limit` letters of a cause, one by one, each as by hand; with a `rate` by an operation."""
    viewer, form = await writer(request)
    if "rate" in form:
        return await _at_a_rate(request, viewer, form)
    limit = form.get("limit", "")
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 5 and 1 <= int(limit) <= MOST_AT_ONCE):
        raise HTTPException(400, f"How many: a number from 1 to {MOST_AT_ONCE:,}.")
    parts = parts_of(request)
    done = await redriven(parts, viewer, form.get("group", ""), int(limit))
    parts.figures.forget(viewer.owner)
    query = {"redriven": done.redriven, "refused": done.refused, "whole": int(done.is_whole)}
    return RedirectResponse(f"{HOME}/dead?{urlencode(query)}", SEE_OTHER)


async def _at_a_rate(request: Request, viewer: Viewer, form: dict[str, str]) -> Response:
    """Upkeep redrives what matches the cause's filter, so many a second: an operation for each project with some."""
    limit, rate = form.get("limit", ""), form["rate"]
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 6 and 1 <= int(limit) <= MOST_AT_A_RATE):
        raise HTTPException(400, f"How many: a number from 1 to {MOST_AT_A_RATE:,}.")
    if not (_RATE.fullmatch(rate) and 0.1 <= float(rate) <= FASTEST):
        raise HTTPException(400, f"How many a second: a number from 0.1 to {FASTEST:,}.")
    group = await _group(request, viewer, form.get("group", ""))
    owners = sorted({(letter.account_id, letter.project_id) for letter in group.letters})
    if len(owners) > MOST_PROJECTS:
        raise HTTPException(400, f"They are of {len(owners)} projects: at a rate {MOST_PROJECTS} at most, or at once.")
    async with parts_of(request).services.database.transaction() as tx:
        for owner in owners:
            await make_operation(
                tx, Owner(*owner), "redrive", group.filter, most=int(limit), rate=float(rate), by=viewer.by
            )
    return RedirectResponse(f"{HOME}/operations", SEE_OTHER)


async def redriven(parts: Parts, viewer: Viewer, group: str, limit: int, lasts_s: float = LASTS_S) -> Redriven:
    """Redrive up to `limit` of a cause, those that died last first, for `lasts_s` at most."""
    done = Redriven()
    db = parts.services.database
    try:
        async with asyncio.timeout(lasts_s):
            async for letter in _letters_of(parts, viewer, group):
                if done.redriven == limit:
                    done.is_whole = False
                    break
                owner = Owner(letter.account_id, letter.project_id)
                if await redrive(db, owner, letter.job_id, by=viewer.by) == "redriven":
                    done.redriven += 1
                else:
                    done.refused += 1
    except TimeoutError:
        done.is_whole = False
    return done


async def _letters_of(parts: Parts, viewer: Viewer, group: str) -> AsyncIterator[DeadLetter]:
    before = None
    while True:
        async with quick(parts.services.database, LIMIT) as db:
            found = await overview.dead_letters(db, viewer.owner, before=before)
        for letter in found.letters:
            if key_of(letter) == group:
                yield letter
        if found.looked_to is None:
            return
        before = found.looked_to


async def _looked(request: Request, parts: Parts, viewer: Viewer) -> tuple[DeadLetters | None, str | None]:
    if not (text := request.query_params.get("before", "")):
        figure = await parts.figures.dead(viewer.owner)
        return figure.value, figure.trouble
    try:
        before = read_uuid(text)
    except ValueError:
        raise HTTPException(404) from None
    async with quick(parts.services.database, LIMIT) as db:
        return await overview.dead_letters(db, viewer.owner, before=before), None


async def _group(request: Request, viewer: Viewer, key: str) -> Group:
    """The cause of this name among the newest letters. Raises 404."""
    figure = await parts_of(request).figures.dead(viewer.owner)
    for group in grouped(figure.value.letters if figure.value else ()):
        if group.key == key:
            return group
    raise HTTPException(404)


def _done(request: Request) -> dict[str, int] | None:
    """What a redrive has told in the address: numbers only."""
    told = {name: request.query_params.get(name, "") for name in ("redriven", "refused", "whole")}
    if not all(text.isascii() and text.isdigit() and len(text) <= 6 for text in told.values()):
        return None
    return {name: int(text) for name, text in told.items()}


ROUTES = [
    Route("/dead", show),
    Route("/dead/redrive", preview, methods=["GET"]),
    Route("/dead/redrive", redrive_many, methods=["POST"]),
]
