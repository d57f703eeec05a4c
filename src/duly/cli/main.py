"""`duly up | api | worker | migrate | doctor | jobs | dead`."""

from __future__ import annotations

import sys

import typer

from duly import __version__
from duly.cli import dead, doctor, jobs, migrate, serve, up
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
app.add_typer(jobs.app, name="jobs")
app.add_typer(dead.app, name="dead")


@app.callback(invoke_without_command=True)
def version(show: bool = typer.Option(False, "--version", help="Print the version and leave.", is_eager=True)) -> None:
    if show:
        print(f"duly {__version__}")
        raise typer.Exit


def run() -> None:
    """Entry point: what Duly raises on purpose becomes one sentence and exit code 1."""
    try:
        app()
    except DulyError as error:
        complain(str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
