"""A project of its own."""

from __future__ import annotations

import pytest

from duly.queue import Database
from notices.stage import Stage


@pytest.fixture
async def stage(database: Database) -> Stage:
    return await Stage.of(database)
