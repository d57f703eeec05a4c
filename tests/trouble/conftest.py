"""Short limits, so that what never answers is given up soon."""

from __future__ import annotations

from datetime import timedelta

import pytest

from duly.queue import database as database_module
from duly.worker import listener


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connects and probes give up within half a second."""
    monkeypatch.setattr(database_module, "CONNECT_LIMIT", timedelta(seconds=0.5))
    monkeypatch.setattr(listener, "CONNECT_LIMIT", timedelta(seconds=0.5))
    monkeypatch.setattr(listener, "_ANSWER_LIMIT", timedelta(seconds=0.3))
    monkeypatch.setattr(listener, "_PROBE_EVERY", timedelta(seconds=0.3))
