"""What a notice says: a sentence for people, figures for programs, and where to look. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from duly.queue.noticing import Deaths
from duly.service.moments import show_moment
from duly.service.notice_plan import Episode, Finding
from duly.service.notices import MOST_DEAD_LETTERS, Notice, NoticeType, message_of

LISTED = 20
_OFTEN = 5

_LINKS: Mapping[str, dict[str, str]] = {
    "dead_letters": {"jobs": "/v1/jobs?state=dead", "dashboard": "/dashboard/dead"},
    "breaker_opened": {"dashboard": "/dashboard/"},
    "breaker_closed": {"dashboard": "/dashboard/"},
    "quota_near": {"usage": "/v1/usage"},
    "schedule_silent": {"schedules": "/v1/schedules"},
}


@dataclass(frozen=True, slots=True)
class Place:
    """A project or, without its own parts, an account, for people."""

    account_id: UUID
    account: str
    project_id: UUID | None = None
    project: str | None = None

    def to_json(self) -> dict[str, Any]:
        account = {"id": str(self.account_id), "name": self.account}
        if self.project_id is None:
            return {"account": account}
        return {"account": account, "project": {"id": str(self.project_id), "name": self.project}}


def message(
    notice: Notice, kind: NoticeType, findings: Sequence[Finding], again: Collection[str], now: datetime
) -> dict[str, Any]:
    """The body that tells of these findings, all of one type. `again`: keys of those that were told before."""
    match kind:
        case "dead_letters":
            [one] = findings
            what, figures = _dead_sentence(one.detail), dict(one.detail)
        case "breaker_opened":
            what, figures = f"deliveries are held: {_hosts(findings)}", _listed("breakers", findings)
        case "breaker_closed":
            what, figures = f"deliveries go again: {_hosts(findings)}", _listed("breakers", findings)
        case "quota_near":
            what, figures = _quota_sentence(findings), _listed("quotas", findings)
        case "schedule_silent":  # pragma: no branch (the last type)
            what, figures = _silent_sentence(findings), _listed("schedules", findings)
    is_again = all(finding.key in again for finding in findings)
    sentence = f"still: {what}" if is_again else what
    return message_of(notice, kind, now, sentence, {**figures, "again": is_again}, _LINKS[kind])


def deaths_detail(notice: Notice, deaths: Sequence[Deaths], places: Mapping[int, Place]) -> dict[str, Any]:
    """The figures of dead letters: how many, since when, and of which hosts, errors and projects the most are."""
    dead = sum(one.dead for one in deaths)
    detail: dict[str, Any] = {
        "dead": dead,
        "is_at_least": dead >= MOST_DEAD_LETTERS,
        "threshold": notice.settings.dead_letters,
        "within_seconds": notice.settings.dead_within.total_seconds(),
        "since": show_moment(min(one.since for one in deaths)),
        "hosts": [{"host": host, "dead": n} for (host,), n in _often(((one.host,), one.dead) for one in deaths)],
        "errors": [
            {"outcome": outcome, "status_code": status, "reason": reason, "dead": n}
            for (outcome, status, reason), n in _often(
                ((one.outcome, one.status_code, one.reason), one.dead) for one in deaths
            )
        ],
    }
    if notice.about != "project":
        often = _often(((one.project_id,), one.dead) for one in deaths)
        detail["projects"] = [{**places[project].to_json(), "dead": n} for (project,), n in often if project in places]
    return detail


def closed(episode: Episode) -> Finding:
    """That a breaker is closed that was told to be open."""
    _, _, host = episode.key.split(":", 2)
    return Finding("breaker_closed", episode.key, {"host": host, "told_at": show_moment(episode.told_at)})


def _often(counted: Iterable[tuple[tuple[Any, ...], int]]) -> list[tuple[tuple[Any, ...], int]]:
    tally: Counter[tuple[Any, ...]] = Counter()
    for what, number in counted:
        tally[what] += number
    return tally.most_common(_OFTEN)


def _listed(name: str, findings: Sequence[Finding]) -> dict[str, Any]:
    return {"count": len(findings), name: [dict(finding.detail) for finding in findings[:LISTED]]}


def _dead_sentence(detail: Mapping[str, Any]) -> str:
    least = "at least " if detail["is_at_least"] else ""
    jobs = "job" if detail["dead"] == 1 else "jobs"
    sentence = f"{least}{detail['dead']} {jobs} died since {detail['since']}"
    often = [one for one in detail["hosts"] if one["host"] is not None][:1]
    return sentence + "".join(f", {one['dead']} of them for {one['host']}" for one in often)


def _hosts(findings: Sequence[Finding]) -> str:
    return _some(list(dict.fromkeys(finding.detail["host"] for finding in findings)))


def _quota_sentence(findings: Sequence[Finding]) -> str:
    told = [f"{one.detail['used']} of {one.detail['limit']} ({one.detail['name']})" for one in findings]
    return f"near a limit: {_some(told)}"


def _silent_sentence(findings: Sequence[Finding]) -> str:
    return f"schedules do not fire: {_some([one.detail['name'] or one.detail['id'] for one in findings])}"


def _some(names: Sequence[str]) -> str:
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")
