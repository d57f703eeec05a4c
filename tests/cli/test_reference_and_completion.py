"""The page of all commands is current; every command that prints has --json; the shell completes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from cli.harness import ENCRYPTION_KEYS, command, duly, environment, put_job
from duly.cli.main import app
from duly.cli.reference import reference

ROOT = Path(__file__).parents[2]
SERVICES = ("api", "up", "worker", "export")  # these go on, or print NDJSON


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, child in group.commands.items():
        if hasattr(child, "commands"):
            yield from commands(child, (*path, name))
        else:
            yield (*path, name), child


def test_the_page_is_current() -> None:
    """`make cli` writes it."""
    page = ROOT / "docs" / "reference" / "cli.md"
    assert page.read_text("utf-8") == reference(), "the commands have changed: run `make cli`"


def test_the_page_names_everything() -> None:
    """Every command with each of its options, but for those that all have."""
    page = reference()
    for path, one in commands(typer.main.get_command(app)):
        section = page.split(f"`duly {' '.join(path)}`\n")[1].split("\n#")[0]
        for param in one.params:
            if param.param_type_name == "option" and param.name not in ("database_url", "home", "schema"):
                assert f"`{param.opts[0]}`" in section, (path, param.name)


def test_every_command_can_print_json() -> None:
    """But for those that serve."""
    without = [
        path
        for path, one in commands(typer.main.get_command(app))
        if not any("--json" in param.opts for param in one.params)
    ]
    assert sorted(path[0] for path in without) == sorted(SERVICES)


def test_what_was_done_is_told_as_json(database_url: str) -> None:
    """One document each, whatever the command does."""
    given = ["--json", "--database-url", database_url]
    assert duly("migrate", *given).json["schema"] == "duly"
    job = put_job(database_url)
    assert duly("jobs", "cancel", job, *given).json == {"result": "cancelled", "job": job}
    assert duly("dead", "redrive", job, *given).json == {"result": "redriven", "jobs": 1}
    key = duly("keys", "create", "mine", *given).json
    assert (key["name"], key["key"].startswith("duly_"), key["scopes"]) == ("mine", True, ["read", "write"])
    assert duly("keys", "revoke", key["id"], *given).json == {"result": "revoked", "key": key["id"]}
    assert [set(secret) for secret in duly("keys", "signing", *given).json] == [{"secret", "expires_at"}]
    assert duly("keys", "encryption", "make", "--json").json["result"] == "made"
    resealed = duly("keys", "encryption", "reseal", *given).json
    assert resealed["key"] == ENCRYPTION_KEYS.partition(":")[0]
    assert duly("dashboard", "token", *given).json["scopes"] == ["read", "write", "admin"]
    assert duly("queues", "set", "mail", "--concurrency", 1, *given).code == 0
    assert duly("queues", "unset", "mail", *given).json == {"result": "unset", "queue": "mail"}
    assert duly("admin", "plans", "set", "small", *given).code == 0
    assert duly("admin", "plans", "delete", "small", *given).json == {"result": "deleted", "plan": "small"}


PROGRAM = Path(command()[0]).parent / "duly"


def test_a_shell_takes_the_script() -> None:
    """What --show-completion prints is bash's, in a bash, and makes it complete `duly`."""
    words = f'eval "$({PROGRAM} --show-completion)"; complete -p duly'
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, timeout=60, env=environment())
    assert (done.returncode, "_duly_completion duly" in done.stdout) == (0, True), done


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes(shell: str) -> None:
    """Commands, options and the states of a job, without a database."""

    def completed(words: str) -> str:
        settings = {
            "_DULY_COMPLETE": f"complete_{shell}",
            "_TYPER_COMPLETE_ARGS": words,
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
            "_TYPER_COMPLETE_WORD_TO_COMPLETE": words.rpartition(" ")[2],
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
        }
        done = subprocess.run([PROGRAM], capture_output=True, text=True, timeout=30, env=environment(**settings))
        return done.stdout

    assert "succeeded" in completed("duly jobs list --state su")
    assert "workers" in completed("duly wor")
    assert "--max-attempts" in completed("duly send --max")
