"""Idempotency keys: a row in the transaction that does what the request asks for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from duly.model.storable import read_json
from duly.queue.database import Executor, Session


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A request: the key within its project and endpoint, and a hash of all that it says."""

    project_id: int
    endpoint: str
    key: str
    fingerprint: bytes


@dataclass(frozen=True, slots=True)
class Taken:
    """`first`: carry it out, and note the answer. `replay`: it was, with this answer. `in_progress`: it is, by somebody
    else. `other`: the key was used for another request.
    """

    result: Literal["first", "replay", "in_progress", "other"]
    status: int = 0
    answer: bytes = b""
    headers: Mapping[str, str] | None = None


async def take_idempotency_key(session: Session, key: IdempotencyKey) -> Taken:
    """Take the key until the transaction ends; the row is there if it commits."""
    row = await session.fetchrow(
        "select result, status, answer, headers from duly.take_idempotency_key($1, $2, $3, $4)",
        *(key.project_id, key.endpoint, key.key, key.fingerprint),
    )
    assert row is not None  # a function with out parameters returns one row
    if row["result"] != "replay":
        return Taken(row["result"])
    return Taken("replay", row["status"], row["answer"], read_json(row["headers"]))


async def note_answer(
    session: Session, key: IdempotencyKey, status: int, answer: bytes, headers: Mapping[str, str]
) -> None:
    """Write down what is answered, in the transaction that took the key."""
    await session.fetchval(
        "select duly.note_answer($1, $2, $3, $4, $5, $6)",
        *(key.project_id, key.endpoint, key.key, status, answer, json.dumps(dict(headers))),
    )


async def forget_idempotency(db: Executor, after: datetime, limit: int) -> datetime | None:
    """Forget up to `limit` keys that are more than 24 hours old, made at or after a moment. Returns where to go on,
    None at the end.
    """
    last: datetime | None = await db.fetchval("select duly.forget_idempotency($1, $2)", after, limit)
    return last
