"""What a worker and its task processes say to each other: one JSON object a message, its length in four bytes before
it.
"""

from __future__ import annotations

import json
import socket
import struct
from asyncio import StreamReader
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from duly.model.outcomes import Bury, Cancel, Outcome, Report, Retry, Snooze, Success
from duly.model.recording import recordable, sound_report
from duly.model.results import JsonText
from duly.model.states import DeadReason
from duly.model.storable import storable_json

MESSAGE_LIMIT_BYTES = 4_000_000
_LENGTH = struct.Struct(">I")


class NonsenseError(Exception):
    """A message that no process of ours sends."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a process is told of an attempt. `module` and `function`: where it finds the task."""

    module: str
    function: str
    task: str
    payload_json: str
    job_id: str
    attempt: int
    is_final: bool
    queue: str
    timeout_s: float
    stored: Any


def pack(message: dict[str, Any]) -> bytes:
    data = json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return _LENGTH.pack(len(data)) + data


def receive(sock: socket.socket) -> dict[str, Any] | None:
    """The next message, blocking; None at the end."""
    head = _exactly(sock, _LENGTH.size)
    if head is None:
        return None
    data = _exactly(sock, _LENGTH.unpack(head)[0])
    return None if data is None else json.loads(data.decode("utf-8", "surrogatepass"))


async def read(reader: StreamReader) -> dict[str, Any]:
    """The next message. Raises NonsenseError, or IncompleteReadError at the end."""
    [length] = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > MESSAGE_LIMIT_BYTES:
        raise NonsenseError(f"a message of {length:,} bytes")
    try:
        message = json.loads((await reader.readexactly(length)).decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise NonsenseError("a message that is not JSON") from error
    if not isinstance(message, dict):
        raise NonsenseError("a message that is no object")
    return message


def outcome_to_wire(outcome: Outcome, kind: str) -> dict[str, Any]:
    """An outcome as plain JSON, checked and mended as it will be kept."""
    match recordable(outcome, kind):
        case Success(result=result):
            return {"outcome": "success", "result": result.text if isinstance(result, JsonText) else None}
        case Retry(report=report, at_least=at_least):
            after_s = None if at_least is None else at_least.total_seconds()
            return {"outcome": "retry", "after_s": after_s, **_reported(report)}
        case Snooze(delay=delay, report=report):
            return {"outcome": "snooze", "after_s": delay.total_seconds(), **_reported(report)}
        case Bury(report=report):
            return {"outcome": "bury", **_reported(report)}
        case Cancel(report=report):
            return {"outcome": "cancel", **_reported(report)}
        case other:
            return {"outcome": "retry", "class": "error", "error": f"a task cannot end as {type(other).__name__}"}


def outcome_from_wire(message: dict[str, Any]) -> Outcome:
    """Read what `outcome_to_wire` made. Raises NonsenseError."""
    report = sound_report(Report(message.get("class") or "error", error=message.get("error")))
    after_s = message.get("after_s")
    if after_s is not None and (isinstance(after_s, bool) or not isinstance(after_s, int | float)):
        raise NonsenseError("a delay that is no number")
    try:
        after = None if after_s is None else timedelta(seconds=after_s)
    except (OverflowError, ValueError) as error:
        raise NonsenseError("a delay out of range") from error
    match message.get("outcome"):
        case "success":
            return Success(_result(message.get("result")))
        case "retry":
            return Retry(report, after)
        case "snooze" if after is not None:
            return Snooze(after, report)
        case "bury":
            return Bury(DeadReason.PERMANENT, report)
        case "cancel":
            return Cancel(report)
    raise NonsenseError("an outcome that is none")


def _result(text: Any) -> Any:
    try:
        return None if text is None else json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise NonsenseError("a result that is not JSON") from error


def _reported(report: Report | None) -> dict[str, Any]:
    sound = sound_report(report)
    return {"class": sound.result, "error": sound.error, "detail": storable_json(sound.detail)}


def _exactly(sock: socket.socket, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        part = sock.recv(count - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)
