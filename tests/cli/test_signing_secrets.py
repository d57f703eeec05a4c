"""`duly keys signing`: what receivers verify with, from the operator's hand to a delivery."""

from __future__ import annotations

from pathlib import Path

from cli.harness import Starter, Target, assert_refused, duly, new_key, put_job, sql
from duly.http import decode_secret


def test_a_secret_is_shown_and_rotated_with_an_overlap(
    database_url: str, target: Target, start: Starter, home: Path
) -> None:
    """The one that there is; after a rotation two, the new one first, and deliveries carry both signatures; without an
    overlap the old ones end at once."""
    given = ["--database-url", database_url, "--home", str(home)]
    new_key(database_url)
    [first] = duly("keys", "signing", *given).out.split()
    assert len(decode_secret(first)) == 32
    second, old, *when = duly("keys", "signing", "--rotate", *given).out.split()
    assert (old, when[:2]) == (first, ["signs", "until"])
    assert second != first
    put_job(database_url, target.url)
    worker = start("worker", "--database-url", database_url, "--allow", "127.0.0.0/8")
    target.came(1)
    assert len(target.signatures[0].split()) == 2
    assert worker.stop().code == 0
    [third] = duly("keys", "signing", "--rotate", "--overlap", "0s", *given).out.split()
    assert third not in (first, second)
    assert third.encode() not in b"".join(sql(database_url, "select secret from duly.signing_secret"))


def test_an_overlap_that_is_none_is_refused(database_url: str) -> None:
    """Before anything is changed."""
    assert_refused(
        duly("keys", "signing", "--rotate", "--overlap", "soon", "--database-url", database_url), "--overlap"
    )
    assert sql(database_url, "select count(*) from duly.signing_secret") == [0]
