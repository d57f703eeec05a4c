"""`duly migrate`: repeatable, from many places at once, into any schema."""

from __future__ import annotations

from cli.harness import Client, Starter, Target, duly, free_port, new_key, sql


def test_migrating_again_changes_nothing(empty_database_url: str) -> None:
    """The first run installs, the second says that all is well."""
    given = ["--database-url", empty_database_url]
    first, second = duly("migrate", *given), duly("migrate", *given)
    assert (first.code, first.err) == (0, ""), first
    assert first.out.startswith("schema duly: version 0 → ")
    assert (second.code, second.err) == (0, ""), second
    assert second.out.startswith("schema duly is at version ")


def test_eight_at_once_leave_one_schema(empty_database_url: str, start: Starter) -> None:
    """Eight processes migrate an empty database at the same time; all succeed."""
    running = [start("migrate", "--database-url", empty_database_url) for _ in range(8)]
    ended = [process.ends() for process in running]
    assert [(result.code, result.err) for result in ended] == [(0, "")] * 8, ended
    assert len([result for result in ended if "version 0 → " in result.out]) == 1
    assert sql(empty_database_url, "select version from duly.schema_version order by 1") == [1]


def test_a_schema_of_another_name(empty_database_url: str, target: Target, start: Starter) -> None:
    """With --schema everything lives there, and the service runs on it; nothing is made in `duly`."""
    given = {"DULY_DATABASE_URL": empty_database_url, "DULY_SCHEMA": "other"}
    done = duly("migrate", "--database-url", empty_database_url, "--schema", "other")
    assert (done.code, done.out.startswith("schema other: version 0 → ")) == (0, True), done
    opened = ["--allow", "127.0.0.0/8"]
    api = start("api", "--port", port := free_port(), *opened, **given)
    worker = start("worker", *opened, **given)
    api.says("API on")
    worker.says("worker started")
    client = Client(f"http://127.0.0.1:{port}", new_key(empty_database_url, "other"))
    client.ends(client.create(target.url), "succeeded")
    client.close()
    assert sql(empty_database_url, "select nspname::text from pg_namespace where nspname in ('duly', 'other')") == [
        "other"
    ]
    assert (worker.stop().code, api.stop().code) == (0, 0)
