"""`duly workers`: who is alive, what they serve, how much they run."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

from duly.cli.console import note, print_json, print_table
from duly.cli.jobs import with_database
from duly.cli.options import AsJson, DatabaseUrl, Home, Schema
from duly.queue import Database, WorkerView, list_workers
from duly.queue.overview import in_use
from duly.schema import DEFAULT_SCHEMA


def workers(
    as_json: AsJson = False, database_url: DatabaseUrl = None, home: Home = None, schema: Schema = DEFAULT_SCHEMA
) -> None:
    """List the workers: when each was seen last, what it serves, how many of its slots are in use."""

    async def ask(db: Database) -> tuple[list[WorkerView], Counter[int]]:
        running: Counter[int] = Counter()
        known = await list_workers(db)
        for use in await in_use(db, None):
            running[use.worker_id] += use.running
        return sorted(known, key=lambda worker: (not worker.alive, worker.name, worker.id)), running

    known, running = with_database(ask, database_url, home, schema)
    if as_json:
        print_json([{**asdict(worker), "running": running[worker.id]} for worker in known])
        return
    print_table(
        ("id", "name", "alive", "running", "kinds", "queues", "seen", "started"),
        [
            (
                worker.id,
                worker.name,
                "yes" if worker.alive else "silent",
                f"{running[worker.id]}/{worker.concurrency}",
                ", ".join(worker.kinds),
                "all" if worker.queues is None else ", ".join(worker.queues),
                worker.heartbeat_at,
                worker.started_at,
            )
            for worker in known
        ],
    )
    if not any(worker.alive for worker in known):
        note("no worker is alive: start one with `duly worker`")
