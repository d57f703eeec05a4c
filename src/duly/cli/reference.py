"""docs/reference/cli.md, from the commands themselves: `python -m duly.cli.reference docs/reference/cli.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import EnumType
from pathlib import Path
from typing import Any

import typer

_HEAD = """# The command line

Made by `make cli` from the commands themselves; `duly COMMAND --help` says the same. How they work together:
[the command line for people and scripts](../how-to/command-line.md).

Every command that looks into the database takes `--database-url` (or `DULY_DATABASE_URL`), or finds the one of a
`duly up` in `--home` (or `DULY_HOME`), and `--schema` (or `DULY_SCHEMA`). A mistake in an option ends with 2; whatever
else goes wrong is one sentence on stderr and 1.
"""
_COMMON = ("database_url", "home", "schema")


def reference() -> str:
    """The page."""
    from duly.cli.main import app

    return "\n".join([_HEAD, *_command(typer.main.get_command(app), ("duly",))])


def _command(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    name = " ".join(path)
    if len(path) > 1:
        yield f"{'##' if len(path) == 2 else '###'} `{name}`\n"
        yield f"{_prose(command.help)}\n"
    children = getattr(command, "commands", None)
    if children is not None:
        for child in sorted(children):
            yield from _command(children[child], (*path, child))
        return
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and one.name not in _COMMON]
    words = [name, *(one.metavar or one.name.upper() for one in arguments)]
    yield f"    {' '.join([*words, *(['[OPTIONS]'] if options else [])])}\n"
    rows = [_row(_shown(one), one) for one in (*arguments, *options)]
    if rows:
        yield "\n".join(["| | |", "|---|---|", *rows]) + "\n"


def _shown(param: Any) -> str:
    if param.param_type_name == "argument":
        return f"`{param.metavar or param.name.upper()}`"
    flags = ", ".join(f"`{flag}`" for flag in (*param.opts, *param.secondary_opts))
    asked = getattr(getattr(param, "type_descriptor", None), "annotation", None)
    choices = "" if asked is None or not isinstance(asked, EnumType) else ", ".join(map(_code, asked.__members__))
    return f"{flags} {choices}".strip()


def _code(name: str) -> str:
    return f"`{name.lower()}`"


def _row(first: str, param: Any) -> str:
    said = _prose(param.help or "").replace("|", "\\|")
    if param.required:
        said += " Required."
    default = param.show_default if isinstance(param.show_default, str) else param.default
    if param.show_default and default not in (None, (), [], False, "", True):
        said += f" Default: `{default}`."
    if getattr(param, "envvar", None):
        said += f" Or `{param.envvar}`."
    return f"| {first} | {said.strip()} |"


def _prose(text: str) -> str:
    """Paragraphs, each on one line."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference(), encoding="utf-8")
