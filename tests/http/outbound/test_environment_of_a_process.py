"""A process that is started with a hostile environment: much of it is read once, before any test could set it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path

import trustme
from bench.hostile_server import server_context

from .servers import OK, raw_server
from .ssrf_rows import read_rows

PROGRAM = """
import asyncio, json, sys
sys.path[:0] = [{root!r}]
from datetime import UTC, datetime, timedelta
from uuid import uuid4
from duly.http import Deliverer, EgressPolicy, new_request
from duly.model import ClaimedJob, RetryPolicy, Trigger

def job(url):
    return ClaimedJob(id=uuid4(), attempt=1, final_attempt=8, max_attempts=8, account_id=1, project_id=1, lane_id=1,
        queue="default", kind="http", priority=5, payload_json=json.dumps(new_request(url).to_payload()), body=b"",
        timeout=timedelta(seconds=3), retry=RetryPolicy(), run_at=datetime.now(UTC), trigger=Trigger.SCHEDULE,
        age=timedelta(0), expired=False)

async def main(urls):
    async with Deliverer(EgressPolicy.parse(allow_loopback=True), ca_file=sys.argv[1]) as deliverer:
        return [(await deliverer.deliver(job(url))).report.result for url in urls]

print(json.dumps(asyncio.run(main(sys.argv[2:]))))
"""


async def test_fo_064_environment_of_a_process_has_no_effect(tmp_path: Path) -> None:
    """FO-064: every variable of every env row, others like them, a netrc and a host alias file, all at once, before
    Python starts: requests go straight to their targets with nothing added, metadata stays closed, no key is written.
    """
    rows = [row.text.split(" ")[0] for row in read_rows() if row.prefix == "env"]
    keys, aliases = tmp_path / "keys", tmp_path / "aliases"
    aliases.write_text("metadata localhost\nlocalhost 169.254.169.254\n")
    (tmp_path / ".netrc").write_text("default login user password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    tls = server_context(authority)
    async with raw_server(OK) as proxy, raw_server(OK) as server, raw_server(OK, tls=tls) as secure:
        trap = f"http://127.0.0.1:{proxy.port}"
        hostile = {
            "all_proxy": trap, "WS_PROXY": trap, "FTP_PROXY": trap, "no_proxy": "*", "HOSTALIASES": str(aliases),
            "NETRC": str(tmp_path / ".netrc"), "HOME": str(tmp_path), "SSL_CERT_DIR": str(tmp_path),
            "REQUESTS_CA_BUNDLE": "/tmp/evil.pem", "CURL_CA_BUNDLE": "/tmp/evil.pem", "PYTHONHTTPSVERIFY": "0",
            "RES_NAMESERVERS": "127.0.0.1", "RESOLV_HOST_CONF": str(aliases), "AIOHTTP_NO_EXTENSIONS": "1",
        }  # fmt: skip
        for setting in (part for row in rows for part in row.split(",")):
            name, _, value = setting.partition("=")
            hostile[name] = re.sub(r"://[^/]+", f"://127.0.0.1:{proxy.port}", value).replace("/tmp/k", str(keys))
            hostile[name.lower()] = hostile[name]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            PROGRAM.format(root=str(Path(__file__).parents[3] / "src")),
            str(tmp_path / "ca.pem"),
            *(server.url(), f"http://localhost:{server.port}/", "http://169.254.169.254/", "http://metadata/"),
            secure.url(),
            env={**os.environ, **hostile},
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await asyncio.wait_for(process.communicate(), 60)
        assert json.loads(out) == ["success", "success", "target_not_allowed", "target_not_allowed", "success"]
        assert (len(server.received), len(secure.received), proxy.connections) == (2, 1, 0)
        assert all(request.header("Authorization") is None for request in server.received + secure.received)
    logged = keys.read_text() if keys.exists() else ""  # aiohttp opens it, for a context of its own that nobody uses
    assert all(line.startswith("#") for line in logged.splitlines())
