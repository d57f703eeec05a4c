"""What the routes work with, in one place; hung on the application's state."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from duly.api.settings import ApiSettings
from duly.http import EgressPolicy
from duly.model.reminding import Reminder
from duly.queue import Database, DatabaseClock, JobView
from duly.service import Allowances, Creator, Gatekeeper, Keyring, Limits, Principal, Rates, SealedError
from duly.service.listening import EventHub
from duly.service.schedule_watch import ScheduleWatch
from duly.service.sealing import closed_view, opened_view

log = logging.getLogger("duly.api")


@dataclass(frozen=True, slots=True)
class Services:
    """One per application. `ending` is set when the server stops: what goes on without end ends then."""

    database: Database
    policy: EgressPolicy
    settings: ApiSettings
    creator: Creator
    gatekeeper: Gatekeeper
    keyring: Keyring
    clock: DatabaseClock
    hub: EventHub
    allowances: Allowances
    schedule_watch: ScheduleWatch
    rates: Rates = field(default_factory=Rates)
    reminder: Reminder = field(default_factory=lambda: Reminder(time.monotonic))
    ending: asyncio.Event = field(default_factory=asyncio.Event)

    def limits_of(self, caller: Principal) -> Limits:
        """What a job of the caller's account may be."""
        return caller.limits.narrowed(self.settings.limits)

    def opened(self, job: JobView) -> JobView:
        """A job that was read, its header values in the clear; without them if they cannot be opened here."""
        try:
            return opened_view(self.keyring, job)
        except SealedError as error:
            if self.reminder.is_due(error.key_id):
                log.warning("jobs cannot be decrypted", extra={"job_id": str(job.id), "error": str(error)})
            return closed_view(job)


def services_of(request: Request) -> Services:
    """The services of the application that the request came to."""
    services: Services = request.app.state.services
    return services


# async: FastAPI runs plain functions on a thread, which costs more than everything else here.
async def _services(request: Request) -> Services:
    return services_of(request)


ServicesHere = Annotated[Services, Depends(_services)]
