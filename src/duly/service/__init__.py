"""What the API does, without HTTP: accounts, projects, keys, signing secrets, creating jobs and showing them, breakers,
schedules and firing them.

May import: `duly.http`, `duly.upkeep`, `duly.queue`, `duly.model`. Knows no framework and no status codes.
Tables: account, project, api_key, signing_secret, schedule and its turn, read and written here (a fire's row where a
person asks for it); everything else only through `duly.queue`.
Must hold: every read and write names its owner; a key's text and a secret's bytes are never logged, and with a keyring
header values, bodies and signing secrets are stored sealed; a create that was answered is committed; a key that was
revoked is refused from that moment on.
"""

from duly.service.accounts import (
    Account,
    DefaultTenant,
    Project,
    create_account,
    create_project,
    ensure_default,
    list_accounts,
    list_projects,
)
from duly.service.creating import Creator
from duly.service.faults import BodyTooLargeError, Fault, FieldError, InvalidJobError
from duly.service.jobs import JobSpec, Limits, new_http_job
from duly.service.keyring import NO_KEYRING, KeyMissingError, Keyring, SealedError, TamperedError
from duly.service.keys import (
    SCOPES,
    CreatedKey,
    Gatekeeper,
    KeyInfo,
    Principal,
    Scope,
    authenticate,
    create_key,
    list_keys,
    revoke_key,
)
from duly.service.secrets import (
    SigningSecret,
    SigningSecrets,
    create_secret,
    list_secrets,
    reseal_secrets,
    rotate_secret,
    secrets_by_key,
)

__all__ = [
    "NO_KEYRING",
    "SCOPES",
    "Account",
    "BodyTooLargeError",
    "CreatedKey",
    "Creator",
    "DefaultTenant",
    "Fault",
    "FieldError",
    "Gatekeeper",
    "InvalidJobError",
    "JobSpec",
    "KeyInfo",
    "KeyMissingError",
    "Keyring",
    "Limits",
    "Principal",
    "Project",
    "Scope",
    "SealedError",
    "SigningSecret",
    "SigningSecrets",
    "TamperedError",
    "authenticate",
    "create_account",
    "create_key",
    "create_project",
    "create_secret",
    "ensure_default",
    "list_accounts",
    "list_keys",
    "list_projects",
    "list_secrets",
    "new_http_job",
    "reseal_secrets",
    "revoke_key",
    "rotate_secret",
    "secrets_by_key",
]
