"""Clients that create jobs: `python -m bench.ingest_process JSON` with port, key, connections, jobs (of a request; 1:
POST /v1/jobs), seconds, said (a file: jobs acknowledged, and the seconds that it took).

Each connection sends its next request when the last one is answered. The bytes are made beforehand, so that what is
measured is the service.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from duly.cli.stopping import run_loop

_JOB = {"url": "http://127.0.0.1:8099/hook", "json": {"order": 17, "items": ["a", "b"], "total": 12.5}}


async def main(told: dict[str, Any]) -> None:
    """Send for the given time; what is under way then is awaited and counts."""
    path = "/v1/jobs" if told["jobs"] == 1 else "/v1/jobs/batch"
    body = json.dumps(_JOB if told["jobs"] == 1 else {"jobs": [_JOB] * told["jobs"]}).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: duly\r\nAuthorization: Bearer {told['key']}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    request = head.encode() + body
    expected = b"HTTP/1.1 201" if told["jobs"] == 1 else b"HTTP/1.1 200"
    began = time.monotonic()
    end = began + told["seconds"]

    async def send() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", told["port"])
        answered = 0
        while time.monotonic() < end:
            writer.write(request)
            answer = await reader.readuntil(b"\r\n\r\n")
            if not answer.startswith(expected):
                raise RuntimeError(f"not acknowledged: {answer!r}")
            length = answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length))
            answered += told["jobs"]
        writer.close()
        return answered

    acknowledged = sum(await asyncio.gather(*(send() for _ in range(told["connections"]))))
    Path(told["said"]).write_text(json.dumps([acknowledged, time.monotonic() - began]))


if __name__ == "__main__":
    run_loop(lambda: main(json.loads(sys.argv[1])))
