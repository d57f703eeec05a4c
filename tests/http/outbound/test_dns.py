"""Names: resolved once per attempt, every answer vetted, no name able to hold up another."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import cast

import aiohttp
import pytest

from duly.http import Deliverer, DnsError, EgressPolicy, SystemResolver, TargetNotAllowedError, parse_target, resolve
from duly.http.addresses import Address
from duly.http.connections import Connections
from duly.http.exchange import PeerNotingResponse
from duly.http.hosts_file import HostsFile, parse_hosts
from duly.http.tls import tls_context
from duly.model import Retry, Success

from .servers import OK, OPEN_LOOPBACK, closed_port, deliver, make_job, raw_server, report_of
from .ssrf_rows import ScriptedResolver

NAME = "http://a.example.com/"
DEFAULT = EgressPolicy()


class FamilyResolver:
    """One behaviour per family: addresses, an error, or None for an answer that never comes."""

    def __init__(self, v6: Sequence[str] | Exception | None, v4: Sequence[str] | Exception | None) -> None:
        self._answers = {socket.AF_INET6: v6, socket.AF_INET: v4}

    async def lookup(self, host: str, family: socket.AddressFamily) -> Sequence[str]:
        answer = self._answers[family]
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        return answer or ()

    async def close(self) -> None:
        pass


async def _texts(resolver: FamilyResolver, policy: EgressPolicy = DEFAULT, limit_s: float = 2.0) -> list[str]:
    return [str(address) for address in await resolve(resolver, policy, parse_target(NAME), limit_s)]


@pytest.mark.parametrize("broken", [None, DnsError("x"), OSError("x"), ()])
async def test_fo_073_one_broken_family_does_not_sink_the_other(broken: Exception | tuple[()] | None) -> None:
    """FO-073: SERVFAIL, silence or emptiness for AAAA leaves the A answer usable, within the lag, and vice versa."""
    began = time.monotonic()
    assert await _texts(FamilyResolver(broken, ["8.8.8.8"])) == ["8.8.8.8"]
    assert await _texts(FamilyResolver(["2606:4700::1"], broken)) == ["2606:4700::1"]
    assert time.monotonic() - began < 1.8


class AtHand(FamilyResolver):
    """Has the addresses of one name at hand."""

    def __init__(self, host: str, addresses: Sequence[str], asked: FamilyResolver) -> None:
        super().__init__(None, None)
        self._known = {host: addresses}
        self.lookup = asked.lookup  # type: ignore[method-assign]

    def at_hand(self, host: str) -> Sequence[str]:
        return self._known.get(host, ())


async def test_a_name_at_hand_is_not_asked_for_and_is_vetted_all_the_same() -> None:
    """In the resolver's order; one denied address denies the name; any other name is looked up."""
    silent = FamilyResolver(None, None)
    assert await _texts(AtHand("a.example.com", ["8.8.8.8", "2606:4700::1"], silent)) == ["8.8.8.8", "2606:4700::1"]
    with pytest.raises(TargetNotAllowedError):
        await _texts(AtHand("a.example.com", ["8.8.8.8", "127.0.0.1"], silent))
    assert await _texts(AtHand("b.example.com", ["127.0.0.1"], FamilyResolver([], ["8.8.4.4"]))) == ["8.8.4.4"]


async def test_the_hosts_file_is_at_hand_with_ipv6_first(tmp_path: Path) -> None:
    """Both families of a name, however its lines are ordered; nothing for a name that it does not have."""
    file = tmp_path / "hosts"
    file.write_text("192.0.2.1 a.example.com\n2001:db8::1 a.example.com\n192.0.2.2 a.example.com\n")
    resolver = SystemResolver(HostsFile(file))
    try:
        assert resolver.at_hand("a.example.com") == ["2001:db8::1", "192.0.2.1", "192.0.2.2"]
        assert resolver.at_hand("b.example.com") == []
    finally:
        await resolver.close()


@pytest.mark.parametrize("answer", [None, DnsError("x"), ()])
async def test_no_answer_is_a_dns_error(answer: Exception | tuple[()] | None) -> None:
    """Silence, failure or emptiness of both families within the limit: DnsError, retryable."""
    with pytest.raises(DnsError):
        await _texts(FamilyResolver(answer, answer), limit_s=0.1)


@pytest.mark.parametrize("v6", [None, ["2606:4700::1"]])
async def test_a_cancelled_look_up_leaves_nothing_behind(v6: list[str] | None) -> None:
    """Cancelled while IPv4 is silent, whether IPv6 has answered or not: no task stays, no callback fails."""
    failed: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    before = asyncio.all_tasks()
    looking = asyncio.create_task(_texts(FamilyResolver(v6, None)))
    for _ in range(3):
        await asyncio.sleep(0)
    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking
    await asyncio.sleep(0)
    assert (asyncio.all_tasks(), failed) == (before, [])


async def test_more_than_32_answers_are_refused() -> None:
    """32 pass, 33 do not, over both families."""
    many = [f"8.8.8.{n}" for n in range(32)]
    assert len(await _texts(FamilyResolver([], many))) == 32
    with pytest.raises(DnsError):
        await _texts(FamilyResolver(["2606:4700::1"], many))


@pytest.mark.parametrize("bad", ["fe80::1%eth0", "127.1", "", "localhost", "8.8.8.8 "])
async def test_an_answer_that_is_no_plain_address_denies_the_name(bad: str) -> None:
    """Scoped, short or textual answers are never dialled."""
    with pytest.raises(TargetNotAllowedError):
        await _texts(FamilyResolver([], ["8.8.8.8", bad]))


async def test_allowed_name_opens_its_addresses_but_never_metadata_or_denied_ones() -> None:
    """host= opens that name's private answers; metadata, embedded forms and deny entries stay closed."""
    policy = EgressPolicy.parse(["host=a.example.com"], ["10.9.0.0/16"])
    assert await _texts(FamilyResolver([], ["10.0.0.5"]), policy) == ["10.0.0.5"]
    for denied in ("169.254.169.254", "168.63.129.16", "10.9.0.1", "0.0.0.0"):
        with pytest.raises(TargetNotAllowedError):
            await _texts(FamilyResolver([], ["10.0.0.5", denied]), policy)


async def test_refusal_does_not_name_the_address() -> None:
    """A tenant learns that the name is refused, not where it points."""
    outcome = await deliver(make_job(NAME), resolver=ScriptedResolver(["10.11.12.13"]), policy=EgressPolicy())
    report = report_of(outcome)
    assert report.result == "target_not_allowed"
    assert "10.11.12.13" not in f"{report.error} {report.detail}"
    assert (report.error or "").startswith("target address not allowed")


@pytest.mark.parametrize("url", ["http://db/", "http://vault.internal/", "http://a.example.com:22/"])
async def test_policy_on_names_and_ports_holds_at_delivery_without_a_look_up(url: str) -> None:
    """A job stored under an older policy is refused before anything leaves the machine, a DNS question included."""
    resolver = ScriptedResolver(["127.0.0.1"])
    outcome = await deliver(make_job(url), resolver=resolver)
    assert report_of(outcome).result == "target_not_allowed"
    assert resolver.lookups == 0


async def test_fo_061_rebinding_reaches_nothing() -> None:
    """FO-061: the first answer is vetted and dialled; when a later attempt gets a denied one, the blocked server sees
    nothing."""
    policy = EgressPolicy.parse(["127.0.0.1/32"])
    async with raw_server(OK, closes=False) as good, raw_server(OK, host="::1") as blocked:
        resolver = ScriptedResolver(["127.0.0.1"], ["::1"], ["127.0.0.1", "::1"])
        async with Deliverer(policy, resolver=resolver) as deliverer:
            url = f"http://a.example.com:{good.port}/"
            assert isinstance(await deliverer.deliver(make_job(url)), Success)
            assert resolver.lookups == 1
            for _ in range(2):  # a pooled connection to 127.0.0.1 is open, and is not used
                assert report_of(await deliverer.deliver(make_job(url))).result == "target_not_allowed"
            assert resolver.lookups == 3
        assert (len(good.received), blocked.connections) == (1, 0)
        assert good.received[0].header("Host") == f"a.example.com:{good.port}"


@pytest.mark.parametrize("answers", [("127.0.0.1",), ("127.0.0.1", "127.0.0.2"), ("::1", "127.0.0.1")])
async def test_last_gate_holds_when_every_earlier_check_is_wrong(
    answers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FO-061: with vetting switched off, the socket hook alone refuses: no connection, and the right outcome."""

    async def unvetted(*_: object) -> tuple[Address, ...]:
        return tuple(ip_address(answer) for answer in answers)

    monkeypatch.setattr("duly.http.delivery.resolve", unvetted)
    async with raw_server(OK) as victim:
        url = f"http://a.example.com:{victim.port}/"
        outcome = await deliver(make_job(url), policy=EgressPolicy())
        assert victim.connections == 0
    assert report_of(outcome).result == "target_not_allowed"


async def test_idle_sessions_are_bounded() -> None:
    """Beyond the limit the least recently used idle session is closed; one in use never is."""
    connections = Connections(OPEN_LOOPBACK, tls_context(), response_class=PeerNotingResponse, limit=2)
    target = parse_target("http://127.0.0.1/")
    async with connections.session(1, target, [ip_address("127.0.0.1")]) as busy:
        for account in range(2, 9):
            async with connections.session(account, target, [ip_address("127.0.0.1")]):
                pass
        assert len(connections) == 2
        assert not busy.closed
    await connections.close()
    assert busy.closed


async def test_sessions_are_closed_beside_the_attempts_and_never_under_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts end beyond the limit, one of them as its time runs out, while closing takes long: nobody waits for it,
    every old session is closed once, the one in use is not, and the end waits for all."""
    connections = Connections(OPEN_LOOPBACK, tls_context(), response_class=PeerNotingResponse, limit=2)
    target, go, begun = parse_target("http://127.0.0.1/"), asyncio.Event(), Counter[int]()
    close = aiohttp.ClientSession.close

    async def slowly(self: aiohttp.ClientSession) -> None:
        begun[id(self)] += 1
        await go.wait()
        await close(self)

    monkeypatch.setattr(aiohttp.ClientSession, "close", slowly)
    sessions = []
    async with connections.session(1, target, [ip_address("127.0.0.1")]) as busy:
        for account in range(2, 7):
            with suppress(TimeoutError):
                async with asyncio.timeout(0 if account == 4 else 10):
                    async with connections.session(account, target, [ip_address("127.0.0.1")]) as session:
                        sessions.append(session)
                        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (len(connections), len(begun), busy.closed) == (2, 4, False)
        assert not any(session.closed for session in sessions)
        go.set()
    await connections.close()
    assert busy.closed
    assert all(session.closed for session in sessions)
    assert set(begun.values()) == {1}


async def test_pooled_connection_of_another_verdict_is_not_reused() -> None:
    """FO-061: a new answer opens a new connection, although one to the old address is still alive."""
    resolver = ScriptedResolver(["127.0.0.1"], ["127.0.0.1"], ["127.0.0.2"])
    async with raw_server(OK, host="127.0.0.1,127.0.0.2", closes=False) as server:
        async with Deliverer(OPEN_LOOPBACK, resolver=resolver) as deliverer:
            url = f"http://a.example.com:{server.port}/"
            peers = [report_of(await deliverer.deliver(make_job(url))).detail["remote_address"] for _ in range(3)]
            assert (peers, server.connections) == (["127.0.0.1", "127.0.0.1", "127.0.0.2"], 2)


async def test_fo_073_dead_ipv6_port_falls_back_to_ipv4() -> None:
    """FO-073: ::1 refuses, 127.0.0.1 answers: delivered, in one attempt."""
    async with raw_server(OK) as server:
        outcome = await deliver(
            make_job(f"http://a.example.com:{server.port}/"), resolver=ScriptedResolver(["::1", "127.0.0.1"])
        )
    assert isinstance(outcome, Success)
    assert report_of(outcome).detail["remote_address"] == "127.0.0.1"


async def test_fo_077_name_errors_are_retried() -> None:
    """FO-077: a name that does not resolve is a retry, not a dead letter, even at a late attempt; when it does resolve,
    the next attempt delivers."""
    async with raw_server(OK) as server:
        resolver = ScriptedResolver(None, ["127.0.0.1"])
        url = f"http://a.example.com:{server.port}/"
        outcome = await deliver(make_job(url, attempt=7), resolver=resolver)
        assert isinstance(outcome, Retry)
        assert outcome.report.result == "dns_error"
        assert isinstance(await deliver(make_job(url, attempt=8), resolver=resolver), Success)


@asynccontextmanager
async def name_server(addresses: Callable[[str, int], list[bytes] | None]) -> AsyncIterator[tuple[str, list[str]]]:
    """A DNS server on 127.0.0.1 (None: no answer); yields its address and the names that it was asked for."""
    asked: list[str] = []

    class Answers(asyncio.DatagramProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = cast("asyncio.DatagramTransport", transport)

        def datagram_received(self, data: bytes, peer: tuple[str, int]) -> None:
            end = data.index(b"\0", 12)
            labels, at = [], 12
            while data[at]:
                labels.append(data[at + 1 : at + 1 + data[at]].decode())
                at += data[at] + 1
            (kind,) = struct.unpack(">H", data[end + 1 : end + 3])
            asked.append(".".join(labels))
            found = addresses(asked[-1], kind)
            if found is None:
                return
            flags = 0x8180 if found else 0x8183
            head = data[:2] + struct.pack(">HHHHH", flags, 1, len(found), 0, 0) + data[12 : end + 5]
            rest = b"".join(b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, 0, len(raw)) + raw for raw in found)
            self.transport.sendto(head + rest, peer)

    port = closed_port()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(Answers, local_addr=("127.0.0.1", port))
    try:
        yield f"127.0.0.1:{port}", asked
    finally:
        transport.close()


async def test_system_resolver_asks_absolute_names_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """LOCALDOMAIN, RES_OPTIONS and HOSTALIASES add nothing: only the name itself is asked for."""
    monkeypatch.setenv("LOCALDOMAIN", "svc.cluster.local")
    monkeypatch.setenv("RES_OPTIONS", "ndots:5")

    def trap(name: str, kind: int) -> list[bytes]:
        return [bytes([127, 0, 0, 1])] if name.endswith("cluster.local") and kind == 1 else []

    async with name_server(trap) as (address, asked):
        resolver = SystemResolver(nameservers=[address], timeout=0.5, tries=1)
        with pytest.raises(DnsError):
            await resolve(resolver, EgressPolicy(), parse_target(NAME))
        await resolver.close()
    assert set(asked) == {"a.example.com"}


async def test_system_resolver_reads_answers() -> None:
    """Real packets from a real (loopback) server become addresses and are vetted."""
    records = {"a.example.com": [bytes([127, 0, 0, 1]), bytes([127, 0, 0, 2])]}
    async with name_server(lambda name, kind: records.get(name, []) if kind == 1 else []) as (address, _):
        resolver = SystemResolver(nameservers=[address], timeout=0.5, tries=1)
        found = await resolve(resolver, OPEN_LOOPBACK, parse_target(NAME))
        assert [str(one) for one in found] == ["127.0.0.1", "127.0.0.2"]
        with pytest.raises(TargetNotAllowedError):
            await resolve(resolver, EgressPolicy(), parse_target(NAME))
        await resolver.close()


async def test_slow_name_beside_quick_ones_gets_its_time() -> None:
    """c-ares learns from quick answers to wait but a quarter of a second; a name that takes 1.2 s still resolves."""
    asked_first: dict[tuple[str, int], float] = {}

    def slow(name: str, kind: int) -> list[bytes] | None:
        began = asked_first.setdefault((name, kind), time.monotonic())
        if name.startswith("slow") and time.monotonic() - began < 1.2:
            return None
        return [bytes([127, 0, 0, 1])] if kind == 1 else []

    async with name_server(slow) as (address, _):
        resolver = SystemResolver(nameservers=[address])
        for n in range(60):
            await resolve(resolver, OPEN_LOOPBACK, parse_target(f"http://quick{n}.example.com/"))
        found = await resolve(resolver, OPEN_LOOPBACK, parse_target("http://slow.example.com/"))
        assert [str(one) for one in found] == ["127.0.0.1"]
        await resolver.close()


async def test_hosts_file_is_respected_and_vetted(tmp_path: Path) -> None:
    """A name in the hosts file is not asked of name servers, and its address passes the same check."""
    path = tmp_path / "hosts"
    path.write_text("127.0.0.1 spoofed.example.com # x\n")
    resolver = SystemResolver(HostsFile(path), nameservers=["127.0.0.1:9"])
    target = parse_target("http://spoofed.example.com/")
    with pytest.raises(TargetNotAllowedError):
        await resolve(resolver, EgressPolicy(), target)
    assert [str(one) for one in await resolve(resolver, OPEN_LOOPBACK, target)] == ["127.0.0.1"]
    await resolver.close()


async def test_localhost_is_loopback_and_works_where_loopback_is_open() -> None:
    """localhost never depends on a name server; on a machine that opened loopback it is a target like any other."""
    async with raw_server(OK) as server:
        assert isinstance(await deliver(make_job(f"http://localhost:{server.port}/")), Success)


def test_hosts_file_format() -> None:
    """Comments, several names, several lines per name, zone ids and nonsense."""
    text = "# c\n10.0.0.1 A.example b.example.\n::1 a.example\nfe80::1%lo0 x\n127.1 y\nbad\n\n"
    assert parse_hosts(text) == {"a.example": ("10.0.0.1", "::1"), "b.example": ("10.0.0.1",)}
    assert HostsFile(Path("/nonexistent/hosts")).addresses("localhost") == ("127.0.0.1", "::1")
    assert HostsFile(Path("/nonexistent/hosts")).addresses("a.example") == ()
