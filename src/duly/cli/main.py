"""`duly`: every command by its name; what goes wrong becomes one sentence."""

from __future__ import annotations

import os
import sys

import asyncpg
import typer

from duly import __version__
from duly.cli import (
    admin,
    dashboard,
    dead,
    doctor,
    export,
    import_jobs,
    jobs,
    keys,
    migrate,
    notices,
    queues,
    schedules,
    send,
    serve,
    tail,
    top,
    up,
    workers,
)
from duly.cli.console import complain
from duly.model.errors import DulyError

app = typer.Typer(
    name="duly",
    help="HTTP requests and Python functions, run later, reliably, on PostgreSQL.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("up")(up.up)
app.command("api")(serve.api)
app.command("worker")(serve.worker)
app.command("migrate")(migrate.migrate)
app.command("doctor")(doctor.doctor)
app.command("top")(top.top)
app.command("workers")(workers.workers)
app.command("send")(send.send)
app.command("tail")(tail.tail)
app.command("export")(export.export)
app.command("import")(import_jobs.import_)
app.add_typer(jobs.app, name="jobs")
app.add_typer(dead.app, name="dead")
app.add_typer(keys.app, name="keys")
app.add_typer(queues.app, name="queues")
app.add_typer(schedules.app, name="schedules")
app.add_typer(notices.app, name="notices")
app.add_typer(admin.app, name="admin")
app.add_typer(dashboard.app, name="dashboard")


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
