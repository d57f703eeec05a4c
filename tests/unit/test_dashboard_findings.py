"""What the first page says, from what was seen."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from duly.dashboard.findings import MOST, Seen, findings
from duly.dashboard.grouping import grouped
from duly.queue import WorkerView
from duly.queue.breaker import OpenBreaker
from duly.queue.overview import Backlog, DeadLetter, Failing, InUse, Recent, Span

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def worker(alive: bool = True, slots: int = 10) -> WorkerView:
    return WorkerView(1, "w", ("http",), None, slots, NOW, NOW, NOW, alive)


def waiting(since: timedelta) -> Backlog:
    return Backlog(1, 1, "q", 3, NOW - since)


def recent(succeeded: int = 0, failed: int = 0, lost: int = 0) -> Recent:
    failing = (Failing("h.example", "http_error", 503, failed, 0),) if failed else ()
    return Recent(NOW, 30 * SECOND, (Span(),) * 40, Span(succeeded, failed), 1, lost, failing)


def letter(n: int, host: str = "h.example", error: str | None = "no", outcome: str | None = "timeout") -> DeadLetter:
    url = f"https://{host}/"
    return DeadLetter(UUID(int=n), 1, 1, "q", url, "permanent", 1, NOW - n * SECOND, outcome, None, error)


def said(seen: Seen) -> list[tuple[str, str]]:
    return [(finding.level, f"{finding.what} {finding.do}") for finding in findings(seen)]


def test_nothing_known_and_nothing_wrong_say_nothing() -> None:
    """No news is no finding."""
    assert findings(Seen(NOW)) == []
    assert findings(Seen(NOW, [waiting(9 * SECOND)], [], [worker()], [], recent(100, 4), [])) == []


def test_no_living_worker_is_the_worst() -> None:
    """Known only to who may see workers."""
    [(level, text)] = said(Seen(NOW, workers=[worker(alive=False)]))
    assert (level, text) == ("bad", "No worker is alive: nothing runs. Start one: duly worker.")
    assert said(Seen(NOW, workers=None)) == []


def test_a_silent_worker_beside_a_living_one_is_a_warning() -> None:
    """What it ran goes on elsewhere."""
    [(level, text)] = said(Seen(NOW, workers=[worker(), worker(alive=False)]))
    assert level == "warn"
    assert text.startswith("1 worker fell silent")
    [(level, text)] = said(Seen(NOW, workers=[worker()], recent=recent(10, lost=2)))
    assert text.startswith("2 attempts lost with their workers")


def test_being_late_says_how_late_and_what_helps() -> None:
    """Full slots, free ones, free ones beside an open breaker, or unknown."""
    use = [InUse(1, 1, 1, "q", 10)]
    [(level, text)] = said(Seen(NOW, [waiting(11 * SECOND)], use, [worker()]))
    assert (level, text[:60]) == ("warn", "Behind: the oldest job that waits was due 11 s ago. All slot")
    assert "start more workers" in text
    [(level, text)] = said(Seen(NOW, [waiting(61 * SECOND)], [], [worker()]))
    assert level == "bad"
    assert "Slots are free" in text
    [(_, text)] = said(Seen(NOW, [waiting(61 * SECOND)], []))
    assert "See which queue it is" in text
    held = OpenBreaker(1, "h.example", NOW - 60 * SECOND, 20, None, SECOND, SECOND, SECOND)
    texts = [text for _, text in said(Seen(NOW, [waiting(61 * SECOND)], [], [worker()], [held]))]
    assert texts[1].startswith("h.example fails: its deliveries are held since 1 min.")


def test_a_share_of_failures_names_the_most_frequent() -> None:
    """From one in twenty on."""
    [(level, text)] = said(Seen(NOW, recent=recent(95, 5)))
    assert level == "warn"
    assert "5.0 % of the attempts of the last 20 min failed, most of them with HTTP error 503 at h.example." in text


def test_dead_letters_are_told_by_cause_with_a_link_to_redrive() -> None:
    """The three largest causes; the error, or the outcome's name where there is none."""
    letters = [
        *(letter(n) for n in range(1, 4)),
        *(letter(n, "b.example", None) for n in (4, 5)),
        letter(6, "c.example", None, None),
        letter(7, "d.example"),
    ]
    groups = grouped(letters)
    found = findings(Seen(NOW, dead=groups))
    assert len(found) == 3
    assert found[0].what == "3 dead letters at h.example: no (since 3.0 s)."
    assert found[0].link == f"/dead/redrive?group={groups[0].key}"
    assert found[1].what.startswith("2 dead letters at b.example: timed out")


def test_the_worst_come_first_and_not_too_many() -> None:
    """Eight at most."""
    held = [OpenBreaker(1, f"{n}.example", NOW, 20, None, SECOND, SECOND, SECOND) for n in range(9)]
    seen = Seen(NOW, [waiting(99 * SECOND)], [], [worker(False)], held, recent(1, 1), grouped(map(letter, range(3))))
    levels = [finding.level for finding in findings(seen)]
    assert levels == sorted(levels)
    assert len(levels) <= MOST
    assert levels[:2] == ["bad", "bad"]
