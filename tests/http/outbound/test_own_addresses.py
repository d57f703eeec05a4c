"""The service's own database is no target, however a URL spells it."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from duly.cli.own import own_addresses
from duly.http import EgressPolicy

from .servers import OK, deliver, make_job, raw_server, report_of
from .ssrf_rows import ScriptedResolver


@pytest.mark.parametrize("place", ["127.0.0.1:{port}", "localhost:{port}", "[::1]:{port}", "{port}"])
async def test_own_database_is_refused_by_address_name_and_socket(place: str) -> None:
    """self rows: what the database URL names is closed on an open loopback, for literals of any loopback spelling and
    for public names that resolve to it; nothing connects. What is beside it stays open."""
    async with raw_server(OK) as own, raw_server(OK) as other:
        where = place.format(port=own.port) if ":" in place else f"/duly?host=127.0.0.1&port={own.port}"
        url = f"postgresql://duly:pw@{where}/duly" if ":" in place else f"postgresql://{where}"
        policy = EgressPolicy.parse(ports=[own.port], own=own_addresses(url, []), allow_loopback=True)
        for host in ("127.0.0.1", "127.0.0.2", "[::1]", "localhost"):
            report = report_of(await deliver(make_job(f"http://{host}:{own.port}/"), policy=policy))
            assert report.result == "target_not_allowed"
        for answer in ("127.0.0.1", "::1"):
            job = make_job(f"http://db.example.com:{own.port}/")
            report = report_of(await deliver(job, policy=policy, resolver=ScriptedResolver([answer])))
            assert (report.result, report.detail["phases"].keys()) == ("target_not_allowed", {"total"})
        assert own.connections == 0
        assert report_of(await deliver(make_job(other.url()), policy=policy)).result == "success"


async def test_own_database_given_by_name_is_looked_up_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """All addresses of all its hosts join the deny set, under every port given; a name that is unknown adds nothing, a
    socket's folder and an abstract socket this machine's loopback."""
    asked = []

    def look_up(host: str, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        if host == "gone.example":
            raise socket.gaierror
        return [(2, 1, 6, "", (f"10.0.0.{n}", 0)) for n in (5, 6)] + [(10, 1, 6, "", ("fd00::5", 0, 0, 0))]

    monkeypatch.setattr("duly.cli.own.socket.getaddrinfo", look_up)
    assert own_addresses("postgresql://u@db.example:6543,gone.example/x?host=/run/pg,@abstract", []) == [
        "10.0.0.5:6543", "10.0.0.6:6543", "[fd00::5]:6543",
        "127.0.0.1:6543", "[::1]:6543", "127.0.0.1:6543", "[::1]:6543",
    ]  # fmt: skip
    assert asked == ["db.example", "gone.example"]
    policy = EgressPolicy.parse(["10.0.0.0/8"], own=own_addresses("postgresql://db.example:6543/x", []))
    for host, port, result in (("10.0.0.6", 6543, "target_not_allowed"), ("10.0.0.7", 22, "target_not_allowed")):
        assert report_of(await deliver(make_job(f"http://{host}:{port}/"), policy=policy)).result == result
