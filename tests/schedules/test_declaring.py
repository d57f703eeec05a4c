"""Declared schedules: what a declaration changes is shown first, and it touches its own set only."""

from __future__ import annotations

from datetime import timedelta

import pytest

from duly.service import Keyring
from duly.service.declaring import Change, Declared, reconcile
from duly.service.faults import InvalidScheduleError
from duly.service.fire_plan import Policy
from duly.service.resealing import reseal_schedules, schedules_by_key
from duly.service.schedules import Schedule, ScheduleConflictError, list_schedules
from duly.service.templates import Template
from duly.service.timing import Asked
from schedules.stage import KEYRING, MINUTE, SECOND, Stage, key, template

DAILY = Asked(cron="0 3 * * *", timezone="Europe/London")


def declared(name: str, asked: Asked = DAILY, **made_of: object) -> Declared:
    return Declared(name, asked, Policy(), template(**made_of))


async def applied(stage: Stage, *wanted: Declared, dry_run: bool = False, declared_by: str = "a") -> list[Change]:
    return await reconcile(stage.db, stage.owner, wanted, declared_by=declared_by, keyring=KEYRING, dry_run=dry_run)


async def stored(stage: Stage) -> dict[str | None, Schedule]:
    return {schedule.name: schedule for schedule in await list_schedules(stage.db, stage.owner)}


async def test_added_changed_removed(stage: Stage) -> None:
    """A dry run shows it and changes nothing; applied twice nothing is left to do."""
    await applied(stage, declared("kept"), declared("changed"), declared("removed"))
    wanted = [declared("kept"), declared("changed", tags=("new",)), declared("added")]
    expected = [Change("added", "added"), Change("changed", "changed", ("job",)), Change("removed", "removed")]
    before = await stored(stage)
    assert await applied(stage, *wanted, dry_run=True) == expected
    assert await stored(stage) == before
    assert await applied(stage, *wanted) == expected
    after = await stored(stage)
    assert set(after) == {"kept", "changed", "added"}
    assert after["kept"] == before["kept"]
    assert after["changed"].opened(KEYRING).tags == ("new",)
    assert await applied(stage, *wanted) == []


async def test_what_is_outside_the_set_is_left_alone(stage: Stage) -> None:
    """Made by hand, or of another set: not removed, and its name is a conflict."""
    await stage.schedule(name="by hand")
    await applied(stage, declared("theirs"), declared_by="b")
    await applied(stage, declared("ours"))
    assert await applied(stage) == [Change("ours", "removed")]
    assert set(await stored(stage)) == {"by hand", "theirs"}
    for name in ("by hand", "theirs"):
        with pytest.raises(ScheduleConflictError):
            await applied(stage, declared("new"), declared(name))
    assert set(await stored(stage)) == {"by hand", "theirs"}


async def test_a_timing_that_is_as_before_keeps_its_phase(stage: Stage) -> None:
    """A delay counts from the first time; a moment that is past by now is no fault; a new interval keeps the phase."""
    soon = (await stage.now()) + MINUTE
    wanted = [declared("delayed", Asked(every=MINUTE, delay=30 * SECOND)), declared("once", Asked(at=soon))]
    await applied(stage, *wanted)
    before = await stored(stage)
    await stage.db.execute("update duly.schedule set at = at - interval '1 hour' where at is not null")
    wanted[1] = declared("once", Asked(at=soon - timedelta(hours=1)))
    assert await applied(stage, *wanted) == []
    [change] = await applied(stage, declared("delayed", Asked(every=20 * SECOND)), wanted[1])
    assert change == Change("delayed", "changed", ("timing",))
    after = await stored(stage)
    assert after["delayed"].timing.anchor == before["delayed"].timing.anchor


async def test_what_has_passed_holds_up_nothing(stage: Stage) -> None:
    """A moment, or an end, that was over before it was applied first: shown, and the others are applied. One that is
    stored otherwise is removed. A fault besides is told.
    """
    past = (await stage.now()) - MINUTE
    over = [declared("ended", Asked(every=SECOND, end_at=past)), declared("once", Asked(at=past))]
    passed = [Change("ended", "passed"), Change("once", "passed")]
    expected = [Change("daily", "added"), *passed]
    assert await applied(stage, *over, declared("daily"), dry_run=True) == expected
    assert await applied(stage, *over, declared("daily")) == expected
    assert await applied(stage, *over, declared("daily")) == passed
    assert set(await stored(stage)) == {"daily"}
    assert await applied(stage, declared("daily", Asked(at=past))) == [Change("daily", "removed", ("passed",))]
    assert await stored(stage) == {}
    with pytest.raises(InvalidScheduleError) as caught:
        await applied(stage, declared("bad", Asked(cron="no", at=past)))
    assert "/0/cron" in [fault.pointer for fault in caught.value.faults]


async def test_what_is_wrong_is_told_at_its_place_and_nothing_is_changed(stage: Stage) -> None:
    """Every fault of every declaration; a name that is there twice too."""
    bad = [declared("good"), declared("bad", Asked(cron="0 0 30 2 *")), declared("worse", Asked())]
    with pytest.raises(InvalidScheduleError) as caught:
        await applied(stage, *bad)
    assert [fault.pointer for fault in caught.value.faults] == ["/1/cron", "/2"]
    with pytest.raises(InvalidScheduleError, match="twice"):
        await applied(stage, declared("a"), declared("a"))
    assert await stored(stage) == {}


async def test_a_parked_one_is_set_going_again(stage: Stage) -> None:
    """Declared as it is, it is shown as parked, and applied."""
    await applied(stage, declared("a"))
    await stage.db.execute(
        "update duly.schedule_turn set state = 'parked', parked_why = 'x', next_fire_at = null, look_at = null"
    )
    assert await applied(stage, declared("a")) == [Change("a", "changed", ("parked",))]
    assert (await stored(stage))["a"].state == "active"


async def test_a_new_key_takes_over(stage: Stage) -> None:
    """Resealed schedules need the old key no more; one in the clear is sealed; done twice it changes nothing. Of a
    task's arguments none is taken for a seal, whatever its name.
    """
    await stage.schedule(made_of=Template("task:a.b", {"sealed": {"key": "k9"}}))
    schedule = await stage.schedule()
    plain = await stage.schedule(made_of=template(payload={"url": "http://127.0.0.1/", "headers": []}, body=None))
    both = Keyring([key(2), ("test", bytes(32))])
    assert await schedules_by_key(stage.db) == {"test": 1}
    assert await reseal_schedules(stage.db, both) == 1
    assert await schedules_by_key(stage.db) == {"k2": 1}
    assert await reseal_schedules(stage.db, both) == 0
    assert (await stage.read(schedule)).opened(Keyring([key(2)])) == template()
    assert (await stage.read(plain)).template.body is None
