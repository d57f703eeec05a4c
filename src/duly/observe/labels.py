"""Label values that somebody else chooses, with a bound on how many there may be."""

from __future__ import annotations

OTHER = "(other)"
"""No queue can have this name."""


class Bounded:
    """Lets the first `at_most` different values through, and calls all others "(other)".

    Which those are differs between processes and is forgotten by a restart: a sum over all values is always right.
    """

    def __init__(self, at_most: int) -> None:
        self._at_most = at_most
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        """The value to show."""
        if value in self._known:
            return value
        if len(self._known) >= self._at_most:
            return OTHER
        self._known.add(value)
        return value
