"""A worker for tasks inside a program's own loop: `async with duly.Worker(dsn, app=app): …`. Above the service, since
it fires schedules; below nothing, so that it needs `duly[server]` (which knows cron and time zones) for that alone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from duly.queue import Database
from duly.tasks import worker
from duly.tasks.worker import Part

log = logging.getLogger("duly.worker")


class Worker(worker.Worker):
    __doc__ = worker.Worker.__doc__

    def further_upkeep(self, db: Database) -> Sequence[Part]:
        """Fire schedules of tasks. Those of HTTP jobs are left to workers that have the keys and the egress policy."""
        try:
            from duly.service.firing import Firer
        except ModuleNotFoundError as error:
            declared = sum(len(app.schedules) for app in self.apps)
            log.log(
                logging.WARNING if declared else logging.INFO,
                "this worker fires no schedules: install duly[server] for that",
                extra={"missing": error.name, "declared": declared},
            )
            return ()
        return (Firer(db, tasks_only=True).run,)
