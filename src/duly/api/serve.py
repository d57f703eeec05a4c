"""Serving the API inside an event loop that somebody else runs; a stop finishes the requests in flight."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from duly.api.bounded_http import BoundedHttpProtocol
from duly.model.errors import DulyError

GRACE_S = 20


class PortTakenError(DulyError):
    """Another program listens where the API was to."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"port {port} is taken: choose another with --port")
        self.host = host
        self.port = port


class AddressError(DulyError):
    """The API cannot listen on this address."""


class ApiServer:
    """Serves one application. Signals and logging belong to the program around it, and stay untouched."""

    def __init__(self, app: Any, *, grace_s: int = GRACE_S) -> None:
        self._app = app
        self._grace_s = grace_s
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 8080) -> tuple[str, int]:
        """Listen and serve; port 0 takes a free one. Returns the address that was bound.

        Raises PortTakenError, or AddressError if this machine or this user cannot listen there.
        """
        listener = await asyncio.to_thread(_listen, host, port)
        config = uvicorn.Config(
            self._app,
            http=BoundedHttpProtocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=self._grace_s,
        )
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve([listener]), name="duly-api")
        started = asyncio.create_task(self._server.is_up.wait())
        await asyncio.wait((started, self._serving), return_when=asyncio.FIRST_COMPLETED)
        if not self._server.started:
            started.cancel()
            await self._serving
            raise AddressError("the API could not start; the log says why")
        bound = listener.getsockname()
        return bound[0], bound[1]

    async def stop(self) -> None:
        """Take no new connections, finish what is in flight within the grace, and return. May be called twice."""
        if self._server is not None and self._serving is not None:
            services = getattr(getattr(self._app, "state", None), "services", None)
            if services is not None:
                services.ending.set()
            self._server.should_exit = True
            await self._serving


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(host: str, port: int) -> socket.socket:
    try:
        [family, _, _, _, address] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTakenError(host, port) from error
        if error.errno == errno.EACCES:
            raise AddressError(f"port {port} needs more rights than this user has: choose one above 1023") from error
        raise AddressError(f"cannot listen on {host}: {error.strerror or error}") from error
