"""Printing: sentences to stderr, results to stdout, JSON where asked."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import datetime, timedelta
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

_out = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
_err = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
_WIDTH_OF_A_FILE = 10_000  # a pipe or a file has no edge: one row, one line


def say(line: str = "") -> None:
    """A line for the person who watches, on stdout."""
    _out.print(cleaned(line))


def note(line: str) -> None:
    """Progress, on stderr."""
    _err.print(cleaned(line), style="dim")


def complain(message: str) -> None:
    """An error, one sentence."""
    _err.print(Text("duly: ", style="bold red").append(cleaned(message), style="not bold default"))


def print_json(value: Any) -> None:
    """A dataclass, or a list of them, as JSON."""
    print(json.dumps(_plain(value), ensure_ascii=False, indent=2), file=sys.stdout)


def say_done(words: str, as_json: bool, **facts: Any) -> None:
    """That something was done, in words or as a JSON object; `result` in it is the words, unless it is given."""
    if as_json:
        print_json({"result": words, **facts})
    else:
        say(words)


def print_line_of_json(value: Any) -> None:
    """The same as one line, at once: for those who read line by line."""
    print(json.dumps(_plain(value), ensure_ascii=False), flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table; cells are shown as text, whatever they hold. An id stays whole, so that it can be copied."""
    screen().print(table_of(columns, rows))


def table_of(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """The same, to be printed with others."""
    table = Table(box=None, header_style="bold", pad_edge=False, show_header=any(columns))
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column == "id")
    for row in rows:
        table.add_row(*(Text(shown(cell)) for cell in row))
    return table


@contextmanager
def progress(what: str, total: int | None = None, *, shows: bool = True) -> Iterator[Callable[[int], object]]:
    """A bar on stderr while the block runs, if it shows and that is a terminal; call what is given with each step."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    columns: list[ProgressColumn] = [SpinnerColumn(), TextColumn("{task.completed:,.0f}")]
    columns += [] if total is None else [TextColumn("of {task.total:,.0f}"), BarColumn(), TaskProgressColumn()]
    columns += [TextColumn(what), TimeElapsedColumn()] + ([] if total is None else [TimeRemainingColumn()])
    with Progress(*columns, console=console, disable=not (shows and console.is_terminal), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda steps: bar.advance(task, steps)


def screen() -> Console:
    """Stdout as it is now: as wide as the terminal, or without an edge."""
    width = None if sys.stdout.isatty() else _WIDTH_OF_A_FILE
    return Console(highlight=False, markup=False, emoji=False, width=width)


def shown(value: object) -> str:
    """A value as a person reads it: times to the second in UTC, nothing as a dash, control characters as symbols."""
    match value:
        case None | "":
            return "-"
        case datetime():
            return value.strftime("%Y-%m-%d %H:%M:%SZ")
        case timedelta():
            return f"{value.total_seconds():g} s"
        case _:
            return cleaned(str(value), kept="")


def cleaned(text: str, kept: str = "\n\t") -> str:
    """Text that may be a stranger's, with a symbol for each character that a terminal would obey instead of show."""
    return "".join(c if c.isprintable() or c in kept else "\ufffd" for c in text)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {k: _plain(v) for k, v in asdict(value).items()}
    match value:
        case dict():
            return {str(k): _plain(v) for k, v in value.items()}
        case list() | tuple():
            return [_plain(v) for v in value]
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes():
            return value.decode("utf-8", "replace")
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)
