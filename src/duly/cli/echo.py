"""A target to try things on: answers what it was sent. Part of `duly up`, on loopback only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress

from aiohttp import web

_SHOWN = 500


@asynccontextmanager
async def echo_target(host: str, ports: Iterable[int]) -> AsyncIterator[str]:
    """Serve on the first free port while the block runs: any path answers 200, /status/503 answers 503."""
    app = web.Application()
    app.router.add_route("*", "/status/{code:[2-5][0-9][0-9]}", _status)
    app.router.add_route("*", "/{path:.*}", _echo)
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    try:
        for port in ports:
            with suppress(OSError):
                await web.TCPSite(runner, host, port).start()
                break
        yield f"http://{runner.addresses[0][0]}:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


async def _echo(request: web.Request) -> web.Response:
    return web.json_response(await _seen(request))


async def _status(request: web.Request) -> web.Response:
    return web.json_response(await _seen(request), status=int(request.match_info["code"]))


async def _seen(request: web.Request) -> dict[str, object]:
    body = await request.read()
    return {
        "method": request.method,
        "path": request.path_qs,
        "job": request.headers.get("Duly-Job-Id"),
        "attempt": request.headers.get("Duly-Attempt"),
        "body": body[:_SHOWN].decode("utf-8", "replace"),
    }
