"""The header Idempotency-Key: a request that is sent again is answered again, and done once.

The key is a row of the very transaction that does what is asked for, so it is there exactly if that is. Only successes
are kept: what was refused may be tried again under its key. Without the header nothing of this is touched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from duly.api.answers import HEADERS
from duly.api.problems import Problem, invalid
from duly.api.services import Services
from duly.queue import IdempotencyKey, Session, note_answer, take_idempotency_key
from duly.service import Keyring, Principal
from duly.service.keyring import place_of, sealed_with
from duly.service.transacting import transacted

PARAMETER: dict[str, Any] = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    "description": "the same key and request again within 24 hours: the same answer, and nothing is done twice",
}
_LONGEST = 255


async def once(
    request: Request,
    services: Services,
    caller: Principal,
    body: str,
    act: Callable[[Session | None], Awaitable[JSONResponse]],
) -> Response:
    """The answer of `act`, or the one it gave to this request before.

    With a key, `act` does its work in the session it is given, and may be run again if a rival rolled it back; without,
    it is given none. Raises Problem: 409 while the same request is carried out elsewhere, 422 if the key was used for
    another one.
    """
    key = _key(request, caller, body)
    if key is None:
        return await act(None)

    async def carry_out(session: Session) -> Response:
        taken = await take_idempotency_key(session, key)
        match taken.result:
            case "in_progress":
                raise Problem(
                    409,
                    "in-progress",
                    "The request is in progress",
                    "a request with this Idempotency-Key is being carried out: send it again in a moment",
                    headers={"retry-after": "1"},
                )
            case "other":
                detail = "was used for another request: make a new key for a new request"
                raise invalid([{"parameter": "Idempotency-Key", "detail": detail}])
            case "replay":
                answer = _opened(services.keyring, key, taken.answer)
                headers = {**HEADERS, **(taken.headers or {}), "idempotency-replayed": "true"}
                return Response(answer, taken.status, headers, "application/json")
            case "first":
                made = await act(session)
                kept = {name: made.headers[name] for name in ("location", "etag") if name in made.headers}
                sealed = _sealed(services.keyring, key, bytes(made.body))
                await note_answer(session, key, made.status_code, sealed, kept)
                return made

    return await transacted(services.database, carry_out)


async def unsupported(request: Request) -> None:
    """A dependency of routes that do nothing about the header: silence would look like a promise."""
    if request.method == "POST" and "idempotency-key" in request.headers:
        raise invalid([{"parameter": "Idempotency-Key", "detail": "is not supported by this call: leave it out"}])


def _key(request: Request, caller: Principal, body: str) -> IdempotencyKey | None:
    given = request.headers.getlist("idempotency-key")
    if not given:
        return None
    if len(given) > 1 or not (0 < len(given[0]) <= _LONGEST and given[0].isprintable()):
        detail = f"must be given once, with 1 to {_LONGEST} printable characters"
        raise invalid([{"parameter": "Idempotency-Key", "detail": detail}])
    said = "\0".join((request.method, request.url.path, request.url.query, body))
    endpoint = f"{request.method} {request.scope['route'].path}"
    fingerprint = hashlib.sha256(said.encode("utf-8", "surrogatepass")).digest()
    return IdempotencyKey(caller.owner.project_id, endpoint, given[0], fingerprint)


def _sealed(keyring: Keyring, key: IdempotencyKey, answer: bytes) -> bytes:
    """An answer repeats header values, which are stored sealed or not at all."""
    return keyring.seal(answer, _place(key)) if keyring.seals else answer


def _opened(keyring: Keyring, key: IdempotencyKey, answer: bytes) -> bytes:
    return answer if sealed_with(answer) is None else keyring.open(answer, _place(key))


def _place(key: IdempotencyKey) -> bytes:
    return place_of("answer", UUID(bytes=key.fingerprint[:16]), key.project_id, f"{key.endpoint} {key.key}")
