"""Whose things a page is about. A session that began with a key reaches its project and nothing else, whatever an
address or a form says; an operator names one.
"""

from __future__ import annotations

from uuid import UUID

from duly.api.accounts import path_id
from duly.api.problems import not_found
from duly.queue import Executor
from duly.service import Project, get_project
from duly.service.sessions import Viewer


def project_asked(viewer: Viewer, text: str) -> UUID | None:
    """The project that is to be shown, by its public id; None: every one. Raises Problem 404 for somebody else's."""
    asked = path_id(text) if text else viewer.project_id
    check_reach(viewer, asked)
    return asked


async def project_for(db: Executor, viewer: Viewer, text: str) -> Project:
    """The project in which something is to be done. Raises 404 for none, for what is none, and for somebody else's."""
    asked = project_asked(viewer, text)
    if asked is None:
        raise not_found()
    return await get_project(db, asked, within=viewer.reach)


def check_reach(viewer: Viewer, project_id: UUID | None) -> None:
    """Raise Problem 404 unless the viewer may see what is of this project."""
    if viewer.project_id not in (None, project_id):
        raise not_found()
