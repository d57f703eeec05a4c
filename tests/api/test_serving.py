"""The process: coalesced creates, a database that goes away, health, start and stop, the OpenAPI document."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import httpx
import pytest
from fastapi import FastAPI

from api.harness import TARGET, Api, assert_problem, new_api
from duly.api import ApiServer, ApiSettings, PortTakenError, create_app
from duly.api.serve import AddressError
from duly.embedded import EmbeddedPostgres
from duly.http import EgressPolicy
from duly.model import NewJob, uuid7
from duly.model.errors import IdConflictError
from duly.queue import Database, Enqueued
from duly.service import Creator, ensure_default


@asynccontextmanager
async def until(condition: Callable[[], bool | Awaitable[bool]]) -> AsyncIterator[None]:
    """Waits for the condition, looking again and again; fails after half a minute."""
    async with asyncio.timeout(30):
        while True:
            result = condition()
            if result if isinstance(result, bool) else await result:
                break
            await asyncio.sleep(0.005)
    yield


class Counting(Database):
    """A database that counts the statements that enqueue."""

    enqueues = 0

    async def fetch(self, statement: str, *args: Any) -> list[asyncpg.Record]:
        self.enqueues += "duly.enqueue(" in statement
        return await super().fetch(statement, *args)


async def test_concurrent_creates_share_statements(database_url: str, policy: EgressPolicy) -> None:
    """A hundred creates while two statements are held up go in one more; each 201 is committed."""
    database = await Counting.open(database_url)
    assert isinstance(database, Counting)
    app = create_app(database, policy, ApiSettings())
    server = ApiServer(app)
    host, port = await server.start("127.0.0.1", 0)
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as client:
        api = await new_api(database, client, "acme")
        holder = await asyncpg.connect(database_url)
        held = holder.transaction()
        await held.start()
        await holder.execute("lock table duly.job in exclusive mode")
        posts = [asyncio.create_task(api.create(json={"n": 0}))]
        async with until(lambda: database.enqueues == 1):
            posts.append(asyncio.create_task(api.create(json={"n": 1})))
        async with until(lambda: database.enqueues == 2):
            posts += [asyncio.create_task(api.create(json={"n": n})) for n in range(2, 100)]
        async with until(lambda: app.state.services.creator.waiting == 98):
            assert database.enqueues == 2
            assert not any(post.done() for post in posts)
        await held.rollback()
        first = await asyncio.wait_for(posts[0], 10)
        assert await holder.fetchval("select count(*) from duly.job where id = $1", first["id"]) == 1
        jobs = await asyncio.gather(*posts)
        assert database.enqueues == 3
        assert (
            await holder.fetchval("select count(*) from duly.job where id = any ($1::uuid[])", [j["id"] for j in jobs])
            == 100
        )
        await holder.close()
    await server.stop()
    await database.close()


async def test_a_bad_neighbour_fails_alone(database: Database) -> None:
    """One job that the database refuses does not take along those that share its statement."""
    owner = (await ensure_default(database)).owner
    creator = Creator(database)
    taken = NewJob("http", {"url": TARGET})
    await creator.create(owner, taken)
    jobs = [NewJob("http", {"url": TARGET}) for _ in range(20)]
    jobs[7] = NewJob("http", {"url": TARGET}, id=uuid7(0))
    jobs[8] = NewJob("http", {"url": "\x00"})
    jobs[9] = NewJob("http", {"url": "other"}, id=taken.id)
    jobs[10] = taken
    answers = await asyncio.gather(*(creator.create(owner, job) for job in jobs), return_exceptions=True)
    assert isinstance(answers[7], asyncpg.PostgresError)
    assert isinstance(answers[8], asyncpg.PostgresError)
    assert isinstance(answers[9], IdConflictError)
    told = [answer.result if isinstance(answer, Enqueued) else None for answer in answers]
    assert told == ["created"] * 7 + [None] * 3 + ["repeated"] + ["created"] * 9
    assert await database.fetchval("select count(*) from duly.job") == 17
    await creator.close()


@pytest.fixture
async def admin(cluster: EmbeddedPostgres) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(cluster.dsn())
    yield connection
    await connection.close()


async def test_without_the_database(api: Api, database_url: str, admin: asyncpg.Connection) -> None:
    """503 with Retry-After, nothing accepted, alive but not ready; and well again when the database is back."""
    job = await api.create()
    name = urlsplit(database_url).path.removeprefix("/")
    await admin.execute(f"alter database {name} allow_connections false")
    await admin.fetch("select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", name)
    content = {"url": TARGET, "id": str(uuid7())}
    for answer in (
        await api.post("/v1/jobs", content),
        await api.get("/v1/jobs"),
        await api.get(f"/v1/jobs/{job['id']}"),
        await api.post(f"/v1/jobs/{job['id']}/cancel"),
    ):
        problem = assert_problem(answer, 503)
        assert int(answer.headers["retry-after"]) > 0
        assert "terminat" not in problem["detail"]
    assert (await api.client.get("/healthz")).status_code == 200
    assert (await api.client.get("/readyz")).status_code == 503
    await admin.execute(f"alter database {name} allow_connections true")
    assert (await api.client.get("/readyz")).status_code == 200
    again = await api.post("/v1/jobs", content)
    assert again.status_code == 201
    assert "idempotency-replayed" not in again.headers


async def test_ready_means_our_schema(api: Api, database: Database) -> None:
    """Another version's schema is not ready, and says so without details."""
    assert (await api.client.get("/readyz")).json() == {"status": "ready"}
    await database.execute("update duly.schema_version set functions_digest = 'x'")
    answer = await api.client.get("/readyz")
    assert answer.status_code == 503
    assert "schema" in answer.json()["detail"]


async def test_a_taken_port_says_so(database: Database, policy: EgressPolicy) -> None:
    """The error names the port and the way out; an address of somebody else's is an error too."""
    app = create_app(database, policy, ApiSettings())
    first, second = ApiServer(app), ApiServer(app)
    host, port = await first.start("127.0.0.1", 0)
    with pytest.raises(PortTakenError, match=f"port {port} is taken: choose another with --port"):
        await second.start(host, port)
    with pytest.raises(AddressError):
        await second.start("192.0.2.1", 0)
    await second.stop()
    await first.stop()
    await first.stop()
    again = ApiServer(app)
    assert await again.start(host, port) == (host, port)
    await again.stop()


async def test_a_stop_finishes_what_is_in_flight(database: Database, database_url: str, policy: EgressPolicy) -> None:
    """A create that was taken is answered before the server is gone; new connections are refused."""
    app = create_app(database, policy, ApiSettings())
    server = ApiServer(app)
    host, port = await server.start("127.0.0.1", 0)
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as client:
        api = await new_api(database, client, "acme")
        holder = await asyncpg.connect(database_url)
        held = holder.transaction()
        await held.start()
        await holder.execute("lock table duly.job in exclusive mode")
        post = asyncio.create_task(api.create())

        async def is_blocked() -> bool:
            return bool(await holder.fetchval("select count(*) from pg_locks where not granted"))

        async with until(is_blocked):
            stopping = asyncio.create_task(server.stop())

        async def is_closed() -> bool:
            try:
                _, writer = await asyncio.open_connection(host, port)
            except OSError:
                return True
            writer.close()
            return False

        async with until(is_closed):
            assert not post.done()
        await held.rollback()
        job = await post
        await stopping
        assert await holder.fetchval("select count(*) from duly.job where id = $1", job["id"]) == 1
        await holder.close()


async def test_a_slow_body_ends(database: Database, policy: EgressPolicy) -> None:
    """A body that does not arrive in time is 408, and the connection is closed."""
    server = ApiServer(create_app(database, policy, ApiSettings(read_timeout_s=0.05)))
    host, port = await server.start("127.0.0.1", 0)
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as client:
        api = await new_api(database, client, "acme")
        reader, writer = await asyncio.open_connection(host, port)
        head = f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.key}\r\nContent-Length: 1000\r\n\r\n{{"
        writer.write(head.encode())
        answer = await asyncio.wait_for(reader.read(), 10)
        assert answer.startswith(b"HTTP/1.1 408")
        writer.close()
        await writer.wait_closed()
    await server.stop()


async def test_faults_of_ours_show_nothing(database: Database, policy: EgressPolicy) -> None:
    """An exception that nobody expected is a bare 500."""
    app: FastAPI = create_app(database, policy, ApiSettings())

    @app.get("/boom")
    async def boom() -> None:
        raise RuntimeError("secret")

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(base_url="http://test", transport=transport) as client:
        answer = await client.get("/boom")
    assert_problem(answer, 500)
    assert "secret" not in answer.text


async def test_the_openapi_document(api: Api) -> None:
    """OpenAPI 3.1, every reference leads somewhere, every job call has its security and its problems."""
    answer = await api.client.get("/openapi.json")
    document = answer.json()
    assert document["openapi"].startswith("3.1")
    schemas = document["components"]["schemas"]
    references = {part.split('"')[0] for part in json.dumps(document).split('"#/components/schemas/')[1:]}
    assert references <= set(schemas)
    create = document["paths"]["/v1/jobs"]["post"]
    assert create["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/JobInput"}
    problems = {"400", "401", "403", "408", "409", "413", "415", "422", "429", "503"}
    assert set(create["responses"]) == {"200", "201", *problems}
    assert schemas["JobInput"]["required"] == ["url"]
    assert "json" in schemas["JobInput"]["properties"]
    assert schemas["JobInput"]["properties"]["timeout"]["default"] == 30
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert operation["operationId"]
            if path.startswith("/v1"):
                assert operation["security"]
                assert "application/problem+json" in operation["responses"]["401"]["content"]
