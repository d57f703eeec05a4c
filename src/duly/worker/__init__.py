"""The runtime of one worker process: claim, execute, heartbeat, settle, drain.

May import: model, schema, queue. Touches no table itself. Knows no kind of work: it calls the handler registered for
a kind.
Must hold: only free slots are claimed; no connection and no transaction is held while a job runs; renewal does not
share a loop with job code; a drain keeps renewing until the last outcome is written.
"""

from duly.worker.config import Handler, Observer, WorkerConfig
from duly.worker.listener import Wakeups
from duly.worker.runtime import Worker

__all__ = ["Handler", "Observer", "Wakeups", "Worker", "WorkerConfig"]
