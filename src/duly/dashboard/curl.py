"""A job's request as a line for a shell. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from duly.service.views import MASK


def as_curl(job: Mapping[str, Any], body: str | None) -> str | None:
    """The request as curl would send it; None for a job that is no HTTP request. What is masked stays so, and must be
    filled in; a body that is not shown is left out and said to be.
    """
    url = job.get("url")
    if not isinstance(url, str):
        return None
    parts = [
        "curl -sS -i --globoff --path-as-is",
        f"-X {shlex.quote(str(job.get('method') or 'POST'))}",
        shlex.quote(url),
    ]
    for name, value in job.get("headers") or ():
        parts.append("-H " + shlex.quote(f"{name}: {value}" if value else f"{name};"))
    if body is not None and body != MASK:
        parts.append("--data-raw " + shlex.quote(body))
    elif job.get("has_body"):
        parts.append("--data-binary @BODY")
    return " \\\n  ".join(parts)
