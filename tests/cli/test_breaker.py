"""The breaker between worker processes: one that dies as the probe, and the settings."""

from __future__ import annotations

from datetime import timedelta

import pytest

from cli.harness import Starter, Target, assert_misused, assert_refused, duly, put_job, sql, state_of, wait_until
from duly.model import Backoff, RetryPolicy

AGAIN = RetryPolicy(max_attempts=50, backoff=Backoff(kind="fixed", base=timedelta(milliseconds=100), jitter=0))
QUICK = ("--breaker-failures", 3, "--breaker-over", "0s", "--breaker-pause", "200ms", "--lease", 1)
ONE_BY_ONE = ("--allow", "127.0.0.0/8", "--concurrency", 1)


def test_a_probe_whose_worker_is_killed_is_followed_by_another(
    database_url: str, target: Target, start: Starter
) -> None:
    """While its time runs nobody else asks; then another worker's probe does, and everything is delivered."""
    first = start("worker", "--database-url", database_url, *ONE_BY_ONE, *QUICK)
    first.says("worker started")
    target.answers = [503] * 3
    jobs = [put_job(database_url, target.url, retry=AGAIN, timeout=timedelta(seconds=1)) for _ in range(3)]
    target.came(3)
    first.says("breaker opened: deliveries are held")
    target.hold()
    target.came(4)
    first.kill()
    [number] = sql(database_url, "select probe from duly.breaker")
    [waits] = sql(database_url, "select probe_until > now() from duly.breaker")
    assert (number >= 1, waits) == (True, True)
    second = start("worker", "--database-url", database_url, *ONE_BY_ONE, *QUICK)
    second.says("worker started")
    held = "select count(*) >= 2 from duly.scheduled where held"
    wait_until(lambda: sql(database_url, held) == [True], "the others are held")
    assert len(target.attempts) == 4
    target.release()
    wait_until(lambda: all(state_of(database_url, job) == "succeeded" for job in jobs), "all are delivered")
    assert sql(database_url, "select count(*) from duly.breaker") == [0]
    second.says("breaker closed")
    assert second.stop().code == 0
    ends = sql(database_url, "select outcome from duly.attempt order by outcome")
    assert ends == ["http_error"] * 3 + ["success"] * 3 + ["worker_lost"]


@pytest.mark.parametrize(
    ("option", "value", "word"),
    [
        ("--breaker-over", "soon", "--breaker-over"),
        ("--breaker-pause", "0s", "pause"),
        ("--breaker-pause", "1h", "longest_pause"),
    ],
)
def test_settings_that_make_no_sense_are_refused(database_url: str, option: str, value: str, word: str) -> None:
    """One sentence that names them; the worker does not start."""
    assert_refused(duly("worker", "--database-url", database_url, option, value), word)


def test_a_count_is_a_number(database_url: str) -> None:
    """0 switches the breaker off; less is refused."""
    assert_misused(duly("worker", "--database-url", database_url, "--breaker-failures", "-1"), "--breaker-failures")
