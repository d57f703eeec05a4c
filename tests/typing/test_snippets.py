"""What mypy says of programs that use Duly: right ones pass, wrong ones do not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import duly

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def test_mypy_accepts_the_right_lines_and_refuses_the_wrong_ones(tmp_path: Path) -> None:
    """Strictly, and with these words."""
    text = (HERE / "snippets.txt").read_text()
    (tmp_path / "snippets.py").write_text(text)
    wrong = {
        number: found[1]
        for number, line in enumerate(text.splitlines(), 1)
        if (found := re.search(r"# wrong: (.+)$", line))
    }
    done = subprocess.run(
        [
            sys.executable,
            *("-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", "--no-color-output"),
            *("--config-file=", "--cache-dir", str(ROOT / ".mypy_cache" / "snippets"), "snippets.py"),
        ],
        cwd=tmp_path,
        env={"PATH": "", "MYPYPATH": str(ROOT / "src"), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=110,
    )
    said: dict[int, str] = {}
    for line in done.stdout.splitlines():
        if found := re.match(r"snippets\.py:(\d+): error: (.+)", line):
            said[int(found[1])] = said.get(int(found[1]), "") + found[2]
    assert set(said) == set(wrong), f"{sorted(set(said) ^ set(wrong))}\n{done.stdout}{done.stderr}"
    assert {number: words for number, words in wrong.items() if words not in said[number]} == {}


def test_the_package_says_that_it_is_typed() -> None:
    """PEP 561."""
    assert (Path(duly.__file__).parent / "py.typed").exists()
