"""`duly import`: make jobs from lines of JSON."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

import typer

from duly.cli.console import note, print_json, progress, say
from duly.cli.keyrings import keyring_if_needed
from duly.cli.making import Egress, Maker, RefusedError
from duly.cli.opening import open_database
from duly.cli.options import (
    Allow,
    AllowPort,
    AsJson,
    DatabaseUrl,
    Deny,
    EncryptionKeys,
    Home,
    NoEncryption,
    Schema,
    found_database_url,
)
from duly.cli.owners import Project
from duly.cli.same_jobs import Named, SameJobs
from duly.cli.stopping import Stop, run_loop
from duly.model.errors import DatabaseUnavailableError, DulyError, InvalidInputError, NotFoundError
from duly.queue import Owner, Session
from duly.queue.transfer import lock_imports
from duly.schema import DEFAULT_SCHEMA
from duly.service import Limits
from duly.service.faults import Fault
from duly.service.transacting import transacted

if TYPE_CHECKING:
    from duly.cli.job_lines import Given

_BATCH: Final = 500
_BATCH_BYTES: Final = 8 * 1024 * 1024
_LONGEST_LINE: Final = 4 * 1024 * 1024
_SHOWN: Final = 50


@dataclass(frozen=True, slots=True)
class Refused:
    """A line that makes no job: where in it, and why."""

    line: int
    pointer: str
    detail: str


@dataclass(slots=True)
class Summary:
    """What came of the lines. `there`: their jobs were there already; `ended`, `expired`: left out for that."""

    lines: int = 0
    imported: int = 0
    there: int = 0
    ended: int = 0
    expired: int = 0
    refused: list[Refused] = field(default_factory=list)
    refused_lines: int = 0
    is_dry_run: bool = False

    def refuse(self, line: int, faults: Sequence[Fault]) -> None:
        """Count it, and keep what is wrong as far as somebody would read it."""
        self.refused_lines += 1
        room = _SHOWN - len(self.refused)
        self.refused += [Refused(line, fault.pointer, fault.detail) for fault in faults[: max(room, 0)]]

    def __str__(self) -> str:
        parts = [
            f"{'to import' if self.is_dry_run else 'imported'} {self.imported}",
            f"there already {self.there}",
            f"left out {self.ended} that had ended" if self.ended else "",
            f"left out {self.expired} that have expired" if self.expired else "",
            f"refused {self.refused_lines}" if self.refused_lines else "",
        ]
        return f"{', '.join(part for part in parts if part)}; {self.lines} lines"


def import_(
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="NDJSON, as `duly export` writes it; -: stdin.")] = "-",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check every line, and make no job.")] = False,
    go_on: Annotated[
        bool, typer.Option("--continue", help="Import the lines that are right, and tell those that are not.")
    ] = False,
    ended: Annotated[
        bool, typer.Option("--ended", help="Also jobs that had ended when they were exported: they run again.")
    ] = False,
    batch: Annotated[int, typer.Option("--batch", min=1, max=5000, help="Jobs in one transaction.")] = _BATCH,
    label: Annotated[
        str,
        typer.Option(
            "--label", help="Lines without an id that were imported under one label are not imported under it again."
        ),
    ] = "",
    account: Annotated[
        str | None,
        typer.Option(
            "--account", help="Into this account. Default: as each line says, else default.", show_default=False
        ),
    ] = None,
    project: Project = None,
    allow: Allow = [],  # noqa: B006  typer reads the default, nobody changes it
    deny: Deny = [],  # noqa: B006
    allow_port: AllowPort = [],  # noqa: B006
    encryption_keys: EncryptionKeys = None,
    no_encryption: NoEncryption = False,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Make jobs from a file, each line one: as exported, or the body of POST /v1/jobs.

    All lines are checked before the first job is made: one that is wrong, and nothing is imported. Then they are stored
    batch by batch, each whole or not at all. A file that is imported again makes no job again, so whatever stopped an
    import, run it again. Exits with 1 if a line was refused.
    """
    egress = Egress(allow, deny, allow_port)
    url = found_database_url(database_url, home)
    keyring = keyring_if_needed(encryption_keys, no_encryption, home)

    async def main() -> Summary:
        stop = Stop()
        with opened(file) as stream:
            async with (
                open_database(url, schema, max_size=3, name="duly-cli") as db,
                Maker.opened(db, await egress.policy(db, url), keyring) as maker,
            ):
                if account is not None or project is not None:
                    await maker.owner(account or "default", project)  # what is wrong with them is said once
                reader = _Reader(maker, stream, label, account, project, ended)
                return await _imported(maker, reader, stop, batch, dry_run, go_on)

    summary = run_loop(main)
    if as_json:
        print_json(asdict(summary))
    else:
        say(str(summary))
    if summary.refused_lines:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    size: int
    given: Given
    owner: Owner
    named: Named


class _Reader:
    """Reads the file's lines, as often as it is asked to."""

    def __init__(
        self, maker: Maker, stream: BinaryIO, label: str, account: str | None, project: str | None, with_ended: bool
    ) -> None:
        self._maker = maker
        self._stream = stream
        self._label = label.encode("utf-8", "surrogateescape")
        self._account = account
        self._project = project
        self._with_ended = with_ended
        self._owners: dict[tuple[str, str | None], Owner | NotFoundError] = {}
        self._twins: Counter[bytes] = Counter()

    def texts(self) -> Iterator[tuple[int, bytes]]:
        """Number and text of every line that is not empty, from the start; one that is too long is cut."""
        self._stream.seek(0)
        self._twins.clear()
        number = 0
        while text := self._stream.readline(_LONGEST_LINE + 1):
            number += 1
            rest = text
            while len(rest) > _LONGEST_LINE and not rest.endswith(b"\n"):
                rest = self._stream.readline(_LONGEST_LINE + 1)
            if number == 1:
                text = text.removeprefix(b"\xef\xbb\xbf")
            if text := text.strip():
                yield number, text

    async def read(self, number: int, text: bytes, now: datetime, summary: Summary) -> _Line | None:
        """A line that asks for a job; None for another, which is counted."""
        read = await self._read(number, text, now)
        match read:
            case _Line():
                return read
            case str():
                summary.ended += read == "ended"
                summary.expired += read == "expired"
            case _:
                summary.refuse(number, read)
        return None

    async def _read(self, number: int, text: bytes, now: datetime) -> _Line | str | list[Fault]:
        """The line, or why it is left out, or what is wrong with it."""
        from duly.cli.job_lines import LeftOut, read_line  # not at the top: other commands need no web framework

        if len(text) > _LONGEST_LINE:
            return [Fault("", f"is longer than {_LONGEST_LINE} bytes")]
        try:
            decoded = text.decode("utf-8")
        except UnicodeDecodeError:
            return [Fault("", "is not UTF-8")]
        policy, limits = self._maker.policy, Limits()
        read = read_line(decoded, now=now, policy=policy, limits=limits, with_ended=self._with_ended)
        if isinstance(read, list):
            return read
        if isinstance(read, LeftOut):
            return read.why
        owner = await self._owner(read)
        if isinstance(owner, NotFoundError):
            return [Fault("/account", str(owner))]
        narrower = await self._maker.limits(owner)
        if narrower != limits:
            again = read_line(decoded, now=now, policy=policy, limits=narrower, with_ended=self._with_ended)
            if isinstance(again, list):
                return again
        name = b"id " + read.id.bytes if read.id is not None else self._name(text)
        return _Line(number, len(text), read, owner, Named(owner, read.id, name))

    def _name(self, text: bytes) -> bytes:
        """What tells a line without an id from others: its text, its label, and the how manieth of its kind it is."""
        digest = hashlib.sha256(text).digest()
        self._twins[digest[:8]] += 1
        return b"\0".join((b"text", self._label, digest, str(self._twins[digest[:8]]).encode()))

    async def _owner(self, given: Given) -> Owner | NotFoundError:
        if self._account is not None or self._project is not None or given.account is None:
            return await self._named(self._account or "default", self._project)
        return await self._named(given.account, given.project)

    async def _named(self, account: str, project: str | None) -> Owner | NotFoundError:
        if (account, project) not in self._owners:
            try:
                self._owners[account, project] = await self._maker.owner(account, project)
            except NotFoundError as error:
                self._owners[account, project] = error
        return self._owners[account, project]


async def _imported(maker: Maker, reader: _Reader, stop: Stop, most: int, dry_run: bool, go_on: bool) -> Summary:
    """Check all, then store all; a stop signal ends it between two batches."""
    checked = Summary(is_dry_run=dry_run)
    now = await maker.now()
    with progress("lines checked") as advance:
        for number, text in reader.texts():
            checked.lines += 1
            await reader.read(number, text, now, checked)
            advance(1)
            if stop.draining.is_set():
                raise InvalidInputError("stopped while the lines were checked: nothing was imported")
    _tell(checked.refused, checked.refused_lines)
    if checked.refused_lines and not go_on:
        raise InvalidInputError(
            f"{checked.refused_lines} of {checked.lines} lines are wrong: nothing was imported; mend them, "
            "or import the others with --continue"
        )
    summary = Summary(lines=checked.lines, is_dry_run=dry_run)
    same = await SameJobs.looked_up(maker.db)
    with progress("lines", checked.lines) as advance:
        lines: list[_Line] = []
        size = 0
        for number, text in reader.texts():
            line = await reader.read(number, text, now, summary)
            if line is not None:
                lines.append(line)
                size += line.size
            if len(lines) >= most or size > _BATCH_BYTES:
                await _stored(maker, same, lines, summary, go_on)
                lines, size, now = [], 0, await maker.now()
            advance(1)
            if stop.draining.is_set():
                note(f"stopped: {summary}; run it again to go on, nothing is made twice")
                raise typer.Exit(130)
        await _stored(maker, same, lines, summary, go_on)
    return summary


async def _stored(maker: Maker, same: SameJobs, lines: list[_Line], summary: Summary, go_on: bool) -> None:
    """Store a batch, whole or not at all; with `go_on` without the lines that are refused."""
    while lines:
        try:
            made = await _stored_whole(maker, same, lines, summary.is_dry_run)
        except _RefusedLines as error:
            _tell([Refused(number, "", str(why)) for number, why in error.refused.items()], len(error.refused))
            if not go_on:
                raise _stopped(lines, summary, f"{len(error.refused)} of them are refused") from error
            for number, why in error.refused.items():
                summary.refuse(number, [Fault("", str(why))])
            lines = [line for line in lines if line.number not in error.refused]
        except DatabaseUnavailableError as error:
            raise DatabaseUnavailableError(
                f"{error}. Whether lines {lines[0].number} to {lines[-1].number} were imported is not known; before "
                f"them: {summary}. Run it again to go on: nothing is made twice"
            ) from error
        except DulyError as error:  # a limit of the account, a key that is missing
            raise _stopped(lines, summary, str(error)) from error
        else:
            summary.imported += made
            summary.there += len(lines) - made
            return


async def _stored_whole(maker: Maker, same: SameJobs, lines: Sequence[_Line], dry_run: bool) -> int:
    """Store those that are not there yet, in one transaction; how many. Raises _RefusedLines if one is refused."""

    async def store(session: Session) -> int:
        await lock_imports(session, (line.owner.project_id for line in lines))
        ids = await same.ids(session, [line.named for line in lines])
        by_id = {job_id: line for job_id, line in zip(ids, lines, strict=True) if job_id is not None}
        if dry_run:
            return len(by_id)
        jobs = [(line.owner, replace(line.given.job, id=job_id)) for job_id, line in by_id.items()]
        try:
            made = await maker.make_all(jobs, session)
        except RefusedError as error:
            raise _RefusedLines({by_id[job_id].number: why for job_id, why in error.refused.items()}) from error
        return sum(answer.result == "created" for answer in made)

    return await transacted(maker.db, store)


class _RefusedLines(DulyError):
    """Lines of a batch whose jobs cannot be stored, by number, and why."""

    def __init__(self, refused: Mapping[int, DulyError]) -> None:
        super().__init__(f"{len(refused)} lines are refused")
        self.refused = refused


def _stopped(lines: Sequence[_Line], summary: Summary, why: str) -> InvalidInputError:
    """Says what was imported and what was not."""
    return InvalidInputError(
        f"nothing of lines {lines[0].number} to {lines[-1].number} was imported, nor of those behind them: {why}; "
        f"before them: {summary}. Run it again to go on: nothing is made twice"
    )


def _tell(refused: Sequence[Refused], lines: int) -> None:
    """What is wrong, line by line, as far as somebody would read it."""
    for one in refused[:_SHOWN]:
        place = f" {one.pointer}" if one.pointer else ""
        note(f"line {one.line}{place}: {one.detail}")
    told = len({one.line for one in refused[:_SHOWN]})
    if lines > told:
        note(f"and {lines - told} more lines")


@contextmanager
def opened(name: str) -> Iterator[BinaryIO]:
    """A file to be read more than once; of stdin, a copy that nobody else can open. Raises InvalidInputError."""
    try:
        if name != "-":
            with open(name, "rb") as file:
                if file.seekable():
                    yield file
                    return
                with _copied(file) as copy:
                    yield copy
                return
        with _copied(sys.stdin.buffer) as copy:
            yield copy
    except OSError as error:
        if error.filename != name:
            raise
        raise InvalidInputError(f"{name} cannot be read ({error.strerror or error})") from error


@contextmanager
def _copied(stream: BinaryIO) -> Iterator[BinaryIO]:
    with tempfile.TemporaryFile(prefix="duly-import-") as copy:
        shutil.copyfileobj(stream, copy)
        yield copy
