"""How long each phase took: name look-up, connect, TLS, first byte, total."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop
from bench.hostile_answers import _case, tls_raw
from bench.hostile_server import server_context, serving

from duly.http import Deliverer

from .servers import OK, OPEN_LOOPBACK, Received, deliver, make_job, raw_server, report_of


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """One authority for all."""
    return trustme.CA()


@pytest.fixture(scope="module")
def ca_file(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its certificate."""
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path


def _run(main: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_until_complete(main)
    finally:
        loop.close()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_tls_is_told_apart_from_connecting(new_loop: Any, authority: trustme.CA, ca_file: Path) -> None:
    """A slow handshake is in `tls`, not in `connect`; a slow answer in `first_byte` only; plain HTTP has no `tls`; a
    kept connection costs neither. The parts do not overlap: together they are at most the total."""

    async def main() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost").configure_cert(context)
        context.sni_callback = lambda *_: time.sleep(0.15)

        async def slow(_: Received, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(0.1)
            writer.write(OK)

        async with raw_server(slow, tls=context, closes=False) as server:
            async with Deliverer(OPEN_LOOPBACK, ca_file=ca_file) as deliverer:
                url = f"https://localhost:{server.port}/"
                first, second = [report_of(await deliverer.deliver(make_job(url))).detail["phases"] for _ in range(2)]
        assert set(first) == {"dns", "connect", "tls", "first_byte", "total"}
        assert first["tls"] >= 140 > first["connect"]
        assert first["first_byte"] >= 90
        assert sum(first.values()) - first["total"] <= first["total"] + 0.01
        assert set(second) == {"dns", "connect", "first_byte", "total"}
        assert second["connect"] == 0

        async with raw_server(OK) as plain:
            phases = report_of(await deliver(make_job(plain.url()))).detail["phases"]
        assert set(phases) == {"dns", "connect", "first_byte", "total"}

    _run(main(), new_loop())


async def test_deadline_in_the_handshake_says_so(authority: trustme.CA, ca_file: Path) -> None:
    """connect_timeout, in words that name TLS; the record has the connect phase and no TLS phase."""
    case = _case("silent", tls_raw(b"", "hold"), ("connect_timeout", None), tls="by hand")
    async with serving(case, server_context(authority)) as port:
        outcome = await deliver(make_job(f"https://127.0.0.1:{port}/", timeout_s=0.2), ca_file=ca_file)
    report = report_of(outcome)
    assert (report.result, report.error) == ("connect_timeout", "the TLS handshake with the target took too long")
    assert set(report.detail["phases"]) == {"dns", "connect", "total"}


async def test_slow_handshake_beyond_the_connect_limit_says_so(
    authority: trustme.CA, ca_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit on connecting covers TLS, long before a long deadline."""
    monkeypatch.setattr("duly.http.connections.CONNECT_LIMIT_S", 0.2)
    case = _case("silent", tls_raw(b"", "hold"), ("connect_timeout", None), tls="by hand")
    async with serving(case, server_context(authority)) as port:
        outcome = await deliver(make_job(f"https://127.0.0.1:{port}/", timeout_s=30), ca_file=ca_file)
    assert report_of(outcome).error == "the TLS handshake with the target took too long"
