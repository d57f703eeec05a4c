"""Scrapes over HTTP, and the reference page."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from duly.observe.catalogue import catalogue
from duly.observe.exposition import MetricsAddressError, serve_metrics
from duly.observe.metrics import Metrics
from duly.queue import Database
from support.proxy import proxied

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


async def test_a_scrape_is_what_prometheus_reads(database: Database) -> None:
    """In its old text form and in OpenMetrics, with the process's own figures and the database's."""
    metrics = Metrics()
    metrics.database.watch(database)
    async with metrics.served("127.0.0.1", 0) as (host, port), httpx.AsyncClient() as client:
        plain = await client.get(f"http://{host}:{port}/metrics")
        open_metrics = await client.get(
            f"http://{host}:{port}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
        )
        elsewhere = await client.get(f"http://{host}:{port}/")
        written = await client.post(f"http://{host}:{port}/metrics")
    assert plain.headers["content-type"].startswith("text/plain")
    assert open_metrics.headers["content-type"].startswith("application/openmetrics-text")
    names = {sample.name for family in read_text(plain.text) for sample in family.samples}
    assert names >= {"duly_database_up", "duly_jobs", "duly_worker_slots", "duly_info", "process_cpu_seconds_total"}
    families = read_openmetrics(open_metrics.text)  # type: ignore[no-untyped-call]
    assert any(family.name == "duly_jobs" for family in families)
    assert (elsewhere.status_code, written.status_code) == (404, 405)


async def test_a_database_that_says_nothing_does_not_silence_the_process(database_url: str) -> None:
    """Through a link that swallows everything: 200 all the same, `duly_database_up 0`, and no figures of before."""
    metrics = Metrics(api=False)
    async with proxied(database_url) as proxy, await Database.open(proxy.url, max_size=1) as db:
        metrics.database.watch(db)
        metrics.database._limit_s = timedelta(milliseconds=300).total_seconds()
        proxy.mode = "black_hole"
        async with metrics.served("127.0.0.1", 0) as (host, port), httpx.AsyncClient(timeout=10) as client:
            answer = await client.get(f"http://{host}:{port}/metrics")
    assert answer.status_code == 200
    samples = {sample.name: sample.value for family in read_text(answer.text) for sample in family.samples}
    assert samples["duly_database_up"] == 0
    assert "duly_jobs" not in samples
    assert samples["duly_worker_slots"] == 0


async def test_a_taken_port_is_said(registry: CollectorRegistry) -> None:
    """With what to do."""

    async def nothing() -> None: ...

    async with serve_metrics(registry, nothing, "127.0.0.1", 0) as (_, port):
        with pytest.raises(MetricsAddressError, match=f"port {port} .the port is taken.: choose another"):
            async with serve_metrics(registry, nothing, "127.0.0.1", port):
                raise AssertionError
    with pytest.raises(MetricsAddressError, match=r"192\.0\.2\.1"):
        async with serve_metrics(registry, nothing, "192.0.2.1", 0):
            raise AssertionError


def test_the_reference_lists_every_metric_with_its_meaning() -> None:
    """Name, kind and meaning, as the registry has them; nothing else."""
    told = re.findall(r"^\| `(duly\w*)(?:\{[\w, ]+\})?` \| (\w+) \| (.+?) \|$", PAGE.read_text(), re.MULTILINE)
    known = [(m.name, m.kind, m.meaning) for m in catalogue(Metrics().registry)]
    assert sorted(told) == sorted(known)


async def test_the_reference_names_the_labels(database: Database) -> None:
    """Those that the samples have."""
    metrics = Metrics()
    metrics.database.watch(database)
    await metrics.database.refresh()
    page = PAGE.read_text()
    for family in metrics.registry.collect():
        labels = {label for sample in family.samples for label in sample.labels} - {"le", "version"}
        if family.name.startswith("duly") and labels:
            assert re.search(rf"`{family.name}(_total)?{{{', '.join(sorted(labels))}}}`", page), (family.name, labels)
