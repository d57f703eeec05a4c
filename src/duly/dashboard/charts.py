"""Charts as SVG, drawn here: shapes only, whatever width they get; words and numbers stand beside them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

WIDTH = 400
HEIGHT = 72

_SVG = Markup(
    '<svg class="chart" viewBox="0 0 {w} {h}" preserveAspectRatio="none" role="img" aria-label="{label}">{shapes}</svg>'
)
_BAR = Markup('<rect class="{kind}" x="{x:.2f}" y="{y:.2f}" width="{w:.2f}" height="{h:.2f}"/>')
_LINE = Markup('<polyline class="{kind}" points="{points}"/>')


def bars(label: str, below: Sequence[int], above: Sequence[int], line: Sequence[int]) -> Markup:
    """Stacked bars, `below` and `above` it, and a line over them, on one scale."""
    top = max([b + a for b, a in zip(below, above, strict=True)] + list(line) + [1])
    step = WIDTH / max(len(below), 1)
    shapes = []
    for n, (low, high) in enumerate(zip(below, above, strict=True)):
        for kind, start, size in (("good", 0, low), ("bad", low, high)):
            if size:
                height = max(HEIGHT * size / top, 1.0)
                y = HEIGHT - HEIGHT * start / top - height
                shapes.append(_BAR.format(kind=kind, x=n * step + step * 0.1, y=y, w=step * 0.8, h=height))
    shapes.append(_line("arrived", [float(v) for v in line], float(top)))
    return _SVG.format(w=WIDTH, h=HEIGHT, label=label, shapes=Markup("").join(shapes))


def lines(label: str, named: Sequence[tuple[str, Sequence[float | None]]]) -> Markup:
    """Lines on one scale from zero, each of its kind; a gap where nothing was measured."""
    top = max([value for _, values in named for value in values if value is not None] + [1e-9])
    shapes = Markup("").join(_line(kind, values, top) for kind, values in named)
    return _SVG.format(w=WIDTH, h=HEIGHT, label=label, shapes=shapes)


def meter(share: float, kind: str = "good") -> Markup:
    """A bar that fills its share of the width, for the eye only: the number stands beside it."""
    width = 100 * min(max(share, 0.0), 1.0)
    return Markup(
        '<svg class="meter" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" width="100" height="4"/><rect class="{kind}" width="{width:.2f}" height="4"/></svg>'
    ).format(kind=kind, width=width)


def phases(parts: Sequence[tuple[str, float]], longest: float) -> Markup:
    """What an attempt spent its time on: parts side by side, as wide as they lasted against `longest`."""
    x = 0.0
    shapes = []
    for kind, size in parts:
        width = 100 * size / longest if longest > 0 else 0.0
        shapes.append(Markup('<rect class="{}" x="{:.2f}" width="{:.2f}" height="6"/>').format(kind, x, width))
        x += width
    return Markup(
        '<svg class="phases" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">{}</svg>'
    ).format(Markup("").join(shapes))


def column(spans: Sequence[Any], name: str, place: int) -> list[float | None]:
    """One of the pair `name` of each span; None where it has none."""
    pairs = [getattr(span, name) for span in spans]
    return [None if pair is None else pair[place] for pair in pairs]


def top(spans: Sequence[Any], name: str) -> float | None:
    """The highest p95 of the pair `name`, to which the lines are drawn; None where there is none."""
    return max([pair for pair in column(spans, name, 1) if pair is not None], default=None)


def _line(kind: str, values: Sequence[float | None], top: float) -> Markup:
    step = WIDTH / max(len(values), 1)
    runs: list[list[str]] = [[]]
    for n, value in enumerate(values):
        if value is None:
            runs.append([])
            continue
        y = HEIGHT - 1 - (HEIGHT - 2) * value / top
        runs[-1].append(f"{(n + 0.5) * step:.2f},{y:.2f}")
    runs = [run if len(run) > 1 else [*run, *_dash(run[0])] for run in runs if run]
    return Markup("").join(_LINE.format(kind=kind, points=" ".join(run)) for run in runs)


def _dash(point: str) -> list[str]:
    """A point alone would not be drawn."""
    x, _, y = point.partition(",")
    return [f"{float(x) + 4:.2f},{y}"]
