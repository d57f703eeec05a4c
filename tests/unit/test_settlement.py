"""From an outcome to the edge that a job takes."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest

from duly.model import (
    Backoff,
    Bury,
    Cancel,
    ClaimedJob,
    DeadReason,
    Hold,
    Interrupted,
    Report,
    Retry,
    RetryPolicy,
    Snooze,
    Success,
    settlement,
)
from duly.model.retry import LONGEST
from duly.model.settlement import Settlement, expired, release
from support.claimed import claimed

FAILED = Report("error", error="it failed")
NO_TIME = timedelta(0)
HOUR = timedelta(hours=1)


def after(job: ClaimedJob, outcome: Any, ran_for: timedelta = NO_TIME) -> Settlement:
    return settlement(job, outcome, ran_for, random.Random(1))


def test_success_keeps_its_result_and_report() -> None:
    """Success → succeeded."""
    job = claimed()
    report = Report("success", status_code=200)
    assert after(job, Success({"a": 1}, report)) == Settlement(job.id, 1, "succeeded", result={"a": 1}, report=report)


def test_bury_is_dead_for_its_reason_whatever_is_left_of_the_budget() -> None:
    """Bury → dead, at the first attempt too."""
    job = claimed()
    assert after(job, Bury(DeadReason.TARGET_GONE, FAILED)) == Settlement(
        job.id, 1, "dead", reason=DeadReason.TARGET_GONE, report=FAILED
    )


def test_cancel_is_cancelled() -> None:
    """Cancel → cancelled, with or without a report."""
    assert after(claimed(), Cancel()).edge == "cancelled"
    assert after(claimed(), Cancel(FAILED)).report == FAILED


@pytest.mark.parametrize(
    ("asked", "given"),
    [(HOUR, HOUR), (timedelta(seconds=-5), NO_TIME), (timedelta.max, LONGEST), (NO_TIME, NO_TIME)],
)
def test_snooze_waits_what_was_asked_within_a_year(asked: timedelta, given: timedelta) -> None:
    """Snooze → snooze, the delay between nothing and a year; the last attempt may snooze too."""
    job = claimed(attempt=3)
    assert after(job, Snooze(asked)) == Settlement(job.id, 3, "snooze", delay=given)


@pytest.mark.parametrize(("age_h", "asked_h", "given_h"), [(0, 1, 1), (20, 3, 3), (20, 5, 4), (23, 999, 1)])
def test_a_hold_keeps_number_and_budget_and_ends_with_the_age(age_h: int, asked_h: int, given_h: int) -> None:
    """Hold → hold, under the time at which it was due, the delay cut to what is left of a day; the last attempt too."""
    job = claimed(attempt=3, age=age_h * HOUR)
    assert after(job, Hold(asked_h * HOUR)) == Settlement(job.id, 3, "hold", delay=given_h * HOUR, run_at=job.run_at)


def test_held_past_its_age_a_job_is_dead_without_an_attempt() -> None:
    """max_age counts while a job is held; no report, so no row in the ledger."""
    job = claimed(age=23 * HOUR)
    assert after(job, Hold(HOUR), ran_for=HOUR) == Settlement(job.id, 1, "dead", reason=DeadReason.MAX_AGE)


def test_interrupted_is_interrupted_even_at_the_last_attempt() -> None:
    """Interrupted → interrupted: the worker's stop uses up nothing."""
    job = claimed(attempt=3)
    assert after(job, Interrupted(FAILED)) == Settlement(job.id, 3, "interrupted", report=FAILED)


@pytest.mark.parametrize(("attempt", "delay_s"), [(1, 10), (2, 40)])
def test_a_failure_is_retried_after_the_backoff(attempt: int, delay_s: int) -> None:
    """Retry → retry with the delay of that many failures."""
    job = claimed(attempt=attempt)
    assert after(job, Retry(FAILED)) == Settlement(
        job.id, attempt, "retry", delay=timedelta(seconds=delay_s), report=FAILED
    )


def test_the_last_failure_is_dead() -> None:
    """Attempt 3 of 3 → dead, attempts_exhausted."""
    job = claimed(attempt=3)
    assert after(job, Retry(FAILED)) == Settlement(
        job.id, 3, "dead", reason=DeadReason.ATTEMPTS_EXHAUSTED, report=FAILED
    )


def test_an_attempt_past_the_budget_is_dead() -> None:
    """A number above the final one (a budget that was lowered) ends it too."""
    assert after(claimed(attempt=7), Retry(FAILED)).edge == "dead"


def test_a_single_attempt_never_retries() -> None:
    """max_attempts 1."""
    assert after(claimed(final_attempt=1, max_attempts=1), Retry(FAILED)).reason == DeadReason.ATTEMPTS_EXHAUSTED


def test_a_redriven_budget_counts_its_own_failures() -> None:
    """Attempt 4 is the first of the budget 4 to 6: the first delay again; attempt 6 is its last."""
    assert after(claimed(attempt=4, final_attempt=6), Retry(FAILED)).delay == timedelta(seconds=10)
    assert after(claimed(attempt=5, final_attempt=6), Retry(FAILED)).delay == timedelta(seconds=40)
    assert after(claimed(attempt=6, final_attempt=6), Retry(FAILED)).edge == "dead"


def test_snoozed_attempts_are_no_failures() -> None:
    """Two snoozes raise the budget by two: attempt 3 of 5, with 3 allowed, is the first failure."""
    assert after(claimed(attempt=3, final_attempt=5), Retry(FAILED)).delay == timedelta(seconds=10)


def test_max_age_ends_a_job_whose_next_attempt_would_come_too_late() -> None:
    """Dead with max_age when age + time run + delay is past it, retry up to exactly that point."""
    policy = RetryPolicy(3, Backoff(jitter=0), max_age=timedelta(seconds=60))
    job = claimed(retry=policy, age=timedelta(seconds=30))
    assert after(job, Retry(FAILED), timedelta(seconds=20)).edge == "retry"
    late = after(job, Retry(FAILED), timedelta(seconds=20, microseconds=1))
    assert (late.edge, late.reason) == ("dead", DeadReason.MAX_AGE)


def test_a_job_already_too_old_is_dead() -> None:
    """Even with no delay at all, even when the target asks for more time."""
    policy = RetryPolicy(3, Backoff(base=NO_TIME, jitter=0), max_age=HOUR)
    assert after(claimed(retry=policy, age=2 * HOUR), Retry(FAILED)).reason == DeadReason.MAX_AGE
    assert after(claimed(retry=policy, age=2 * HOUR), Retry(FAILED, at_least=HOUR)).reason == DeadReason.MAX_AGE


def test_the_budget_is_asked_before_the_age() -> None:
    """The last attempt of an old job: attempts_exhausted."""
    assert after(claimed(attempt=3, age=48 * HOUR), Retry(FAILED)).reason == DeadReason.ATTEMPTS_EXHAUSTED


@pytest.mark.parametrize(
    ("at_least", "delay"),
    [
        (timedelta(seconds=5), timedelta(seconds=10)),
        (timedelta(minutes=5), timedelta(minutes=5)),
        (NO_TIME, timedelta(seconds=10)),
        (timedelta(seconds=-1), timedelta(seconds=10)),
    ],
)
def test_at_least_lengthens_the_delay_and_never_shortens_it(at_least: timedelta, delay: timedelta) -> None:
    """FO-078: what the target asked for counts when it is longer than the backoff."""
    assert after(claimed(), Retry(FAILED, at_least)).delay == delay


def test_at_least_is_clamped_to_the_age_that_is_left() -> None:
    """FO-078: a target that asks for a year gets the job's last moment, not its death."""
    job = claimed(age=HOUR)
    answer = after(job, Retry(FAILED, timedelta.max), HOUR)
    assert (answer.edge, answer.delay) == ("retry", 22 * HOUR)


def test_jitter_spreads_the_delay() -> None:
    """The default policy: within a quarter of ten seconds, from the generator that was passed in."""
    job = claimed(retry=RetryPolicy(max_attempts=3))
    delays = {settlement(job, Retry(FAILED), NO_TIME, random.Random(seed)).delay for seed in range(50)}
    assert len(delays) == 50
    assert timedelta(seconds=7.5) <= min(delays) <= max(delays) <= timedelta(seconds=12.5)


def test_a_delay_never_overflows() -> None:
    """1000 attempts, an endless age and an enormous backoff: a year at most."""
    policy = RetryPolicy(1000, Backoff(base=timedelta.max, max=timedelta.max, jitter=1), max_age=timedelta.max)
    answer = after(claimed(attempt=999, final_attempt=1000, max_attempts=1000, retry=policy), Retry(FAILED))
    assert answer.edge == "retry"
    assert NO_TIME <= answer.delay <= LONGEST


def test_a_release_and_an_expiry_carry_the_fencing_token() -> None:
    """Never started: release; came too late: dead, expired. Neither has a report."""
    job = claimed(attempt=2)
    assert release(job) == Settlement(job.id, 2, "release")
    assert expired(job) == Settlement(job.id, 2, "dead", reason=DeadReason.EXPIRED)
