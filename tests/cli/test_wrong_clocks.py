"""`duly api` and `duly worker` on machines whose wall clocks are wrong."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from cli.harness import Client, Starter, Target, duly, free_port, new_key
from duly.model import uuid7_time
from support.clocks import clocks_in

OPEN = ["--allow", "127.0.0.0/8"]


@pytest.mark.parametrize("ahead", [timedelta(minutes=30), timedelta(days=-3)], ids=str)
def test_jobs_are_made_and_signed_by_the_clock_of_the_database(
    ahead: timedelta, database_url: str, target: Target, start: Starter, tmp_path: Path
) -> None:
    """Ids, times in the future and past, and what receivers check the age of a request by: half an hour fast or three
    days slow, nothing is refused and nothing is off by more than a few seconds."""
    clock = clocks_in(tmp_path)(ahead).environment
    api = start("api", "--database-url", database_url, "--port", port := free_port(), *OPEN, **clock)
    api.says("API on")
    worker = start("worker", "--database-url", database_url, *OPEN, **clock)
    worker.says("worker started")
    client = Client(f"http://127.0.0.1:{port}", new_key(database_url))
    began = datetime.now(UTC)
    job_id = client.create(target.url, run_at=(began + timedelta(seconds=1)).isoformat())
    job = client.ends(job_id, "succeeded")
    made_at = uuid7_time(UUID(job_id))
    assert made_at is not None
    assert abs(made_at - began) < timedelta(seconds=3)
    assert datetime.fromisoformat(job["run_at"]) == began + timedelta(seconds=1)
    assert abs(target.timestamps[0] - time.time()) < 5
    client.close()
    assert (worker.stop().code, api.stop().code) == (0, 0)


def test_the_doctor_says_that_the_clock_is_wrong(database_url: str, tmp_path: Path) -> None:
    """By how much, and which way."""
    clock = clocks_in(tmp_path)(timedelta(minutes=-30)).environment
    said = duly("doctor", "--database-url", database_url, **clock)
    assert "? this machine's clock is 1800.0 s behind the database's  [clock]" in said.out, said
