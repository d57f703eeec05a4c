"""The ceiling of `http_jobs`: aiohttp alone sends the same requests. `python -m bench.http_bare_client JSON` with
port, count, concurrency.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import aiohttp

from duly.cli.stopping import run_loop


async def main(told: dict[str, Any]) -> None:
    """Post `count` small bodies over `concurrency` kept connections, and end."""
    url = f"http://127.0.0.1:{told['port']}/hook"
    numbers = iter(range(told["count"]))

    async def send(session: aiohttp.ClientSession) -> None:
        for n in numbers:
            async with session.post(url, data=b'{"n": %d}' % n, headers={"Content-Type": "application/json"}) as answer:
                await answer.read()
                answer.raise_for_status()

    connector = aiohttp.TCPConnector(limit=told["concurrency"])
    async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
        for _ in range(told["concurrency"]):
            group.create_task(send(session))


if __name__ == "__main__":
    run_loop(lambda: main(json.loads(sys.argv[1])))
