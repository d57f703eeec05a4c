"""The code of the how-to pages for tasks is run as it stands there, and says what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cli.harness import environment, starter

PAGES = Path(__file__).parents[2] / "docs" / "how-to"


def files_of(page: str) -> dict[str, str]:
    """Blocks of Python whose first line names a file."""
    text = (PAGES / page).read_text()
    return dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL))


def said_on(page: str) -> str:
    """What the page says that the script prints."""
    found = re.findall(r"```text\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)
    assert len(found) == 1
    return str(found[0])


@pytest.mark.parametrize(
    ("page", "app", "script"),
    [
        ("tasks.md", "hello", "say.py"),
        ("tasks-from-celery.md", "mail", "signup.py"),
        ("tasks-from-rq.md", "count", "ask.py"),
        ("tasks-from-procrastinate.md", "sums", "defer.py"),
    ],
)
def test_a_page_is_true(
    page: str, app: str, script: str, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its app on a worker, its script beside it."""
    for name, code in files_of(page).items():
        (tmp_path / name).write_text(code)
    monkeypatch.chdir(tmp_path)
    with starter(tmp_path) as start:
        worker = start("worker", "--app", app, "--database-url", database_url, "--process-slots", 1)
        worker.says("worker started")
        done = subprocess.run(
            [sys.executable, script],
            env=environment(DULY_DATABASE_URL=database_url),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout == said_on(page), done.stderr
        assert worker.stop().code == 0


def test_the_other_files_of_the_first_page(tmp_path: Path) -> None:
    """Its test passes, and its longer task can be declared."""
    for name, code in files_of("tasks.md").items():
        (tmp_path / name).write_text(code)
    tested = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_greet.py"]
    for words in (tested, [sys.executable, "-c", "import report, nightly"]):
        done = subprocess.run(
            words,
            cwd=tmp_path,
            env={**environment(), "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
