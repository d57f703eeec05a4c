"""`python -m bench.hostile [--answers 10000] [--quick]`: how much resident memory 10,000 hostile answers leave behind.

The targets run in a process of their own; every case of bench/hostile_answers.py takes its turn. Exit code 1 when the
memory grew by 20 MB or more, sockets or tasks are left, or a case's attempts were wrong, or more than 100 ms late, in
every round (not with --quick: one round or two prove nothing about time on a busy machine).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

from bench.hostile_answers import CASES, Case
from duly.http import Deliverer, EgressPolicy, new_request
from duly.model import ClaimedJob, RetryPolicy, Trigger

GROWTH_LIMIT_BYTES = 20 << 20
QUICK_ANSWERS = 300  # --quick: those only, half the limit, and without the cases that wait for the deadline
DEADLINE_S = 0.5
AT_ONCE = 8
START_LIMIT_S = 60.0
SOCKETS_LEFT = 20  # what the process itself has open, and a little
_BODIES = {case.body_bytes: bytes(case.body_bytes) for case in CASES}  # shared: the memory asked about is not our own
_accounts = itertools.count(1)
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class Tally:
    """What came of the attempts. `best_s` is the smallest overrun of a case's rounds: what is late or wrong on a busy
    machine now and then is the machine, and what is so in every round is not."""

    right: set[str] = field(default_factory=set)
    wrong: Counter[str] = field(default_factory=Counter)
    best_s: dict[str, float] = field(default_factory=dict)
    worst_s: float = 0.0
    done: int = 0


def resident_bytes() -> int:
    """Resident memory of this process, now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


async def hammer(
    deliverer: Deliverer, ports: dict[str, int], cases: Sequence[Case], answers: int, tally: Tally
) -> None:
    """Deliver to the cases in turn, a few at once."""
    todo = iter([cases[n % len(cases)] for n in range(answers)])

    async def work() -> None:
        for case in todo:
            await _deliver(deliverer, case, ports[case.name], tally)

    await asyncio.gather(*[work() for _ in range(AT_ONCE)])


async def _deliver(deliverer: Deliverer, case: Case, port: int, tally: Tally) -> None:
    url = f"{'http' if case.tls == 'none' else 'https'}://127.0.0.1:{port}/hook"
    job = _job(url, case)
    began = time.monotonic()
    report = (await deliverer.deliver(job)).report
    over_s = time.monotonic() - began - DEADLINE_S
    tally.best_s[case.name] = min(over_s, tally.best_s.get(case.name, over_s))
    tally.worst_s = max(tally.worst_s, over_s)
    tally.done += 1
    assert report is not None
    if (report.result, report.status_code) in case.expected:
        tally.right.add(case.name)
    else:
        tally.wrong[f"{case.name}: {report.result} {report.status_code}"] += 1


def _job(url: str, case: Case) -> ClaimedJob:
    body = None if case.method == "HEAD" else _BODIES[case.body_bytes]
    return ClaimedJob(
        id=uuid4(),
        attempt=1,
        final_attempt=8,
        max_attempts=8,
        account_id=next(_accounts),  # no connection of an earlier round is used
        project_id=1,
        lane_id=1,
        queue="default",
        kind="http",
        priority=5,
        payload_json=json.dumps(new_request(url, case.method, body=body).to_payload()),
        body=body,
        timeout=timedelta(seconds=DEADLINE_S),
        retry=RetryPolicy(),
        run_at=datetime.now(UTC),
        trigger=Trigger.SCHEDULE,
        age=timedelta(0),
        expired=False,
    )


async def measure(folder: Path, cases: Sequence[Case], answers: int, limit_bytes: int, *, is_timed: bool) -> int:
    """Warm up with one round of all cases, then measure."""
    ports: dict[str, int] = json.loads((folder / "ports.json").read_text())
    policy = EgressPolicy.parse(allow_loopback=True)
    fresh = resident_bytes()
    async with Deliverer(policy, ca_file=folder / "ca.pem") as deliverer:
        await hammer(deliverer, ports, cases, len(cases), Tally())
        gc.collect()
        tally, before, began = Tally(), resident_bytes(), time.monotonic()
        highest = before
        quarters: list[str] = []
        running = asyncio.create_task(hammer(deliverer, ports, cases, answers, tally))
        while not (await asyncio.wait([running], timeout=0.2))[0]:
            highest = max(highest, resident_bytes())
            if tally.done * 4 >= answers * (len(quarters) + 1):
                quarters.append(f"{resident_bytes() / 2**20:.0f}")
        await running
        took_s = time.monotonic() - began
        await asyncio.sleep(1.5)
        gc.collect()
        after = resident_bytes()
        sockets, tasks = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())
    late = {name: over_s for name, over_s in tally.best_s.items() if over_s > 0.1}
    print(f"{tally.done} answers of {len(cases)} kinds in {took_s:.0f} s, {AT_ONCE} at once")
    print(
        f"resident MB: {fresh / 2**20:.1f} fresh, {before / 2**20:.1f} after a round of all, then by quarters "
        f"{', '.join(quarters)}, {after / 2**20:.1f} at the end ({highest / 2**20:.1f} at most): "
        f"grew by {(after - before) / 2**20:.1f}; {sockets} descriptors and {tasks} tasks at the end"
    )
    print(
        f"past the deadline: {max(tally.best_s.values()) * 1000:.0f} ms in the best round of the worst case, "
        f"{tally.worst_s * 1000:.0f} ms in the worst of all; late in every round: {late or 'none'}"
    )
    never = sorted({case.name for case in cases} - tally.right)
    print(
        f"outcomes other than expected: {dict(tally.wrong) or 'none'}; cases that never went right: {never or 'none'}"
    )
    left_behind = after - before >= limit_bytes or tasks > 1 or sockets > SOCKETS_LEFT
    return 1 if left_behind or (is_timed and (never or late)) else 0


def main() -> int:
    """Start the targets, hammer, stop them."""
    parser = argparse.ArgumentParser(prog="python -m bench.hostile")
    parser.add_argument("--answers", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ANSWERS} answers, none of which takes long")
    told = parser.parse_args()
    cases = [case for case in CASES if not (told.quick and case.waits)]
    answers = QUICK_ANSWERS if told.quick else told.answers
    limit_bytes = GROWTH_LIMIT_BYTES // 2 if told.quick else GROWTH_LIMIT_BYTES
    with tempfile.TemporaryDirectory(prefix="duly-hostile-") as name:
        folder = Path(name)
        server = subprocess.Popen([sys.executable, "-m", "bench.hostile_server", name])
        try:
            give_up = time.monotonic() + START_LIMIT_S
            while not (folder / "ports.json").exists():
                if server.poll() is not None or time.monotonic() > give_up:
                    return 2
                time.sleep(0.05)
            return asyncio.run(measure(folder, cases, answers, limit_bytes, is_timed=not told.quick))
        finally:
            server.terminate()
            server.wait(10)


if __name__ == "__main__":
    sys.exit(main())
