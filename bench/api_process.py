"""The API, measured: `python -m bench.api_process JSON` with dsn and ready (a file: its port, once it listens)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from duly.api import ApiServer, ApiSettings, create_app
from duly.cli.stopping import Stop, run_loop
from duly.http import EgressPolicy
from duly.queue import Database
from duly.service.keyring import Keyring, new_key


async def main(told: dict[str, Any]) -> None:
    """Serve until SIGTERM, sealing as a deployment does."""
    stop = Stop()
    async with await Database.open(told["dsn"], max_size=10, name="duly-bench-api") as db:
        app = create_app(db, EgressPolicy.parse(allow_loopback=True), ApiSettings(), keyring=Keyring.parse(new_key()))
        server = ApiServer(app)
        _, port = await server.start("127.0.0.1", 0)
        Path(told["ready"]).write_text(str(port))
        await stop.draining.wait()
        await server.stop()


if __name__ == "__main__":
    run_loop(lambda: main(json.loads(sys.argv[1])))
