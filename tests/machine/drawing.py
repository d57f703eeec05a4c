"""What the rules draw, and how a rule is declared."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import rule

from duly.queue import Line

LONG = os.environ.get("DULY_MACHINE") == "long"
T = TypeVar("T")
Patience = Literal["lock_timeout", "statement_timeout", "killed", "in line"]
NOW = "now"
LATE = ("first", "second")
QUEUES = ("a", "b")
KINDS = ("k", "other", "restless")
KEYS = ("x",)
LINES: tuple[Line, ...] = ("ready", "lease")
VERSION_4 = UUID("c0ffee00-0000-4000-8000-000000000000")

picks = st.integers(0, 40)
where = st.sampled_from((NOW, NOW, NOW, *LATE))
undo = st.sampled_from((False, False, False, True))
rival = st.sampled_from((False, False, True))  # choose a job that an open transaction holds, if there is one
patience = st.sampled_from(("lock_timeout", "statement_timeout", "killed", "in line", "in line"))
edges = st.sampled_from(
    (
        "succeeded",
        "succeeded",
        "fail",
        "fail",
        "dead",
        "expired",
        "cancelled",
        "snooze",
        "hold",
        "interrupted",
        "release",
    )
)
lines: st.SearchStrategy[Line] = st.sampled_from(LINES)
wishes = st.fixed_dictionaries(
    {
        "owner": st.sampled_from((0, 0, 0, 1, 2)),
        "queue": st.sampled_from(("a", *QUEUES)),
        "kind": st.sampled_from(("restless", *KINDS)),
        "key": st.sampled_from((None, None, *KEYS)),
        "priority": st.sampled_from((5, 5, 0, 9)),
        "attempts": st.sampled_from((1, 2, 3)),
        "run_in_h": st.sampled_from((0, 0, 0, 0, -1, 1, 2)),
        "expires": st.sampled_from((None, None, 2001, 2100)),
    }
)


_rule: Callable[..., Callable[[Callable[..., None]], Callable[..., None]]] = rule  # without bundles


def step(**strategies: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A rule under the common name "step". Hypothesis leaves whole rules out of an example, by name, which is good for
    depth and bad for a short run that is to take every edge; rules of one name it leaves out together, so never.
    """

    def mark(function: Callable[..., None]) -> Callable[..., None]:
        def step(self: Any, what: str, **arguments: Any) -> None:
            function(self, **arguments)

        if LONG:
            return _rule(**strategies)(function)
        return _rule(what=st.just(function.__name__), **strategies)(step)

    return mark


def nth(choice: Sequence[T], pick: int) -> T:
    return choice[pick % len(choice)]
