"""The apps that a worker is told to run, as `package.module` or `package.module:name`."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Iterable

from duly.model.errors import DulyError, InvalidInputError
from duly.model.storable import describe
from duly.tasks.app import App, default_app

log = logging.getLogger("duly.cli")


def found_apps(references: Iterable[str]) -> tuple[App, ...]:
    """Import each and return the apps, every one once. A module alone means the default app, where `@duly.task`
    registers. The working directory can be imported from. Raises InvalidInputError with what cannot be imported and
    why.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    apps = tuple(dict.fromkeys(_found(reference) for reference in references))
    for app in apps:
        if not list(app):
            raise InvalidInputError(
                f"--app {', '.join(references)}: no task is declared there; decorate a function with @duly.task"
            )
    if len({app.schema for app in apps}) > 1:
        raise InvalidInputError("the apps are of different schemas: start a worker for each")
    return apps


def _found(reference: str) -> App:
    module_name, _, name = reference.partition(":")
    if not all(module_name.split(".")) or "/" in module_name or os.sep in module_name:
        raise InvalidInputError(
            f"--app {reference!r} names no module: write package.module or package.module:app, as it is imported from "
            "the working directory; a path is none"
        )
    try:
        module = importlib.import_module(module_name)
    except DulyError:
        raise
    except Exception as error:  # the module's own code, unless it is not there
        is_absent = isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}.")
        if not is_absent:
            log.error("--app %s cannot be imported", reference, exc_info=error)
        raise InvalidInputError(f"--app {reference}: cannot import {module_name}: {describe(error)}") from error
    if not name:
        return default_app
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, App):
        raise InvalidInputError(
            f"--app {reference}: {name} in {module_name} is no duly.App: name one, or the module alone"
        )
    return found
