"""From the wire to the ledger: hostile answers are stored, and a ledger that fails sends nothing twice."""

from __future__ import annotations

from typing import Any

import pytest

from duly.http import Deliverer, new_request
from duly.model import State
from duly.queue import Database
from support.engine import Engine
from support.sessions import until
from support.working import state_becomes, working

from .servers import OK, OPEN_LOOPBACK, RawServer, raw_server


async def _enqueue(engine: Engine, server: RawServer) -> Any:
    payload = new_request(server.url()).to_payload()
    [job_id] = await engine.enqueue(kind="http", payload=payload, body=b"{}")
    return job_id


@pytest.mark.parametrize(
    "body", [b"\x00a\x00", b"\xff\xfe\xc0\xaf", "\ud800".encode("utf-8", "surrogatepass"), b"\\u0000"]
)
async def test_hostile_bytes_are_stored_as_they_came(database: Database, database_url: str, body: bytes) -> None:
    """NUL, invalid UTF-8 and surrogates in the body and in kept headers: the job succeeds, the bytes are in the ledger,
    and the headers are text that PostgreSQL holds."""
    head = (
        b"HTTP/1.1 200 OK\r\nServer: " + body.replace(b"\x00", b"\x01") + b"\r\nContent-Length: %d\r\n\r\n" % len(body)
    )
    engine = await Engine.start(database)
    async with raw_server(head + body) as server, Deliverer(OPEN_LOOPBACK) as deliverer:
        async with working(database, database_url, {"http": deliverer.deliver}):
            job_id = await _enqueue(engine, server)
            await state_becomes(engine, job_id, State.SUCCEEDED)
    attempt = await engine.last_attempt(job_id)
    assert (attempt.excerpt, attempt.status_code, attempt.outcome) == (body, 200, "success")


@pytest.mark.parametrize("code", ["unique_violation", "disk_full", "insufficient_privilege"])
async def test_delivery_whose_log_fails_is_not_delivered_again(
    database: Database, database_url: str, code: str
) -> None:
    """FO-076: the target answered 200 and the attempt's row is refused four times: outcome and log are one statement,
    so neither is there; it is the statement that is repeated, and the target hears of the job once."""
    await database.execute("create sequence public.refusals")
    await database.execute(
        f"""create function public.refuse() returns trigger language plpgsql as $$
            begin
                if nextval('public.refusals') <= 4 then raise {code}; end if;
                return new;
            end $$"""
    )
    await database.execute(
        "create trigger refuse before insert on duly.attempt for each row execute function public.refuse()"
    )
    engine = await Engine.start(database)
    async with raw_server(OK) as server, Deliverer(OPEN_LOOPBACK) as deliverer:
        async with working(database, database_url, {"http": deliverer.deliver}):
            job_id = await _enqueue(engine, server)
            await until(lambda: database.fetchval("select is_called and last_value >= 2 from public.refusals"))
            assert (await engine.view(job_id)).state in (State.RUNNING, State.SUCCEEDED)
            await state_becomes(engine, job_id, State.SUCCEEDED)
        assert len(server.received) == 1
    assert [(number, outcome) for number, _, outcome in await engine.attempts(job_id)] == [(1, "success")]
    assert await database.fetchval("select last_value from public.refusals") >= 5
