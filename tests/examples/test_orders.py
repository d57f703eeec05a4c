"""examples/orders, as its page says to run it."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from cli.harness import Starter, duly, environment, free_port, new_key, starter, wait_until

FOLDER = Path(__file__).parents[2] / "examples" / "orders"


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Starter]:
    monkeypatch.chdir(FOLDER)
    with starter(tmp_path) as start:
        yield start


def python(*args: object, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, args)], env=environment(**settings), capture_output=True, text=True, timeout=60
    )


def test_the_orders_example(start: Starter, database_url: str) -> None:
    """An order is booked and reaches the partner once; one that is rolled back leads to nothing; a forged request is
    refused.
    """
    given = {"DULY_DATABASE_URL": database_url}
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute((FOLDER / "schema.sql").read_text())
    key = new_key(database_url)
    secret = duly("keys", "signing", **given).out.strip()
    assert secret.startswith("whsec_")
    api_port, partner_port = free_port(), free_port()
    api = start("api", "--allow", "127.0.0.0/8", "--port", api_port, **given)
    worker = start(
        *("worker", "--app", "shop_tasks", "--http", "--allow", "127.0.0.0/8"),
        DULY_API=f"http://127.0.0.1:{api_port}",
        DULY_API_KEY=key,
        PARTNER_URL=f"http://127.0.0.1:{partner_port}/orders",
        **given,
    )
    partner = subprocess.Popen(
        [sys.executable, "partner.py", str(partner_port)],
        env=environment(PARTNER_SECRET=secret, **given),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        api.says("API on")
        worker.says("worker started")
        assert python("shop.py", 2, "lamps", **given).stdout == "order 1 is placed\n"
        assert "not for sale" in python("shop.py", 500, "chairs", **given).stderr

        def taken() -> list[tuple[object, ...]]:
            with psycopg.connect(database_url) as connection:
                return connection.execute("select * from partner_orders").fetchall()

        wait_until(lambda: taken() == [(1, "lamps", 2)], "the partner has the order")
        request = urllib.request.Request(f"http://127.0.0.1:{partner_port}/orders", b"{}")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=10)
        assert refused.value.code == 401
        refused.value.close()
        with psycopg.connect(database_url) as connection:
            assert connection.execute("select id, booked from orders").fetchall() == [(1, True)]
            assert connection.execute("select count(*) from duly.job").fetchall() == [(2,)]
        assert worker.stop().code == 0
    finally:
        partner.kill()
        partner.wait()
