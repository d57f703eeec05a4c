"""What the API would answer to an error of Duly's, for a page: the status, and a sentence. Pure."""

from __future__ import annotations

import logging

from duly.api.problems import Problem
from duly.model.errors import (
    DulyError,
    ExpiredJobError,
    IdConflictError,
    InvalidInputError,
    NotFoundError,
    UniqueKeyTakenError,
    WrongStateError,
)
from duly.service import InUseError, InvalidFieldsError, OverLimitError, SealedError
from duly.service.schedules import ScheduleChangedError, ScheduleStateError

log = logging.getLogger("duly.dashboard")

_STATUS: tuple[tuple[type[DulyError], int], ...] = (
    (NotFoundError, 404),
    (InvalidInputError, 422),
    (OverLimitError, 429),
    (InUseError, 409),
    (WrongStateError, 409),
    (ScheduleStateError, 409),
    (ScheduleChangedError, 409),
    (UniqueKeyTakenError, 409),
    (ExpiredJobError, 409),
    (IdConflictError, 409),
)


def refusal_of(error: Exception) -> tuple[int, str] | None:
    """Status and sentence; None for what is a fault of ours."""
    if isinstance(error, SealedError):
        log.warning("it cannot be decrypted", extra={"key_id": error.key_id, "error": str(error)})
        return 503, "What this needs is encrypted with a key that this process does not have. The log says which."
    if isinstance(error, Problem | InvalidInputError):
        return error.status if isinstance(error, Problem) else 422, "; ".join(said(error)).rstrip(".") + "."
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status, _sentence(str(error))
    return None


def said(error: Problem | InvalidInputError) -> list[str]:
    """Everything that is wrong with an input, a sentence each, with the name of the field where there is one."""
    if isinstance(error, Problem):
        places = [str(fault.get("pointer") or fault.get("parameter") or "") for fault in error.errors]
        faults = [_fault(place, str(fault["detail"])) for place, fault in zip(places, error.errors, strict=True)]
        return faults or [_sentence(error.detail)]
    if isinstance(error, InvalidFieldsError):
        return [_fault(fault.pointer, fault.detail) for fault in error.faults]
    return [_sentence(str(error))]


def _fault(pointer: str, detail: str) -> str:
    return _sentence(f"{pointer.strip('/').replace('/', ' ').replace('_', ' ')} {detail}".strip())


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."
