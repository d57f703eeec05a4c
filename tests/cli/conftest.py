"""Processes, folders and targets for the tests of the command."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.harness import Starter, Target, serve_target, starter


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    """Start commands that are killed at the end of the test."""
    with starter(tmp_path) as start:
        yield start


@pytest.fixture
def target() -> Iterator[Target]:
    """A server to call."""
    with serve_target() as target:
        yield target


@pytest.fixture
def home() -> Iterator[Path]:
    """A home folder that does not exist yet, where every account can pass (pytest's own is closed if root runs it)."""
    folder = Path(tempfile.mkdtemp(prefix="duly-test-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder / "home"
    shutil.rmtree(folder, ignore_errors=True)
