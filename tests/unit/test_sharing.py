"""How many jobs of one account a worker may run: never all, whatever hangs."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from duly.queue import Shares
from duly.worker.sharing import LEAST_SLOTS, shares


def taken(slots: int, held: Counter[int], account: int, wanted: int) -> int:
    """How many of an account with plenty of work a claim would take."""
    told = shares(slots, held.total(), held, wanted)
    cap = told.capped.get(account, told.cap)
    return min(wanted, slots - held.total(), wanted if cap is None else cap)


@given(
    st.integers(LEAST_SLOTS, 3000),
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from((1, 7, 100, 1000))), max_size=20),
)
def test_whatever_hangs_there_is_room_for_somebody_else(slots: int, claims: list[tuple[int, int]]) -> None:
    """As many accounts as there are powers of five among the slots take all that they may, in any order, and end
    nothing: one that has nothing running gets a slot at once. Alone, an account gets 4 of 5 slots.
    """
    greedy = max(n for n in (1, 2, 3) if n == 1 or 5**n <= slots)
    held: Counter[int] = Counter()
    to_the_end = [(account, 1000) for _ in range(10) for account in range(1, greedy + 1)]
    for account, wanted in [*claims, *to_the_end]:
        held[min(account, greedy)] += taken(slots, held, min(account, greedy), wanted)
    assert held.total() < slots
    assert taken(slots, held, 99, 1) == 1
    alone = Counter({1: taken(slots, Counter(), 1, 3000)})
    assert alone[1] == slots * 4 // 5
    assert taken(slots, alone, 1, 3000) == 0


def test_small_workers_and_idle_ones_do_not_share() -> None:
    """Fewer than 16 slots; and a claim that takes little of a worker with room is told of no cap."""
    assert shares(LEAST_SLOTS - 1, 3, {1: 3}, 10) == Shares()
    assert shares(3000, 10, {1: 10}, 1000) == Shares()
    assert shares(90, 80, {1: 80}, 10) == Shares(8, {1: 0})
