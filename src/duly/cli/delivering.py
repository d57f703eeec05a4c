"""From a claimed job to its delivery: open what is sealed, fetch what signs, send, keep the record clean."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import UUID

from duly.http import Deliverer
from duly.model.errors import DatabaseUnavailableError
from duly.model.jobs import ClaimedJob
from duly.model.outcomes import Bury, Outcome, Report, Snooze
from duly.model.reminding import Reminder
from duly.model.states import DeadReason
from duly.service import KeyMissingError, Keyring, SealedError, SigningSecrets, TamperedError
from duly.service.sealing import kept_outcome, opened_claim

log = logging.getLogger("duly.cli")

SECRETS_AGAIN = timedelta(seconds=2)
KEY_AGAIN = timedelta(minutes=1)


def sealed_delivery(
    deliverer: Deliverer, secrets: SigningSecrets, keyring: Keyring, reminder: Reminder | None = None
) -> Callable[[ClaimedJob], Awaitable[Outcome]]:
    """The handler of HTTP jobs.

    While a key is missing, or the secrets cannot be read, the target is not asked and the job keeps its attempt; the
    log says so every half minute. A job whose stored request was tampered with is dead.
    """
    reminder = reminder or Reminder(time.monotonic)

    def tell(error: SealedError, job_id: UUID) -> None:
        if reminder.is_due(error.key_id):
            fields = {"key_id": error.key_id, "job_id": str(job_id), "error": str(error)}
            log.error("jobs wait: what they need cannot be decrypted", extra=fields)

    async def deliver(job: ClaimedJob) -> Outcome:
        try:
            opened = opened_claim(keyring, job)
        except KeyMissingError as error:
            tell(error, job.id)
            return Snooze(KEY_AGAIN)
        except TamperedError as error:
            log.error("a stored request cannot be decrypted", extra={"job_id": str(job.id), "key_id": error.key_id})
            return Bury(DeadReason.PERMANENT, Report("error", f"the stored request is not valid: {error}"))
        try:
            signing = await secrets.for_project(job.project_id)
        except DatabaseUnavailableError:
            return Snooze(SECRETS_AGAIN)  # the target was not asked: no attempt of its is used up
        except SealedError as error:
            tell(error, job.id)
            return Snooze(KEY_AGAIN)
        outcome = await deliverer.deliver(opened.job, signing, payload=opened.payload, hidden=opened.hidden)
        return kept_outcome(keyring, opened, outcome)

    return deliver
