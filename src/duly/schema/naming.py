"""The schema's name is a setting: SQL files say `duly.`, and this puts the real name in its place."""

from __future__ import annotations

import re
from functools import lru_cache

from duly.model.errors import InvalidInputError

DEFAULT_SCHEMA = "duly"
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,39}")
_QUALIFIER = re.compile(r"\bduly\.")


def checked_name(name: str) -> str:
    """Return `name` if it can be a schema's name without quoting; raise InvalidInputError otherwise."""
    if not _NAME.fullmatch(name) or name.startswith("pg_"):
        raise InvalidInputError(
            f"schema name {name!r} is not usable: "
            "lower-case letters, digits and _, at most 40, not starting with a digit or pg_"
        )
    return name


@lru_cache(maxsize=1024)
def named(sql: str, schema: str) -> str:
    """The SQL with every `duly.` qualifier naming `schema` instead."""
    return sql if schema == DEFAULT_SCHEMA else _QUALIFIER.sub(f"{checked_name(schema)}.", sql)
