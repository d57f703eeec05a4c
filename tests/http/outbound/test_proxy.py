"""The egress proxy: the only way out where it is set, asked for vetted addresses and nothing else."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trustme

from duly.http import Deliverer, EgressPolicy, EgressProxy
from duly.model import Bury, Retry, Success
from duly.model.errors import InvalidInputError

from .servers import OK, Received, closed_port, deliver, make_job, raw_server, report_of
from .ssrf_rows import ScriptedResolver

NAMED = EgressPolicy.parse(["127.0.0.0/8", "host=good.test"])
THROUGH = "the target could not be reached through the egress proxy"


@dataclass
class Proxy:
    """A CONNECT proxy on loopback. `answers`: what it says instead of opening the tunnel, one for each request."""

    port: int = 0
    asked: list[Received] = field(default_factory=list)
    answers: list[bytes] = field(default_factory=list)
    behind_head: bytes = b""
    tunnels: int = 0

    @property
    def lines(self) -> list[str]:
        return [asked.line for asked in self.asked]

    @property
    def setting(self) -> EgressProxy:
        return EgressProxy("127.0.0.1", self.port)


@asynccontextmanager
async def connect_proxy() -> AsyncIterator[Proxy]:
    proxy = Proxy()

    async def serve(request: Received, writer: asyncio.StreamWriter) -> None:
        proxy.asked.append(request)
        if proxy.answers:
            writer.write(proxy.answers.pop(0))
            await writer.drain()
            return
        host, _, port = request.line.split(" ")[1].rpartition(":")
        there, back = await asyncio.open_connection(host.strip("[]"), int(port))
        proxy.tunnels += 1
        writer.write(b"HTTP/1.1 200 Connection established\r\nVia: here\r\n\r\n" + proxy.behind_head)
        reader = _reader_of(writer)
        try:
            await asyncio.gather(_pump(reader, back), _pump(there, writer))
        finally:
            back.close()

    async with raw_server(serve) as server:
        proxy.port = server.port
        yield proxy


def _reader_of(writer: asyncio.StreamWriter) -> asyncio.StreamReader:
    """The other half of a server's connection, which the handler of `raw_server` is not given."""
    protocol: Any = writer.transport.get_protocol()
    reader: asyncio.StreamReader = protocol._stream_reader
    return reader


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof() if writer.can_write_eof() else writer.close()


async def test_plain_http_goes_through_a_tunnel_to_the_vetted_address() -> None:
    """The proxy is asked for the address; the target sees the name and the path, as without a proxy."""
    async with connect_proxy() as proxy, raw_server(OK) as server:
        job = make_job(server.url("/hook?a=1", host="good.test"), body=b"exact")
        outcome = await deliver(job, policy=NAMED, resolver=ScriptedResolver(["127.0.0.1"]), proxy=proxy.setting)
        assert isinstance(outcome, Success), outcome
    assert proxy.lines == [f"CONNECT 127.0.0.1:{server.port} HTTP/1.1"]
    assert proxy.asked[0].header("Host") == f"127.0.0.1:{server.port}"
    assert [name for name, _ in proxy.asked[0].headers] == ["Host"]  # nothing of the job's
    [received] = server.received
    assert received.line == "POST /hook?a=1 HTTP/1.1"
    assert received.header("Host") == f"good.test:{server.port}"
    assert received.body == b"exact"


async def test_https_is_verified_by_name_inside_the_tunnel(tmp_path: Path) -> None:
    """SNI and certificate go by the name; the proxy sees the address, and a wrong certificate fails as ever."""
    authority = trustme.CA()
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    for name, result in (("good.test", "success"), ("other.test", "tls_error")):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(name).configure_cert(context)
        names: list[str | None] = []
        context.sni_callback = lambda _, asked, __, seen=names: seen.append(asked)
        async with connect_proxy() as proxy, raw_server(OK, tls=context) as server:
            job = make_job(server.url(host="good.test"))
            resolver = ScriptedResolver(["127.0.0.1"])
            outcome = await deliver(job, policy=NAMED, resolver=resolver, ca_file=ca_file, proxy=proxy.setting)
            assert report_of(outcome).result == result
            assert proxy.lines == [f"CONNECT 127.0.0.1:{server.port} HTTP/1.1"]
            assert names == ["good.test"]
            assert len(server.received) == (result == "success")


async def test_credentials_are_sent_to_the_proxy_alone() -> None:
    """As Basic, decoded from the URL; the target never sees them, nor does the setting's repr."""
    async with connect_proxy() as proxy, raw_server(OK) as server:
        setting = EgressProxy.parse(f"http://us%40er:p%3Aw@127.0.0.1:{proxy.port}")
        assert isinstance(await deliver(make_job(server.url()), proxy=setting), Success)
    expected = base64.b64encode(b"us@er:p:w").decode()
    assert proxy.asked[0].header("Proxy-Authorization") == f"Basic {expected}"
    assert b"Proxy-" not in server.received[0].head
    assert "p:w" not in repr(setting)


async def test_a_tunnel_is_kept_for_the_next_request_of_one_account() -> None:
    """Kept connections are tunnels; another account gets its own."""
    async with connect_proxy() as proxy, raw_server(OK, closes=False) as server:
        async with Deliverer(NAMED, resolver=ScriptedResolver(["127.0.0.1"]), proxy=proxy.setting) as deliverer:
            for account in (1, 1, 2, 2):
                job = make_job(server.url(host="good.test"), account_id=account)
                assert isinstance(await deliverer.deliver(job), Success)
    assert (proxy.tunnels, server.connections, len(server.received)) == (2, 2, 4)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\n\r\nno!",
        b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",  # an answer in the target's place
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
        b"HTTP/1.1 200",  # and dies
        b"",
    ],
    ids=["407", "403", "502", "smuggled", "101", "302", "not-http", "too-long", "cut", "dies"],
)
async def test_what_the_proxy_refuses_is_a_failed_attempt(answer: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """It is retried, nothing goes straight to the target, and the tenant reads the same words each time."""
    async with connect_proxy() as proxy, raw_server(OK) as server:
        proxy.answers = [answer]
        outcome = await deliver(make_job(server.url()), proxy=proxy.setting)
        assert server.connections == 0
        assert len(proxy.asked) == 1
    assert isinstance(outcome, Retry)
    assert (outcome.report.result, outcome.report.error) == ("connect_refused", THROUGH)
    [line] = [record for record in caplog.records if record.name == "duly.http"]
    assert line.__dict__["proxy"] == f"127.0.0.1:{proxy.port}"


async def test_a_head_in_two_pieces_behind_a_1xx_is_read() -> None:
    """An interim answer is none; the final one may come in pieces."""
    done = asyncio.Event()

    async def serve(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 2")
        await writer.drain()
        await asyncio.sleep(0)  # two writes, whether or not they arrive as two
        writer.write(b"00 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        done.set()
        reader = _reader_of(writer)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await writer.drain()

    async with raw_server(serve) as server:
        outcome = await deliver(make_job("http://127.0.0.1:12345/"), proxy=EgressProxy("127.0.0.1", server.port))
    assert isinstance(outcome, Success), outcome
    assert done.is_set()


async def test_without_the_proxy_nothing_goes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens there, or its name is not known: failed, although the target could be reached directly; and a
    proxy in the environment is not taken instead.
    """
    async with connect_proxy() as other, raw_server(OK) as server:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{other.port}")
        for proxy in (EgressProxy("127.0.0.1", closed_port()), EgressProxy("proxy.test", 3128)):
            outcome = await deliver(make_job(server.url()), proxy=proxy, resolver=ScriptedResolver([]))
            assert isinstance(outcome, Retry)
            assert (outcome.report.result, outcome.report.error) == ("connect_refused", THROUGH)
        assert (server.connections, other.asked) == (0, [])


async def test_a_proxy_that_says_nothing_is_given_up_in_time() -> None:
    """The attempt's own limit holds over the tunnel, too."""

    async def silent(_: Received, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with raw_server(silent) as server:
        job = make_job("http://127.0.0.1:12345/", timeout_s=0.2)
        outcome = await deliver(job, proxy=EgressProxy("127.0.0.1", server.port))
    assert report_of(outcome).result == "connect_timeout"


async def test_addresses_are_tried_in_turn() -> None:
    """What the proxy cannot reach gives way to the next address; without a login to the proxy none is tried."""
    async with connect_proxy() as proxy, raw_server(OK) as server:
        resolver = ScriptedResolver(["127.0.0.2", "127.0.0.3", "127.0.0.1"])
        proxy.answers = [b"HTTP/1.1 502 No\r\nContent-Length: 0\r\n\r\n"] * 2
        job = make_job(server.url(host="good.test"))
        assert isinstance(await deliver(job, policy=NAMED, resolver=resolver, proxy=proxy.setting), Success)
        asked = [line.split()[1].rpartition(":")[0] for line in proxy.lines]
        assert sorted(asked) == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
        proxy.asked.clear()
        proxy.answers = [b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n"] * 3
        resolver = ScriptedResolver(["127.0.0.2", "127.0.0.3", "127.0.0.1"])
        assert isinstance(await deliver(job, policy=NAMED, resolver=resolver, proxy=proxy.setting), Retry)
        assert len(proxy.asked) == 1


async def test_the_rules_for_targets_hold() -> None:
    """Private, metadata and own addresses are refused before the proxy is asked, by literal and by name."""
    async with connect_proxy() as proxy:
        for url in ("http://10.0.0.1/", "http://169.254.169.254/", "http://good.test/"):
            policy = EgressPolicy.parse(["host=good.test"])
            resolver = ScriptedResolver(["169.254.169.254"])
            outcome = await deliver(make_job(url), policy=policy, resolver=resolver, proxy=proxy.setting)
            assert report_of(outcome).result == "target_not_allowed"
        assert proxy.asked == []


async def test_the_proxy_is_no_target() -> None:
    """Not by its address, where the policy opens loopback; not by a name that leads there; nor if its own is a name."""
    async with connect_proxy() as proxy:
        job = make_job(f"http://127.0.0.1:{proxy.port}/")
        named = make_job(f"http://good.test:{proxy.port}/")
        by_name = EgressProxy("good.test", proxy.port)
        for it, setting in ((job, proxy.setting), (named, proxy.setting), (named, by_name)):
            outcome = await deliver(it, policy=NAMED, resolver=ScriptedResolver(["127.0.0.1"]), proxy=setting)
            assert isinstance(outcome, Retry | Bury)
            assert report_of(outcome).result == "target_not_allowed", outcome
        assert proxy.asked == []


async def test_the_proxy_itself_is_dialled_past_the_rules_and_by_its_name() -> None:
    """Loopback is closed to jobs, and the proxy is on loopback: the attempt gets as far as the proxy, no farther."""
    async with connect_proxy() as proxy:
        proxy.answers = [b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"]
        resolver = ScriptedResolver(["127.0.0.1"])
        setting = EgressProxy("proxy.test", proxy.port)
        outcome = await deliver(
            make_job("http://93.184.216.34/"), policy=EgressPolicy(), resolver=resolver, proxy=setting
        )
        assert isinstance(outcome, Retry)
        assert proxy.lines == ["CONNECT 93.184.216.34:80 HTTP/1.1"]


@pytest.mark.parametrize(
    "text",
    [
        "", "proxy", "proxy:3128", "https://proxy:3128", "socks5://proxy:1080", "http://proxy", "http://proxy:0",
        "http://proxy:99999", "http://:3128", "http://proxy:3128/path", "http://proxy:3128?x", "http://pr\noxy:3128",
        "http://s3cret@:1", "http://u:s3cret@[::1:80",
    ],
)  # fmt: skip
def test_a_setting_that_is_no_proxy_is_refused(text: str) -> None:
    """With the setting's name and how to write it, and without what was written."""
    with pytest.raises(InvalidInputError, match="DULY_EGRESS_PROXY") as refused:
        EgressProxy.parse(text)
    assert "s3cret" not in str(refused.value)


def test_settings_are_read() -> None:
    """With and without a login, names, and IPv6 in brackets."""
    assert EgressProxy.parse("http://proxy.internal:3128") == EgressProxy("proxy.internal", 3128)
    assert EgressProxy.parse("http://u:p@[::1]:3128/") == EgressProxy("::1", 3128, ("u", "p"))
