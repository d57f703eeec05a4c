"""`python bench/newcomer.py`: what a newcomer does, and how long it takes: a new folder and environment, pip, and the
files of docs/how-to/tasks.md as they stand there, until the task has run. Run by hand; nothing is left behind.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

ROOT = Path(__file__).parents[1]
PACKAGES = (f"{ROOT}[server,embedded]", "psycopg[binary]")
_INSTALL_LIMIT_S = 600
_UP_LIMIT_S = 120


def main() -> int:
    """0 when the page's script printed what the page says."""
    page = (ROOT / "docs" / "how-to" / "tasks.md").read_text()
    files = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page, re.DOTALL))
    [said] = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    with tempfile.TemporaryDirectory(prefix="duly-newcomer-") as name:
        folder = Path(name)
        os.chmod(folder, 0o755)
        for file in ("hello.py", "say.py"):
            (folder / file).write_text(files[file])
        timed("a new environment", lambda: venv.create(folder / "venv", with_pip=True))
        program = folder / "venv" / "bin"
        timed("pip install", lambda: run(program / "pip", "install", "--quiet", *PACKAGES, cwd=folder))
        printed = timed("from `duly up` to the result", lambda: first_run(folder, program))
    print(printed, end="")
    return 0 if printed == said else 1


def first_run(folder: Path, program: Path) -> str:
    """What the script prints, beside a `duly up` that is stopped afterwards."""
    home = folder / "home"
    log = (folder / "up.log").open("w+")
    up = subprocess.Popen(
        [program / "duly", "up", "--app", "hello", "--home", home, "--port", "0"], cwd=folder, stdout=log, stderr=log
    )
    try:
        until = time.monotonic() + _UP_LIMIT_S
        while not (home / "credentials.json").exists():
            if up.poll() is not None or time.monotonic() > until:
                raise SystemExit((folder / "up.log").read_text())
            time.sleep(0.05)
        url = json.loads((home / "credentials.json").read_text())["database_url"]
        return run(program / "python", "say.py", cwd=folder, environment={"DULY_DATABASE_URL": url})
    finally:
        up.send_signal(signal.SIGTERM)
        up.wait(60)
        log.close()


def run(*words: str | Path, cwd: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        words, cwd=cwd, env={**os.environ, **(environment or {})}, stdout=subprocess.PIPE, text=True,
        timeout=_INSTALL_LIMIT_S, check=True,
    )  # fmt: skip
    return done.stdout


def timed(what: str, step: Callable[[], T]) -> T:
    began = time.monotonic()
    found = step()
    print(f"{what}: {time.monotonic() - began:.1f} s", file=sys.stderr)
    return found


if __name__ == "__main__":
    sys.exit(main())
