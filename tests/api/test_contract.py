"""Schemathesis against the running service: whatever is sent, no answer that the OpenAPI document does not list.

`DULY_CONTRACT_EXAMPLES` (25) is how many requests each operation gets.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import httpx
import hypothesis
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api.harness import TARGET, Api
from duly.queue import Database, conservation
from duly.service import create_key

EXAMPLES = int(os.environ.get("DULY_CONTRACT_EXAMPLES", "25"))
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
STREAMS = {"events"}  # without end: tested by themselves


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_no_answer_is_undocumented(api: Api, client: httpx.AsyncClient, database: Database) -> None:
    """Every operation but the stream, with drawn requests, right ones and wrong ones, on jobs that are there: no 5xx,
    each status, media type and body as documented; and the ledger adds up afterwards.
    """
    key = await create_key(database, api.project.owner.project_id, "all", scopes=["read", "write", "read_payloads"])
    ids = [(await api.create(url=TARGET, delay=3600))["id"] for _ in range(3)]
    found = (await client.get("/openapi.json")).json()
    told = await asyncio.to_thread(_probe, found, str(client.base_url), key.key, ids)
    # the probe notices what it is for: the same document without one answer that is given
    found["paths"] = {"/v1/jobs": {"get": found["paths"]["/v1/jobs"]["get"]}}
    del found["paths"]["/v1/jobs"]["get"]["responses"]["200"]
    assert (await asyncio.to_thread(_probe, found, str(client.base_url), key.key, ids))["failures"]
    assert told["operations"] > 12
    assert not told["failures"], "\n\n".join(told["failures"][:5])
    assert (await conservation(database)).holds


def _probe(document: dict[str, Any], base_url: str, key: str, ids: list[str]) -> dict[str, Any]:
    schema = schemathesis.openapi.from_dict(document)
    failures: list[str] = []
    operations = 0
    for result in schema.get_all_operations():
        assert isinstance(result, Ok), result
        operation = result.ok()
        if operation.definition.raw.get("operationId") in STREAMS:
            continue
        operations += 1

        @hypothesis.given(case=operation.as_strategy())
        @hypothesis.settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
            phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        )
        def ask(case: Any) -> None:
            if case.path_parameters and "id" in case.path_parameters and len(str(case.body)) % 2:
                case.path_parameters["id"] = ids[len(str(case.headers)) % len(ids)]
            headers = {"authorization": f"Bearer {key}"}
            case.call_and_validate(base_url=base_url, headers=headers, checks=CHECKS, timeout=30)

        try:
            ask()
        except (Exception, BaseExceptionGroup) as error:
            failures.append(f"{operation.label}: {error}")
    return {"operations": operations, "failures": failures}
