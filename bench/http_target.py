"""A target that costs as little as it can: any request is answered 200. `python -m bench.http_target JSON` with tally
(3 slots).

Slots: 0 requests answered, 1 the port (written last, when it listens), 2 connections accepted.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, cast

import httptools

from bench.tally import Tally
from duly.cli.stopping import Stop, run_loop

REQUESTS, PORT, CONNECTIONS = range(3)
SLOTS = 3
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"


class _Connection(asyncio.Protocol):
    """Parses with httptools, which calls back; answers each message at its end."""

    def __init__(self, numbers: memoryview[int]) -> None:
        self._numbers = numbers
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is no subclass of it
        self._numbers[CONNECTIONS] += 1

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self._numbers[REQUESTS] += 1
        self._transport.write(_ANSWER)


async def main(told: dict[str, Any]) -> None:
    """Serve on loopback until SIGTERM."""
    tally = Tally(Path(told["tally"]), SLOTS)
    stop = Stop()
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(tally.numbers), "127.0.0.1", 0)
    tally.numbers[PORT] = server.sockets[0].getsockname()[1]
    await stop.draining.wait()
    server.close()


if __name__ == "__main__":
    run_loop(lambda: main(json.loads(sys.argv[1])))
