"""For the tests of programs that enqueue: run tasks inline without a database, or see, run and time them on the real
engine.

May import: everything but `cli`, `api` and `service`. Touches the tables of a test database only, and makes a schema
`duly_testing` there for its clock. Must hold: nothing here is imported by the rest of Duly; on the real engine
nothing is faked but the time.

    with inline() as jobs: …                    enqueueing runs the task at once; jobs.made lists the calls
    enqueued(connection, task)                  the jobs of a task, those of the open transaction too
    assert_enqueued(connection, task, 7)        one of them has these arguments
    await drain(url, app) / drain_now(url, app) run all that is due
    Clock(url).advance(timedelta(hours=1))      the database's time, and that of new ids
    pytest_plugins = ["duly.testing.fixtures"]  duly_database_url, duly_clock
"""

from duly.testing.clock import Clock
from duly.testing.draining import drain, drain_now
from duly.testing.enqueued import EnqueuedJob, assert_enqueued, assert_not_enqueued, enqueued, enqueued_async
from duly.testing.inline import InlineJobs, inline

__all__ = [
    "Clock",
    "EnqueuedJob",
    "InlineJobs",
    "assert_enqueued",
    "assert_not_enqueued",
    "drain",
    "drain_now",
    "enqueued",
    "enqueued_async",
    "inline",
]
