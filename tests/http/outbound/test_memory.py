"""Memory under hostile answers, measured from outside."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


async def test_memory_is_flat_under_hostile_answers() -> None:
    """A few hundred answers to a process of its own, after a round of all: it grows by less than 10 MB. (10,000 by less
    than 20: `python -m bench.hostile`.)"""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.hostile", "--quick"),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        told, _ = await asyncio.wait_for(process.communicate(), 100)
    finally:
        if process.returncode is None:
            process.terminate()
    assert process.returncode == 0, told.decode()
