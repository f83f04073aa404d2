"""Progress of runs as it happens: bars per stage on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, TextIO

import click

from gristmill.cli import show
from gristmill.errors import Unavailable
from gristmill.model import Run, Stage

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table
    from rich.text import Text

_LOOKS = (
    0.05,
    0.1,
    0.15,
    0.25,
)  # seconds between looks, the last repeats: a short run ends at once, a long one is cheap
_LINE_EVERY = 1.0  # seconds between plain lines of one run
_WINDOW = 10.0  # seconds over which the rate is taken
_PATIENCE = 60.0  # seconds that the database may be away
_BEFORE_AND_AFTER_BAR = 64  # columns for name, numbers and remarks

Look = Callable[[], Sequence[Run]]


class Pace:
    """How fast stages move, from what was seen of them."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, str], deque[tuple[float, int]]] = {}

    def look(self, runs: Sequence[Run], now: float) -> None:
        for run in runs:
            for stage in run.stages:
                samples = self._seen.setdefault((run.id, stage.name), deque())
                samples.append((now, stage.done))
                # What lies before the first progress is waiting, and says nothing about the speed.
                while samples[0][0] < now - _WINDOW or (len(samples) > 2 and samples[1][1] == samples[0][1]):
                    samples.popleft()

    def rate(self, run: Run, stage: Stage) -> float | None:
        """Items per second: lately, or of the whole stage once it is closed; None: not known yet."""
        if stage.closed_at and (since := worked_since(run, stage)):
            seconds = (stage.closed_at - since).total_seconds()
            return stage.done / seconds if seconds > 0 else None
        samples = self._seen.get((run.id, stage.name))
        if not samples or samples[-1][0] - samples[0][0] < 0.5:
            return None
        return (samples[-1][1] - samples[0][1]) / (samples[-1][0] - samples[0][0])

    def left(self, run: Run, stage: Stage) -> float | None:
        """Seconds until the stage is done, if it goes on like this; None while items may still come."""
        rate = self.rate(run, stage)
        return (stage.total - stage.done) / rate if rate and stage.state == "sealed" else None


def worked_since(run: Run, stage: Stage) -> datetime | None:
    """A stage is open from the start of its run, but nothing happens before a worker begins."""
    return max(stage.opened_at, run.started_at) if stage.opened_at and run.started_at else stage.opened_at


# ---- following


def follow(look: Look, stream: TextIO, *, stay: bool = False) -> list[Run]:
    """Shows the runs that `look` sees until all have ended (`stay`: until Ctrl-C); says how they ended."""
    pauses = (_LOOKS[min(n, len(_LOOKS) - 1)] for n in count())
    if show.is_terminal(stream):
        return _with_bars(_patient(look), pauses, show.console(stream), stay)
    return _with_lines(_patient(look), pauses, stream)


def _patient(look: Look) -> Look:
    """A database that restarts is waited for."""
    away_since: float | None = None

    def patiently() -> Sequence[Run]:
        nonlocal away_since
        while True:
            try:
                found = look()
            except Unavailable as error:
                if away_since is None:
                    show.note(f"{error}; trying again")
                    away_since = time.monotonic()
                if time.monotonic() - away_since > _PATIENCE:
                    raise
                time.sleep(_LINE_EVERY)
            else:
                away_since = None
                return found

    return patiently


def _over(runs: Sequence[Run]) -> bool:
    return all(run.terminal for run in runs)


def _with_lines(look: Look, pauses: Iterator[float], stream: TextIO) -> list[Run]:
    lines = Lines(stream)
    for pause in pauses:
        runs = look()
        lines.show(runs, time.monotonic())
        if _over(runs):
            return list(runs)
        time.sleep(pause)
    raise AssertionError("the pauses never end")


def _with_bars(look: Look, pauses: Iterator[float], console: Console, stay: bool) -> list[Run]:
    from rich.live import Live

    pace = Pace()
    with Live(console=console, auto_refresh=False) as live:
        for pause in pauses:
            runs = look()
            pace.look(runs, time.monotonic())
            live.update(picture(runs, pace, console), refresh=True)
            if _over(runs) and not stay:
                return list(runs)
            time.sleep(pause)
    raise AssertionError("the pauses never end")


# ---- plain lines


class Lines:
    """One line per run when something changed, not more than one a second; the end is always said."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._pace = Pace()
        self._said: dict[int, str] = {}
        self._at: dict[int, float] = {}

    def show(self, runs: Sequence[Run], now: float) -> None:
        self._pace.look(runs, now)
        for run in runs:
            text = ending(run) if run.terminal else standing(run)
            if text == self._said.get(run.id) or (now < self._at.get(run.id, 0.0) and not run.terminal):
                continue
            self._said[run.id] = text
            self._at[run.id] = now + _LINE_EVERY
            click.echo(f"{name(run)}: {text}{'' if run.terminal else self._speed(run)}", file=self._stream)

    def _speed(self, run: Run) -> str:
        """The rate and the rest of the stage that has most to do."""
        busy = max((s for s in run.stages if s.state in {"open", "sealed"}), key=lambda s: s.total - s.done, default=None)
        if busy is None or not (rate := self._pace.rate(run, busy)):
            return ""
        left = self._pace.left(run, busy)
        return f" | {speed(rate)}" + (f", {show.span(left)} left" if left and left >= 1 else "")


def name(run: Run) -> str:
    return f"run {run.id} {run.pipeline} {run.subject}"


def standing(run: Run) -> str:
    """`find 1/1, read 40/66+ (1 failed), index waiting`."""
    if run.stopping:
        return f"stopping: {show.first_line(run.stopping)}"
    if run.state == "waiting":
        return "waiting behind the subject's active run"
    return ", ".join(_stage_standing(stage) for stage in run.stages)


def _stage_standing(stage: Stage) -> str:
    if stage.state == "waiting":
        return f"{stage.name} waiting"
    rest = others(stage)
    return f"{stage.name} {progress(stage)}" + (f" ({rest})" if rest else "")


def ending(run: Run) -> str:
    took = show.between(run.started_at or run.created_at, run.finished_at)
    words = [f"{run.state} in {took}" if took else run.state]
    words += [run.error or run.reason or ""]
    words += [f"{s.name} {progress(s)}" + (f" ({others(s)})" if others(s) else "") for s in run.stages if s.each]
    return "; ".join(show.first_line(word) for word in words if word)


def progress(stage: Stage) -> str:
    """Done of all; `+` while more may come."""
    return f"{show.count(stage.done)}/{show.count(stage.total)}{'+' if stage.state == 'open' else ''}"


def others(stage: Stage) -> str:
    """What did not simply complete."""
    counts = {"failed": stage.failed, "skipped": stage.skipped, "cancelled": stage.cancelled}
    return ", ".join(f"{show.count(n)} {word}" for word, n in counts.items() if n)


def speed(rate: float) -> str:
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s" if rate >= 0.1 else f"{rate * 60:.1f}/min"


# ---- bars


def picture(runs: Sequence[Run], pace: Pace, console: Console) -> Group:
    """All runs that fit on the screen, each with a bar per stage."""
    from rich.console import Group
    from rich.text import Text

    parts: list[Text | Table] = []
    room = console.height - 2
    for shown, run in enumerate(runs):
        needed = 2 + len(run.stages)
        if shown and room < needed:
            parts.append(Text(f"and {show.plural(len(runs) - shown, 'more run')}", "dim"))
            break
        room -= needed
        parts += [_title(run), _bars(run, pace, console), Text("")]
    return Group(*parts[:-1]) if runs else Group(Text("nothing is running; Ctrl-C leaves", "dim"))


def _title(run: Run) -> Text:
    from rich.text import Text

    title = Text(no_wrap=True, overflow="ellipsis")
    title.append(name(run), "bold").append("  ")
    title.append(run.state, show.STYLES.get(run.state, ""))
    end = run.finished_at or datetime.now(UTC)
    if run.started_at:
        title.append(f"  {show.between(run.started_at, end)}", "dim")
    why = run.stopping or run.error or run.reason
    return title.append(f"  {show.clean(show.first_line(why))}") if why else title


def _bars(run: Run, pace: Pace, console: Console) -> Table:
    from rich.table import Table

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, min_width=12, max_width=24, overflow="ellipsis")
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, min_width=9, justify="right")  # so that the bars of several runs stand in line
    grid.add_column(no_wrap=True, overflow="ellipsis")
    for stage in run.stages:
        grid.add_row(f"  {stage.name}", bar(stage, console), _amount(stage), _remarks(run, stage, pace))
    return grid


def _amount(stage: Stage) -> str:
    return "" if stage.state == "waiting" else progress(stage)


def _remarks(run: Run, stage: Stage, pace: Pace) -> Text:
    """Failures first, then speed and what is left, or how the stage ended."""
    from rich.text import Text

    words = [Text(others(stage), show.STYLES["failed"] if stage.failed else "")] if others(stage) else []
    if stage.state in {"waiting", "closed"}:
        ended = stage.outcome or stage.state
        if not stage.total or not ended.startswith("completed"):
            words.append(Text(ended, show.STYLES.get(ended, "")))
        if stage.closed_at and stage.total:
            words.append(Text(show.between(worked_since(run, stage), stage.closed_at), "dim"))
    rate = pace.rate(run, stage)
    if rate and stage.total > 1 and stage.outcome != "cancelled":
        words.append(Text(speed(rate), "dim"))
    left = pace.left(run, stage)
    if left is not None and left >= 1:
        words.append(Text(f"ETA {show.span(left)}"))
    return Text("  ").join(words)


def bar(stage: Stage, console: Console) -> Text:
    """Completed, skipped and failed shares in their colours; the rest is dots, so that it reads without colour too."""
    from rich.text import Text

    width = min(28, max(8, console.width - _BEFORE_AND_AFTER_BAR))
    full, empty = ("#", ".") if console.options.ascii_only else ("━", "·")
    shares = {"completed": stage.completed, "skipped": stage.skipped + stage.cancelled, "failed": stage.failed}
    made = Text()
    done = 0
    for word, amount in shares.items():
        done += amount
        made.append(full * (done * width // stage.total - len(made) if stage.total else 0), show.STYLES[word])
    return made.append(empty * (width - len(made)), "dim")
