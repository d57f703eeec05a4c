"""From the text of a request to a job: strict JSON, the shape of each field, the rules between; all faults at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from pydantic import ValidationError

from duly.api.inputs import ChangeInput, JobInput
from duly.api.problems import Problem
from duly.api.strict_json import MalformedJsonError, Member, pointer, read_members
from duly.http.policy import EgressPolicy
from duly.model import NewJob
from duly.service.changing import ChangeSpec
from duly.service.faults import Fault, InvalidJobError
from duly.service.jobs import Limits, new_http_job

_ANY_URL = "https://placeholder.duly.invalid/"
_SENTENCES = {
    "missing": "is required",
    "extra_forbidden": "is not a member that a job has: check the spelling",
    "string_type": "must be a string",
    "list_type": "must be an array",
    "bytes_type": "must be JSON",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "dict_type": "must be an object",
    "too_long": "has too many elements: {max_length} at most",
    "too_short": "has too few elements: {min_length} at least",
}

_MEMBERS, _CHANGED = (
    sorted(field.alias or name for name, field in model.model_fields.items()) for model in (JobInput, ChangeInput)
)


def read_job(text: str, *, now: datetime, policy: EgressPolicy, limits: Limits, hops: int = 0) -> NewJob:
    """Read a request's body. Raises Problem 400 if it is no JSON object, InvalidJobError with all that is wrong."""
    try:
        members, faults = read_members(text)
    except MalformedJsonError as error:
        raise Problem(400, "malformed", "The body is not JSON", str(error)) from None
    values = job_values(members)
    job, more = fitted_job(values, faults, now=now, policy=policy, limits=limits, hops=hops)
    faults.extend(more)
    if faults or job is None:
        raise InvalidJobError(faults)
    return job


def read_change(text: str) -> ChangeSpec:
    """Read the body of a change. Raises Problem 400 if it is no JSON object, InvalidJobError with all that is wrong."""
    try:
        members, faults = read_members(text)
    except MalformedJsonError as error:
        raise Problem(400, "malformed", "The body is not JSON", str(error)) from None
    values = job_values(members)
    try:
        given = ChangeInput.model_validate(values)
    except ValidationError as error:
        raise InvalidJobError([*faults, *map(_not_changed, shape_faults(error, values))]) from None
    if not faults and not any(value is not None for value in values.values()):
        faults.append(Fault("", "changes nothing: give at least one member"))
    if faults:
        raise InvalidJobError(faults)
    return given.spec()


def _not_changed(fault: Fault) -> Fault:
    """A member that a job has, and a change has not, is spelled well."""
    if fault.detail != _SENTENCES["extra_forbidden"] or fault.pointer[1:] not in _MEMBERS:
        return fault
    return Fault(fault.pointer, f"stays as it is: what can be changed is {', '.join(_CHANGED)}")


def job_values(members: Mapping[str, Member]) -> dict[str, Any]:
    """The members as `fitted_job` takes them."""
    return {name: _value(name, member) for name, member in members.items()}


def _value(name: str, member: Member) -> Any:
    """`json` is kept as it was written: parsed and written anew, long numbers would lose digits."""
    return member.text.encode() if name == "json" else member.value


def fitted_job(
    values: Mapping[str, Any],
    known: Sequence[Fault],
    *,
    now: datetime,
    policy: EgressPolicy,
    limits: Limits,
    hops: int = 0,
) -> tuple[NewJob | None, list[Fault]]:
    """The job, or what is wrong beyond the known faults. Where a field is bad, the rules still run over the others."""
    faults: list[Fault] = []
    bad = {_root(fault) for fault in known}
    try:
        given = JobInput.model_validate({"url": _ANY_URL, **values} if "url" in bad else values)
    except ValidationError as error:
        faults.extend(shape_faults(error, values))
        bad.update(_root(fault) for fault in faults)
        if bad & {"run_at_local", "timezone"}:
            bad |= {"run_at_local", "timezone"}
        sound = {name: value for name, value in values.items() if pointer(name)[1:] not in bad}
        given = JobInput.model_validate({"url": _ANY_URL, **sound})
    try:
        return new_http_job(given.spec(hops), now=now, policy=policy, limits=limits), faults
    except InvalidJobError as error:
        headers = values.get("headers")
        found = (Fault(_named(fault.pointer, headers), fault.detail) for fault in error.faults)
        faults.extend(fault for fault in found if _root(fault) not in bad)
        return None, faults


def shape_faults(error: ValidationError, values: Mapping[str, Any]) -> list[Fault]:
    """What is wrong with the shape of fields, each at its pointer."""
    return [
        Fault(_named(pointer(*found["loc"]), values.get("headers")), sentence(found))
        for found in error.errors(include_url=False, include_input=False)
    ]


def sentence(found: Mapping[str, Any]) -> str:
    """What pydantic found wrong, in our words."""
    if found["type"] == "value_error":
        return str(found["ctx"]["error"])
    words = _SENTENCES.get(found["type"])
    if words is None:
        return str(found["msg"]).replace("Input should be", "must be")
    return words.format_map(found.get("ctx", {}))


def _root(fault: Fault) -> str:
    return fault.pointer.split("/")[1] if fault.pointer else ""


def _named(place: str, headers: Any) -> str:
    """The pointer into what was sent: headers given as an object are found by name, not by number."""
    parts = place.split("/")
    if not isinstance(headers, dict) or len(parts) < 3 or parts[1] != "headers" or not parts[2].isdigit():
        return place
    name = next(islice(headers, int(parts[2]), None))
    return pointer("headers", name)
