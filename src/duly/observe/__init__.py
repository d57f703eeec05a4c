"""What the on-call sees: metrics, traces, and what the doctor finds.

May import: `duly.service`, `duly.http`, `duly.worker`, `duly.upkeep`, `duly.queue`, `duly.model`, `duly.api`; alone in
the house, prometheus-client and OpenTelemetry. Whoever is observed does not know it: parts are given hooks (`Observer`,
a callback, a wrapped application) by `duly.cli`, and without them nothing is measured and nothing costs.
Tables: none by itself; the database's figures come through `duly.queue`, and the doctor reads the catalog.
Must hold: no label has a value that a tenant chose without a bound on how many there are; nothing shown holds a
payload, a header value or a secret; asking often, or a database that is away, costs a scrape little and jobs nothing.

Nothing is imported here: a process that measures nothing loads none of it. Reading order: `labels`, `work` (a worker's
metrics), `routes`, `requests` (the API's), `request_log`, `breakers`, `database` (figures of all), `exposition` (who
answers a scrape), `metrics` (all of one process); `tracing`; `examining` and `findings` (the doctor's eyes and rules).
"""
