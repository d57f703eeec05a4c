"""Serves the dashboard and looks at it as browsers do: `python -m bench.dashboard_process JSON`: dsn, tabs, results.

Notes how long the pages took in `results`, one JSON object: of each, the first time in a process that has just begun,
and the next. Then `tabs` operators' first pages fetch themselves every three seconds until SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from duly.cli.api_part import serving
from duly.cli.stopping import Stop, run_loop
from duly.http import EgressPolicy
from duly.queue import Database
from duly.service import NO_KEYRING
from duly.service.sessions import make_operator_token

PAGES = ("/", "/jobs", "/dead", "/queues", "/workers", "/breakers")
_EVERY_S = 3.0


async def main(told: dict[str, Any]) -> None:
    """Look at every page once, then go on looking."""
    stop = Stop()
    async with await Database.open(told["dsn"], max_size=10, name="duly-bench-dashboard") as db:
        token = await make_operator_token(db)
        async with serving(db, EgressPolicy.parse(), "127.0.0.1", 0, NO_KEYRING) as (host, port):
            async with httpx.AsyncClient(base_url=f"http://{host}:{port}/dashboard", timeout=60) as browser:
                signed_in = await browser.post("/sign-in", data={"key": token})
                assert signed_in.status_code == 303, signed_in.status_code
                took = {path: [await _seconds(browser, path), await _seconds(browser, path)] for path in PAGES}
                aside = Path(told["results"] + ".new")
                aside.write_text(json.dumps(took))
                aside.rename(told["results"])
                async with asyncio.TaskGroup() as group:
                    for n in range(told["tabs"]):
                        group.create_task(_tab(browser, stop, n * _EVERY_S / told["tabs"]))


async def _seconds(browser: httpx.AsyncClient, path: str, **headers: str) -> float:
    began = time.monotonic()
    answer = await browser.get(path, headers=headers)
    seconds = time.monotonic() - began
    assert answer.status_code == 200, (path, answer.status_code)
    return seconds


async def _tab(browser: httpx.AsyncClient, stop: Stop, late_s: float) -> None:
    """A tab that has been open for a while."""
    wait_s = late_s
    while not stop.draining.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await stop.draining.wait()
        if not stop.draining.is_set():
            await _seconds(browser, "/", **{"x-duly-live": "1"})
        wait_s = _EVERY_S


if __name__ == "__main__":
    run_loop(lambda: main(json.loads(sys.argv[1])))
