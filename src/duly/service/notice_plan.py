"""What a notice is to tell, of what was found and what it has told of before. Pure.

What is found lasts as an episode, from the look that finds it first to the first look that does not. An episode is told
when it begins, when it grows worse, and again each day.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from duly.service.notices import NoticeType

AGAIN_AFTER = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that needs a person. `key` names what it is, within a notice; `detail` is what it is told with.

    `level`: how bad it is, from 1; 0: not so bad that it were told of, but an episode of it goes on.
    """

    type: NoticeType
    key: str
    detail: Mapping[str, Any] = field(default_factory=dict)
    level: int = 1


@dataclass(frozen=True, slots=True)
class Episode:
    """What was told of and was still there at the last look. `level`: the worst that was told."""

    type: NoticeType
    key: str
    level: int
    began_at: datetime
    told_at: datetime


@dataclass(frozen=True, slots=True)
class Plan:
    """`tell`: what to tell, those of one type in one notice; `again`: those of them that were told before, as bad
    as they are; `episodes`: as they are to be written; `ended`: those that are over.
    """

    tell: Mapping[NoticeType, Sequence[Finding]]
    again: Collection[str]
    episodes: Sequence[Episode]
    ended: Sequence[Episode]


def plan_notices(
    found: Iterable[Finding],
    episodes: Iterable[Episode],
    now: datetime,
    was_looked_at: Callable[[Episode], bool] = lambda _: True,
) -> Plan:
    """Compare what was found with the episodes. One that was not looked at this time goes on."""
    before = {episode.key: episode for episode in episodes}
    seen: set[str] = set()
    tell: dict[NoticeType, list[Finding]] = {}
    again: set[str] = set()
    written: list[Episode] = []
    for finding in found:
        seen.add(finding.key)
        episode = before.get(finding.key)
        if finding.level == 0:
            continue
        if episode is not None and finding.level <= episode.level and now - episode.told_at < AGAIN_AFTER:
            continue
        tell.setdefault(finding.type, []).append(finding)
        if episode is not None and finding.level <= episode.level:
            again.add(finding.key)
        level = finding.level if episode is None else max(finding.level, episode.level)
        written.append(Episode(finding.type, finding.key, level, now if episode is None else episode.began_at, now))
    ended = [episode for key, episode in before.items() if key not in seen and was_looked_at(episode)]
    return Plan(tell, again, written, ended)
