"""The live view, from made-up runs: what is said, when, and how fast things seem to go."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from gristmill.cli import show
from gristmill.cli.bars import bar, picture
from gristmill.cli.live import Lines, follow
from gristmill.errors import Unavailable
from gristmill.model import Run, Stage
from gristmill.progress import Pace, ending, standing, worked_since

NOON = datetime(2027, 1, 31, 12, tzinfo=UTC)


def stage(name: str, state: str, total: int = 0, completed: int = 0, **more: Any) -> Stage:
    values: dict[str, Any] = {"outcome": None, "failed": 0, "skipped": 0, "cancelled": 0, "queue": "q", "each": True}
    values |= {"gate": False, "opened_at": NOON, "closed_at": None} | more
    return Stage(name=name, state=state, total=total, completed=completed, **values)


def run(*stages: Stage, state: str = "in_progress", number: int = 7, **more: Any) -> Run:
    values: dict[str, Any] = {"error": None, "reason": None, "stopping": None, "finished_at": None} | more
    return Run(
        id=number,
        pipeline="letters",
        subject="books",
        state=state,
        priority="normal",
        epoch=1,
        args={},
        created_at=NOON,
        started_at=NOON,
        stages=stages,
        **values,
    )


BUSY = run(
    stage("find", "sealed", 1, 0, each=False),
    stage("count", "open", 40, 10, failed=1, skipped=1),
    stage("total", "waiting", opened_at=None),
)
ENDED = run(
    stage("count", "closed", 40, 37, failed=3, outcome="completed_with_errors", closed_at=NOON + timedelta(seconds=4)),
    state="completed_with_errors",
    error="3 of 40 failed in 'count'",
    finished_at=NOON + timedelta(seconds=5),
)


def screen(*runs: Run, height: int = 40, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(picture(runs, Pace(), console))
    return captured.get()


def test_an_open_stage_says_that_more_may_come() -> None:
    assert standing(BUSY) == "find 0/1, count 12/40+ (1 failed, 1 skipped), total waiting"
    assert "12/40+" in screen(BUSY)


def test_the_end_says_the_reason_and_the_counters() -> None:
    assert ending(ENDED) == "completed_with_errors in 5.0 s; 3 of 40 failed in 'count'; count 40/40 (3 failed)"


def test_a_run_that_waits_or_stops_says_so() -> None:
    assert standing(replace(BUSY, state="waiting")) == "waiting behind the subject's active run"
    assert standing(replace(BUSY, stopping="enough\nof it")) == "stopping: enough"


def test_lines_come_only_on_change_and_at_most_once_a_second() -> None:
    out = io.StringIO()
    lines = Lines(out)
    further = replace(BUSY, stages=(replace(BUSY.stages[0], completed=1), *BUSY.stages[1:]))
    for now, seen in [(0.0, BUSY), (5.0, BUSY), (5.1, further), (5.2, BUSY), (5.3, ENDED), (9.0, ENDED)]:
        lines.show([seen], now)
    said = [line.split(": ")[1].split(",")[0] for line in out.getvalue().splitlines()]
    assert said[:2] == ["find 0/1", "find 1/1"]
    assert said[2].startswith("completed_with_errors")
    assert len(said) == 3


def test_the_rate_is_taken_from_the_last_seconds_and_not_from_waiting() -> None:
    pace = Pace()
    sealed = stage("count", "sealed", 100)
    for now, done in [(0.0, 0), (3.0, 0), (6.0, 0), (7.0, 10), (8.0, 20)]:
        pace.look([run(replace(sealed, completed=done))], now)
    seen = run(replace(sealed, completed=20))
    assert pace.rate(seen, seen.stages[0]) == pytest.approx(10)
    assert pace.left(seen, seen.stages[0]) == pytest.approx(8)
    still_open = replace(seen.stages[0], state="open")
    assert pace.left(run(still_open), still_open) is None


def watched(item: float, until: int, every: float = 1.5, total: int = 60) -> tuple[Pace, Run]:
    """A stage with an end each `item` seconds, looked at as a page does it for its last minutes."""
    pace, seen, now = Pace(), run(), 0.0
    for n in range(round(max(0.0, until - 200) / every), round(until / every) + 1):
        now = n * every
        seen = run(stage("count", "sealed", total, int(now // item)))
        pace.look([seen], now, NOON + timedelta(seconds=now))
    return pace, seen


@pytest.mark.parametrize("until", [301, 330, 359, 361])
def test_what_is_left_of_items_that_take_a_minute_is_told_in_minutes(until: int) -> None:
    pace, seen = watched(item=60, until=until)
    left = pace.left(seen, seen.stages[0])
    assert left is not None
    assert left == pytest.approx(60 * (60 - until / 60), rel=0.25)


def test_what_is_left_is_known_at_the_first_look() -> None:
    pace, seen = Pace(), run(stage("count", "sealed", 60, 6))
    pace.look([seen], 0.0, NOON + timedelta(minutes=6))
    assert pace.left(seen, seen.stages[0]) == pytest.approx(54 * 60)


def test_what_stands_still_has_no_end() -> None:
    pace, seen = watched(item=0.5, until=20, total=100)
    for now in (30.0, 40.0, 50.0):
        pace.look([seen], now, NOON + timedelta(seconds=now))
    assert pace.left(seen, seen.stages[0]) is None


def test_bars_read_without_colour() -> None:
    console = Console(width=200)
    assert bar(stage("s", "sealed", 4, 1, failed=1), console).plain == "━" * 14 + "·" * 14
    assert bar(stage("s", "waiting"), console).plain == "·" * 28
    assert bar(stage("s", "closed", 3, 1, failed=1, skipped=1), console).plain == "━" * 28


def test_more_runs_than_fit_are_counted() -> None:
    text = screen(*(replace(BUSY, id=n) for n in range(1, 9)), height=14)
    assert "run 2 letters books" in text
    assert "run 3 " not in text
    assert "and 6 more runs" in text


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_picture_keeps_to_the_width(width: int) -> None:
    assert max(map(len, screen(BUSY, ENDED, width=width).splitlines())) <= width


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_numbers_are_never_cut_and_remarks_go_on_under_themselves(width: int) -> None:
    many = run(stage("recognise_text_of_pages", "sealed", 12_000, 3_000, failed=12, parts=1_400, parts_left=312))
    text = screen(many, width=width)
    assert "3,012/12,000" in text
    assert "12 failed, waiting for 312 of 1,400 parts" in " ".join(" ".join(text.split()).replace("━", "").split())
    assert ("━" in text) == (width >= 80)


def test_what_was_done_before_a_retry_is_not_in_what_it_took() -> None:
    later = NOON + timedelta(days=1)
    closed = {"opened_at": NOON, "closed_at": later + timedelta(seconds=7)}
    before = stage("find", "closed", 1, 1, opened_at=NOON, closed_at=NOON + timedelta(seconds=2))
    after = stage("count", "closed", 4, 4, **closed)
    ended = run(before, after, state="completed", retried_at=later, finished_at=later + timedelta(seconds=8))
    assert ending(ended).startswith("completed in 8.0 s")
    assert (worked_since(ended, before), worked_since(ended, after)) == (NOON, later)
    assert Pace().rate(ended, after) is None


def test_an_empty_picture_says_so() -> None:
    assert "nothing is running" in screen()


def test_following_waits_for_a_database_that_is_away_for_a_moment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gristmill.cli.live.time.sleep", lambda seconds: None)
    answers: list[Any] = [[BUSY], Unavailable("the database: it restarts"), Unavailable("still"), [ENDED]]

    def look() -> list[Run]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    out = io.StringIO()
    assert follow(look, out) == [ENDED]
    assert capsys.readouterr().err == "note: the database: it restarts; trying again\n"
    assert len(out.getvalue().splitlines()) == 2


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0.0 s"),
        (0.04, "0.0 s"),
        (9.9, "9.9 s"),
        (42, "42 s"),
        (99, "99 s"),
        (100, "2 min"),
        (5000, "83 min"),
        (7200, "2 h"),
    ],
)
def test_spans(seconds: float, words: str) -> None:
    assert show.span(seconds) == words


def test_ages() -> None:
    now = datetime.now(UTC)
    assert show.age(now) == "just now"
    assert show.age(now - timedelta(minutes=3)) == "3 min ago"
    assert show.age(now + timedelta(hours=5, seconds=1)) == "in 5 h"
    assert show.age(now - timedelta(days=12)) == "12 d ago"
