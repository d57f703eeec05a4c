"""Which encryption keys stored jobs name. The queue itself knows no keys: it reads the ids off what is stored. Tasks
are never sealed, whatever their arguments are called.
"""

from __future__ import annotations

from dataclasses import dataclass

from duly.queue.database import Executor

_UNFINISHED = """
    select j.payload->'sealed'->>'key' as key_id, count(*) as jobs
    from (select job_id from duly.scheduled union all select job_id from duly.ready
          union all select job_id from duly.lease) w
    join duly.job j on j.id = w.job_id
    where j.payload ? 'sealed' and j.kind not like 'task:%' group by 1 order by 1
"""
_FINISHED = """
    select j.payload->'sealed'->>'key' as key_id, count(*) as jobs
    from duly.job j join duly.outcome o on o.job_id = j.id
    where j.payload ? 'sealed' and j.kind not like 'task:%' group by 1 order by 1
"""
# an envelope: five octets of mark and version, the length of the id, the id (see duly.service.keyring)
_ANSWERS = """
    select encode(substring(a.excerpt from 7 for get_byte(a.excerpt, 5)), 'escape') as key_id, count(*) as jobs
    from duly.attempt a
    where a.detail ? 'excerpt_sealed' and length(a.excerpt) > 6 group by 1 order by 1
"""


@dataclass(frozen=True, slots=True)
class KeyUse:
    """What is sealed with one key: jobs that may still run, jobs that have ended (and may be read, or redriven), and
    answers kept in the ledger.
    """

    key_id: str
    unfinished: int = 0
    finished: int = 0
    answers: int = 0


async def unfinished_by_key(db: Executor) -> dict[str, int]:
    """How many jobs that are not final each key is needed for."""
    return {str(row["key_id"]): row["jobs"] for row in await db.fetch(_UNFINISHED)}


async def keys_in_use(db: Executor) -> list[KeyUse]:
    """Every key that something stored is sealed with. Reads all jobs and all attempts."""
    unfinished = await unfinished_by_key(db)
    finished = {str(row["key_id"]): row["jobs"] for row in await db.fetch(_FINISHED)}
    answers = {str(row["key_id"]): row["jobs"] for row in await db.fetch(_ANSWERS)}
    return [
        KeyUse(key_id, unfinished.get(key_id, 0), finished.get(key_id, 0), answers.get(key_id, 0))
        for key_id in sorted({*unfinished, *finished, *answers})
    ]
