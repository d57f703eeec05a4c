"""What the tests of the command share: `duly` in its own processes, a target that answers by script, words for SQL."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from duly.embedded import find_binaries
from duly.model import DeadReason, NewJob, Report, Settlement
from duly.model.settlement import Edge
from duly.queue import ClaimCursor, Database, Owner, claim, enqueue, live_segments, register, settle
from duly.service import create_key, ensure_default

LIMIT_S = 30.0
"""Nothing here takes that long, however busy the machine is; a test that waits longer has failed."""


# Processes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """How a command ended. `said`: both streams without line breaks and frames."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        return " ".join((self.out + " " + self.err).translate(_NO_FRAME).split())

    @property
    def json(self) -> Any:
        return json.loads(self.out)


_NO_FRAME = {ord(c): " " for c in "╭╮╰╯─│"}


ENCRYPTION_KEYS = f"test:{base64.b64encode(bytes(32)).decode()}"
"""What every command here seals with, unless a test says otherwise."""


def environment(**settings: str) -> dict[str, str]:
    """This process's environment, without what would set an option or colour the output."""
    forced = ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "COLUMNS")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in forced and (not name.startswith(("DULY_", "PG")) or name == "DULY_POSTGRES")
    }
    return {**kept, "DULY_ENCRYPTION_KEYS": ENCRYPTION_KEYS, **settings}


def command(*args: object) -> list[str]:
    return [sys.executable, "-m", "duly", *(str(arg) for arg in args)]


def duly(*args: object, **settings: str) -> Result:
    """Run a command to its end."""
    done = subprocess.run(
        command(*args),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
        env=environment(**settings),
    )
    return Result(done.returncode, done.stdout, done.stderr)


@dataclass
class Running:
    """A command that goes on running. Its output is in two files, so that nothing it says can block it."""

    process: subprocess.Popen[bytes]
    out_file: Path
    err_file: Path

    @property
    def out(self) -> str:
        return self.out_file.read_text()

    @property
    def err(self) -> str:
        return self.err_file.read_text()

    def says(self, words: str) -> None:
        """Wait until it said these words; fail at once if it ends without."""

        def said() -> bool:
            ended = self.process.poll() is not None
            if words in self.out or words in self.err:
                return True
            assert not ended, f"it ended with {self.process.returncode}: {self.out}{self.err}"
            return False

        wait_until(said, f"it says {words!r}")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ends(self) -> Result:
        """Wait for the end."""
        code = self.process.wait(LIMIT_S)
        return Result(code, self.out, self.err)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> Result:
        self.send(number)
        return self.ends()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(LIMIT_S)


ACCEPTED = ("--accept", "settings.fsync", "--accept", "settings.full_page_writes")
"""What the doctor finds at the tests' own server, which need not survive a crash of the machine."""

Starter = Callable[..., Running]
"""Start a command: its words, and settings for its environment by keyword."""


@contextmanager
def starter(folder: Path) -> Iterator[Starter]:
    """Start commands that are ended with the block, their output kept in `folder`."""
    started: list[Running] = []

    def start(*args: object, **settings: str) -> Running:
        out, err = (folder / f"{len(started)}.{stream}" for stream in ("out", "err"))
        with out.open("wb") as out_stream, err.open("wb") as err_stream:
            process = subprocess.Popen(
                command(*args),
                stdin=subprocess.DEVNULL,
                stdout=out_stream,
                stderr=err_stream,
                env=environment(**settings),
                start_new_session=True,
            )
        started.append(Running(process, out, err))
        return started[-1]

    try:
        yield start
    finally:
        for running in started:
            running.kill()


def wait_until(happened: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
    """Wait for what another process does."""
    end = time.monotonic() + limit_s
    while not happened():
        assert time.monotonic() < end, f"not within {limit_s:g} s: {what}"
        time.sleep(0.01)


def free_port() -> int:
    """A port that nobody listens on, nor on the next; below those that the system gives to outgoing connections."""
    while True:
        port = random.randrange(20000, 32000)
        try:
            for number in (port, port + 1):
                socket.create_server(("127.0.0.1", number)).close()
        except OSError:
            continue
        return port


def postgres_of(home: Path) -> list[int]:
    """The servers and helpers of PostgreSQL that work for a home folder."""
    found = []
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            argv = (proc / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if Path(argv[0]).name in ("postgres", "initdb") and any(str(home) in arg for arg in argv[1:]):
            found.append(int(proc.name))
    return found


def no_postgres_left(home: Path) -> None:
    """Nothing of PostgreSQL works for the home folder, at latest in a moment."""
    wait_until(lambda: not postgres_of(home), f"no PostgreSQL is left for {home}", limit_s=10)


def make_foreign_cluster(home: Path) -> Path:
    """A data folder as another major of PostgreSQL would have left it. Returns its PG_VERSION."""
    data = home / "postgres" / "data"
    data.mkdir(parents=True)
    mark = data / "PG_VERSION"
    mark.write_text(f"{find_binaries().major - 5}\n")
    return mark


# What stands in a sentence for people --------------------------------------------------------------------------------


def assert_refused(result: Result, *words: str, code: int = 1) -> None:
    """It ended with this code and one sentence that holds the words; nothing on stdout, no traceback."""
    assert result.code == code, result
    assert result.out == "", result
    assert "Traceback" not in result.err, result.err
    sentences = [line for line in result.err.splitlines() if line.startswith("duly: ")]
    assert len(sentences) == 1, result.err
    for word in words:
        assert word in sentences[0], result.err


def assert_misused(result: Result, *words: str) -> None:
    """The option parser refused it: exit code 2, and the words."""
    assert result.code == 2, result
    assert "Traceback" not in result.err, result.err
    for word in words:
        assert word in result.said, result.err


# Targets -------------------------------------------------------------------------------------------------------------


@dataclass
class Target:
    """A server that notes what comes and answers by script: the next of `answers`, then 200.

    While `hold` is set a request is noted and then waits, until the hold is let go (`release`).
    """

    url: str = ""
    answers: list[int] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    """When each request came, seconds of the Unix epoch."""
    attempts: list[tuple[str, int]] = field(default_factory=list)
    """Job and attempt of each request."""
    timestamps: list[int] = field(default_factory=list)
    """What each request was signed with: `webhook-timestamp`."""
    signatures: list[str] = field(default_factory=list)
    answered: list[tuple[str, int]] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.released.set()

    def hold(self) -> None:
        self.released.clear()

    def release(self) -> None:
        self.released.set()

    def came(self, number: int = 1, limit_s: float = LIMIT_S) -> None:
        """Wait until so many requests have come."""
        wait_until(lambda: len(self.attempts) >= number, f"{number} requests reach the target", limit_s)


@contextmanager
def serve_target(address: str = "127.0.0.1") -> Iterator[Target]:
    """A target on loopback while the block runs."""
    target = Target()
    server = ThreadingHTTPServer((address, 0), _handler(target))
    server.daemon_threads = True
    target.url = f"http://{address}:{server.server_address[1]}/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield target
    finally:
        target.release()
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(target: Target) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            target.arrivals.append(time.time())
            self.rfile.read(int(self.headers.get("content-length", 0)))
            which = (self.headers["Duly-Job-Id"], int(self.headers["Duly-Attempt"]))
            target.timestamps.append(int(self.headers["webhook-timestamp"]))
            target.signatures.append(self.headers.get("webhook-signature", ""))
            target.attempts.append(which)
            status = target.answers.pop(0) if target.answers else 200
            target.released.wait(LIMIT_S)
            body = f"answer {status}".encode()
            try:
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:  # the caller has gone: killed, or told to abort
                self.close_connection = True
            else:
                target.answered.append(which)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    return Handler


# The API -------------------------------------------------------------------------------------------------------------


class Client:
    """The API as a user's script calls it."""

    def __init__(self, url: str, api_key: str) -> None:
        self.http = httpx.Client(base_url=url, headers={"authorization": f"Bearer {api_key}"}, timeout=30)

    def create(self, url: str, **members: Any) -> str:
        """Create a job; its id."""
        answer = self.http.post("/v1/jobs", json={"url": url, **members})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        answer = self.http.get(f"/v1/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def attempts(self, job_id: str) -> list[dict[str, Any]]:
        answer = self.http.get(f"/v1/jobs/{job_id}/attempts")
        assert answer.status_code == 200, answer.text
        return list(answer.json()["data"])

    def ends(self, job_id: str, state: str, limit_s: float = LIMIT_S) -> dict[str, Any]:
        """Wait until the job is in this state."""
        end = time.monotonic() + limit_s
        while (job := self.job(job_id))["state"] != state:
            assert time.monotonic() < end, f"not {state} within {limit_s:g} s: {job}"
            time.sleep(0.01)
        return job

    def close(self) -> None:
        self.http.close()


def read_credentials(home: Path) -> dict[str, str]:
    return dict(json.loads((home / "credentials.json").read_text()))


# The database --------------------------------------------------------------------------------------------------------


def sql(url: str, statement: str, *args: Any) -> list[Any]:
    """Run one statement; the first column of what it returns."""

    async def run() -> list[Any]:
        connection = await asyncpg.connect(url, timeout=10)
        try:
            return [row[0] for row in await connection.fetch(statement, *args, timeout=10)]
        finally:
            await connection.close()

    return asyncio.run(run())


def in_database(url: str, ask: Callable[[Database], Any], schema: str = "duly") -> Any:
    """Await `ask(database)` on an open pool."""

    async def run() -> Any:
        async with await Database.open(url, schema=schema, max_size=2, name="duly-test") as db:
            return await ask(db)

    return asyncio.run(run())


def new_key(url: str, schema: str = "duly") -> str:
    """An API key of the default project."""

    async def make(db: Database) -> str:
        tenant = await ensure_default(db)
        return (await create_key(db, tenant.owner.project_id, "test")).key

    return str(in_database(url, make, schema))


def put_job(url: str, target: str = "http://127.0.0.1:9/", **settings: Any) -> str:
    """Store a job without the API; its id."""

    async def put(db: Database) -> str:
        tenant = await ensure_default(db)
        job = NewJob(kind="http", payload={"url": target, "method": "POST", "headers": []}, **settings)
        [enqueued] = await enqueue(db, [(Owner(tenant.owner.account_id, tenant.owner.project_id), job)])
        return str(enqueued.job_id)

    return str(in_database(url, put))


def run_by_hand(url: str, edge: Edge | None) -> None:
    """Claim the one job that is ready, as a worker would, and settle it by this edge; None: it goes on running."""

    async def run(db: Database) -> None:
        worker_id = await register(db, "by hand", ["http"], None, 1, timedelta(hours=1))
        [job] = await claim(db, worker_id, 1, ["http"], None, ClaimCursor(), await live_segments(db, "ready"))
        if edge is not None:
            reason = DeadReason.PERMANENT if edge == "dead" else None
            report = Report("success" if edge == "succeeded" else "http_error")
            assert not await settle(
                db, worker_id, [Settlement(job.id, job.attempt, edge, reason=reason, report=report)]
            )

    in_database(url, run)


def state_of(url: str, job_id: str) -> str:
    """The state as the database has it."""
    [state] = sql(url, "select status from duly.jobs where id = $1::text::uuid", job_id)
    return str(state)


def outcomes(url: str, job_id: str) -> list[str]:
    """The outcomes of the attempts so far."""
    return [
        str(o)
        for o in sql(url, "select outcome from duly.attempt where job_id = $1::text::uuid order by number", job_id)
    ]
