"""What starts a worker hands over to it, so that a stop signal reaches it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_make_up_hands_over() -> None:
    """FO-023: the recipe's one command is exec: no shell stays between make and the program."""
    [recipe] = re.findall(r"^up:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe.count("\n") == 1
    assert recipe.startswith("\t@exec ")
    assert not set(recipe) & set(";|&")


def test_the_command_is_the_program_itself() -> None:
    """FO-023: `duly` is an entry point of the package, a Python process with no shell script before it; whatever image
    or unit starts it names it directly.
    """
    assert 'duly = "duly.__main__:run"' in (ROOT / "pyproject.toml").read_text()
    for shell in (*ROOT.glob("*.sh"), *ROOT.glob("Dockerfile*"), *ROOT.glob("docker/*")):
        for line in shell.read_text().splitlines():
            assert not re.match(r"\s*(duly|python -m duly)\b", line), f"{shell.name}: start it with exec: {line}"


def test_the_docs_start_it_with_exec_from_a_script() -> None:
    """FO-023: what cannot be mended in the program is said where people read how to stop it."""
    page = (ROOT / "docs" / "how-to" / "stop.md").read_text()
    assert "exec duly worker" in page
