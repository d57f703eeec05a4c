"""The plans that statements really used, inside PL/pgSQL too, as auto_explain tells the client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import asyncpg

from duly.queue import Session

# index → what its condition must name for the scan to be bounded by more than the table's age
_KEYS = {
    "ready_line": ("segment =",),
    "ready_pkey": ("job_id",),
    "lease_line": ("segment =",),
    "lease_pkey": ("job_id =",),
    "lease_to_abort": ("worker_id =",),
    "scheduled_by_time": ("run_at >", "run_at <"),
    "scheduled_pkey": ("job_id",),
    "lane_pkey": ("id =",),
    "redrive_pkey": ("job_id =",),
    "unique_key_pkey": ("project_id =", "key ="),
    "lane_block_id_concurrency_key_key": ("block_id =", "concurrency_key ="),
    "lane_block_pkey": ("id =",),
    "lane_block_account_id_project_id_queue_kind_key": ("account_id =", "project_id =", "queue ="),
    "scheduled_of_account": ("account_id =",),
    "quota_block_of_account": ("account_id =", "month ="),
    "queue_pkey": ("project_id =", "name ="),
    "rate_pkey": ("project_id =", "queue ="),
    "breaker_pkey": ("account_id =", "host ="),
    "schedule_turn_by_look": ("is_task =", "look_at >", "look_at <"),
    "schedule_turn_pkey": ("schedule_id =",),
    "schedule_pkey": ("id =",),
    "fire_pkey": ("schedule_id",),
    "fire_by_time": ("fire_at",),
}
# the same for the partitions' indexes, by what their names contain; a list's walk begins at a place and has a limit
_KEYS_OF_FACTS = {
    "_project_id_id_idx": ("ROW(project_id, id) <", "project_id >="),
    "_project_id_unique_key_id_idx": ("project_id =", "unique_key =", "id <"),
    "job_tag_": ("project_id =", "tag ="),
    "_account_id_state_job_id_idx": ("account_id =", "state =", "job_id <"),
    "_finished_at_account_id_idx": ("finished_at >",),
}
_FACTS = ("job", "attempt", "outcome")
# A row per worker process, or per retired segment above the floor: few, and not of the kind that grows with age.
_SMALL = {
    "worker",
    "retired",
    "kept",
    "account",
    "plan",
    "project",
    "segment_current",
    "ready_floor",
    "lease_floor",
    "idle_until",
}
_SMALL_INDEXES = {"worker_pkey", "retired_pkey"}
_HOT = {
    "ready", "lease", "scheduled", "lane", "lane_block", "queue", "rate", "redrive", "unique_key", "breaker",
    "quota_block", "schedule", "schedule_turn", "fire",
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """One statement and its plan tree with actual numbers."""

    statement: str
    root: dict[str, Any]

    def nodes(self) -> Iterator[dict[str, Any]]:
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            waiting += node.get("Plans", [])
            yield node

    @property
    def buffers(self) -> int:
        return int(self.root.get("Shared Hit Blocks", 0)) + int(self.root.get("Shared Read Blocks", 0))


class PlanLog:
    """Collects the plan of every statement that a connection runs, nested ones included."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self.plans: list[Plan] = []

    @classmethod
    async def on(cls, connection: asyncpg.Connection) -> PlanLog:
        log = cls(connection)
        connection.add_log_listener(log._heard)
        for setting, value in {
            "log_min_duration": "0",
            "log_nested_statements": "on",
            "log_analyze": "on",
            "log_buffers": "on",
            "log_timing": "off",
            "log_format": "json",
        }.items():
            if not log.plans and setting == "log_min_duration":
                await connection.execute("load 'auto_explain'")
            await connection.execute(f"set auto_explain.{setting} = '{value}'")
        await connection.execute("set client_min_messages = log")
        return log

    def _heard(self, _: Any, message: Any) -> None:
        _, found, text = message.message.partition("plan:\n")
        if found:
            told = json.loads(text)
            self.plans.append(Plan(told["Query Text"].strip(), told["Plan"]))

    async def take(self) -> list[Plan]:
        """What was heard since the last time."""
        await asyncio.sleep(0)
        heard, self.plans = self.plans, []
        return heard


async def buffers_of(url: str, ask: Callable[[Session], Awaitable[object]]) -> list[int]:
    """The shared buffers of each statement that was sent, in order, in a session that is used to them."""
    connection = await asyncpg.connect(url)
    try:
        session, log = Session(connection, "duly"), await PlanLog.on(connection)
        await connection.execute("set auto_explain.log_nested_statements = off")
        await ask(session)
        return [plan.buffers for plan in await log.take()]
    finally:
        connection.terminate()


def faults(plan: Plan) -> list[str]:
    """What is wrong with a plan: scans of hot tables and facts that no full key, live segment or time window bounds."""
    return [fault for node in plan.nodes() if (fault := _fault(node)) is not None]


def _fault(node: dict[str, Any]) -> str | None:
    kind, table, index = node["Node Type"], node.get("Relation Name", ""), node.get("Index Name", "")
    if table.startswith("pg_") or index.startswith("pg_") or table in _SMALL or index in _SMALL_INDEXES:
        return None
    if kind in ("Bitmap Index Scan", "Bitmap Heap Scan"):
        return f"{kind} on {table or index}"
    if kind == "Seq Scan" and (table in _HOT or table.startswith(_FACTS)):
        return f"Seq Scan on {table}"
    if kind == "Tid Scan" and "ctid =" not in str(node.get("TID Cond", "")):
        return f"Tid Scan on {table} without a list"
    if kind in ("Index Scan", "Index Only Scan"):
        condition = str(node.get("Index Cond", ""))
        of_facts = (keys for part, keys in _KEYS_OF_FACTS.items() if part in index)
        keys = _KEYS.get(index) or next(of_facts, None) or (("id =",) if index.startswith("job_") else ("job_id =",))
        by_key = "_project_id_id_idx" in index and "(project_id = " in condition and "(id = " in condition
        if not by_key and not all(key in condition for key in keys):
            return f"{kind} by {index} bounded only by {condition or 'nothing'}"
    return None
