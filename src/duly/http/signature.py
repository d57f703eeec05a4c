"""Standard Webhooks, version 1 signatures (standardwebhooks.com): HMAC-SHA256 over id, time and the exact body
bytes."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import lru_cache

from duly.model.webhooks import decode_secret, encode_secret, signature

__all__ = ["decode_secret", "encode_secret", "masked", "sign"]

_SHORTEST_MASKED = 8


def sign(secrets: Sequence[bytes], message_id: str, timestamp_s: int, body: bytes) -> tuple[tuple[str, str], ...]:
    """The webhook-* headers. One signature per secret, so that old and new hold while secrets rotate; none without
    secrets."""
    signatures = [signature(secret, message_id, str(timestamp_s), body) for secret in secrets]
    headers = (("webhook-id", message_id), ("webhook-timestamp", str(timestamp_s)))
    return (*headers, ("webhook-signature", " ".join(signatures))) if signatures else headers


def masked(data: bytes, secrets: Sequence[bytes]) -> bytes:
    """The data with every form of the secrets overwritten by asterisks, length kept."""
    for form, stars in _masks(tuple(secrets)):
        data = data.replace(form, stars)
    return data


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
