"""Who asks, and may they: a bearer key with the route's scope."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPBearer

from duly.api.problems import Problem
from duly.api.rate_limit import count_call
from duly.api.services import services_of
from duly.service import Principal, Scope

_REALM = 'Bearer realm="duly"'
_LONGEST_KEY = 200
_bearer = HTTPBearer(auto_error=False, bearerFormat="duly_…", description="an API key of one project")


def require(scope: Scope) -> Callable[..., Awaitable[Principal]]:
    """A dependency that gives the caller, or ends the request, as `authorized` does."""

    async def caller(request: Request, _: Annotated[object, Depends(_bearer)]) -> Principal:
        return await authorized(request, scope)

    return caller


async def authorized(request: Request, scope: Scope) -> Principal:
    """The caller, its call counted. Raises Problem 401 without a living key, 403 without the scope or for a disabled
    account; OverLimitError beyond the account's request rate.
    """
    principal = await _authenticated(request)
    if principal.disabled:
        raise Problem(403, "account-disabled", "The account is disabled", "the account is disabled: ask its operator")
    count_call(request, principal)
    check_scope(principal, scope)
    return principal


async def require_operator(caller: Annotated[Principal, Depends(require("admin"))]) -> Principal:
    """A dependency that gives the caller if its key administers all accounts; 403 otherwise."""
    if not caller.operator:
        raise Problem(
            403, "operator-only", "The key may not do this", "this needs an admin key of an operator's account"
        )
    return caller


def check_scope(principal: Principal, scope: Scope) -> None:
    """Raise Problem 403 unless the key has the scope."""
    if scope not in principal.scopes:
        raise Problem(
            403,
            "missing-scope",
            "The key may not do this",
            f"the key lacks the scope {scope}: use a key that has it",
            headers={"www-authenticate": f'{_REALM}, error="insufficient_scope", scope="{scope}"'},
        )


async def is_still_allowed(request: Request, scope: Scope = "read") -> bool:
    """Whether the key of a request that goes on for long is still a living one with the scope."""
    try:
        check_scope(await _authenticated(request), scope)
    except Problem:
        return False
    return True


async def _authenticated(request: Request) -> Principal:
    given = request.headers.getlist("authorization")
    if not given:
        raise _unauthorized("this needs an API key: send Authorization: Bearer duly_…", _REALM)
    scheme, _, key = given[0].partition(" ")
    key = key.strip()
    if len(given) > 1 or scheme.lower() != "bearer" or not 0 < len(key) <= _LONGEST_KEY:
        raise _unauthorized("the Authorization header must be: Bearer, one space, an API key", _REALM)
    principal = await services_of(request).gatekeeper.authenticate(key)
    if principal is None:
        raise _unauthorized("the API key is unknown, expired or revoked", f'{_REALM}, error="invalid_token"')
    request.state.caller = principal  # for the log
    return principal


def _unauthorized(detail: str, challenge: str) -> Problem:
    return Problem(401, "unauthorized", "A key is needed", detail, headers={"www-authenticate": challenge})


Reader = Annotated[Principal, Depends(require("read"))]
Writer = Annotated[Principal, Depends(require("write"))]
Admin = Annotated[Principal, Depends(require("admin"))]
Operator = Annotated[Principal, Depends(require_operator)]
