"""Connections that ended too early, as the client tells of them."""

from __future__ import annotations

import aiohttp


class LostConnectionError(aiohttp.ClientError):
    """The connection ended before an answer's head was whole."""


class UnansweredError(LostConnectionError):
    """The connection ended and not one byte of an answer had come."""
