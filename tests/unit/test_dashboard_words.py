"""How values, charts, causes and commands read on the dashboard."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import uuid4
from xml.etree import ElementTree

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from markupsafe import Markup

from duly.dashboard import charts, words
from duly.dashboard.curl import as_curl
from duly.dashboard.grouping import grouped
from duly.dashboard.guarding import Throttle
from duly.queue.overview import DeadLetter, Span
from duly.service.views import MASK


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (-1.0, "0 ms"),
        (0.0004, "0 ms"),
        (0.012, "12 ms"),
        (0.0996, "0.1 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.9, "60 s"),
        (59.97, "1 min"),
        (192, "3 min 12 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (timedelta(days=3, hours=4), "3 d 4 h"),
    ],
)
def test_durations(seconds: float | timedelta | None, text: str) -> None:
    """The two largest units, rounded where nobody reads further."""
    assert words.age(seconds) == text


def test_numbers() -> None:
    """Counts, paces and shares; nothing that failed is rounded away."""
    assert [words.count(n) for n in (None, 0, 12345)] == ["–", "0", "12,345"]
    assert [words.rate(r) for r in (0, 0.05, 0.5, 9.99, 1234.5)] == ["0/min", "3/min", "0.5/s", "10.0/s", "1,234/s"]
    assert [words.percent(p) for p in (None, 0, 0.5, 0.99996, 1)] == ["–", "0.0 %", "50.0 %", "99.9 %", "100 %"]


def test_moments_are_utc_whatever_their_offset() -> None:
    """Readable, and exact for machines."""
    at = datetime(2026, 12, 1, 14, 0, 0, 5, tzinfo=timezone(timedelta(hours=2)))
    assert words.moment(at) == '<time datetime="2026-12-01T12:00:00.000005Z">2026-12-01 12:00:00</time>'
    assert words.moment(None) == "–"
    assert words.clock(at) == "12:00:00"


def test_hosts() -> None:
    """Without user and password; the text itself where there is no host."""
    urls = (None, "https://u:p@h.example:8443/x?y", "nothing", "https://[bad/", "mailto:a@b")
    assert [words.host(url) for url in urls] == ["–", "h.example:8443", "nothing", "https://[bad/", "mailto:a@b"]


@given(st.text())
def test_no_character_hides_or_turns_text(text: str) -> None:
    """Whatever comes: what remains is printable, a space, a line break or a tab; plain text stays as it is."""
    shown = words.visible(text)
    assert all(c.isprintable() or c.isspace() for c in shown)
    assert "\u202e" not in shown
    if text.isprintable() and text.isascii():
        assert shown == text


def test_markup_of_ours_and_values_that_are_no_text_pass() -> None:
    """They hold nothing of anybody's."""
    assert words.visible(Markup("<b>\u202e</b>")) == "<b>\u202e</b>"
    assert words.visible(3) == 3


def shapes(svg: Markup) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(str(svg)))


def test_bars_are_stacked_on_one_scale_and_inside_the_chart() -> None:
    """The highest reaches the top; nothing where nothing was; what is little is still seen."""
    drawn = shapes(charts.bars("l", [1000, 0, 1], [0, 0, 1], [500, 0, 0]))
    rects = [shape for shape in drawn if shape.tag == "rect"]
    assert len(rects) == 3
    for rect in rects:
        y, height = float(rect.attrib["y"]), float(rect.attrib["height"])
        assert y >= -0.01
        assert y + height <= charts.HEIGHT + 0.01
        assert height >= 1
    assert float(rects[0].attrib["y"]) == 0
    assert [shape.attrib["class"] for shape in drawn if shape.tag == "polyline"] == ["arrived"]
    assert shapes(charts.bars("l", [], [], [])) == []


def test_lines_have_gaps_and_points_alone_are_seen() -> None:
    """A run each, one alone as a dash; and nothing at all where nothing was measured."""
    drawn = shapes(charts.lines("l", [("p50", [1.0, None, 2.0, 3.0, None])]))
    assert [len(line.attrib["points"].split()) for line in drawn] == [2, 2]
    assert shapes(charts.lines("l", [("p50", [None, None])])) == []


def test_labels_of_charts_are_text() -> None:
    """Whatever they say."""
    assert '"<&' not in charts.bars('"<&', [1], [1], [1])


def test_meters_and_phases_stay_inside() -> None:
    """A share below zero or above one is drawn as none or all; a zero whole is no fault."""
    assert [float(shapes(charts.meter(s))[1].attrib["width"]) for s in (-1, 0.5, 7)] == [0, 50, 100]
    parts = shapes(charts.phases([("dns", 1), ("rest", 3)], 8))
    assert [(float(p.attrib["x"]), float(p.attrib["width"])) for p in parts] == [(0, 12.5), (12.5, 37.5)]
    assert float(shapes(charts.phases([("rest", 0)], 0))[0].attrib["width"]) == 0


def test_columns_of_spans() -> None:
    """One of each pair, and the highest p95."""
    spans = [Span(took=(1.0, 2.0)), Span()]
    assert charts.column(spans, "took", 1) == [2.0, None]
    assert charts.top(spans, "took") == 2.0
    assert charts.top(spans, "waited") is None


def test_causes() -> None:
    """Numbers and ids in an error make no other cause; host, code, outcome and reason do. A letter without an attempt
    is one of its own.
    """
    now = datetime(2026, 12, 1, tzinfo=UTC)

    def letter(**parts: Any) -> DeadLetter:
        known = {"target": "https://a/x", "reason": "permanent", "outcome": "error", "status_code": None, "error": "e"}
        return DeadLetter(uuid4(), 1, 1, "q", attempts=1, finished_at=now, **{**known, **parts})

    alike = [letter(error=f"row {uuid4()} of {n}") for n in range(5)]
    others = [
        letter(target="https://b/x"),
        letter(status_code=500),
        letter(outcome="timeout"),
        letter(reason="expired", outcome=None, error=None),
        letter(error="f"),
        letter(error="\udcff" * 3),
    ]
    groups = grouped([*alike, *others])
    assert [group.count for group in groups] == [5, 1, 1, 1, 1, 1, 1]
    assert len({group.key for group in groups}) == 7
    assert (groups[0].queues, groups[0].first_at, groups[0].last_at) == (("q",), now, now)


@given(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1),
    st.lists(
        st.tuples(st.text(st.characters(codec="ascii", exclude_characters="\0"), min_size=1), st.text("a'\"$`\\ "))
    ),
    st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
)
def test_a_command_is_quoted_for_the_shell(url: str, headers: list[tuple[str, str]], body: str | None) -> None:
    """Whatever the URL, headers and body hold, the shell reads them back as they are, and runs nothing else."""
    told = [f"{name}: {value}" if value else f"{name};" for name, value in headers]
    assume(all(" \\\n  " not in text for text in (url, *told, body or "")) and body != MASK)
    line = as_curl({"url": url, "method": "PUT", "headers": headers, "has_body": body is not None}, body)
    assert line is not None
    assert shlex.split(line.replace(" \\\n  ", " ")) == [
        *("curl", "-sS", "-i", "--globoff", "--path-as-is", "-X", "PUT", url),
        *(part for header in told for part in ("-H", header)),
        *(() if body is None else ("--data-raw", body)),
    ]


def test_a_command_leaves_out_what_is_not_shown() -> None:
    """A hidden body is named, a masked one too; a job that is no request has no command."""
    job = {"url": "https://h/", "method": "POST", "headers": [], "has_body": True}
    assert "--data-binary @BODY" in (as_curl(job, None) or "")
    assert "--data-binary @BODY" in (as_curl(job, "***") or "")
    assert "--data" not in (as_curl({**job, "has_body": False}, None) or "")
    assert as_curl({"url": None}, None) is None


def test_wrong_sign_ins_are_limited_by_peer_and_in_memory() -> None:
    """Three in ten seconds; another peer is another count; the oldest peer is forgotten for room."""
    now_s = 0.0
    throttle = Throttle(most=3, over_s=10, peers=2, clock=lambda: now_s)
    for _ in range(3):
        assert throttle.wait_s("a") == 0
        throttle.was_wrong("a")
        now_s += 1
    assert throttle.wait_s("a") == 7
    assert throttle.wait_s("b") == 0
    now_s += 7
    assert throttle.wait_s("a") == 0
    throttle.was_wrong("a")
    assert throttle.wait_s("a") == 1
    throttle.was_right("a")
    assert throttle.wait_s("a") == 0
    for peer in "abc":
        for _ in range(3):
            throttle.was_wrong(peer)
    assert [throttle.wait_s(peer) > 0 for peer in "abc"] == [False, True, True]
