"""The ceiling of `deliver`: aiohttp sends the same requests under the same guard, without Duly and without a database.
`python -m bench.bare_client JSON` with scheme, port, hosts, authority, count, concurrency.

What it does not do is what Duly adds: look names up, vet them, sign, note phases, keep an excerpt, decide, record.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import uuid
from ipaddress import ip_address
from typing import Any

import aiohttp
from yarl import URL

from bench import http_hosts
from duly.cli.stopping import run_loop
from duly.http import EgressPolicy
from duly.http.connections import CONNECT_LIMIT_S, KEEPALIVE_S, _PinnedResolver
from duly.http.exchange import READ_LIMIT_BYTES
from duly.http.guard import guarded_sockets
from duly.http.head_limit import MAX_FIELDS, MAX_LINE_OCTETS
from duly.http.tls import tls_context

_LIMIT_S = 30.0
_ID = str(uuid.UUID(int=7))
_HEADERS = [  # as many octets as Duly sends
    ("Content-Type", "application/json"),
    ("User-Agent", "duly/0.1.0"),
    ("Idempotency-Key", _ID),
    ("Accept-Encoding", "identity"),
    ("Duly-Job-Id", _ID),
    ("Duly-Attempt", "1"),
    ("Duly-Max-Attempts", "8"),
    ("Duly-Trigger", "schedule"),
    ("Duly-Scheduled-At", "2026-01-02T03:04:05.678900Z"),
    ("Duly-Hops", "1"),
    ("webhook-id", _ID),
    ("webhook-timestamp", "1767323045"),
    ("webhook-signature", "v1," + "A" * 44),
]


async def main(told: dict[str, Any]) -> None:
    """Post `count` small bodies to the hosts in turn over `concurrency` tasks, and end."""
    policy = EgressPolicy.parse(allow_loopback=True)
    tls = tls_context(told["authority"]) if told["authority"] else tls_context()
    places = [(_session(policy, tls, n, told["port"]), _url(told, n)) for n in range(1, told["hosts"] + 1)]
    numbers = iter(range(told["count"]))

    async def send() -> None:
        for n in numbers:
            session, url = places[n % len(places)]
            async with (
                asyncio.timeout(_LIMIT_S),
                session.post(url, data=b'{"n": %d}' % n, headers=_HEADERS, allow_redirects=False) as answer,
            ):
                body = b"".join([chunk async for chunk in answer.content.iter_any()])
                assert answer.status == 200, answer
                assert len(body) < READ_LIMIT_BYTES

    async with asyncio.TaskGroup() as group:
        for _ in range(told["concurrency"]):
            group.create_task(send())
    for session, _ in places:
        await session.close()


def _url(told: dict[str, Any], n: int) -> URL:
    return URL(f"{told['scheme']}://{http_hosts.name(n)}:{told['port']}/hook")


def _session(policy: EgressPolicy, tls: ssl.SSLContext, n: int, port: int) -> aiohttp.ClientSession:
    vetted = [ip_address(http_hosts.address(n))]
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            resolver=_PinnedResolver(vetted),
            use_dns_cache=False,
            socket_factory=guarded_sockets(policy, http_hosts.name(n), port, vetted),
            ssl=tls,
            keepalive_timeout=KEEPALIVE_S,
            limit=0,
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        auto_decompress=False,
        skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_LIMIT_S),
        max_line_size=MAX_LINE_OCTETS,
        max_field_size=MAX_LINE_OCTETS,
        max_headers=MAX_FIELDS,
    )


if __name__ == "__main__":
    run_loop(lambda: main(json.loads(sys.argv[1])))
