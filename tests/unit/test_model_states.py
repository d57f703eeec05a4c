"""The states and their edges fit together."""

from __future__ import annotations

from duly.model import FINAL, TRANSITIONS, NewJob, RetryPolicy, State


def test_every_state_can_be_reached_and_only_a_redrive_leaves_a_final_one() -> None:
    """Six states; each is the end of an edge; success is left by none."""
    ends = {state for _, after in TRANSITIONS.values() for state in after}
    assert ends == set(State)
    leaving = {edge for edge, (before, _) in TRANSITIONS.items() if before & FINAL}
    assert leaving == {"redrive"}
    assert State.SUCCEEDED not in TRANSITIONS["redrive"][0]


def test_every_state_that_is_not_final_has_a_way_on() -> None:
    """Nothing is stuck by design."""
    starts = {state for before, _ in TRANSITIONS.values() for state in before}
    assert set(State) - FINAL <= starts


def test_jobs_made_one_after_the_other_have_ids_of_their_own() -> None:
    """A default is made for each job, never shared."""
    first, second = NewJob("k", {}), NewJob("k", {})
    assert first.id != second.id
    assert first.retry == RetryPolicy()
