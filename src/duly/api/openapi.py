"""The OpenAPI document as a file: `python -m duly.api.openapi FILE` writes it. A test holds the committed one to it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from duly.api.app import routed_app


def document_text() -> str:
    """The document that is served at /openapi.json, in an order and a form that make differences easy to read."""
    return json.dumps(routed_app().openapi(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(document_text(), encoding="utf-8")
