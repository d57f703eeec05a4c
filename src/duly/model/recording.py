"""From whatever a handler returned to an outcome that can be written. Its code may be wrong or hostile; recording what
it did must not fail, nor harm the jobs beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from typing import Any

from duly.model.errors import InvalidInputError
from duly.model.outcomes import Bury, Cancel, Hold, Interrupted, Outcome, Report, Retry, Snooze, Success
from duly.model.results import checked_result
from duly.model.states import DeadReason
from duly.model.storable import ERROR_LIMIT, class_name, describe, shown, storable_text

CLASS_LIMIT = 100
EXCERPT_LIMIT_BYTES = 65_536
_MEMBERS = 1_000
_STATUS_CODES = range(2**15)  # the column's: whether it means anything is the handler's business


def recordable(outcome: object, kind: str) -> Outcome:
    """The outcome with every part as the types say, a result as JSON text; reports are left to `sound_report`.

    What is no outcome, a result that cannot be kept and a snooze without a proper delay are failed attempts, and say
    so. A wrong `at_least` is ignored. A wrong reason is `permanent`, and the one stated is kept in the report's detail.
    Never raises.
    """
    try:
        return _checked(outcome, kind)
    except BaseException as error:  # SystemExit and the like too: an attribute of a hostile outcome
        return Retry(Report("error", error=f"the outcome could not be read: {describe(error)}"))


def sound_report(report: Report | None, otherwise: str = "error") -> Report:
    """A report whose every part has its type and a bounded size; what has not is left out.

    `result`, at most 100 characters, is `otherwise` if it is no text. `error`: any other value as text. `status_code`:
    0 to 32,767. `duration`: not negative. `excerpt`: bytes, at most 64 KiB. `detail`: a plain dict of at most 1,000
    members, its keys as text. Never raises.
    """
    result, error = _part(report, "result"), _part(report, "error")
    excerpt = _excerpt(_part(report, "excerpt"))
    cut = excerpt is not None and len(excerpt) > EXCERPT_LIMIT_BYTES
    return Report(
        storable_text(result, CLASS_LIMIT) if _is(result, str) and str.__len__(result) else otherwise,
        error=None if error is None else storable_text(error) if _is(error, str) else shown(error, ERROR_LIMIT),
        status_code=_status_code(_part(report, "status_code")),
        duration=_duration(_part(report, "duration")),
        excerpt=None if excerpt is None else excerpt[:EXCERPT_LIMIT_BYTES],
        excerpt_truncated=cut or _part(report, "excerpt_truncated") is True,
        detail=_detail(_part(report, "detail")),
    )


def _checked(outcome: object, kind: str) -> Outcome:
    match outcome:
        case Success(result=None, report=report):
            return Success(None, _given(report))
        case Success(result=result, report=report):
            try:
                return Success(checked_result(result), _given(report))
            except InvalidInputError as error:
                return Retry(_failed(report, f"the result of kind {kind!r} cannot be kept: {error}"))
        case Retry(report=report, at_least=at_least):
            return Retry(_given(report) or _unreported(kind), _timedelta(at_least))
        case Bury(reason=reason, report=report):
            report = _given(report) or _unreported(kind)
            if type(reason) is DeadReason:
                return Bury(reason, report)
            stated = {**sound_report(report).detail, "stated_reason": shown(reason)}
            return Bury(DeadReason.PERMANENT, replace(sound_report(report), detail=stated))
        case Snooze(delay=delay, report=report):
            exact = _timedelta(delay)
            if exact is not None:
                return Snooze(exact, _given(report))
            return Retry(_failed(report, f"the handler of kind {kind!r} snoozed for {shown(delay)}, not a timedelta"))
        case Hold(delay=delay):
            exact = _timedelta(delay)
            if exact is not None:
                return Hold(exact)
            return Retry(_failed(None, f"the handler of kind {kind!r} held for {shown(delay)}, not a timedelta"))
        case Cancel(report=report):
            return Cancel(_given(report))
        case Interrupted(report=report):
            return Interrupted(_given(report))
    return Retry(Report("error", error=f"the handler of kind {kind!r} returned {class_name(outcome)}, not an outcome"))


def _given(report: Any) -> Report | None:
    return report if _is(report, Report) else None


def _unreported(kind: str) -> Report:
    return Report("error", error=f"the handler of kind {kind!r} gave no report")


def _failed(report: Any, why: str) -> Report:
    return replace(sound_report(_given(report)), result="error", error=why)


def _is(value: object, kind: type) -> bool:
    return issubclass(type(value), kind)  # not isinstance, which believes a value's own __class__


def _part(report: Report | None, name: str) -> Any:
    try:
        return getattr(report, name, None)
    except BaseException:  # a property of a subclass
        return None


def _timedelta(value: Any) -> timedelta | None:
    return timedelta.__pos__(value) if _is(value, timedelta) else None  # an exact one, of a subclass too


def _duration(value: Any) -> timedelta | None:
    duration = _timedelta(value)
    return duration if duration is not None and duration >= timedelta(0) else None


def _status_code(value: Any) -> int | None:
    code = int.__int__(value) if _is(value, int) and type(value) is not bool else None
    return code if code in _STATUS_CODES else None


def _excerpt(value: Any) -> bytes | None:
    """One byte more than is kept, to tell that there was more."""
    if _is(value, bytes):
        return bytes.__getitem__(value, slice(EXCERPT_LIMIT_BYTES + 1))
    if _is(value, bytearray):
        return bytes(bytearray.__getitem__(value, slice(EXCERPT_LIMIT_BYTES + 1)))
    return None


def _detail(value: Any) -> dict[str, Any]:
    members: Iterable[tuple[Any, Any]]
    try:
        if _is(value, dict):
            members = dict.items(value)
        elif isinstance(value, Mapping):
            members = ((key, value[key]) for key in value)
        else:
            return {}
        return {
            storable_text(key) if _is(key, str) else shown(key): member for key, member in islice(members, _MEMBERS)
        }
    except BaseException:  # the mapping's own code
        return {}
