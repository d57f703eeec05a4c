"""Python functions as jobs: `@task`, enqueueing on the caller's own connection, the runtime that runs them.

May import: model, schema, queue, worker, upkeep. Knows no HTTP. Tables: those of the queue, through
`duly.enqueue_tasks` and its kin; nothing else. Drivers of callers (psycopg, psycopg2, asyncpg, SQLAlchemy, Django)
are recognized, never imported. Must hold: a job exists exactly if the caller's transaction commits; job code never
runs on the loop that claims, renews and settles; whatever job code does, its job is settled once and the worker
lives on.

Reading order: `app` and `task` (what is declared), `options`, `arguments` (what is stored), `connections` and
`enqueueing` (on what the caller holds), `handle` (what came of it), `context` and `outcomes` (what job code sees),
`running` and its three ways `on_loop`, `in_threads`, `in_processes` (with `guarding`: what they started ends with the
worker), `scheduling` (schedules beside tasks), `worker` (all of it together).
"""
