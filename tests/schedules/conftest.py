"""A project of its own, schedules made short, and a firer that is moved by hand."""

from __future__ import annotations

import pytest

from duly.queue import Database
from schedules.stage import Stage
from support.engine import new_owner


@pytest.fixture
async def stage(database: Database) -> Stage:
    return Stage(database, await new_owner(database))
