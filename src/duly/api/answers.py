"""What all answers have in common: their headers, and the problems that the OpenAPI document lists."""

from __future__ import annotations

from typing import Any, Final

from fastapi.responses import JSONResponse
from pydantic_core import to_json

from duly.api.problems import MEDIA_TYPE


class JsonAnswer(JSONResponse):
    """The same document in a third of the time."""

    def render(self, content: Any) -> bytes:
        return to_json(content)


HEADERS: Final = {"cache-control": "no-store", "x-content-type-options": "nosniff"}

_MEANINGS = {
    400: "not JSON",
    401: "no living API key",
    403: "the key lacks the scope, or the account is disabled",
    404: "no such thing here",
    408: "the body came too slowly",
    409: "the id is another job's, the unique key is taken, the state does not allow it, something stands against "
    "it, or a request with this Idempotency-Key is in progress",
    412: "the job is not as it was read",
    413: "too large",
    415: "not JSON in UTF-8",
    422: "something is wrong with the input",
    428: "If-Match is needed",
    429: "the account is at a limit; Retry-After says until when",
    503: "the database is away: nothing was accepted",
}
BODY: Final = (400, 408, 413, 415, 422)
"""What is answered to a body that cannot be read."""


def problem_answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """These problems and those that every call may end with, for a route's `responses`."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}}
    return {
        status: {"description": _MEANINGS[status], "content": content}
        for status in sorted({401, 403, 429, 503, *statuses})
    }


def body_of(schema: str) -> dict[str, Any]:
    """A JSON body with a schema of the document, for a route's `openapi_extra`."""
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}},
        }
    }
