"""Standard Webhooks, version 1 signatures (standardwebhooks.com): HMAC-SHA256 over id, time and the exact body
bytes."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Sequence
from functools import lru_cache

from duly.model.errors import InvalidInputError

SECRET_PREFIX = "whsec_"  # noqa: S105 - the public prefix of the text form, not a secret
_SHORTEST_MASKED = 8


def sign(secrets: Sequence[bytes], message_id: str, timestamp_s: int, body: bytes) -> tuple[tuple[str, str], ...]:
    """The webhook-* headers. One signature per secret, so that old and new hold while secrets rotate; none without
    secrets."""
    signed = f"{message_id}.{timestamp_s}.".encode() + body
    signatures = [_signature(secret, signed) for secret in secrets]
    headers = (("webhook-id", message_id), ("webhook-timestamp", str(timestamp_s)))
    return (*headers, ("webhook-signature", " ".join(signatures))) if signatures else headers


def encode_secret(secret: bytes) -> str:
    """The text form that users paste into their libraries: whsec_ and base64."""
    return SECRET_PREFIX + base64.b64encode(secret).decode("ascii")


def decode_secret(text: str) -> bytes:
    """Bytes of the text form; the prefix may be missing. InvalidInputError for anything that is not base64."""
    try:
        secret = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInputError("the signing secret is not whsec_ followed by base64") from error
    if not secret:
        raise InvalidInputError("the signing secret is empty")
    return secret


def masked(data: bytes, secrets: Sequence[bytes]) -> bytes:
    """The data with every form of the secrets overwritten by asterisks, length kept."""
    for form, stars in _masks(tuple(secrets)):
        data = data.replace(form, stars)
    return data


def _signature(secret: bytes, signed: bytes) -> str:
    digest = hmac.digest(secret, signed, "sha256")
    return "v1," + base64.b64encode(digest).decode("ascii")


@lru_cache(maxsize=256)
def _masks(secrets: tuple[bytes, ...]) -> tuple[tuple[bytes, bytes], ...]:
    forms = {form for secret in secrets for form in _forms(secret)}
    return tuple((form, b"*" * len(form)) for form in sorted(forms, key=len, reverse=True))


def _forms(secret: bytes) -> list[bytes]:
    plain = base64.b64encode(secret)
    safe = base64.urlsafe_b64encode(secret)
    escaped = plain.replace(b"/", b"\\/")  # as some JSON writers do
    hexed = secret.hex().encode("ascii")
    forms = (secret, plain, plain.rstrip(b"="), safe, safe.rstrip(b"="), escaped, hexed, hexed.upper())
    return [form for form in forms if len(form) >= _SHORTEST_MASKED]
