"""What a job's owner wants hidden on every read, beside the headers that are secret by their name. Pure.

Delivered intact: it governs what is shown and what the ledger keeps, never what is sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from duly.service.views import MASK, is_secret_header


@dataclass(frozen=True, slots=True)
class Redaction:
    """`headers`: names, as given, whose values are hidden in the request and in the answer; `body`: the request's body
    is not shown; `response`: what the target answers is not kept.
    """

    headers: tuple[str, ...] = ()
    body: bool = False
    response: bool = False

    @classmethod
    def of(cls, payload: Any) -> Redaction:
        """That of a stored payload; an empty one if it has none."""
        stored = payload.get("redact") if isinstance(payload, dict) else None
        if not isinstance(stored, dict):
            return _NOTHING
        names = stored.get("headers")
        return cls(
            tuple(str(name) for name in names) if isinstance(names, list) else (),
            stored.get("body") is True,
            stored.get("response") is True,
        )

    def to_json(self) -> dict[str, Any]:
        """As it is stored and shown."""
        return {"headers": list(self.headers), "body": self.body, "response": self.response}

    def names(self, header: str) -> bool:
        """Whether it lists this header, in any case and spelling."""
        return bool(self.headers) and _plain(header) in {_plain(name) for name in self.headers}

    def masked(self, headers: Iterable[Any]) -> list[list[str]]:
        """Name and value pairs in their order; a value shows as "***" if its header is secret or listed, and if the
        value is not known here (None).
        """
        listed = {_plain(name) for name in self.headers}
        return [
            [name, MASK if value is None or is_secret_header(name) or (listed and _plain(name) in listed) else value]
            for name, value in headers
        ]


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


_NOTHING = Redaction()
