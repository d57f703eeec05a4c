"""A request as it is stored with a job: checked when it is made, and parsed as strictly again when it is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from duly.http.headers import check_headers, check_method
from duly.http.url import Target, parse_target
from duly.model.errors import InvalidInputError

HOPS_HEADER = "Duly-Hops"
MAX_HOPS = 8

_BODYLESS = frozenset({"GET", "HEAD"})


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """One HTTP request. `body` None sends none; b"" sends Content-Length: 0.

    `hops` is how many such services the work already went through (the Duly-Hops that came in, or 0); hops + 1 is sent.
    """

    method: str
    target: Target
    headers: tuple[tuple[str, str], ...]
    body: bytes | None
    hops: int = 0

    def to_payload(self) -> dict[str, Any]:
        """The JSON value to store; the body is stored apart, as bytes."""
        payload: dict[str, Any] = {
            "url": self.target.url,
            "method": self.method,
            "headers": [[name, value] for name, value in self.headers],
        }
        if self.hops:
            payload["hops"] = self.hops
        return payload

    @classmethod
    def from_payload(cls, payload: Any, body: bytes | None) -> StoredRequest:
        """Read a stored payload; anything that `new_request` would refuse is refused here too."""
        if not isinstance(payload, dict) or not isinstance(payload.get("url"), str):
            raise InvalidInputError("the stored request has no url: create the job again", "/url")
        return new_request(
            payload["url"], payload.get("method", "POST"), payload.get("headers", ()), body, payload.get("hops", 0)
        )

    def header(self, name: str) -> str | None:
        """The first value of a header, by case-insensitive name."""
        name = name.lower()
        for key, value in self.headers:
            if key.lower() == name:
                return value
        return None


def new_request(
    url: str,
    method: str = "POST",
    headers: Iterable[tuple[str, str]] = (),
    body: bytes | None = None,
    hops: int = 0,
) -> StoredRequest:
    """Check every part of a request; InvalidInputError points at the part that is wrong. Policy is checked apart."""
    target = parse_target(url)
    method = check_method(method)
    if body is not None and method in _BODYLESS:
        raise InvalidInputError(f"a {method} request has no body: use POST, or leave the body out", "/body")
    if type(hops) is not int or hops < 0:
        raise InvalidInputError(f"{HOPS_HEADER} is not a count", "/hops")
    if hops >= MAX_HOPS:
        raise InvalidInputError(f"the request went through {hops} job services already: break the loop", "/hops")
    return StoredRequest(method, target, check_headers(_pairs(headers)), body, hops)


def _pairs(headers: Any) -> list[tuple[str, str]]:
    try:
        pairs = [(name, value) for name, value in headers]
    except (TypeError, ValueError) as error:
        raise InvalidInputError("headers are not a list of [name, value] pairs", "/headers") from error
    for name, value in pairs:
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidInputError("header names and values are text", "/headers")
    return pairs
