"""The `duly` command, also as `python -m duly`."""

from __future__ import annotations

import sys


def run() -> None:
    """The command; without the packages of `duly[server]` one sentence that says what to install."""
    try:
        from duly.cli.main import run as run_command
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "duly":
            raise
        sys.exit(f"duly: the command needs {error.name}, which is not installed: pip install 'duly[server]'")
    run_command()


if __name__ == "__main__":
    run()
