"""What an operator gets wrong first, for the commands that look: one sentence that says what to do."""

from __future__ import annotations

from uuid import uuid4

import pytest

from cli.harness import assert_refused, duly, sql

LOOKING = [
    ["top", "--once"],
    ["workers"],
    ["tail", str(uuid4())],
    ["send", "https://example.com/"],
    ["export"],
    ["jobs", "list"],
]
EACH = pytest.mark.parametrize("words", LOOKING, ids=lambda words: words[0])


@EACH
def test_a_database_that_is_not_there(words: list[str]) -> None:
    """Where nobody listens; the password is not repeated."""
    refused = duly(*words, "--database-url", "postgresql://duly:s3cret@127.0.0.1:1/duly")
    assert_refused(refused, "database")
    assert "s3cret" not in refused.err


@EACH
def test_a_url_that_is_none(words: list[str]) -> None:
    """Another database's, or none at all."""
    refused = duly(*words, "--database-url", "mysql://x:s3cret@y/z")
    assert_refused(refused, "postgresql://")
    assert "s3cret" not in refused.err


@EACH
def test_a_schema_that_is_not_there(words: list[str], database_url: str) -> None:
    """Not migrated, or another name: what to run."""
    assert_refused(duly(*words, "--database-url", database_url, "--schema", "elsewhere"), "elsewhere", "duly migrate")


@EACH
def test_a_schema_of_another_version(words: list[str], database_url: str) -> None:
    """Newer than the program: which, and what to do."""
    sql(database_url, "update duly.schema_version set version = 9999 returning 1")
    assert_refused(duly(*words, "--database-url", database_url), "9999", "upgrade Duly")
