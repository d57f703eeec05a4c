"""Whatever a handler returns, there is an outcome that can be written."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from datetime import timedelta
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duly.model import Bury, Cancel, DeadReason, Hold, Interrupted, Report, Retry, Snooze, Success, settlement
from duly.model.recording import EXCERPT_LIMIT_BYTES, recordable, sound_report
from duly.model.results import JsonText
from support.claimed import claimed
from support.hostile import HostileMapping, LyingText, anything

SECOND = timedelta(seconds=1)
FAILED = Report("http_error", "it failed", 503)


class Duration(timedelta):
    """As date libraries have them."""

    def __gt__(self, other: object) -> bool:
        raise SystemExit

    __lt__ = __ge__ = __le__ = __gt__


class HostileReport(Report):
    def __getattribute__(self, name: str) -> Any:
        if name == "error":
            raise KeyboardInterrupt
        return object.__getattribute__(self, name)


class HostileSuccess(Success):
    def __getattribute__(self, name: str) -> Any:
        if name == "result":
            raise SystemExit
        return object.__getattribute__(self, name)


class EndlessMapping(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        n = 0
        while True:
            n += 1
            yield str(n)

    def __len__(self) -> int:
        raise RuntimeError


class HostileKeys(EndlessMapping):
    def __getitem__(self, key: str) -> int:
        raise KeyboardInterrupt


def test_sound_outcomes_pass_as_they_are() -> None:
    """Only a result changes: into its text."""
    for outcome in (
        Success(),
        Success(None, FAILED),
        Retry(FAILED),
        Retry(FAILED, SECOND),
        Snooze(SECOND),
        Bury(DeadReason.TARGET_GONE, FAILED),
        Cancel(),
        Interrupted(FAILED),
    ):
        assert recordable(outcome, "k") == outcome
    assert recordable(Success([1, "a"], FAILED), "k") == Success(JsonText('[1,"a"]'), FAILED)


def test_a_result_that_cannot_be_kept_is_a_failure_that_names_the_place() -> None:
    """FO-040: $.a[3].b; what else the report says stays."""
    report = Report("success", status_code=200, detail={"x": 1})
    why = "the result of kind 'k' cannot be kept: $.a[3].b is NaN, which JSON does not have"
    outcome = recordable(Success({"a": [0, 1, 2, {"b": float("nan")}]}, report), "k")
    assert outcome == Retry(Report("error", why, 200, detail={"x": 1}))


@pytest.mark.parametrize(
    "answer", [None, "done", 7, Success, {"state": "succeeded"}, object(), LyingText("x")], ids=range(7)
)
def test_what_is_no_outcome_is_a_failure(answer: Any) -> None:
    """And says what it was."""
    outcome = recordable(answer, "k")
    assert isinstance(outcome, Retry)
    assert f"returned {type(answer).__name__}, not an outcome" in (outcome.report.error or "")


def test_an_outcome_that_cannot_be_read_is_a_failure() -> None:
    """SystemExit from an attribute ends nothing."""
    outcome = recordable(HostileSuccess(), "k")
    assert isinstance(outcome, Retry)
    assert "could not be read: SystemExit" in (outcome.report.error or "")


@pytest.mark.parametrize("delay", [float("inf"), 10, None, "1m", float("nan")])
def test_a_snooze_without_a_proper_delay_is_a_failure(delay: Any) -> None:
    """And says what it was."""
    outcome = recordable(Snooze(delay, FAILED), "k")
    assert isinstance(outcome, Retry)
    assert f"snoozed for {delay!r}, not a timedelta" in (outcome.report.error or "")
    assert outcome.report.status_code == 503


@pytest.mark.parametrize("delay", [timedelta.max, timedelta.min, -SECOND, Duration(1), Duration.max])
def test_any_timedelta_can_be_snoozed_or_waited_for(delay: timedelta) -> None:
    """Clamped to what can be stored, subclasses too."""
    for outcome in (recordable(Snooze(delay), "k"), recordable(Retry(FAILED, delay), "k")):
        done = settlement(claimed(), outcome, SECOND, random.Random(1))
        assert timedelta(0) <= done.delay <= timedelta(days=365)


@pytest.mark.parametrize("wrong", [5, float("inf"), "1m"])
def test_a_wrong_at_least_is_ignored(wrong: Any) -> None:
    """The policy's own backoff holds."""
    assert recordable(Retry(FAILED, wrong), "k") == Retry(FAILED)


@pytest.mark.parametrize("reason", [None, "because", 7, object()])
def test_a_bury_for_no_known_reason_is_permanent(reason: Any) -> None:
    """It was to be buried, so it is; the reason stated is in the record."""
    outcome = recordable(Bury(reason, FAILED), "k")
    assert isinstance(outcome, Bury)
    assert outcome.reason is DeadReason.PERMANENT
    assert outcome.report.detail == {"stated_reason": repr(reason)}
    assert outcome.report.status_code == 503


@pytest.mark.parametrize("report", [None, "it failed", 7, {"error": "x"}])
def test_a_failure_without_a_report_says_so(report: Any) -> None:
    """So that the attempt stands in the ledger."""
    for outcome in (recordable(Retry(report), "k"), recordable(Bury(DeadReason.PERMANENT, report), "k")):
        assert isinstance(outcome, Retry | Bury)
        assert outcome.report == Report("error", "the handler of kind 'k' gave no report")
    assert recordable(Success(None, report), "k") == Success()


WHOLE = Report("x", "e", 200, SECOND, b"abc", True, {"a": 1})
CUT = Report("x", excerpt=b"a" * EXCERPT_LIMIT_BYTES, excerpt_truncated=True)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (WHOLE, WHOLE),
        (Report("x", status_code=HTTPStatus.NOT_FOUND), Report("x", status_code=404)),
        (Report("x", status_code=2**15), Report("x")),
        (Report("x", status_code=-1), Report("x")),
        (Report("x", status_code="200"), Report("x")),  # type: ignore[arg-type]
        (Report("x", status_code=True), Report("x")),
        (Report("x", duration=-SECOND), Report("x")),
        (Report("x", duration=float("inf")), Report("x")),  # type: ignore[arg-type]
        (Report("x", duration=Duration(1)), Report("x", duration=timedelta(1))),
        (Report("x", excerpt=bytearray(b"abc")), Report("x", excerpt=b"abc")),  # type: ignore[arg-type]
        (Report("x", excerpt="abc"), Report("x")),  # type: ignore[arg-type]
        (Report("x", excerpt_truncated="yes"), Report("x")),  # type: ignore[arg-type]
        (Report("x", excerpt=b"a" * 50_000_000), CUT),
        (Report("x", error=7), Report("x", error="7")),  # type: ignore[arg-type]
        (Report("x", error=LyingText("a\x00")), Report("x", error="a␀")),
        (Report(7), Report("otherwise")),  # type: ignore[arg-type]
        (Report(""), Report("otherwise")),
        (Report("r" * 200), Report("r" * 99 + "…")),
        (Report("x", detail=None), Report("x")),  # type: ignore[arg-type]
        (Report("x", detail=[1]), Report("x")),  # type: ignore[arg-type]
        (Report("x", detail=HostileMapping(a=1)), Report("x", detail={"a": 1})),
        (Report("x", detail=HostileKeys()), Report("x")),
        (Report("x", detail=MappingProxyType({"a": 1})), Report("x", detail={"a": 1})),
        (
            Report("x", detail={1: 2, LyingText("k\x00"): 3}),  # type: ignore[dict-item]
            Report("x", detail={"1": 2, "k␀": 3}),
        ),
        (HostileReport("x", status_code=200), Report("x", status_code=200)),
        (None, Report("otherwise")),
    ],
    ids=range(26),
)
def test_a_report_is_made_sound(given: Report | None, kept: Report) -> None:
    """Part by part: what has its type stays, what can be turned into it is, the rest is left out."""
    sound = sound_report(given, "otherwise")
    assert sound == kept
    assert type(sound) is Report
    assert type(sound.detail) is dict


def test_an_endless_mapping_is_cut() -> None:
    """After 1,000 members."""
    assert len(sound_report(Report("x", detail=EndlessMapping())).detail) == 1000


_reports = st.builds(Report, anything, anything, anything, anything, anything, anything, anything) | anything
_outcomes = (
    anything
    | st.builds(Success, anything, _reports)
    | st.builds(Retry, _reports, anything | st.timedeltas())
    | st.builds(Snooze, anything | st.timedeltas(), _reports)
    | st.builds(Hold, anything | st.timedeltas())
    | st.builds(Bury, anything, _reports)
    | st.builds(Cancel, _reports)
    | st.builds(Interrupted, _reports)
)


@settings(max_examples=200, deadline=None)
@given(_outcomes)
def test_anything_at_all_gives_one_settlement(outcome: Any) -> None:
    """FO-008: of a known edge, with a delay that can be stored and a sound report."""
    done = settlement(claimed(), recordable(outcome, "k"), SECOND, random.Random(1))
    assert done.edge in {"succeeded", "dead", "cancelled", "retry", "snooze", "hold", "interrupted"}
    assert timedelta(0) <= done.delay <= timedelta(days=365)
    assert done.result is None or type(done.result) is JsonText
    assert (done.edge == "dead") == (type(done.reason) is DeadReason)
    assert type(sound_report(done.report)) is Report


@pytest.mark.parametrize("delay", [None, 5, "1h"])
def test_a_hold_without_a_proper_delay_is_a_failure(delay: Any) -> None:
    """Says so; a proper one is kept."""
    outcome = recordable(Hold(delay), "k")
    assert isinstance(outcome, Retry)
    assert f"held for {delay!r}, not a timedelta" in (outcome.report.error or "")
    assert recordable(Hold(SECOND), "k") == Hold(SECOND)
