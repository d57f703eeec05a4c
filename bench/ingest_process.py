"""Clients that create jobs: `python -m bench.ingest_process JSON` with port, key, connections, jobs (of a request; 1:
POST /v1/jobs), seconds, said (a file: jobs acknowledged, the seconds that it took, the CPU seconds of this process).

Each connection sends its next request when the last one is answered. The bytes are made beforehand and the sockets are
driven by hand, so that what is measured is the service: this costs a tenth of what the service does.
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_JOB = {"url": "http://127.0.0.1:8099/hook", "json": {"order": 17, "items": ["a", "b"], "total": 12.5}}
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_READ_BYTES = 1024 * 1024
_PATIENCE_S = 30.0


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    got: bytes = b""
    ends_at: int | None = None
    """Where the answer ends, once its head is there."""

    def read(self, expected: bytes) -> bool:
        """Take what has come; whether the answer is whole now."""
        more = self.socket.recv(_READ_BYTES)
        if not more:
            raise RuntimeError("the service closed a connection")
        self.got += more
        if self.ends_at is None:
            head, end, _ = self.got.partition(b"\r\n\r\n")
            if not end:
                return False
            if not head.startswith(expected):
                raise RuntimeError(f"not acknowledged: {self.got!r}")
            length = _LENGTH.search(head + b"\r\n")
            if length is None:
                raise RuntimeError(f"an answer of no known length: {head!r}")
            self.ends_at = len(head) + 4 + int(length[1])
        if len(self.got) < self.ends_at:
            return False
        self.got, self.ends_at = b"", None
        return True


def main(told: dict[str, Any]) -> None:
    """Send for the given time; what is under way then is awaited and counts."""
    path = "/v1/jobs" if told["jobs"] == 1 else "/v1/jobs/batch"
    body = json.dumps(_JOB if told["jobs"] == 1 else {"jobs": [_JOB] * told["jobs"]}).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: duly\r\nAuthorization: Bearer {told['key']}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    request = head.encode() + body
    expected = b"HTTP/1.1 201" if told["jobs"] == 1 else b"HTTP/1.1 200"
    waiting = selectors.DefaultSelector()
    connections = [
        _Connection(socket.create_connection(("127.0.0.1", told["port"]))) for _ in range(told["connections"])
    ]
    answered = 0
    began, cpu_began = time.monotonic(), time.process_time()
    end = began + told["seconds"]
    for connection in connections:
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        waiting.register(connection.socket, selectors.EVENT_READ, connection)
        connection.socket.sendall(request)
    while waiting.get_map():
        ready = waiting.select(_PATIENCE_S)
        if not ready:
            raise RuntimeError(f"no answer for {_PATIENCE_S:g} s")
        for chosen, _ in ready:
            connection = chosen.data
            if not connection.read(expected):
                continue
            answered += told["jobs"]
            if time.monotonic() < end:
                connection.socket.sendall(request)
            else:
                waiting.unregister(connection.socket)
                connection.socket.close()
    took_s, cpu_s = time.monotonic() - began, time.process_time() - cpu_began
    Path(told["said"]).write_text(json.dumps([answered, took_s, cpu_s]))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
