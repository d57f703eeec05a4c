"""Errors as clients see them: problem details (RFC 9457), one table from Duly's errors to status codes.

A problem says what, where and what to do. It repeats no value that was sent: a rejected input may hold secrets.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import compile_path

from duly.model.errors import (
    DatabaseUnavailableError,
    ExpiredJobError,
    IdConflictError,
    InvalidInputError,
    NotFoundError,
    SchemaError,
    UniqueKeyTakenError,
    WrongStateError,
)
from duly.service.faults import (
    BatchRefusedError,
    BodyTooLargeError,
    InUseError,
    InvalidBatchError,
    InvalidFieldsError,
    OverLimitError,
)
from duly.service.keyring import SealedError
from duly.service.schedules import ScheduleChangedError, ScheduleConflictError, ScheduleStateError

log = logging.getLogger("duly.api")

MEDIA_TYPE = "application/problem+json"
MOST_ERRORS = 100


class Problem(Exception):
    """Ends a request with a problem. `slug` names the kind, for programs; `errors` says what is wrong where,
    `members` are further members of the document.
    """

    def __init__(
        self,
        status: int,
        slug: str,
        title: str,
        detail: str,
        *,
        errors: Sequence[Mapping[str, str | int]] = (),
        headers: Mapping[str, str] | None = None,
        members: Mapping[str, str] | None = None,
        most_errors: int = MOST_ERRORS,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.slug = slug
        self.title = title
        self.detail = detail
        self.errors = errors
        self.headers = headers
        self.members = members
        self.most_errors = most_errors

    def answer(self) -> JSONResponse:
        """The response that says so."""
        content: dict[str, Any] = {
            "type": f"urn:duly:problem:{self.slug}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
        }
        content.update(self.members or {})
        if self.errors:
            content["errors"] = list(self.errors[: self.most_errors])
        headers = {"cache-control": "no-store", "x-content-type-options": "nosniff", **(self.headers or {})}
        return JSONResponse(content, self.status, headers, MEDIA_TYPE)


def invalid(errors: Sequence[Mapping[str, str | int]], most: int = MOST_ERRORS) -> Problem:
    """422: well-formed, and wrong; `errors` lists every fault."""
    count = len(errors)
    detail = f"{count} {'thing is' if count == 1 else 'things are'} wrong with the request; see errors"
    return Problem(422, "invalid-input", "The input is not valid", detail, errors=errors, most_errors=most)


def not_found() -> Problem:
    """404: the same answer for what never was and for what is somebody else's."""
    return Problem(404, "not-found", "Not found", "there is no such thing here, or it belongs to another project")


def install_problems(app: FastAPI, retry_after_s: int) -> None:
    """Make every error that a request can end with a problem."""

    def unavailable(_: Request, error: Exception) -> JSONResponse:
        return Problem(
            503,
            "unavailable",
            "The service is not available for the moment",
            "the database is away or busy, and nothing was accepted: send the request again, with the same id",
            headers={"retry-after": str(retry_after_s)},
        ).answer()

    app.add_exception_handler(DatabaseUnavailableError, unavailable)
    app.add_exception_handler(SchemaError, unavailable)
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)


def answer_to(request: Request, error: Exception) -> Response | None:
    """The problem that the request's application makes of an error; None for one that is a fault of ours."""
    handlers: Mapping[object, Callable[[Request, Exception], Response]] = request.app.exception_handlers
    kind = next((kind for kind in type(error).__mro__ if kind in handlers and kind is not Exception), None)
    return None if kind is None else handlers[kind](request, error)


def _from_problem(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Problem)
    return error.answer()


def _from_framework(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return not_found().answer()
    if error.status_code == 405:
        detail = "this resource does not have that method; the Allow header lists those it has"
        methods = ", ".join(sorted(_methods_here(request)))
        headers = {"allow": methods} if methods else error.headers
        return Problem(405, "method-not-allowed", "Method not allowed", detail, headers=headers).answer()
    title = HTTPStatus(error.status_code).phrase
    return Problem(error.status_code, "http", title, title, headers=error.headers).answer()


def _methods_here(request: Request) -> set[str]:
    """Of all routes of the path, by the document: the framework names those of the first one only."""
    paths: dict[str, dict[str, Any]] = request.app.openapi()["paths"]
    path = request.scope["path"]
    return {m.upper() for one, calls in paths.items() if compile_path(one)[0].match(path) for m in calls}


def _from_invalid_fields(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, InvalidFieldsError)
    return invalid([{"pointer": fault.pointer, "detail": fault.detail} for fault in error.faults]).answer()


def _from_invalid_batch(_: Request, error: Exception) -> JSONResponse:
    """Every fault of every job, so that one more try is enough."""
    assert isinstance(error, InvalidBatchError)
    errors: list[dict[str, str | int]] = [
        {"index": place, "pointer": f"/jobs/{place}{fault.pointer}", "detail": fault.detail}
        for place, faults in sorted(error.faults.items())
        for fault in faults[:MOST_ERRORS]
    ]
    return invalid(errors, len(errors)).answer()


def _from_refused_batch(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, BatchRefusedError)
    errors: list[dict[str, str | int]] = [
        {
            "index": place,
            "pointer": f"/jobs/{place}/{'unique_key' if isinstance(why, UniqueKeyTakenError) else 'id'}",
            "detail": str(why),
        }
        for place, why in sorted(error.refused.items())
    ]
    title = "Jobs of the batch cannot be stored"
    return Problem(409, "batch-refused", title, str(error), errors=errors, most_errors=len(errors)).answer()


def _from_invalid_input(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, InvalidInputError)
    return invalid([{"pointer": error.pointer, "detail": str(error)}]).answer()


def _from_over_limit(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, OverLimitError)
    slug = error.limit.replace("_", "-")
    headers = {"retry-after": str(math.ceil(error.retry_after_s)), **limit_headers(error)}
    return Problem(429, slug, "The account is at its limit", str(error), headers=headers).answer()


def limit_headers(error: OverLimitError) -> dict[str, str]:
    """The limit that was met, as the RateLimit header fields have it (draft-ietf-httpapi-ratelimit-headers-10)."""
    window = "" if error.window_s is None else f";w={math.ceil(error.window_s)}"
    return {
        "ratelimit-policy": f'"{error.limit}";q={math.floor(error.allowed)}{window}',
        "ratelimit": f'"{error.limit}";r=0;t={math.ceil(error.retry_after_s)}',
    }


def _from_in_use(_: Request, error: Exception) -> JSONResponse:
    return Problem(409, "in-use", "Something stands against it", str(error)).answer()


def _from_large_body(_: Request, error: Exception) -> JSONResponse:
    return Problem(413, "too-large", "The body is too large", str(error)).answer()


def _from_id_conflict(_: Request, error: Exception) -> JSONResponse:
    return Problem(
        409,
        "id-conflict",
        "The id is taken",
        str(error),
        errors=[{"pointer": "/id", "detail": "names a different job"}],
    ).answer()


def _from_key_taken(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, UniqueKeyTakenError)
    members = {} if error.holder is None else {"job_id": str(error.holder)}
    return Problem(409, "unique-key-taken", "The unique key is taken", str(error), members=members).answer()


def _from_wrong_state(_: Request, error: Exception) -> JSONResponse:
    return Problem(409, "wrong-state", "The job's state does not allow this", str(error)).answer()


def _from_expired(_: Request, error: Exception) -> JSONResponse:
    return Problem(409, "expired", "The job has expired", str(error)).answer()


def _from_schedule_conflict(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ScheduleConflictError)
    members = {} if error.holder is None else {"schedule_id": str(error.holder)}
    errors = [{"pointer": error.pointer, "detail": "is another schedule's"}]
    return Problem(409, "schedule-conflict", "It is taken", str(error), errors=errors, members=members).answer()


def _from_schedule_state(_: Request, error: Exception) -> JSONResponse:
    return Problem(409, "wrong-state", "The schedule's state does not allow this", str(error)).answer()


def _from_not_found(_: Request, error: Exception) -> JSONResponse:
    return not_found().answer()


def _from_sealed(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, SealedError)
    log.error("stored data cannot be decrypted", extra={"key_id": error.key_id, "error": str(error)})
    detail = "what is stored is encrypted, and cannot be decrypted here at the moment; the log says why"
    return Problem(503, "sealed", "The data cannot be decrypted", detail).answer()


def _from_disconnect(_: Request, error: Exception) -> JSONResponse:
    """Nobody reads this; without it a client that hangs up would look like a fault of ours in the log."""
    return Problem(400, "cut-off", "The request was cut off", "the request ended before its body was complete").answer()


def _from_anything(_: Request, error: Exception) -> JSONResponse:
    return Problem(500, "internal", "Internal error", "something went wrong on our side; the log has more").answer()


_HANDLERS = {
    Problem: _from_problem,
    HTTPException: _from_framework,
    InvalidFieldsError: _from_invalid_fields,
    InvalidBatchError: _from_invalid_batch,
    BatchRefusedError: _from_refused_batch,
    InvalidInputError: _from_invalid_input,
    OverLimitError: _from_over_limit,
    InUseError: _from_in_use,
    BodyTooLargeError: _from_large_body,
    IdConflictError: _from_id_conflict,
    UniqueKeyTakenError: _from_key_taken,
    WrongStateError: _from_wrong_state,
    ExpiredJobError: _from_expired,
    ScheduleConflictError: _from_schedule_conflict,
    ScheduleChangedError: _from_schedule_state,
    ScheduleStateError: _from_schedule_state,
    NotFoundError: _from_not_found,
    SealedError: _from_sealed,
    ClientDisconnect: _from_disconnect,
    Exception: _from_anything,
}
