"""Nobody in the service stores a secret in the clear by leaving an argument out."""

from __future__ import annotations

import ast
from pathlib import Path

import duly

SEALING = {"Creator", "SigningSecrets", "create_app", "create_project", "create_secret", "ensure_default",
           "ensure_operator", "create_project_with_secret", "add_secret", "list_secrets", "rotate_secret"}  # fmt: skip


SEALERS = ("creating.py", "firing.py")  # whose jobs go through `sealed_job`


def test_no_caller_in_the_service_forgets_its_keyring() -> None:
    """Every call in src that stores or reads secrets names the keyring, and nobody enqueues
    but the creator and the firer of schedules, who seal: what is left out would be stored in the clear.
    """
    forgotten: list[str] = []
    for path in Path(duly.__file__).parent.rglob("*.py"):
        part = path.parent.name
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id in SEALING and "keyring" not in {keyword.arg for keyword in node.keywords}:
                forgotten.append(f"{path}:{node.lineno} {node.func.id}")
            if node.func.id == "enqueue" and part in ("api", "service", "cli") and path.name not in SEALERS:
                forgotten.append(f"{path}:{node.lineno} enqueue")
    assert forgotten == []
