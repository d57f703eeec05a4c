"""Findings on the screen and in `bench/results/<program>.json`: one JSON line a round, then one for the finding."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from bench.figures import Spread
from bench.finding import Finding

FOLDER = Path(__file__).parent / "results"


def machine(server_version: str) -> dict[str, Any]:
    """What the figures stand on, and how busy the machine was when the run began."""
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "commit": _commit(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "postgresql": server_version,
        "kernel": platform.release(),
    }


def keep(finding: Finding, about: dict[str, Any], quick: bool) -> Path:
    """Append the finding to its file; returns the file."""
    FOLDER.mkdir(exist_ok=True)
    file = FOLDER / f"{finding.program}.json"
    head = {"program": finding.program, "at": about["at"], "quick": quick}
    lines: list[dict[str, Any]] = [{**head, "line": "round", **measured} for measured in finding.rounds]
    figures = {name: f.to_json() if isinstance(f, Spread) else f for name, f in finding.figures.items()}
    lines.append(
        {
            **head,
            "line": "finding",
            "machine": about,
            "figures": figures,
            "goal": finding.goal,
            "met": finding.met,
            "remarks": list(finding.remarks),
        }
    )
    with file.open("a") as out:
        out.writelines(json.dumps(line) + "\n" for line in lines)
    return file


def show(finding: Finding, file: Path, console: Console) -> None:
    """Print the table, the sentence and the verdict."""
    table = Table(title=finding.program, title_justify="left", show_header=False)
    for row in finding.rows:
        table.add_row(row.what, row.value)
    console.print(table)
    console.print(finding.measured, soft_wrap=True, highlight=False)
    for remark in finding.remarks:
        console.print(f"Note: {remark}", soft_wrap=True, highlight=False)
    console.print(f"Goal: {finding.goal}. [bold]{finding.verdict}[/bold]", soft_wrap=True, highlight=False)
    console.print(f"Kept in {file}\n", soft_wrap=True, highlight=False)


def _commit() -> str:
    answer = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=FOLDER.parent, capture_output=True, text=True, check=False
    )
    return answer.stdout.strip() or "unknown"
