"""A target that costs as little as it can: any request is answered 200. `python -m bench.http_target JSON` with tally
(3 slots), hosts (how many addresses from 127.0.0.1 on, on one port), leaf (a PEM file with key: serve TLS).

Slots: 0 requests answered, 1 the port (written last, when it listens), 2 connections accepted.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import sys
from pathlib import Path
from typing import Any, cast

import httptools

from bench.http_hosts import address
from bench.tally import Tally
from duly.cli.stopping import Stop, run_loop

REQUESTS, PORT, CONNECTIONS = range(3)
SLOTS = 3
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"
_PORTS = range(12_000, 26_000)  # below those that outgoing connections use up


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
    tls = None
    if told.get("leaf"):
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(told["leaf"])
    addresses = [address(n) for n in range(1, told.get("hosts", 1) + 1)]
    server, port = await _listen(addresses, tls, tally.numbers)
    tally.numbers[PORT] = port
    await stop.draining.wait()
    server.close()


async def _listen(
    addresses: list[str], tls: ssl.SSLContext | None, numbers: memoryview[int]
) -> tuple[asyncio.Server, int]:
    loop = asyncio.get_running_loop()
    for port in random.sample(_PORTS, 20):
        try:
            return await loop.create_server(lambda: _Connection(numbers), addresses, port, ssl=tls), port
        except OSError:  # taken at one of the addresses
            continue
    raise RuntimeError("no free port on loopback")


if __name__ == "__main__":
    run_loop(lambda: main(json.loads(sys.argv[1])))
