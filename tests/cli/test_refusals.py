"""When something is wrong: one clear sentence on stderr, a non-zero exit, nothing half-made, no traceback."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from cli.harness import (
    assert_misused,
    assert_refused,
    duly,
    free_port,
    make_foreign_cluster,
    postgres_of,
    put_job,
    run_by_hand,
    sql,
    state_of,
)
from duly.embedded import EmbeddedPostgres, find_binaries

NOBODY_LISTENS = "postgresql://duly:s3cret@127.0.0.1:1/duly"


def command_line(value: object) -> str:
    """A parameter in a test's name: the words typed, not what is to be said about them."""
    return (
        " ".join(value) if isinstance(value, list) and value[0].startswith(("-", "up", "worker", "jobs", "api")) else ""
    )


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port on which another program listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


# Before anything is made ---------------------------------------------------------------------------------------------


def test_up_on_a_taken_port_makes_nothing(home: Path, taken_port: int) -> None:
    """The port is looked at first: no folder, no cluster."""
    assert_refused(duly("up", "--home", home, "--port", taken_port), f"port {taken_port} is taken", "--port")
    assert not home.exists()


def test_api_on_a_taken_port(database_url: str, taken_port: int) -> None:
    """`duly api` says the same."""
    refused = duly("api", "--database-url", database_url, "--port", taken_port)
    assert_refused(refused, f"port {taken_port} is taken", "--port")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--schema", "Not a name"], ["schema name 'Not a name' is not usable"]),
        (["--allow", "10.0.0.300/8"], ["DULY_EGRESS_ALLOW", "'10.0.0.300/8'"]),
        (["--allow-port", "70000", "--deny", "127.0.0.1"], ["DULY_EGRESS_PORTS", "'70000'"]),
        (["--ca-file", "/nonexistent.pem"], ["DULY_CA_FILE", "/nonexistent.pem"]),
        (["--log-format", "xml"], ["'xml'", "text or json"]),
        (["--host", "192.0.2.1"], ["cannot listen on 192.0.2.1"]),
        (["--database-url", "mysql://somebody:s3cret@db/jobs"], ["not PostgreSQL's"]),
        (["--database-url", "postgresql://[::1/jobs"], ["not PostgreSQL's"]),
    ],
    ids=command_line,
)
def test_up_with_a_mistake_makes_nothing(home: Path, options: list[str], words: list[str]) -> None:
    """A mistyped option is told before anything is started or written; a password is not repeated."""
    refused = duly("up", "--home", home, "--port", free_port(), *options)
    assert_refused(refused, *words)
    assert "s3cret" not in refused.err
    assert not home.exists()


@pytest.mark.parametrize(
    ("words", "about"),
    [
        (["up", "--port", "80x"], "'--port'"),
        (["worker", "--concurrency", "0"], "'--concurrency'"),
        (["worker", "--lease", "inf"], "'--lease'"),
        (["jobs", "list", "--state", "pending"], "'pending'"),
        (["api", "--frobnicate"], "--frobnicate"),
    ],
    ids=command_line,
)
def test_an_unknown_value_is_refused_by_name(words: list[str], about: str) -> None:
    """Exit code 2, the option and the value named."""
    assert_misused(duly(*words), about)


def test_a_home_that_cannot_be_written(home: Path) -> None:
    """A file stands where the folder should be: for root, too, that cannot be a home."""
    home.write_text("")
    assert_refused(duly("up", "--home", home, "--port", free_port()), str(home), "--home")
    assert home.read_text() == ""


def test_a_data_folder_of_another_major_is_left_alone(home: Path) -> None:
    """Both versions are named, and what to do; the folder stays as it was; no server runs."""
    mark = make_foreign_cluster(home)
    before = mark.read_text()
    refused = duly("up", "--home", home, "--port", free_port())
    assert_refused(refused, f"PostgreSQL {before.strip()}", str(find_binaries().major), "pg_upgrade")
    assert [path.name for path in mark.parent.iterdir()] == ["PG_VERSION"]
    assert mark.read_text() == before
    assert not (home / "credentials.json").exists()
    assert not postgres_of(home)


# The database --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["up"], ["worker"], ["doctor"]], ids=" ".join)
def test_a_database_that_is_not_there(words: list[str], home: Path) -> None:
    """Nobody listens: said by every command, without the password; `up` leaves no credentials."""
    more = ["--home", home, "--port", free_port()] if words == ["up"] else []
    refused = duly(*words, *more, "--database-url", NOBODY_LISTENS)
    assert_refused(refused, "the database is not available", "refused")
    assert "s3cret" not in refused.err
    assert not (home / "credentials.json").exists()


def test_a_database_that_does_not_exist(cluster: EmbeddedPostgres) -> None:
    """The server is there, the database is not: its name is in the sentence."""
    assert_refused(duly("migrate", "--database-url", cluster.dsn("no_such_database")), '"no_such_database"')


@pytest.fixture
def closed_database(home: Path) -> Iterator[str]:
    """A server that asks for a password, over TCP; a URL with the right one."""
    home.parent.joinpath("server").mkdir(mode=0o755)
    port = free_port()
    settings = {"listen_addresses": "127.0.0.1", "port": str(port), "shared_buffers": "16MB"}
    with EmbeddedPostgres(home.parent / "server", settings=settings) as server:
        sql(server.dsn(), "create role somebody login password 'right-s3cret'")
        yield f"postgresql://somebody:right-s3cret@127.0.0.1:{port}/postgres"


def test_a_role_is_told_what_it_lacks(closed_database: str) -> None:
    """A wrong password; then the right one of a role that may not install the schema. No password is repeated."""
    wrong = duly("worker", "--database-url", closed_database.replace("right", "wrong"))
    assert_refused(wrong, "password authentication failed", "somebody")
    lacking = duly("migrate", "--database-url", closed_database)
    assert_refused(lacking, "may not install schema duly", "permission denied")
    assert "s3cret" not in wrong.err + lacking.err


def test_a_role_that_may_only_look_cannot_work(database_url: str) -> None:
    """A role without rights on the tables: a sentence, also from a worker, which misses them inside its loops."""
    role = f"looker_{uuid4().hex[:8]}"
    sql(database_url, f"create role {role} login")
    try:
        sql(database_url, f"grant usage on schema duly to {role}")
        sql(database_url, f"grant select on duly.schema_version to {role}")
        url = database_url.replace("duly@", f"{role}@", 1)
        for words in (["worker"], ["jobs", "list"]):
            assert_refused(duly(*words, "--database-url", url), "lacks a right", "permission denied")
    finally:
        sql(database_url, f"drop owned by {role}")
        sql(database_url, f"drop role {role}")


@pytest.mark.parametrize("words", [["api", "--port", "0"], ["worker"], ["jobs", "list"]], ids=" ".join)
def test_a_schema_that_is_missing(words: list[str], empty_database_url: str) -> None:
    """Commands that need the schema say what installs it, and install nothing themselves."""
    assert_refused(duly(*words, "--database-url", empty_database_url), "not installed", "`duly migrate`")
    assert sql(empty_database_url, "select count(*) from pg_namespace where nspname = 'duly'") == [0]


@pytest.mark.parametrize("words", [["worker"], ["migrate"], ["up"]], ids=" ".join)
def test_a_schema_that_is_too_new(words: list[str], database_url: str, home: Path) -> None:
    """A schema of a later program is not touched: upgrade Duly."""
    [version] = sql(database_url, "insert into duly.schema_version values (99, 'later', now()) returning version")
    more = ["--home", home, "--port", free_port()] if words == ["up"] else []
    assert_refused(duly(*words, *more, "--database-url", database_url), f"version {version}", "upgrade Duly")
    assert sql(database_url, "select max(version) from duly.schema_version") == [version]
    assert not (home / "credentials.json").exists()


def test_no_database_is_known(home: Path) -> None:
    """Neither an option nor a home: both ways are named, and where was looked."""
    refused = duly("jobs", "list", DULY_HOME=str(home))
    assert_refused(refused, "--database-url", "DULY_DATABASE_URL", "`duly up`", str(home / "credentials.json"))


@pytest.mark.parametrize("text", ["[]", '{"url": "x"}'], ids=["list", "without"])
def test_credentials_that_cannot_be_read_count_as_none(home: Path, text: str) -> None:
    """A broken credentials.json is as good as none."""
    home.mkdir()
    (home / "credentials.json").write_text(text)
    assert_refused(duly("jobs", "list", "--home", home), "no database", str(home / "credentials.json"))


# Jobs ----------------------------------------------------------------------------------------------------------------


def test_what_is_no_id() -> None:
    """Said without a database."""
    assert_refused(duly("jobs", "show", "nonsense"), "'nonsense' is not a job id")


@pytest.mark.parametrize("words", [["jobs", "show"], ["jobs", "cancel"], ["dead", "redrive"]], ids=" ".join)
def test_a_job_that_does_not_exist(words: list[str], database_url: str) -> None:
    """The id is repeated."""
    unknown = str(uuid4())
    assert_refused(duly(*words, unknown, "--database-url", database_url), f"job {unknown} does not exist")


def test_a_job_in_another_state(database_url: str) -> None:
    """A finished job is not cancelled, a running one not redriven: its state is named and stays."""
    finished = put_job(database_url)
    run_by_hand(database_url, "succeeded")
    running = put_job(database_url)
    run_by_hand(database_url, None)
    assert_refused(duly("jobs", "cancel", finished, "--database-url", database_url), f"job {finished} is succeeded")
    assert_refused(duly("dead", "redrive", running, "--database-url", database_url), f"job {running} is running")
    assert (state_of(database_url, finished), state_of(database_url, running)) == ("succeeded", "running")


def test_redrive_wants_either_jobs_or_all(home: Path) -> None:
    """Neither and both are refused before a database is looked for."""
    for words in ([], [str(uuid4()), "--all"]):
        assert_refused(duly("dead", "redrive", *words, "--home", home), "name the jobs to redrive, or say --all")
