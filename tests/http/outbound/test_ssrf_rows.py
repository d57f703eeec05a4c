"""Every row of ssrf-cases.tsv that is a verdict on text."""

from __future__ import annotations

import pytest

from duly.http import EgressPolicy

from .ssrf_rows import BEHAVIOUR, Row, is_allowed, read_rows

ROWS = [row for row in read_rows() if row.prefix not in BEHAVIOUR]
_IDS = [ascii(f"{row.prefix}:{row.text}")[1:70] for row in ROWS]


def test_the_file_is_whole() -> None:
    """All 385 rows are read: nothing is lost to quoting or escapes."""
    assert len(read_rows()) == 385


@pytest.mark.parametrize("row", ROWS, ids=_IDS)
async def test_row(row: Row) -> None:
    """The row's verdict is the code's verdict, under the default policy or the one that the row states."""
    assert await is_allowed(row, EgressPolicy()) is row.is_allowed, row.why
