"""Standard Webhooks, version 1 signatures (standardwebhooks.com): HMAC-SHA256 over id, time and the exact body
bytes."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import quote, quote_plus

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
    """The data with the secrets overwritten by asterisks, length kept: in any case, as base64 or hex, and escaped as
    JSON, URLs, forms and HTML do. A part of a secret is not recognized.
    """
    if not secrets or not data:
        return data
    lowered, shown = data.lower(), bytearray(data)
    for form in _forms(tuple(secrets)):
        at = lowered.find(form)
        while at >= 0:
            shown[at : at + len(form)] = b"*" * len(form)
            at = lowered.find(form, at + 1)
    return bytes(shown)


@lru_cache(maxsize=256)
def _forms(secrets: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """In lower case, the longest first."""
    forms = {form.lower() for secret in secrets for form in (*_encoded(secret), *_escaped(secret))}
    return tuple(sorted((form for form in forms if len(form) >= _SHORTEST_MASKED), key=len, reverse=True))


def _encoded(secret: bytes) -> tuple[bytes, ...]:
    plain, safe = base64.b64encode(secret), base64.urlsafe_b64encode(secret)
    slashed = plain.replace(b"/", b"\\/")  # as some JSON writers do
    return plain, plain.rstrip(b"="), safe, safe.rstrip(b"="), slashed, secret.hex().encode("ascii")


def _escaped(secret: bytes) -> tuple[bytes, ...]:
    """The secret as it is, and as text inside JSON, a URL, a form, a page."""
    try:
        text = secret.decode("utf-8")
    except UnicodeDecodeError:
        return (secret,)
    in_json = [json.dumps(text, ensure_ascii=is_ascii)[1:-1] for is_ascii in (True, False)]
    pages = [html.escape(text), html.escape(text).replace("&#x27;", "&#39;"), html.escape(text, quote=False)]
    urls = [quote(text), quote(text, safe=""), quote_plus(text)]
    forms = (*in_json, *(form.replace("/", "\\/") for form in in_json), *pages, *urls)
    return (secret, *(form.encode("utf-8") for form in forms))
