"""Schedules under another key: jobs pass, schedules stay, so an old key can go only when they are sealed anew."""

from __future__ import annotations

import json
from collections import Counter
from uuid import UUID

from duly.queue import Database
from duly.service.jobs import KIND
from duly.service.keyring import Keyring
from duly.service.schedules import Schedule, list_schedules
from duly.service.sealing import key_of
from duly.service.templates import sealed_template

_PAGE = 100


async def schedules_by_key(db: Database) -> Counter[str]:
    """How many schedules are sealed with each key."""
    rows = await db.fetch(
        """select s.payload->'sealed'->>'key' as key_id, count(*) as schedules
           from duly.schedule s where s.payload ? 'sealed' and s.kind not like 'task:%' group by 1"""
    )
    return Counter({str(row["key_id"]): row["schedules"] for row in rows})


async def reseal_schedules(db: Database, keyring: Keyring) -> int:
    """Seal every schedule with the first key; returns how many were not. Raises KeyMissingError or TamperedError for
    one that cannot be opened; those before it are done.
    """
    changed = 0
    before: UUID | None = None
    while True:
        page = await list_schedules(db, None, before=before, limit=_PAGE)
        for schedule in page:
            changed += await _resealed(db, keyring, schedule)
        if len(page) < _PAGE:
            return changed
        before = page[-1].id


async def _resealed(db: Database, keyring: Keyring, schedule: Schedule) -> bool:
    if schedule.template.kind != KIND or key_of(schedule.template.payload) == keyring.first:
        return False
    sealed = sealed_template(keyring, schedule.id, schedule.owner.project_id, schedule.opened(keyring))
    if key_of(sealed.payload) is None:
        return False  # there is nothing to seal
    async with db.transaction() as tx:
        held = await tx.fetchval(  # an edit seals with the first key itself, and must not be undone
            "select t.revision from duly.schedule_turn t where t.schedule_id = $1 and t.revision = $2 for update",
            schedule.id,
            schedule.revision,
        )
        if held is None:
            return False
        await tx.execute(
            "update duly.schedule set payload = $2::jsonb, body = $3 where id = $1",
            schedule.id,
            json.dumps(sealed.payload, ensure_ascii=False),
            sealed.body,
        )
    return True
