"""Schedules of every second, fired by processes that are killed and whose clocks are wrong."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from bench.fires import fire_through_kills

from duly.queue import Database
from support.engine import new_owner


@pytest.mark.slow
async def test_every_fire_once_through_kills_and_wrong_clocks(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    """FO-054, FO-055: three workers, one fast and one slow by two minutes, killed and started at random: each schedule
    has exactly one job for each second. `make fires` does it for two minutes with two hundred schedules.
    """
    audit = await fire_through_kills(
        database,
        database_url,
        await new_owner(database),
        tmp_path,
        schedules=20,
        seconds=12,
        rng=random.Random(7),
    )
    assert audit.kills > 0
    assert audit.fires >= 20 * 12
    assert audit.sound, audit
