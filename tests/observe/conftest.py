"""A registry to ask."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry

Value = Callable[..., float | None]


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def value(registry: CollectorRegistry) -> Value:
    """The value of one sample by its name and labels; None: there is no such sample."""

    def ask(sample: str, /, **labels: str) -> float | None:
        return registry.get_sample_value(sample, labels)

    return ask
