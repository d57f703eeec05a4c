"""/v1/usage: what the account uses and what is left to it."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from duly.api.admin_documents import UsageDocument, usage_json
from duly.api.answers import HEADERS, problem_answers
from duly.api.auth import Reader
from duly.api.paging import refuse_parameters
from duly.api.services import ServicesHere
from duly.service.usage import read_usage

router = APIRouter(tags=["usage"])


@router.get(
    "/v1/usage",
    operation_id="get_usage",
    summary="What the account uses",
    responses={200: {"model": UsageDocument}, **problem_answers(422)},
)
async def read_one(request: Request, caller: Reader, services: ServicesHere) -> JSONResponse:
    """Slots in use, what waits and for how long, what is left of the quota: of the key's account, all its projects."""
    refuse_parameters(request.query_params)
    account_id = caller.owner.account_id
    usage = await read_usage(services.database, account_id, caller.limits, services.allowances.held(account_id))
    return JSONResponse(usage_json(usage), headers=HEADERS)
