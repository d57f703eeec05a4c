"""One job: what it is, every attempt, what is still to come, the request; and what can be done about it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from http.client import SEE_OTHER
from typing import Any
from uuid import UUID

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from duly.api.admission import create_within_limits
from duly.api.inputs import read_uuid
from duly.api.render import attempt_json, body_json, job_json
from duly.dashboard.curl import as_curl
from duly.dashboard.guarding import HOME
from duly.dashboard.parts import Parts, parts_of, reader, writer
from duly.model import FINAL, State, uuid7
from duly.model.errors import WrongStateError
from duly.queue import AttemptView, JobView, Owner, cancel, get_job, list_attempts, redrive, run_now
from duly.service import AccountLimits, Fault, FieldError, InvalidFieldsError, SealedError
from duly.service.accounts import numbered_account
from duly.service.jobs import check_id
from duly.service.redaction import Redaction
from duly.service.replaying import replayed_job
from duly.service.sealing import opened_excerpt, opened_view
from duly.service.sessions import Viewer
from duly.service.views import retry_plan

_PHASES = ("dns", "connect", "tls", "first_byte", "total")


@dataclass(frozen=True, slots=True)
class ShownAttempt:
    """An attempt as the API shows it, and its phases as consecutive parts in milliseconds."""

    told: dict[str, Any]
    view: AttemptView
    parts: tuple[tuple[str, float], ...]

    @property
    def succeeded(self) -> bool:
        return self.view.outcome == "success"


@dataclass(frozen=True, slots=True)
class _Maker:
    """For whom a copy is made: the project of the job, whoever asks."""

    owner: Owner
    limits: AccountLimits


async def show(request: Request) -> Response:
    """Everything that the viewer may know; the body with the scope read_payloads only."""
    viewer = await reader(request)
    parts = parts_of(request)
    job = await _found(request, viewer, with_body="read_payloads" in viewer.scopes)
    ledger = await list_attempts(parts.services.database, viewer.owner, job.id) or []
    opened = [opened_excerpt(parts.services.keyring, attempt, job.project_id) for attempt in ledger]
    attempts = [ShownAttempt(attempt_json(one), one, _phases(one)) for one in opened]
    job, body = _body(parts, viewer, job)
    told = job_json(job)
    return parts.page(
        request,
        "job.html",
        viewer,
        job=job,
        told=told,
        attempts=list(reversed(attempts)),
        longest=max([sum(size for _, size in one.parts) for one in attempts], default=0.0),
        plan=retry_plan(job),
        headers=told["headers"],
        body=body,
        curl=as_curl(told, body if isinstance(body, str) else None),
        actions=_actions(viewer, job),
        may_replay="write" in viewer.scopes and job.state in FINAL,
    )


async def ask_to_replay(request: Request) -> Response:
    """What a copy would be, before anybody says so; with the copy's id, so that the form sent twice makes one."""
    viewer = await reader(request)
    parts = parts_of(request)
    job = await _found(request, viewer)
    if job.state not in FINAL:
        raise WrongStateError(job.id, job.state, "replay", "succeeded, dead and cancelled")
    told = job_json(job)
    return parts.page(
        request,
        "confirm.html",
        viewer,
        title="Replay this job?",
        facts=[
            ("Job", str(job.id)),
            ("State", job.state),
            ("Sends", f"{told['method']} {told['url']}" if told["url"] else job.kind),
            ("Queue", job.queue),
        ],
        warning="A new job is made as a copy, due now, with a fresh budget of attempts and a ledger of its own. "
        "What is already done at the target happens again: it sees another job's id.",
        action=f"/jobs/{job.id}/replay",
        hidden={"id": str(uuid7(int(parts.services.clock.now().timestamp() * 1000)))},
        button="Replay",
        back=f"/jobs/{job.id}",
        live=False,
    )


async def replay(request: Request) -> Response:
    """Make the copy inside the limits of the job's account, then show it."""
    viewer, form = await writer(request)
    services = parts_of(request).services
    job = await _found(request, viewer, with_body=True)
    copy = replayed_job(opened_view(services.keyring, job), policy=services.policy)
    copy = replace(copy, id=_checked_id(form.get("id", ""), services.clock.now()))
    owner = Owner(job.account_id, job.project_id)
    limits = (await numbered_account(services.database, owner.account_id)).effective
    made = await create_within_limits(services, _Maker(owner, limits), copy)
    parts_of(request).figures.forget(viewer.owner)
    return RedirectResponse(f"{HOME}/jobs/{made.job_id}?said=replayed", SEE_OTHER)


async def act(request: Request) -> Response:
    """Do what the form's button says, then show the job again."""
    viewer, _ = await writer(request)
    parts = parts_of(request)
    job = await _found(request, viewer)
    owner = Owner(job.account_id, job.project_id)
    db = parts.services.database
    action = request.path_params["action"]
    result: str
    match action:
        case "cancel":
            result = await cancel(db, owner, job.id)
        case "abort":
            result = await cancel(db, owner, job.id, abort=True)
        case "run":
            result = await run_now(db, owner, job.id)
        case "redrive":
            result = await redrive(db, owner, job.id, by=viewer.by)
        case _:
            raise HTTPException(404)
    if result == "missing":
        raise HTTPException(404)
    parts.figures.forget(viewer.owner)
    return RedirectResponse(f"{HOME}/jobs/{job.id}?said={result}", SEE_OTHER)


def _actions(viewer: Viewer, job: JobView) -> list[tuple[str, str]]:
    """What may be done in this state: the name in the address, and the words on the button."""
    if "write" not in viewer.scopes:
        return []
    if job.state in (State.DEAD, State.CANCELLED):
        return [("redrive", "Redrive")]
    if job.state in FINAL:
        return []
    if job.state is State.RUNNING:
        return [("cancel", "Cancel after this attempt"), ("abort", "Abort and cancel")]
    return [*([("run", "Run now")] if job.state is State.SCHEDULED else []), ("cancel", "Cancel")]


async def _found(request: Request, viewer: Viewer, *, with_body: bool = False) -> JobView:
    """The job of the address. Raises 404 for what is none, and for somebody else's."""
    parts = parts_of(request)
    job_id: UUID
    try:
        job_id = read_uuid(request.path_params["id"])
    except ValueError:
        raise HTTPException(404) from None
    job = await get_job(parts.services.database, viewer.owner, job_id, include_body=with_body)
    if job is None:
        raise HTTPException(404)
    return job


def _checked_id(text: str, now: datetime) -> UUID:
    """The id that the page chose for a copy, by the rule for ids of clients. Raises InvalidFieldsError."""
    try:
        job_id = read_uuid(text)
    except FieldError as error:
        raise InvalidFieldsError([Fault("/id", str(error))]) from None
    faults: list[Fault] = []
    check_id(job_id, now, faults)
    if faults:
        raise InvalidFieldsError(faults)
    return job_id


def _body(parts: Parts, viewer: Viewer, job: JobView) -> tuple[JobView, str | None]:
    """The job in the clear as far as can be, and its body as text; None: there is none to show."""
    sealed = False
    try:
        opened = opened_view(parts.services.keyring, job)
    except SealedError:
        opened, sealed = parts.services.opened(job), True
    if not job.has_body or "read_payloads" not in viewer.scopes or sealed or Redaction.of(job.payload).body:
        return opened, None
    told = body_json(opened)
    return opened, told.get("request_body") or told.get("request_body_base64")


def _phases(attempt: AttemptView) -> tuple[tuple[str, float], ...]:
    """The ledger's phases, each as long as it took by itself."""
    told = attempt.detail.get("phases")
    known = told if isinstance(told, dict) else {}
    sizes = {name: float(size) for name, size in known.items() if isinstance(size, int | float) and size >= 0}
    total = sizes.get("total", (attempt.finished_at - attempt.started_at) / timedelta(milliseconds=1))
    parts = [(name, sizes[name]) for name in _PHASES[:-1] if sizes.get(name)]
    rest = total - sum(size for _, size in parts)
    return (*parts, ("rest", max(rest, 0.0)))


ROUTES = [
    Route("/jobs/{id}", show),
    Route("/jobs/{id}/replay", ask_to_replay, methods=["GET"]),
    Route("/jobs/{id}/replay", replay, methods=["POST"]),
    Route("/jobs/{id}/{action}", act, methods=["POST"]),
]
