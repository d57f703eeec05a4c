"""Nothing but the stored URL is ever asked: not a redirect's target, not a proxy from the environment."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from duly.http import EgressPolicy
from duly.model import Bury, DeadReason, Retry, Success

from .servers import OK, Received, deliver, make_job, raw_server, report_of
from .ssrf_rows import read_rows

REDIRECTS = [row.text for row in read_rows() if row.prefix == "redirect"]
ENVIRONMENTS = [row.text for row in read_rows() if row.prefix == "env"]


@pytest.mark.parametrize("row", REDIRECTS)
async def test_fo_062_second_request_of_a_redirect_row_is_not_sent(row: str) -> None:
    """FO-062: the row's answer on a loopback server: one request arrives, and a 200 stays a success."""
    found = re.fullmatch(r"(\d{3}) \S+ (?:-> (\S+)|(\w+): (.*))", row)
    assert found is not None
    status, location, name, value = found.groups()
    async with raw_server(OK) as victim:
        target = (location or value).replace("127.0.0.1", f"127.0.0.1:{victim.port}")
        data = f"HTTP/1.1 {status} X\r\n{name or 'Location'}: {target}\r\nContent-Length: 0\r\n\r\n"
        async with raw_server(data.encode()) as server:
            outcome = await deliver(make_job(server.url()))
            assert (len(server.received), victim.connections) == (1, 0)
    if status == "200":
        assert isinstance(outcome, Success)
    else:
        assert isinstance(outcome, Bury)
        assert outcome.reason is DeadReason.PERMANENT


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_fo_075_redirect_is_never_followed(status: int) -> None:
    """FO-075: a redirected POST is not success and not an empty GET; the record shows the Location."""
    async with raw_server(f"HTTP/1.1 {status} X\r\nLocation: /ok\r\nContent-Length: 0\r\n\r\n".encode()) as server:
        outcome = await deliver(make_job(server.url(), body=b"precious"))
    assert isinstance(outcome, Bury)
    assert [request.line for request in server.received] == ["POST /hook HTTP/1.1"]
    assert outcome.report.detail["location"] == "/ok"
    assert outcome.report.status_code == status


async def test_redirect_is_retried_where_the_job_asks_for_it() -> None:
    """retry.on all_non_2xx: another attempt later, to the same URL."""
    data = b"HTTP/1.1 302 X\r\nLocation: /ok\r\nContent-Length: 0\r\n\r\n"
    async with raw_server(data) as server:
        assert isinstance(await deliver(make_job(server.url(), on="all_non_2xx")), Retry)


@pytest.mark.parametrize("row", ENVIRONMENTS)
async def test_fo_064_environment_rows_have_no_effect(
    row: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """FO-064: with the row's variables set, and a netrc, the request goes straight to its target, unchanged."""
    netrc = tmp_path / ".netrc"
    netrc.write_text("default login user password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(netrc))
    keys = tmp_path / "keys"
    async with raw_server(OK) as proxy, raw_server(OK) as server:
        for setting in row.split(" ")[0].split(","):
            name, _, value = setting.partition("=")
            value = re.sub(r"://[^/]+", f"://127.0.0.1:{proxy.port}", value).replace("/tmp/k", str(keys))
            monkeypatch.setenv(name, value)
            monkeypatch.setenv(name.lower(), value)
        assert isinstance(await deliver(make_job(server.url())), Success)
        assert (len(server.received), proxy.connections) == (1, 0)
        assert server.received[0].header("Authorization") is None
        outcome = await deliver(make_job("http://169.254.169.254/"))
        assert report_of(outcome).result == "target_not_allowed"
    assert not keys.exists()


async def test_fo_063_blocked_ports_look_alike() -> None:
    """FO-063: open, closed or silent: a blocked loopback target is refused before any connect, with the same words."""

    async def silent(_: Received, __: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with raw_server(OK) as listening, raw_server(silent) as quiet:
        reports = [
            report_of(await deliver(make_job(f"http://127.0.0.1:{port}/"), policy=EgressPolicy()))
            for port in (listening.port, quiet.port, 11999)
        ]
        assert (listening.connections, quiet.connections) == (0, 0)
    assert {(report.result, report.error) for report in reports} == {(reports[0].result, reports[0].error)}
    assert all(set(report.detail) == {"phases"} for report in reports)
    assert all(set(report.detail["phases"]) == {"total"} for report in reports)


async def test_own_listener_is_refused_on_an_open_loopback() -> None:
    """self rows: the service's own addresses are closed even where loopback is open, by any loopback spelling."""
    async with raw_server(OK) as own:
        policy = EgressPolicy.parse(own=[f"127.0.0.1:{own.port}"], allow_loopback=True)
        for host in ("127.0.0.1", "127.0.0.9", "[::1]", "localhost"):
            outcome = await deliver(make_job(f"http://{host}:{own.port}/"), policy=policy)
            assert report_of(outcome).result == "target_not_allowed"
        assert own.connections == 0


@pytest.mark.parametrize(("attempt", "kind"), [(1, Retry), (2, Retry), (3, Bury), (8, Bury)])
async def test_third_refused_attempt_is_the_last(attempt: int, kind: type) -> None:
    """An operator has two attempts' time to mend the policy; then the job is dead with the reason."""
    outcome = await deliver(make_job("http://10.0.0.1/", attempt=attempt))
    assert isinstance(outcome, kind)
    if isinstance(outcome, Bury):
        assert outcome.reason is DeadReason.TARGET_NOT_ALLOWED
