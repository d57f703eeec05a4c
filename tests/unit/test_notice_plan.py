"""Episodes: what was found is told when it begins, when it grows worse, and each day. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from duly.service.notice_plan import AGAIN_AFTER, Episode, Finding, plan_notices

START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def found(key: str = "a", level: int = 1) -> Finding:
    return Finding("breaker_opened", key, level=level)


def told(key: str = "a", level: int = 1) -> Episode:
    return Episode("breaker_opened", key, level, START, START)


def test_it_is_told_when_it_begins() -> None:
    """And not as something that was told before."""
    plan = plan_notices([found()], [], START)
    assert plan.tell == {"breaker_opened": [found()]}
    assert (plan.again, plan.episodes, plan.ended) == (set(), [told()], [])


def test_it_is_not_told_while_it_lasts_but_each_day() -> None:
    """The day counts from when it was told last; when it began stays."""
    assert plan_notices([found()], [told()], START + AGAIN_AFTER - MINUTE).tell == {}
    plan = plan_notices([found()], [told()], START + AGAIN_AFTER)
    assert plan.again == {"a"}
    assert plan.episodes == [Episode("breaker_opened", "a", 1, START, START + AGAIN_AFTER)]


def test_it_is_told_when_it_grows_worse_and_not_when_it_grows_better() -> None:
    """Worse is news, not a reminder; the worst counts until it is over."""
    worse = plan_notices([found(level=2)], [told()], START + MINUTE)
    assert (list(worse.tell), worse.again, worse.episodes[0].level) == (["breaker_opened"], set(), 2)
    assert plan_notices([found(level=1)], [told(level=2)], START + MINUTE).tell == {}


def test_level_zero_keeps_an_episode_and_begins_none() -> None:
    """So that what wavers is one episode."""
    assert plan_notices([found(level=0)], [], START) == plan_notices([], [], START)
    assert plan_notices([found(level=0)], [told()], START).ended == []
    assert plan_notices([], [told()], START).ended == [told()]


def test_what_was_not_looked_at_goes_on() -> None:
    """Its turn comes at a later look."""
    assert plan_notices([], [told()], START, lambda _: False).ended == []


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 2)), max_size=30))
def test_within_a_day_each_episode_is_told_once_a_level(looks: list[dict[str, int]]) -> None:
    """Whatever is found in whatever order: between a beginning and an end, nothing is told twice at one level, and what
    is told has begun.
    """
    episodes: dict[str, Episode] = {}
    since: dict[str, list[int]] = {}
    for minute, look in enumerate(looks):
        plan = plan_notices([found(*one) for one in look.items()], episodes.values(), START + minute * MINUTE)
        for one in plan.tell.get("breaker_opened", ()):
            assert one.level > max(since.setdefault(one.key, [0]))
            since[one.key].append(one.level)
        for episode in plan.ended:
            del episodes[episode.key], since[episode.key]
        episodes |= {episode.key: episode for episode in plan.episodes}
        assert set(episodes) == set(since) == {key for key in since if max(since[key]) > 0}
        assert {key for key, level in look.items() if level > 0} <= set(episodes)
