"""An application as ASGI has it, and what of a request may be told: words that no client makes up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def method_of(scope: Scope) -> str:
    """The method, or "(other)": a client may send any word."""
    return scope["method"] if scope["method"] in _METHODS else "(other)"


def route_of(scope: Scope) -> str:
    """The template of the route that answered, below where its application is mounted; of what is no route in there,
    the mount's; or "(none)".
    """
    mount, route = scope.get("root_path", ""), getattr(scope.get("route"), "path", None) or ""
    return (mount if mount.endswith(route) else mount + route) or "(none)"
