"""The commands by name, each loaded when it is asked for: a command is there in half the time that all of them take."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

# In the order of the help: a function is a command, a Typer a group of them.
WHERE = {
    "up": "up:up",
    "api": "serve:api",
    "worker": "serve:worker",
    "migrate": "migrate:migrate",
    "doctor": "doctor:doctor",
    "top": "top:top",
    "workers": "workers:workers",
    "send": "send:send",
    "tail": "tail:tail",
    "export": "export:export",
    "import": "import_jobs:import_",
    "jobs": "jobs:app",
    "dead": "dead:app",
    "keys": "keys:app",
    "queues": "queues:app",
    "schedules": "schedules:app",
    "notices": "notices:app",
    "admin": "admin:app",
    "dashboard": "dashboard:app",
}


class Group(TyperGroup):
    """The `duly` command with all that is under it."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = Commands()


class Commands(MutableMapping[str, Any]):
    """What the library asks for commands."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name, WHERE[name])
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        raise TypeError("commands stay")

    def __iter__(self) -> Iterator[str]:
        return iter(WHERE)

    def __len__(self) -> int:
        return len(WHERE)

    def __contains__(self, name: object) -> bool:
        return name in WHERE


def _load(name: str, where: str) -> Any:
    module, _, attribute = where.partition(":")
    found = getattr(import_module(f"duly.cli.{module}"), attribute)
    if isinstance(found, typer.Typer):
        command: Any = typer.main.get_group(found)
    else:
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command(name)(found)
        command = typer.main.get_command(alone)
    command.name = name
    return command
