"""The alert rules and the dashboard ask only for what there is, in valid PromQL, and every alert says what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from duly.observe.catalogue import catalogue
from duly.observe.metrics import Metrics

DOCS = Path(__file__).parents[2] / "docs"
RULES = yaml.safe_load((DOCS / "how-to" / "monitoring" / "alerts.yaml").read_text())
DASHBOARD = json.loads((DOCS / "how-to" / "monitoring" / "dashboard.json").read_text())
ALERTS: list[dict[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"]]
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EVERYWHERE = {"instance", "job", "le"}


def queries() -> Iterator[str]:
    for alert in ALERTS:
        yield alert["expr"]
    for panel in PANELS:
        for target in panel["targets"]:
            yield target["expr"].replace("$__rate_interval", "5m")


def selectors(expr: promql_parser.Expr) -> Iterator[promql_parser.VectorSelector]:
    found: list[promql_parser.VectorSelector] = []

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)

    promql_parser.walk(expr, visit)
    yield from found


def labels() -> dict[str, set[str]]:
    """Series → its labels, as the reference has them (which is held against the registry elsewhere)."""
    page = (DOCS / "reference" / "metrics.md").read_text()
    told = {
        name: set(re.findall(r"\w+", given or ""))
        for name, given in re.findall(r"^\| `(duly\w*)(\{[\w, ]+\})?` \|", page, re.MULTILINE)
    }
    return {series: told[metric.name] for metric in catalogue(Metrics().registry) for series in metric.series}


@pytest.mark.parametrize("query", sorted(set(queries())))
def test_every_query_is_valid_and_asks_for_what_there_is(query: str) -> None:
    """It parses; each metric exists, and so does each label that it selects by."""
    known = labels()
    asked = list(selectors(promql_parser.parse(query)))
    assert asked
    for selector in asked:
        assert selector.name in known, f"there is no {selector.name}"
        by = {matcher.name for matcher in selector.matchers.matchers}
        assert by <= known[selector.name] | EVERYWHERE, f"{selector.name} has no label {by}"
    grouped = {name for names in re.findall(r"\bby \(([^)]*)\)", query) for name in re.findall(r"\w+", names)}
    assert grouped <= set.union(EVERYWHERE, *(known[str(selector.name)] for selector in asked))


def test_a_query_for_what_is_not_there_would_be_found() -> None:
    """The check sees inside functions and ranges."""
    [selector] = selectors(promql_parser.parse("sum(rate(duly_no_such_total[5m]))"))
    assert selector.name not in labels()
    with pytest.raises(ValueError):
        promql_parser.parse("sum(rate(duly_jobs_dead_total[5m])")


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_every_alert_says_what_it_means_and_what_to_do(alert: dict[str, Any]) -> None:
    """In itself, and under its name in the guide; nobody is paged for what can wait."""
    assert alert["labels"]["severity"] in ("page", "ticket")
    assert alert["annotations"]["summary"]
    assert alert["annotations"]["description"]
    assert re.fullmatch(r"\d+[mh]", alert.get("for", "1m"))
    guide = (DOCS / "how-to" / "monitoring.md").read_text()
    assert f"\n| `{alert['alert']}` |" in guide


def test_what_an_operator_must_be_told_has_an_alert() -> None:
    """Dead rate, oldest due, lost leases, a held snapshot, a database that is away."""
    asked = " ".join(alert["expr"] for alert in ALERTS)
    for name in (
        "duly_jobs_dead_total",
        "duly_oldest_due_seconds",
        "duly_leases_expired_total",
        "duly_oldest_snapshot_seconds",
        "duly_database_up",
    ):
        assert name in asked


def test_the_dashboard_can_be_imported() -> None:
    """Panels with ids of their own, none over another, all asking the data source that is chosen."""
    assert DASHBOARD["uid"] == "duly"
    assert [v["name"] for v in DASHBOARD["templating"]["list"]] == ["datasource"]
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    for panel in PANELS:
        assert panel["datasource"]["uid"] == "${datasource}"
        refs = [target["refId"] for target in panel["targets"]]
        assert len(refs) == len(set(refs))
