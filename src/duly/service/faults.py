"""What is wrong with an input, said so that it can be shown: where, and a sentence that never repeats the value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from duly.model.errors import DulyError, InvalidInputError


class FieldError(ValueError):
    """One value is wrong; whoever knows where it stood makes a fault of it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with an input: a JSON pointer to it, and what is wrong."""

    pointer: str
    detail: str


class InvalidJobError(InvalidInputError):
    """Everything that is wrong with a job, at once."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("; ".join(f"{fault.pointer}: {fault.detail}" for fault in faults), faults[0].pointer)
        self.faults = tuple(faults)


class InvalidScheduleError(InvalidJobError):
    """Everything that is wrong with a schedule, at once. The pointers of its job begin with /job."""


class BodyTooLargeError(DulyError):
    """The job's body is longer than the operator allows."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"the body is longer than {limit_bytes} bytes: send a reference to the data instead")
        self.limit_bytes = limit_bytes
