"""The answers about accounts, plans, projects, keys, signing secrets and usage, for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from duly.api.documents import Moment
from duly.service import Account, CreatedKey, KeyInfo, Plan, Project, SigningSecret
from duly.service.moments import show_moment
from duly.service.notices import About, Notice, NoticeType
from duly.service.plans import LIMIT_RULES, AccountLimits
from duly.service.secrets import SecretInfo
from duly.service.usage import COUNTED_TO, Usage

_AT_MOST = f"counted to {COUNTED_TO}: that number means so many or more"


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class LimitsDocument(_Document):
    """Limits; durations in seconds; null: none but the operator's own."""

    running: int | None
    stored: int | None
    request_rate: float | None
    monthly_quota: int | None
    body_bytes: int | None
    horizon: float | None
    keep: float | None
    keep_dead: float | None


class PlanDocument(_Document):
    """A plan. `limits` has those that were given."""

    name: str
    limits: dict[str, float | None]
    created_at: Moment
    updated_at: Moment


class PlanListDocument(_Document):
    """All plans, by name."""

    data: list[PlanDocument]


class AccountDocument(_Document):
    """An account. `limits` are its own, `effective_limits` what applies: its own, else its plan's."""

    id: str
    name: str
    operator: Annotated[bool, Field(description="its admin keys administer all accounts")]
    plan: str | None
    limits: dict[str, float | None]
    effective_limits: LimitsDocument
    created_at: Moment
    disabled_at: Moment | None


class AccountListDocument(_Document):
    """A page of accounts, the oldest first."""

    data: list[AccountDocument]
    next_cursor: str | None


class ProjectDocument(_Document):
    """A project."""

    id: str
    account_id: str
    name: str
    created_at: Moment


class NewProjectDocument(ProjectDocument):
    """A new project, with its first signing secret: it is not shown again."""

    signing_secret: NewSecretDocument


class ProjectListDocument(_Document):
    """A page of projects, the oldest first."""

    data: list[ProjectDocument]
    next_cursor: str | None


class KeyDocument(_Document):
    """An API key, without the key. `hint` is how it begins."""

    id: str
    project_id: str
    name: str
    hint: str
    scopes: list[str]
    created_at: Moment
    expires_at: Moment | None
    revoked_at: Moment | None
    last_used_at: Annotated[Moment | None, Field(description="to the minute")]


class NewKeyDocument(KeyDocument):
    """A new key: `key` is not shown again."""

    key: str


class KeyListDocument(_Document):
    """A page of keys, the oldest first, revoked and expired ones too."""

    data: list[KeyDocument]
    next_cursor: str | None


class SecretDocument(_Document):
    """A signing secret, without the secret."""

    id: str
    project_id: str
    created_at: Moment
    expires_at: Moment | None


class NewSecretDocument(SecretDocument):
    """A new signing secret: `secret` (whsec_…, as Standard Webhooks has it) is not shown again."""

    secret: str


class SecretListDocument(_Document):
    """A page of living signing secrets, the oldest first."""

    data: list[SecretDocument]
    next_cursor: str | None


class NoticeDocument(_Document):
    """A URL that is told when something needs a person. `account_id`: of which account it is told; null: of all."""

    id: str
    url: str
    about: About
    project_id: Annotated[str, Field(description="whose jobs tell it")]
    account_id: str | None
    types: list[NoticeType]
    dead_letters: Annotated[int, Field(description="so many dead letters within dead_within are told of")]
    dead_within: Annotated[float, Field(description="seconds")]
    queue: str
    created_at: Moment
    updated_at: Moment


class NoticeListDocument(_Document):
    """A page of notices, the oldest first."""

    data: list[NoticeDocument]
    next_cursor: str | None


class NoticeTestDocument(_Document):
    """The job that delivers a test notice, in the notice's project."""

    job_id: str


class UsageDocument(_Document):
    """What the account uses and what is left to it."""

    slots_in_use: Annotated[int, Field(description="jobs that run now")]
    due_backlog: Annotated[int, Field(description=f"jobs that are due and wait for a slot; {_AT_MOST}")]
    oldest_due_age: Annotated[float | None, Field(description="seconds since the first of them became due")]
    stored: Annotated[int, Field(description=f"jobs that have not ended; {_AT_MOST}")]
    quota_used: Annotated[int | None, Field(description="jobs created this month; null without a quota")]
    quota_left: int | None
    quota_resets_at: Moment
    limits: LimitsDocument


def limits_json(limits: AccountLimits) -> dict[str, Any]:
    """A LimitsDocument."""
    values = {name: getattr(limits, name) for name in LIMIT_RULES}
    return {name: value.total_seconds() if hasattr(value, "total_seconds") else value for name, value in values.items()}


def plan_json(plan: Plan) -> dict[str, Any]:
    """A PlanDocument."""
    return {
        "name": plan.name,
        "limits": plan.limits,
        "created_at": show_moment(plan.created_at),
        "updated_at": show_moment(plan.updated_at),
    }


def account_json(account: Account) -> dict[str, Any]:
    """An AccountDocument."""
    return {
        "id": str(account.id),
        "name": account.name,
        "operator": account.operator,
        "plan": account.plan,
        "limits": account.limits,
        "effective_limits": limits_json(account.effective),
        "created_at": show_moment(account.created_at),
        "disabled_at": account.disabled_at and show_moment(account.disabled_at),
    }


def project_json(project: Project) -> dict[str, Any]:
    """A ProjectDocument."""
    return {
        "id": str(project.id),
        "account_id": str(project.account_id),
        "name": project.name,
        "created_at": show_moment(project.created_at),
    }


def key_json(key: KeyInfo) -> dict[str, Any]:
    """A KeyDocument."""
    return {
        "id": str(key.id),
        "project_id": str(key.project_id),
        "name": key.name,
        "hint": key.hint,
        "scopes": sorted(key.scopes),
        "created_at": show_moment(key.created_at),
        "expires_at": key.expires_at and show_moment(key.expires_at),
        "revoked_at": key.revoked_at and show_moment(key.revoked_at),
        "last_used_at": key.last_used_at and show_moment(key.last_used_at),
    }


def new_key_json(key: CreatedKey) -> dict[str, Any]:
    """A NewKeyDocument."""
    return key_json(key.info) | {"key": key.key}


def secret_json(secret: SecretInfo) -> dict[str, Any]:
    """A SecretDocument."""
    return {
        "id": str(secret.id),
        "project_id": str(secret.project_id),
        "created_at": show_moment(secret.created_at),
        "expires_at": secret.expires_at and show_moment(secret.expires_at),
    }


def new_secret_json(secret: SigningSecret, project: Project) -> dict[str, Any]:
    """A NewSecretDocument."""
    info = SecretInfo(secret.id, project.id, secret.created_at, secret.expires_at)
    return secret_json(info) | {"secret": secret.text}


def notice_json(notice: Notice) -> dict[str, Any]:
    """A NoticeDocument."""
    return {
        "id": str(notice.id),
        "url": notice.settings.url,
        "about": notice.about,
        "project_id": str(notice.project_id),
        "account_id": None if notice.account_id is None else str(notice.account_id),
        "types": list(notice.settings.types),
        "dead_letters": notice.settings.dead_letters,
        "dead_within": notice.settings.dead_within.total_seconds(),
        "queue": notice.settings.queue,
        "created_at": show_moment(notice.created_at),
        "updated_at": show_moment(notice.updated_at),
    }


def usage_json(usage: Usage) -> dict[str, Any]:
    """A UsageDocument."""
    return {
        "slots_in_use": usage.slots_in_use,
        "due_backlog": usage.due_backlog,
        "oldest_due_age": usage.oldest_due_age_s,
        "stored": usage.stored,
        "quota_used": usage.quota_used,
        "quota_left": usage.quota_left,
        "quota_resets_at": show_moment(usage.quota_resets_at),
        "limits": limits_json(usage.limits),
    }
