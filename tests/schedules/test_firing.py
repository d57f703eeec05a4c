"""Firing: due by the database's clock, one job a fire, by policy where fires were missed."""

from __future__ import annotations

from datetime import timedelta

from schedules.stage import HOUR, MINUTE, SECOND, Stage


async def test_down_for_an_hour_with_each_policy(stage: Stage) -> None:
    """FO-054: skip makes none of the sixty fires, one the last of them, all the last ones up to its bound; each turns
    to the next minute, and the ledger tells of every fire.
    """
    skip = await stage.schedule(name="skip", ago=HOUR, missed="skip")
    one = await stage.schedule(name="one", ago=HOUR)
    every = await stage.schedule(name="all", ago=HOUR, missed="all")
    some = await stage.schedule(name="some", ago=HOUR, missed="all", missed_limit=7)
    begun = await stage.now()
    await stage.fire()
    made = {}
    for schedule in (skip, one, every, some):
        fires = await stage.fires(schedule)
        made[schedule.name] = sum(fire.outcome == "made" for fire in fires)
        assert sum(fire.covers for fire in fires) in (60, 61)  # the hour, and the minute it may have taken
        after = await stage.read(schedule)
        assert after.next_fire_at is not None
        assert timedelta(0) < after.next_fire_at - begun <= MINUTE + SECOND
        assert after.made == made[schedule.name]
    assert made["skip"] == 0
    assert made["one"] == 1
    assert made["all"] in (60, 61)
    assert made["some"] == 7
    assert len(await stage.jobs()) == sum(made.values())
