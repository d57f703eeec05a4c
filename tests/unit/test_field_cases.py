"""docs/explanation/field-cases.md and the tests say the same."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "field-cases.md"
ALL = [f"FO-{n:03}" for n in range(1, 84)]
ID = re.compile(r"FO-\d{3}")


@lru_cache
def rows() -> list[tuple[str, str, str, str]]:
    """The page's lines: id, what goes wrong elsewhere, what Duly does, tests."""
    lines = re.findall(r"^\| (FO-\d+) \| (.+?) \| (.+?) \| (.*?) ?\|$", PAGE.read_text(), re.MULTILINE)
    assert len(lines) == PAGE.read_text().count("\n| FO-"), "a line of the table has not four cells"
    return lines


@lru_cache
def docstrings() -> dict[str, str]:
    """path::name → docstring, of every test there is."""
    found = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found[f"{path.relative_to(ROOT)}::{node.name}"] = ast.get_docstring(node) or ""
    return found


def named() -> dict[str, list[str]]:
    """id → the tests that the page names for it."""
    return {case: re.findall(r"`([^`]+::[^`]+)`", tests) for case, _, _, tests in rows()}


def test_every_case_is_listed_once_and_in_order() -> None:
    """The first to the last."""
    assert [case for case, *_ in rows()] == ALL


def test_every_line_has_a_test_or_says_why_not() -> None:
    """A test, or "not yet" with what it waits for."""
    for case, _, duly, tests in rows():
        assert tests or re.search(r"\b[Nn]ot yet: ", duly), f"{case} has no test and does not say why"
        assert re.sub(r"`[^`]+::[^`]+`|, ", "", tests) == "", f"{case}: {tests}"


def test_every_test_named_exists_and_names_the_case() -> None:
    """By its docstring."""
    known = docstrings()
    wrong = [
        (case, test) for case, tests in named().items() for test in tests if case not in ID.findall(known.get(test, ""))
    ]
    assert not wrong


def test_every_case_that_a_test_names_has_a_test_on_the_page() -> None:
    """No line says "not yet" of what a test holds already."""
    untold = {
        case: test
        for test, docstring in docstrings().items()
        for case in ID.findall(docstring)
        if not {row[0]: row[3] for row in rows()}.get(case)
    }
    assert not untold
