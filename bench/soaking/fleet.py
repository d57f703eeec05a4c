"""The processes of a soak and who starts them again: each start is a new member with a number of its own."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal

from bench.processes import ROOT
from bench.setting import Place
from bench.skewed_clock import SkewedClock, compile_preload
from bench.soaking.journal import Journal
from bench.soaking.worker_process import COULD_NOT_START

Role = Literal["worker", "client"]

SKEWS = (timedelta(seconds=-120), timedelta(0), timedelta(seconds=120))

_LOOK_EVERY_S = 0.05
_REST_S = 0.3  # before a process is started again
_WELL = {"worker": {0, 1, COULD_NOT_START}, "client": {0}}


@dataclass(eq=False, slots=True)
class Member:
    """One process. `killed`: by us. `told`: SIGTERM was sent. `stopped`: SIGSTOP was sent, SIGCONT not yet."""

    number: int
    role: Role
    popen: subprocess.Popen[bytes]
    clock: SkewedClock
    log: Path
    killed: bool = False
    told: bool = False
    stopped: bool = False
    buried: bool = False

    @property
    def alive(self) -> bool:
        return self.popen.poll() is None


class Fleet:
    """Keeps the wanted number of workers and clients running. `skewed`: how many processes started with a wrong clock,
    `suicides`: how many workers their jobs killed, `unexpected`: who ended and should not have. `close` when done.
    """

    def __init__(self, place: Place, folder: Path, workers: int, clients: int, rng: random.Random) -> None:
        self._place = place
        self._folder = folder
        wanted: tuple[tuple[Role, int], ...] = (("worker", workers), ("client", clients))
        self._rng = rng
        self._preload = compile_preload(folder)
        self._ending: set[Role] = set()
        self._numbers = 0
        self.skewed = 0
        self.journal_file = folder / "journal"
        self.journal = Journal(self.journal_file)
        self.members: list[Member] = [self._start(role) for role, n in wanted for _ in range(n)]
        self.suicides = 0
        self.unexpected: list[str] = []

    @property
    def members_total(self) -> int:
        """How many processes were started."""
        return self._numbers

    def some(self, role: Role) -> Member | None:
        """A living member of the role that is not stopped, at random."""
        members = [m for m in self.members if m.role == role and m.alive and not m.stopped]
        return self._rng.choice(members) if members else None

    def of(self, role: Role) -> list[Member]:
        """Every living member of the role."""
        return [m for m in self.members if m.role == role and m.alive]

    def kill(self, member: Member) -> None:
        """SIGKILL; dead when it returns."""
        member.killed = True
        member.popen.kill()
        self._bury(member)

    def tell(self, member: Member) -> None:
        """SIGTERM: drain and end."""
        member.told = True
        member.popen.send_signal(signal.SIGTERM)

    def stop(self, member: Member) -> None:
        """SIGSTOP."""
        member.stopped = True
        self.journal.write("stopped", process=member.number)
        member.popen.send_signal(signal.SIGSTOP)

    def go_on(self, member: Member) -> None:
        """SIGCONT, if it still lives."""
        self.journal.write("continued", process=member.number)
        member.stopped = False
        member.popen.send_signal(signal.SIGCONT)

    async def keep(self) -> None:
        """Replace whoever has ended, until cancelled; not of a role that `end` was called for."""
        while True:
            for place, member in enumerate(self.members):
                if not member.alive and member.role not in self._ending:
                    self._bury(member)
                    await asyncio.sleep(_REST_S)
                    if member.role not in self._ending:
                        self.members[place] = self._start(member.role)
            await asyncio.sleep(_LOOK_EVERY_S)

    async def end(self, role: Role, patience_s: float) -> list[Member]:
        """SIGTERM all of a role and wait for their ends; returns those that did not come to one and were killed."""
        self._ending.add(role)
        members = self.of(role)
        for member in members:
            self.tell(member)
        end = asyncio.get_running_loop().time() + patience_s
        while any(m.alive for m in members) and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(_LOOK_EVERY_S)
        late = [m for m in members if m.alive]
        for member in late:
            self.kill(member)
        for member in members:
            self._bury(member)
        return late

    def close(self) -> None:
        """Leave no process behind."""
        for member in self.members:
            if member.alive:
                member.popen.kill()
                member.popen.wait()
        self.journal.close()

    def _start(self, role: Role) -> Member:
        self._numbers += 1
        number, log = self._numbers, self._folder / f"{role}-{self._numbers}.log"
        shift = self._rng.choice(SKEWS)
        self.skewed += shift != timedelta(0)
        clock = SkewedClock.make(self._preload, self._folder / f"clock-{number}", shift)
        told = {"dsn": self._place.dsn, "journal": str(self.journal_file), "number": number}
        if role == "client":
            told |= {"account": self._place.owner.account_id, "project": self._place.owner.project_id}
        with log.open("wb") as output:
            popen = subprocess.Popen(
                [sys.executable, "-m", f"bench.soaking.{role}_process", json.dumps(told)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **clock.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C, or timeout's SIGTERM, is for the supervisor: it drains everybody
            )
        return Member(number, role, popen, clock, log)

    def _bury(self, member: Member) -> None:
        """Note a member that is dead. A worker may end by its poison; nobody may end otherwise by itself."""
        if member.buried:
            return
        member.buried = True
        code = member.popen.wait()
        self.journal.write("gone", process=member.number, note=code)
        by_poison = code == -signal.SIGKILL and not member.killed and member.role == "worker"
        before_it_listened = code == -signal.SIGTERM and member.told  # its interpreter was still starting
        self.suicides += by_poison
        if not (member.killed or by_poison or before_it_listened or code in _WELL[member.role]):
            words = member.log.read_text(errors="replace")[-3000:]
            self.unexpected.append(f"{member.role} {member.number} ended with exit code {code}: {words}")
        member.clock.file.unlink()
        member.log.unlink()
