"""The API and the dashboard as a part of a process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from duly.api import ApiServer, ApiSettings, create_app
from duly.cli.observing import NOTHING, Observed
from duly.dashboard import install_dashboard
from duly.http import EgressPolicy
from duly.observe.request_log import logged
from duly.queue import Database
from duly.service import Keyring


@asynccontextmanager
async def serving(
    db: Database, policy: EgressPolicy, host: str, port: int, keyring: Keyring, watched: Observed = NOTHING
) -> AsyncIterator[tuple[str, int]]:
    """Serve the API and the dashboard while the block runs; the address that was bound."""
    tracing, metrics = watched.tracing, watched.metrics
    api = create_app(db, policy, ApiSettings(), keyring=keyring, carry=None if tracing is None else tracing.carry)
    install_dashboard(api)
    app: Any = logged(api)
    if tracing is not None:
        app = tracing.around(app)
    if metrics is not None and metrics.requests is not None:
        app = metrics.requests.around(app)
    server = ApiServer(app)
    bound = await server.start(host, port)
    try:
        yield bound
    finally:
        api.state.services.ending.set()  # what goes on without end would hold the stop for its whole grace
        await server.stop()
