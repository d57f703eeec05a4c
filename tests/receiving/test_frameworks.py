"""One line in each framework; a job that arrives twice is done once."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Annotated, Any

import httpx
import psycopg
import pytest
from fastapi import Depends, FastAPI, Request
from flask import Flask
from flask import request as flask_request

import duly
from duly.http import encode_secret, sign
from duly.receiving import create_processed_table
from support.callers import CALLERS, django_connection
from support.sessions import until_true

SECRET = encode_secret(b"s" * 32)
BODY = b'{"a": 1}'


def headers(body: bytes = BODY, secret: bytes = b"s" * 32) -> dict[str, str]:
    return {"Duly-Attempt": "1", **dict(sign([secret], str(duly.uuid7()), int(time.time()), body))}


async def test_fastapi() -> None:
    """As a dependency, and by hand."""
    app = FastAPI()

    @app.post("/dependency")
    async def dependency(job: Annotated[Any, Depends(duly.delivery(SECRET))]) -> dict[str, Any]:
        return {"job": str(job.job_id), "body": job.body.decode()}

    async def by_hand(request: Request) -> dict[str, Any]:
        job = await duly.receive(request, SECRET)
        return {"job": str(job.job_id), "body": job.body.decode()}

    by_hand.__annotations__["request"] = Request
    app.post("/by-hand")(by_hand)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://t") as client:
        for path in ("/dependency", "/by-hand"):
            good = headers()
            answer = await client.post(path, content=BODY, headers=good)
            assert answer.json() == {"job": good["webhook-id"], "body": BODY.decode()}
            assert (await client.post(path, content=BODY + b" ", headers=good)).status_code == 401
            assert (await client.post(path, content=BODY)).status_code == 401


def test_flask() -> None:
    """Also where it is chunked or empty."""
    app = Flask(__name__)

    @app.post("/")
    def hook() -> dict[str, Any]:
        job = duly.receive(flask_request, SECRET)
        return {"job": str(job.job_id), "body": job.body.decode()}

    client = app.test_client()
    good = headers()
    assert client.post("/", data=BODY, headers=good).get_json() == {"job": good["webhook-id"], "body": BODY.decode()}
    assert client.post("/", data=b"", headers=headers(b"")).status_code == 200
    assert client.post("/", data=BODY, headers=headers(BODY, b"o" * 32)).status_code == 401


def test_django(database_url: str) -> None:
    """Refused with PermissionDenied, which Django answers with 403."""
    django_connection(database_url).close()  # configures Django
    from django.core.exceptions import PermissionDenied
    from django.test import RequestFactory

    def hook(given: dict[str, str]) -> Any:
        request = RequestFactory().post("/", data=BODY, content_type="application/json", headers=given)
        return duly.receive(request, SECRET)

    good = headers()
    assert str(hook(good).job_id) == good["webhook-id"]
    with pytest.raises(PermissionDenied):
        hook(good | {"webhook-signature": "v1,no"})


def test_what_is_no_request() -> None:
    """The error names the way that works everywhere."""
    with pytest.raises(duly.InvalidInputError, match=r"duly\.verify"):
        duly.receive(object(), SECRET)


@pytest.mark.parametrize("name", list(CALLERS))
async def test_a_job_is_done_once(name: str, empty_database_url: str) -> None:
    """On every connection: True, and False after its commit; True again after a rollback."""
    job = duly.uuid7()
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        create_processed_table(connection)
        create_processed_table(connection)

    async def once(commit: bool) -> bool:
        async with CALLERS[name](empty_database_url) as caller:
            allowed = getattr(caller, "allowed", lambda what: what())
            answer = allowed(lambda: duly.processed_once(caller.on, job))
            answer = await answer if asyncio.iscoroutine(answer) else answer
            await (caller.commit() if commit else caller.rollback())
            return bool(answer)

    assert [await once(False), await once(True), await once(True), await once(False)] == [True, True, False, False]


async def test_a_rival_is_waited_for(empty_database_url: str) -> None:
    """Two deliveries at once: the second waits for the first and is told its end."""
    answers: list[bool] = []

    def second(job: Any) -> None:
        with psycopg.connect(empty_database_url) as connection:
            answers.append(duly.processed_once(connection, job))

    with psycopg.connect(empty_database_url) as first, psycopg.connect(empty_database_url, autocommit=True) as watch:
        create_processed_table(watch)
        for commits in (True, False):
            job = duly.uuid7()
            assert duly.processed_once(first, job)
            thread = threading.Thread(target=second, args=(job,))
            thread.start()

            def waits() -> bool:
                row = watch.execute(
                    "select count(*) from pg_stat_activity where cardinality(pg_blocking_pids(pid)) > 0"
                ).fetchone()
                return row is not None and row[0] == 1

            await until_true(waits)
            first.commit() if commits else first.rollback()
            await asyncio.to_thread(thread.join, 20)
    assert answers == [False, True]


def test_a_record_alone_is_refused(empty_database_url: str) -> None:
    """On a connection that commits by itself it would be kept although the work fails; and a table's name is
    checked.
    """
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        with pytest.raises(duly.InvalidInputError, match="begin a transaction"):
            duly.processed_once(connection, duly.uuid7())
    with psycopg.connect(empty_database_url) as connection:
        with pytest.raises(duly.InvalidInputError, match="no plain table name"):
            duly.processed_once(connection, duly.uuid7(), table="x; drop table y")
