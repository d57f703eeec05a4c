"""Stop signals: one drains, a second aborts, an echo of the first does neither."""

from __future__ import annotations

import asyncio
import os
import signal

from duly.cli.stopping import SAME_SIGNAL_S, Stop


async def test_the_first_drains_and_a_later_one_aborts() -> None:
    told: list[str] = []
    stop = Stop(lambda: told.append("draining"))
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(stop.draining.wait(), 5)
    await asyncio.sleep(1.5 * SAME_SIGNAL_S)
    assert not stop.aborting.is_set()
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.wait_for(stop.aborting.wait(), 5)
    assert told == ["draining"]


async def test_an_echo_is_not_a_second_signal() -> None:
    """make passes on the Ctrl-C that the terminal has sent to everybody already."""
    stop = Stop()
    for _ in range(3):
        stop._signalled()
    assert stop.draining.is_set()
    assert not stop.aborting.is_set()
