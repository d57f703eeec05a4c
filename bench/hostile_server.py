"""Serves every hostile case on a loopback port of its own. `python -m bench.hostile_server FOLDER` writes
FOLDER/ca.pem and FOLDER/ports.json."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trustme

from bench.hostile_answers import CASES, Case
from duly.cli.stopping import Stop, run_loop
from duly.http.ports import is_open_port


def server_context(authority: trustme.CA) -> ssl.SSLContext:
    """A context for 127.0.0.1."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


@asynccontextmanager
async def serving(case: Case, tls: ssl.SSLContext) -> AsyncIterator[int]:
    """Play a case to every connection; yields the port."""
    tasks: set[asyncio.Task[None]] = set()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        try:
            await case.behaviour(reader, writer)
        except (OSError, EOFError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    def play_and_forget(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(play(reader, writer))
        task.add_done_callback(_seen)

    server = await _listen(play_and_forget, tls if case.tls == "yes" else None)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _listen(client: object, tls: ssl.SSLContext | None) -> asyncio.Server:
    while True:
        server = await asyncio.start_server(client, "127.0.0.1", 0, ssl=tls)  # type: ignore[arg-type]
        if is_open_port(server.sockets[0].getsockname()[1]):
            return server
        server.close()


def _seen(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


async def main(folder: Path) -> None:
    """Serve all cases until SIGTERM."""
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of every write into a connection that is gone
    stop = Stop()
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    tls = server_context(authority)
    async with contextlib.AsyncExitStack() as stack:
        ports = {case.name: await stack.enter_async_context(serving(case, tls)) for case in CASES}
        (folder / "ports.new").write_text(json.dumps(ports))
        (folder / "ports.new").rename(folder / "ports.json")
        await stop.draining.wait()


if __name__ == "__main__":
    run_loop(lambda: main(Path(sys.argv[1])))
