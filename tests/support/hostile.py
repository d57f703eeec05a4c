"""Values that lie, raise, never end or hold themselves: what a handler's code may hand over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st


class Hostile:
    """Raises when it is shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__


class HostileMapping(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no items")

    __iter__ = __len__ = keys = items


class HostileList(list[Any]):
    def __iter__(self) -> Any:
        raise KeyboardInterrupt

    __len__ = __iter__


class LyingText(str):
    def __len__(self) -> int:
        return 0

    def replace(self, *args: Any) -> str:
        raise SystemExit

    encode = __getitem__ = __contains__ = __format__ = __str__ = replace  # type: ignore[assignment]


class LyingInteger(int):
    def bit_length(self) -> int:
        raise SystemExit

    __int__ = __repr__ = __index__ = bit_length  # type: ignore[assignment]


class LyingFloat(float):
    def __float__(self) -> float:
        raise SystemExit

    __repr__ = __float__  # type: ignore[assignment]


class HostileError(Exception):
    """Raises instead of giving its message."""

    def __init__(self, raised: type[BaseException] = RuntimeError) -> None:
        self.raised = raised

    def __str__(self) -> str:
        raise self.raised


class LyingTextError(Exception):
    def __str__(self) -> str:
        return LyingText("lies")


class LyingMeta(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise SystemExit


class LyingClassError(Exception, metaclass=LyingMeta):
    pass


def hostile_values() -> Iterator[Any]:
    """One of each kind of trouble."""
    yield Hostile()
    yield {Hostile(): 1}
    yield HostileMapping(a=1)
    yield HostileList([1])
    yield LyingText("x")
    yield 10**10_000
    yield -(10**400)
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    yield deep
    cycle: list[Any] = []
    cycle += [cycle, cycle, {"again": cycle}]
    yield cycle


_HOSTILE = list(hostile_values())


def _hostile(number: int) -> Any:
    return _HOSTILE[number]


_text = st.text(st.characters(), max_size=20)
_leaves = st.none() | st.booleans() | st.integers() | st.floats() | _text | st.binary(max_size=5) | st.dates()
_keys = _text | st.integers() | st.none() | st.binary(max_size=3)
anything = st.recursive(
    _leaves | st.integers(0, len(_HOSTILE) - 1).map(_hostile),  # sampled_from would show them
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_keys, inner, max_size=5) | st.tuples(inner, inner),
    max_leaves=20,
)
"""Any value at all."""
