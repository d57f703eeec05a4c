"""Standard Webhooks, version 1 (standardwebhooks.com): the secret's text form, and the signature of one message."""

from __future__ import annotations

import base64
import binascii
import hmac

from duly.model.errors import InvalidInputError

SECRET_PREFIX = "whsec_"  # noqa: S105 - the public prefix of the text form, not a secret


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


def signature(secret: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    """`v1,` and the base64 of the HMAC-SHA256 over id, time and the exact body bytes."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(secret, signed, "sha256")).decode("ascii")
