"""`duly`: every command by its name; what goes wrong becomes one sentence."""

from __future__ import annotations

import os
import sys

import asyncpg
import typer

from duly import __version__
from duly.cli.commands import Group
from duly.cli.console import complain
from duly.model.errors import DulyError

app = typer.Typer(
    name="duly",
    cls=Group,
    help="HTTP requests and Python functions, run later, reliably, on PostgreSQL.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def version(show: bool = typer.Option(False, "--version", help="Print the version and leave.", is_eager=True)) -> None:
    if show:
        print(f"duly {__version__}")
        raise typer.Exit


def run() -> None:
    """Entry point: what is raised on purpose, and a right that the role lacks, become one sentence and exit code 1."""
    try:
        app()
    except UnicodeError:
        complain("an argument is not valid UTF-8: type it again")
        sys.exit(1)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        sentence = _sentence(error)
        if sentence is None:
            raise
        complain(sentence)
        sys.exit(1)


def _sentence(error: Exception) -> str | None:
    """What to tell a person; None for what nobody foresaw. Loops raise inside groups: the first one speaks."""
    match error:
        case DulyError():
            return str(error)
        case asyncpg.InsufficientPrivilegeError():
            return f"this database role lacks a right: {error}; see docs/how-to/grants.md"
        case ExceptionGroup():
            return _sentence(error.exceptions[0])
        case _:
            return None
