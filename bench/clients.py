"""Could another HTTP client do the exchange? Fidelity, safety and speed of the `client_candidates` on the same probes:
`python -m bench.clients [COUNT]`. The evidence for docs/adr/0002-http-client.md, not a program of `make bench`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench import http_hosts, http_target
from bench.client_candidates import CLIENTS, Asked, Client
from bench.processes import child
from bench.tally import Tally
from duly.cli.stopping import run_loop
from duly.http import EgressPolicy
from duly.http.tls import tls_context

CONCURRENCY = 100
ROUNDS = 3
DEADLINE_S = 4.0
LOOPBACK = EgressPolicy.parse(allow_loopback=True)

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_HEADERS = (("x-B", "1"), ("X-a", ""), ("X-b", "2"), ("Cookie", "a=b"), ("aUTHORIZATION", "Bearer t"), ("X-a", "3"))
_PATHS = ("/", "/a?", "/a/../b/./c", "//double//", "/%7Euser/%2e%2E/%zz", "/a;p=1/{x}|'()*", '/?q=[1]&r="<>`^')
_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
# name, the answer's beginning, what is repeated after it for ever
_ANSWERS = (
    ("length and chunked", _CHUNKED + b"Content-Length: 2\r\n\r\n2\r\nok\r\n0\r\n\r\n", b""),
    ("two lengths", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok!", b""),
    ("signed length", b"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok", b""),
    ("chunk of 2^68", _CHUNKED + b"\r\nFFFFFFFFFFFFFFFFF\r\nok", b""),
    ("line feeds only", b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", b""),
    ("NUL in a header", b"HTTP/1.1 200 OK\r\nX-A: a\0b\r\nContent-Length: 2\r\n\r\nok", b""),
    ("status 2000", b"HTTP/1.1 2000 OK\r\nContent-Length: 2\r\n\r\nok", b""),
    ("status 999", b"HTTP/1.1 999 X\r\nContent-Length: 2\r\n\r\nok", b""),
    ("not HTTP", b"220 smtp.example.com ESMTP\r\n", b""),
    ("early hints, then 200", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + _OK, b""),
    ("endless early hints", b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 64),
    ("endless header line", b"HTTP/1.1 200 OK\r\nX-A: ", b"a" * 4096),
    ("endless headers", b"HTTP/1.1 200 OK\r\n", b"X-A: a\r\n" * 256),
    ("endless body", b"HTTP/1.1 200 OK\r\n\r\n", b"a" * 4096),
    ("endless chunk extension", _CHUNKED + b"\r\n2;x=", b"a" * 4096),
    ("endless trailers", _CHUNKED + b"\r\n2\r\nok\r\n0\r\n", b"X-A: a\r\n" * 256),
)


@dataclass(slots=True)
class Heard:
    """What a probe's server saw."""

    port: int = 0
    heads: list[bytes] = field(default_factory=list)
    connections: int = 0


@asynccontextmanager
async def _server(begin: bytes, again: bytes = b"") -> AsyncIterator[Heard]:
    """Answers every request with `begin`, then with `again` until the peer goes."""
    heard = Heard()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.connections += 1
        try:
            while True:
                heard.heads.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(begin)
                await writer.drain()
                while again and not writer.is_closing():
                    writer.write(again)
                    await writer.drain()
                    await asyncio.sleep(0)
        except (OSError, EOFError):
            return
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    heard.port = server.sockets[0].getsockname()[1]
    try:
        yield heard
    finally:
        server.close()


def _asked(port: int, path: str = "/hook", scheme: str = "http", **more: object) -> Asked:
    return Asked(f"{scheme}://{http_hosts.name(1)}:{port}{path}", http_hosts.address(1), **more)  # type: ignore[arg-type]


async def _once(client: Client, asked: Asked) -> str:
    try:
        async with asyncio.timeout(DEADLINE_S):
            return str((await client.exchange(asked))[0])
    except TimeoutError:
        return "deadline"
    except Exception as error:  # whatever a client raises
        return type(error).__name__


async def fidelity(client: Client) -> Iterator[tuple[str, str]]:
    """Is what arrives, byte for byte, what was asked for, and nothing else?"""
    found = []
    async with _server(_OK) as heard:
        for path in _PATHS:
            await _once(client, _asked(heard.port, path, method="GET", body=None))
            found.append((f"path {path}", _yes(heard.heads[-1].startswith(f"GET {path} HTTP/1.1\r\n".encode()))))
        await _once(client, _asked(heard.port, headers=_HEADERS))
        lines = heard.heads[-1].decode("latin-1").split("\r\n")[1:-2]
        wanted = [f"Host: {http_hosts.name(1)}:{heard.port}", *(f"{n}: {v}" for n, v in _HEADERS), "Content-Length: 2"]
        found.append(
            ("headers: order, spelling, repeats", _yes([x.rstrip() for x in lines] == [x.rstrip() for x in wanted]))
        )
        found.append(("nothing added", _yes(len(lines) == len(wanted))))
    return iter(found)


async def safety(client: Client) -> Iterator[tuple[str, str]]:
    """What a hostile answer leads to: status or error, and how long it took."""
    found = []
    for name, begin, again in _ANSWERS:
        async with _server(begin, again) as heard:
            began, cpu = time.monotonic(), time.process_time()
            said = await _once(client, _asked(heard.port))
            took, used = time.monotonic() - began, time.process_time() - cpu
            found.append((name, f"{said} in {took:.2f} s, {used:.2f} s CPU with the server's"))
    async with _server(_OK + _OK.replace(b"200", b"201")) as heard:  # a second answer that nobody asked for
        first, second = [await _once(client, _asked(heard.port)) for _ in range(2)]
        found.append(("an answer too many", f"{first}, then {second} over {heard.connections} connections"))
    return iter(found)


async def guard(name: str) -> str:
    """With a policy that closes loopback, does the client reach a server there?"""
    client = CLIENTS[name](EgressPolicy(), tls_context(), "")
    async with _server(_OK) as heard:
        said = await _once(client, _asked(heard.port))
        await client.close()
        return f"{said}, {heard.connections} connections"


async def speed(name: str, folder: Path, count: int, certificates: http_hosts.Certificates | None) -> float:
    """CPU in microseconds a request over kept connections, `CONCURRENCY` at once."""
    tally_file = folder / f"tally-{time.monotonic_ns()}"
    with Tally.make(tally_file, http_target.SLOTS) as tally:
        told = {"tally": str(tally_file), "hosts": 1, "leaf": str(certificates.leaf) if certificates else ""}
        async with child("bench.http_target", told, folder / "target.log") as process:
            await process.until(lambda: tally.numbers[http_target.PORT] > 0, 30)
            authority = str(certificates.authority) if certificates else ""
            client = CLIENTS[name](LOOPBACK, tls_context(authority or None), authority)
            headers = tuple((f"X-Header-{n}", "some value of a header") for n in range(12))
            asked = _asked(tally.numbers[http_target.PORT], scheme="https" if certificates else "http", headers=headers)

            async def send(numbers: Iterator[int]) -> None:
                for _ in numbers:
                    async with asyncio.timeout(30):
                        status, body = await client.exchange(asked)
                    assert (status, body) == (200, b"ok"), (status, body)

            async def send_all(numbers: Iterator[int]) -> None:
                async with asyncio.TaskGroup() as group:
                    for _ in range(CONCURRENCY):
                        group.create_task(send(numbers))

            await send_all(iter(range(CONCURRENCY * 3)))  # connections are made
            cpu = time.process_time()
            await send_all(iter(range(count)))
            cpu = time.process_time() - cpu
            await client.close()
    return cpu * 1e6 / count


async def main() -> None:
    """Print one block a client, JSON last."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    facts: dict[str, dict[str, str]] = {}
    for name, make in CLIENTS.items():
        client = make(LOOPBACK, tls_context(), "")
        facts[name] = dict(await fidelity(client)) | dict(await safety(client)) | {"guard": await guard(name)}
        await client.close()
    figures: dict[str, dict[str, list[float]]] = {name: {"plain": [], "tls": []} for name in CLIENTS}
    with tempfile.TemporaryDirectory() as folder:
        certificates = http_hosts.Certificates.make(Path(folder), "clients")
        for _ in range(ROUNDS):
            for name in CLIENTS:
                figures[name]["plain"].append(await speed(name, Path(folder), count, None))
                figures[name]["tls"].append(await speed(name, Path(folder), count, certificates))
    for name in CLIENTS:
        for way, those in figures[name].items():
            facts[name][f"CPU µs, kept {way}"] = f"{median(those):.0f} ({min(those):.0f}–{max(those):.0f})"
    for fact in next(iter(facts.values())):
        print(fact, *(f"    {name}: {facts[name][fact]}" for name in CLIENTS), sep="\n")
    print(json.dumps(facts))


def _yes(fact: bool) -> str:
    return "yes" if fact else "NO"


if __name__ == "__main__":
    run_loop(main)
