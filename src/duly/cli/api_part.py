"""The API and the dashboard as a part of a process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from duly.api import ApiServer, ApiSettings, create_app
from duly.dashboard import install_dashboard
from duly.http import EgressPolicy
from duly.queue import Database
from duly.service import Keyring


@asynccontextmanager
async def serving(
    db: Database, policy: EgressPolicy, host: str, port: int, keyring: Keyring
) -> AsyncIterator[tuple[str, int]]:
    """Serve the API and the dashboard while the block runs; the address that was bound."""
    app = create_app(db, policy, ApiSettings(), keyring=keyring)
    install_dashboard(app)
    server = ApiServer(app)
    bound = await server.start(host, port)
    try:
        yield bound
    finally:
        await server.stop()
