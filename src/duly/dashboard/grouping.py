"""Dead letters that are dead for one reason: the same host, the same end, the same error but for its numbers. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from duly.dashboard.words import host, origin
from duly.model import State
from duly.queue import JobFilter
from duly.queue.overview import DeadLetter

_NUMBERS = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|0x[0-9a-f]+|\d+", re.IGNORECASE)
_LONGEST = 300
_SHORTEST = 3


@dataclass(frozen=True, slots=True)
class Group:
    """Letters of one cause, newest id first. `key` names the group in forms; `error` is the newest one's."""

    key: str
    host: str
    reason: str | None
    outcome: str | None
    status_code: int | None
    error: str | None
    letters: tuple[DeadLetter, ...]

    @property
    def count(self) -> int:
        return len(self.letters)

    @property
    def first_at(self) -> datetime:
        return min(letter.finished_at for letter in self.letters)

    @property
    def last_at(self) -> datetime:
        return max(letter.finished_at for letter in self.letters)

    @property
    def filter(self) -> JobFilter:
        """What an operation can look for: what all the letters share. Letters that share it for another cause match,
        too.
        """
        origins = {origin(letter.target) for letter in self.letters}
        pieces = _NUMBERS.split((self.error or "")[:_LONGEST])
        longest = max((piece.strip() for piece in pieces), key=len)
        return JobFilter(
            states=(State.DEAD,),
            url_prefix=origins.pop() if len(origins) == 1 else None,
            status_from=self.status_code,
            status_to=self.status_code,
            error=longest if len(longest) >= _SHORTEST else None,
        )

    @property
    def queues(self) -> tuple[str, ...]:
        return tuple(sorted({letter.queue for letter in self.letters}))


def grouped(letters: Iterable[DeadLetter]) -> list[Group]:
    """The groups, the largest first, and of those of one size the latest."""
    by_key: dict[str, list[DeadLetter]] = {}
    for letter in letters:
        by_key.setdefault(key_of(letter), []).append(letter)
    groups = [
        Group(
            key,
            host(alike[0].target),
            alike[0].reason,
            alike[0].outcome,
            alike[0].status_code,
            alike[0].error,
            tuple(alike),
        )
        for key, alike in by_key.items()
    ]
    return sorted(groups, key=lambda group: (group.count, group.last_at), reverse=True)


def key_of(letter: DeadLetter) -> str:
    """The group that a letter belongs to."""
    error = _NUMBERS.sub("#", (letter.error or "")[:_LONGEST])
    parts = (host(letter.target), letter.reason, letter.outcome, letter.status_code, error)
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
