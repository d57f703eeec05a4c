"""Reading a request's body: UTF-8 JSON, counted while it arrives, in bounded time. What is cut off leaves nothing."""

from __future__ import annotations

import asyncio
from email.message import Message
from functools import lru_cache

from fastapi import Request

from duly.api.problems import Problem
from duly.api.settings import ApiSettings

_CLOSE = {"connection": "close"}  # the rest of the body stays unread

# A client that still sends when the connection closes sees a reset instead of the answer. So what is too long is read
# on for a while, and kept nowhere.
_DISCARDED_BYTES = 16 * 1024 * 1024
_REMEMBERED_LENGTH = 200


async def read_text(request: Request, settings: ApiSettings, limit_bytes: int | None = None) -> str:
    """The body as text, `limit_bytes` long at most (None: what one job may have). Raises Problem 400, 408, 413, 415."""
    _check_media_type(request)
    body = await _read_bytes(request, settings, settings.request_limit_bytes if limit_bytes is None else limit_bytes)
    if body.startswith(b"\xef\xbb\xbf"):
        raise _malformed("the body starts with a byte order mark: send plain UTF-8")
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _malformed(f"the body is not UTF-8: see byte {error.start}") from None


def _check_media_type(request: Request) -> None:
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise _unsupported("a compressed body is not taken: send it without Content-Encoding")
    content_type = request.headers.get("content-type")
    if not content_type:
        return
    fault = _remembered_fault(content_type) if len(content_type) <= _REMEMBERED_LENGTH else _fault_of(content_type)
    if fault is not None:
        raise _unsupported(fault)


def _fault_of(content_type: str) -> str | None:
    parsed = Message()
    parsed["content-type"] = content_type
    media_type = parsed.get_content_type()
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        return "the body must be JSON: send it with Content-Type: application/json"
    if str(parsed.get_param("charset", "utf-8")).lower() not in ("utf-8", "utf8"):
        return "JSON is UTF-8 (RFC 8259): send it so, and leave the charset out"
    return None


_remembered_fault = lru_cache(maxsize=256)(_fault_of)  # the same few come again


async def _read_bytes(request: Request, settings: ApiSettings, limit: int) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced[:20]) > limit + _DISCARDED_BYTES:
        raise _too_large(limit)
    chunks: list[bytes] = []
    length = 0
    try:
        async with asyncio.timeout(settings.read_timeout_s):
            async for chunk in request.stream():
                length += len(chunk)
                if length <= limit:
                    chunks.append(chunk)
                    continue
                chunks.clear()
                if length > limit + _DISCARDED_BYTES:
                    break
    except TimeoutError:
        detail = f"the body did not arrive within {settings.read_timeout_s:g} s"
        raise Problem(408, "too-slow", "The request took too long", detail, headers=_CLOSE) from None
    if length > limit:
        raise _too_large(limit)
    return b"".join(chunks)


def _malformed(detail: str) -> Problem:
    return Problem(400, "malformed", "The body is not JSON", detail)


def _unsupported(detail: str) -> Problem:
    return Problem(415, "unsupported-media-type", "The media type is not supported", detail)


def _too_large(limit_bytes: int) -> Problem:
    detail = f"the request is longer than {limit_bytes} bytes: send a reference to the data instead"
    return Problem(413, "too-large", "The request is too large", detail, headers=_CLOSE)
