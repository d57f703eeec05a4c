"""Duly: HTTP requests and Python functions, run later, reliably, on PostgreSQL.

The house, from the pure core outwards; imports point up this list, never down (held by import-linter):

    model     facts and rules            queue     the only code that calls the queue's SQL
    schema    tables and functions       worker    claim, execute, heartbeat, settle, drain
    upkeep    promote, rescue, segments  http      one stored request in, one outcome out
    service   accounts, keys, secrets    api       REST
    observe   metrics, traces, doctor    embedded  a private PostgreSQL
    cli       the `duly` command
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("duly")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0.0.0"

__all__ = ["__version__"]
