"""Who answers a scrape: a listener of its own, apart from the API's, so that it can stand in another network."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from duly.model.errors import DulyError


class MetricsAddressError(DulyError):
    """The metrics cannot be served at this address."""


@asynccontextmanager
async def serve_metrics(
    registry: CollectorRegistry, refresh: Callable[[], Awaitable[None]], host: str, port: int
) -> AsyncIterator[tuple[str, int]]:
    """Serve GET /metrics while the block runs; port 0 takes a free one. Yields the address that was bound.

    Raises MetricsAddressError if nobody can listen there.
    """

    async def metrics(request: web.Request) -> web.Response:
        await refresh()
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": content_type, "Cache-Control": "no-store"})

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            why = "the port is taken" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
            raise MetricsAddressError(
                f"cannot serve metrics on {host}, port {port} ({why}): choose another with --metrics-port"
            ) from error
        bound = runner.addresses[0]
        yield str(bound[0]), int(bound[1])
    finally:
        await runner.cleanup()
