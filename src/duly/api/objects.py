"""Request bodies other than jobs: strict JSON, the shape of each field, all faults at once."""

from __future__ import annotations

from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from duly.api.creation import sentence
from duly.api.problems import Problem
from duly.api.reading import read_text
from duly.api.services import Services
from duly.api.strict_json import MalformedJsonError, pointer, read_members
from duly.service.faults import Fault, InvalidFieldsError

Model = TypeVar("Model", bound=BaseModel)


async def read_object(request: Request, services: Services, model: type[Model], *, optional: bool = False) -> Model:
    """Read a request's body; an `optional` one may be empty. Raises as `parse_object`."""
    text = await read_text(request, services.settings)
    return parse_object("{}" if optional and not text.strip() else text, model)


def parse_object(text: str, model: type[Model]) -> Model:
    """Read an object's JSON text. Raises Problem, or InvalidFieldsError with all that is wrong."""
    try:
        members, faults = read_members(text)
    except MalformedJsonError as error:
        raise Problem(400, "malformed", "The body is not JSON", str(error)) from None
    bad = {fault.pointer.split("/")[1] for fault in faults if fault.pointer}
    try:
        read = model.model_validate({name: member.value for name, member in members.items()})
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        faults += [
            Fault(pointer(*one["loc"]), sentence(one)) for one in found if not one["loc"] or one["loc"][0] not in bad
        ]
        raise InvalidFieldsError(faults) from None
    if faults:
        raise InvalidFieldsError(faults)
    return read
