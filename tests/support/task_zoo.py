"""Tasks that behave, and tasks that do not: on a loop, in threads, in processes."""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import threading
import time
from typing import Any

from duly import App, Bury, Cancel, Context, Retry, Snooze, Task

app = App()
let_go = threading.Event()


def _described(context: Context, number: int, word: str) -> dict[str, Any]:
    return {
        "number": number,
        "word": word,
        "job": str(context.job_id),
        "attempt": context.attempt,
        "final": context.is_final,
    }


@app.task(name="zoo.good_async")
async def good_async(context: Context, number: int, *, word: str) -> dict[str, Any]:
    await asyncio.sleep(0)
    return _described(context, number, word)


@app.task(name="zoo.good_sync")
def good_sync(context: Context, number: int, *, word: str) -> dict[str, Any]:
    return _described(context, number, word)


@app.task(name="zoo.good_process", run_in="process")
def good_process(context: Context, number: int, *, word: str) -> dict[str, Any]:
    return _described(context, number, word)


good: dict[str, Task[Any, Any, dict[str, Any]]] = {"async": good_async, "sync": good_sync, "process": good_process}


def _misbehave(does: str) -> Any:
    match does:
        case "raise":
            raise ValueError("no")
        case "exit":
            raise SystemExit(3)
        case "interrupt":
            raise KeyboardInterrupt
        case "cancel itself":
            raise asyncio.CancelledError
        case "generator exit":
            raise GeneratorExit
        case "set":
            return {1, 2}
        case "generator":
            return (n for n in range(3))
        case "nan":
            return {"a": [float("nan")]}
        case "200 MB":
            return "x" * 200_000_000
        case "raise retry":
            raise Retry(30, "later")
        case "return retry":
            return Retry(30, "later")
        case "snooze":
            raise Snooze(30)
        case "bury":
            raise Bury("never")
        case "cancel":
            return Cancel("unwanted")
        case "bury on":
            raise KeyError("k")
        case "fork":
            os.fork()
            return "forked"
        case "leave":
            os._exit(7)
        case "crash":
            ctypes.string_at(0)
    raise AssertionError(does)


@app.task(name="zoo.bad_async", bury_on=KeyError)
async def bad_async(does: str) -> Any:
    await asyncio.sleep(0)
    return _misbehave(does)


@app.task(name="zoo.bad_sync", bury_on=KeyError)
def bad_sync(does: str) -> Any:
    return _misbehave(does)


@app.task(name="zoo.bad_process", bury_on=KeyError, run_in="process")
def bad_process(does: str) -> Any:
    return _misbehave(does)


bad: dict[str, Task[Any, Any, Any]] = {"async": bad_async, "sync": bad_sync, "process": bad_process}


@app.task(name="zoo.starts", run_in="process", max_attempts=1)
def starts(then: str, path: str) -> Any:
    """It starts another process and writes down which, before it misbehaves."""
    started = subprocess.Popen(["sleep", "600"])
    with open(path, "w") as file:
        file.write(str(started.pid))
    return _misbehave(then)


@app.task(name="zoo.waits_async")
async def waits_async(context: Context, seconds: float, listens: bool) -> str:
    await asyncio.sleep(seconds)
    return "waited"


def _wait(context: Context, seconds: float, listens: bool) -> str:
    if not listens:
        time.sleep(seconds)
    elif context.cancelled.wait(seconds):
        raise TimeoutError("told to stop")
    return "waited"


@app.task(name="zoo.waits_sync")
def waits_sync(context: Context, seconds: float, listens: bool) -> str:
    return _wait(context, seconds, listens)


@app.task(name="zoo.waits_process", run_in="process")
def waits_process(context: Context, seconds: float, listens: bool) -> str:
    if not listens:
        subprocess.run(["sleep", str(seconds)], check=False)
    return _wait(context, seconds, listens)


waits: dict[str, Task[Any, Any, str]] = {"async": waits_async, "sync": waits_sync, "process": waits_process}


@app.task(name="zoo.stubborn")
async def stubborn(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            continue


@app.task(name="zoo.blocks")
async def blocks(seconds: float) -> str:
    time.sleep(seconds)
    return "blocked"


@app.task(name="zoo.exits_aside")
async def exits_aside() -> str:
    async def leave() -> None:
        raise SystemExit(9)

    aside = asyncio.create_task(leave())
    await asyncio.sleep(0.1)
    assert aside.done()
    return "left"


@app.task(name="zoo.leaks_threads")
def leaks_threads() -> str:
    for _ in range(5):
        threading.Thread(target=let_go.wait, args=(60,)).start()
    return "left"


def _tell(context: Context) -> None:
    context.progress(0.1)
    context.progress(0.5, "half\x00")


@app.task(name="zoo.tells_async")
async def tells_async(context: Context) -> None:
    _tell(context)
    await asyncio.sleep(4)


@app.task(name="zoo.tells_sync")
def tells_sync(context: Context) -> None:
    _tell(context)
    context.cancelled.wait(4)


@app.task(name="zoo.tells_process", run_in="process")
def tells_process(context: Context) -> None:
    _tell(context)
    context.cancelled.wait(4)


tells: dict[str, Task[Any, Any, None]] = {"async": tells_async, "sync": tells_sync, "process": tells_process}


@app.task(name="zoo.renamed", aliases=["zoo.old_name"])
def renamed(number: int) -> int:
    return number
