"""What an error says, and what it carries."""

from __future__ import annotations

from duly.model import uuid7
from duly.model.errors import DulyError, IdConflictError, JobFailedError, NotFoundError, WrongStateError


def test_an_error_says_what_and_which_and_carries_it() -> None:
    """The message for people, the attributes for programs."""
    job_id = uuid7()
    conflict = IdConflictError(job_id)
    missing = NotFoundError("job", job_id)
    wrong = WrongStateError(job_id, "running", "redrive", "dead and cancelled")
    assert (conflict.job_id, missing.what, missing.which, wrong.job_id, wrong.state) == (
        *(job_id, "job", job_id),
        *(job_id, "running"),
    )
    assert str(missing) == f"job {job_id} does not exist"
    assert str(wrong) == f"job {job_id} is running: redrive works on dead and cancelled jobs"
    assert str(job_id) in str(conflict)
    assert all(isinstance(error, DulyError) for error in (conflict, missing, wrong))


def test_a_job_without_a_result_says_why() -> None:
    """Its state, and of a dead one the reason and the last error."""
    job_id = uuid7()
    dead = JobFailedError(job_id, "dead", "permanent", "ValueError: no")
    assert str(dead) == f"job {job_id} is dead, permanent, ValueError: no: it has no result"
    assert str(JobFailedError(job_id, "cancelled", None, None)) == f"job {job_id} is cancelled: it has no result"
    assert (dead.state, dead.reason, dead.error) == ("dead", "permanent", "ValueError: no")
