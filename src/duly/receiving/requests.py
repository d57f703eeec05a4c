"""The same for the requests of FastAPI (Starlette), Flask and Django, in one line each; what is not verified is
answered 401 (Django: 403).
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from duly.model.errors import InvalidInputError
from duly.model.storable import class_name
from duly.receiving.verification import TOLERANCE, Delivery, Secrets, VerificationError, verify


def receive(request: Any, secrets: Secrets, *, tolerance: timedelta = TOLERANCE) -> Any:
    """The verified delivery of a Flask or Django request; for one of Starlette or FastAPI, to be awaited.

    A request that is not verified ends with the framework's own 401 (Django: PermissionDenied, 403). Call it before
    anything else reads the body.
    """
    if _is_a(request, "starlette.requests", "Request"):
        return _received_async(request, secrets, tolerance)
    if _is_a(request, "django.http", "HttpRequest"):
        return _received(request.body, request.headers, secrets, tolerance, _django_refusal)
    if hasattr(request, "get_data") and hasattr(request, "headers"):  # Flask's proxy, and werkzeug's own
        return _received(request.get_data(), list(request.headers.items()), secrets, tolerance, _flask_refusal)
    raise InvalidInputError(
        f"{class_name(request)} is no request of FastAPI, Starlette, Flask or Django: "
        "use duly.verify(body, headers, secrets)"
    )


def delivery(secrets: Secrets, *, tolerance: timedelta = TOLERANCE) -> Callable[..., Awaitable[Delivery]]:
    """A dependency for FastAPI: `job: Annotated[duly.Delivery, Depends(duly.delivery(SECRET))]`."""
    fastapi = sys.modules.get("fastapi")
    if fastapi is None:
        raise InvalidInputError("duly.delivery is a dependency of FastAPI: import fastapi first, or use duly.receive")

    async def verified(request: Any) -> Delivery:
        return await _received_async(request, secrets, tolerance)

    verified.__annotations__["request"] = fastapi.Request
    return verified


async def _received_async(request: Any, secrets: Secrets, tolerance: timedelta) -> Delivery:
    return _received(await request.body(), request.headers.items(), secrets, tolerance, _starlette_refusal)


def _received(
    body: bytes, headers: Any, secrets: Secrets, tolerance: timedelta, refusal: Callable[[str], BaseException]
) -> Delivery:
    try:
        return verify(body, headers, secrets, tolerance=tolerance)
    except VerificationError as error:
        raise refusal(str(error)) from error


def _starlette_refusal(why: str) -> BaseException:
    made: BaseException = sys.modules["starlette.exceptions"].HTTPException(401, why)
    return made


def _flask_refusal(why: str) -> BaseException:
    made: BaseException = sys.modules["werkzeug.exceptions"].Unauthorized(why)
    return made


def _django_refusal(why: str) -> BaseException:
    made: BaseException = sys.modules["django.core.exceptions"].PermissionDenied(why)
    return made


def _is_a(value: Any, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)
