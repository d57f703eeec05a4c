"""Wall clocks that are wrong, for processes that a test starts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from bench.skewed_clock import SkewedClock, compile_preload

MakeClock = Callable[[timedelta], SkewedClock]


def clocks_in(folder: Path) -> MakeClock:
    """What makes them: how far ahead → a clock. Compiles the preload library, and fails if gcc cannot."""
    preload = compile_preload(folder)
    numbers = itertools.count()
    return lambda shift: SkewedClock.make(preload, folder / f"clock-{next(numbers)}", shift)
