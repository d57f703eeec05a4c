"""Standard Webhooks, version 1 signatures (standardwebhooks.com): HMAC-SHA256 over id, time and the exact body
bytes."""

from __future__ import annotations

import base64
import binascii
import hmac
import html
import json
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import quote, quote_plus

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


def _signature(secret: bytes, signed: bytes) -> str:
    digest = hmac.digest(secret, signed, "sha256")
    return "v1," + base64.b64encode(digest).decode("ascii")


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
