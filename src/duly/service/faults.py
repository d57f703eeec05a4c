"""What is wrong with an input, said so that it can be shown: where, and a sentence that never repeats the value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from duly.model.errors import DulyError, InvalidInputError


class FieldError(ValueError):
    """One value is wrong; whoever knows where it stood makes a fault of it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with an input: a JSON pointer to it, and what is wrong."""

    pointer: str
    detail: str


class InvalidFieldsError(InvalidInputError):
    """Everything that is wrong with an input, at once."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("; ".join(f"{fault.pointer}: {fault.detail}" for fault in faults), faults[0].pointer)
        self.faults = tuple(faults)


class InvalidJobError(InvalidFieldsError):
    """Everything that is wrong with a job, at once."""


class InvalidScheduleError(InvalidJobError):
    """Everything that is wrong with a schedule, at once. The pointers of its job begin with /job."""


class InvalidBatchError(InvalidInputError):
    """Everything that is wrong with the jobs of a batch, at once: faults by place, from 0."""

    def __init__(self, faults: Mapping[int, Sequence[Fault]]) -> None:
        super().__init__(f"{len(faults)} jobs of the batch are not valid")
        self.faults = faults


class BatchRefusedError(DulyError):
    """Jobs of a batch whose id or unique key is another's, by place, from 0. None of the batch was stored."""

    def __init__(self, refused: Mapping[int, DulyError]) -> None:
        super().__init__(f"{len(refused)} jobs of the batch cannot be stored: none was")
        self.refused = refused


class BodyTooLargeError(DulyError):
    """The job's body is longer than the operator allows."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"the body is longer than {limit_bytes} bytes: send a reference to the data instead")
        self.limit_bytes = limit_bytes


class InUseError(DulyError):
    """It cannot go, or end, while something needs it; the message says what, and what to do first."""


class OverLimitError(DulyError):
    """An account is at one of its limits: nothing was stored. `limit`: its name; `allowed`: its size; `retry_after_s`:
    when to try again, at the earliest; `window_s`: for limits over a time, how long that is.
    """

    def __init__(
        self, limit: str, allowed: float, message: str, *, retry_after_s: float, window_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.limit = limit
        self.allowed = allowed
        self.retry_after_s = retry_after_s
        self.window_s = window_s
