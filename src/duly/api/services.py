"""What the routes work with, in one place; hung on the application's state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from duly.api.settings import ApiSettings
from duly.http import EgressPolicy
from duly.queue import Database
from duly.service import Creator, Gatekeeper


@dataclass(frozen=True, slots=True)
class Services:
    """One per application."""

    database: Database
    policy: EgressPolicy
    settings: ApiSettings
    creator: Creator
    gatekeeper: Gatekeeper


def services_of(request: Request) -> Services:
    """The services of the application that the request came to."""
    services: Services = request.app.state.services
    return services


# async: FastAPI runs plain functions on a thread, which costs more than everything else here.
async def _services(request: Request) -> Services:
    return services_of(request)


ServicesHere = Annotated[Services, Depends(_services)]
