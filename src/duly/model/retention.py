"""How long finished jobs are kept."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from duly.model.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Retention:
    """`keep`: how long a succeeded or cancelled job is kept after it ended, `keep_dead`: a dead letter. None: for ever.

    Whole days go at once, so that it may be a day longer. Raises InvalidInputError for less than an hour.
    """

    keep: timedelta | None = timedelta(days=30)
    keep_dead: timedelta | None = timedelta(days=90)

    def __post_init__(self) -> None:
        for name, value in (("keep", self.keep), ("keep_dead", self.keep_dead)):
            if value is not None and not timedelta(hours=1) <= value <= timedelta(days=36_500):
                raise InvalidInputError(
                    f"{name} is {value}: it must be between an hour and 100 years, or None for ever"
                )
