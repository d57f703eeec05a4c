"""A name server that never answers for one account's names: another account's deliveries do not notice."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from duly.http import Deliverer, SystemResolver
from duly.model import Success

from .servers import OK, OPEN_LOOPBACK, RawServer, make_job, raw_server, report_of
from .test_dns import name_server

STUCK = 50
FAST = 5


def _answers(name: str, kind: int) -> list[bytes] | None:
    if name.startswith("slow"):
        return None
    return [bytes([127, 0, 0, 1])] if kind == 1 else []


@asynccontextmanager
async def _delivering() -> AsyncIterator[tuple[Deliverer, RawServer, list[str]]]:
    async with name_server(_answers) as (address, asked), raw_server(OK) as server:
        resolver = SystemResolver(nameservers=[address])
        async with Deliverer(OPEN_LOOPBACK, resolver=resolver) as deliverer:
            yield deliverer, server, asked
        await resolver.close()


@contextmanager
def _blocked_threads() -> Iterator[None]:
    """Every thread of the loop's default pool, and more work waiting behind them."""
    go = threading.Event()
    for _ in range(100):
        asyncio.get_running_loop().run_in_executor(None, go.wait, 30)
    try:
        yield
    finally:
        go.set()


async def test_hanging_names_of_one_account_hold_up_no_other() -> None:
    """FO-072: 50 jobs of A ask a name server that says nothing, all threads of the pool are taken, 5 jobs of B go to a
    live target: B's are delivered before the first of A's ends, and A's end at their own deadline as dns_error."""
    ended: list[str] = []
    async with _delivering() as (deliverer, server, asked):
        with _blocked_threads():

            async def deliver(account: str, url: str, account_id: int) -> str:
                report = report_of(await deliverer.deliver(make_job(url, account_id=account_id, timeout_s=1.0)))
                ended.append(account)
                return report.result

            stuck = [asyncio.create_task(deliver("A", f"http://slow{n}.example.com/", 1)) for n in range(STUCK)]
            while sum(name.startswith("slow") for name in asked) < STUCK:
                await asyncio.sleep(0.01)  # their questions are on the wire
            fast = [
                asyncio.create_task(deliver("B", f"http://b{n}.example.com:{server.port}/", 2)) for n in range(FAST)
            ]
            assert set(await asyncio.gather(*fast)) == {"success"}
            assert ended == ["B"] * FAST
            assert set(await asyncio.gather(*stuck)) == {"dns_error"}


async def test_latency_beside_a_tarpit() -> None:
    """FO-072: the slowest of fifty deliveries takes about as long with 50 hanging look-ups beside them as without.
    (Twice as long plus 50 ms at most, in one of three rounds: the machine is shared.)"""
    async with _delivering() as (deliverer, server, _):
        for _ in range(3):
            before = await _slowest(deliverer, server)
            stuck = [
                asyncio.create_task(deliverer.deliver(make_job(f"http://slow{n}.example.com/", timeout_s=4.0)))
                for n in range(STUCK)
            ]
            await asyncio.sleep(0.1)
            beside = await _slowest(deliverer, server)
            was_beside = not any(task.done() for task in stuck)
            for task in stuck:
                task.cancel()
            await asyncio.gather(*stuck, return_exceptions=True)
            if was_beside and beside < 2 * before + 0.05:
                return
    raise AssertionError(f"{before * 1000:.1f} ms without, {beside * 1000:.1f} ms with")


async def _slowest(deliverer: Deliverer, server: RawServer) -> float:
    slowest = 0.0
    for _ in range(50):
        began = time.monotonic()
        outcome = await deliverer.deliver(make_job(f"http://b.example.com:{server.port}/", account_id=2))
        assert isinstance(outcome, Success)
        slowest = max(slowest, time.monotonic() - began)
    return slowest
