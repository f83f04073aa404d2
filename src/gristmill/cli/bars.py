"""Runs drawn for a terminal: a bar per stage."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from gristmill.cli import show
from gristmill.model import Run, Stage
from gristmill.progress import Pace, name, others, progress, speed, worked_since

_NAME, _BAR = (10, 24), (8, 28)  # columns: at least, at most
_REMARKS = 40  # columns that remarks should have; with less than half of it there is no bar


class Layout(NamedTuple):
    """Columns, the same for all runs, so that their bars stand in line. Numbers are never cut."""

    name: int
    bar: int  # 0: there is no room for one
    amount: int
    remarks: int

    @classmethod
    def of(cls, runs: Sequence[Run], width: int) -> Layout:
        stages = [stage for run in runs for stage in run.stages]
        name = min(_NAME[1], max(_NAME[0], width // 4), max((cell_len(s.name) + 2 for s in stages), default=_NAME[0]))
        amount = max([9, *(len(_amount(stage)) for stage in stages)])
        rest = width - name - amount - 4
        bar = min(_BAR[1], max(_BAR[0], rest - 2 - _REMARKS))
        bar = bar if rest - bar - 2 >= _REMARKS // 2 else 0
        return cls(name, bar, amount, max(1, rest - (bar + 2 if bar else 0)))


def picture(runs: Sequence[Run], pace: Pace, console: Console) -> Group:
    """All runs that fit on the screen, each with a bar per stage."""
    if not runs:
        return Group(Text("nothing is running; Ctrl-C leaves", "dim"))
    layout = Layout.of(runs, console.width)
    parts: list[Text | Table] = []
    room = console.height - 2
    for shown, run in enumerate(runs):
        needed = 2 + len(run.stages)
        if shown and room < needed:
            return Group(*parts, Text(f"and {show.plural(len(runs) - shown, 'more run')}", "dim"))
        room -= needed
        parts += [_title(run), _bars(run, pace, console, layout), Text("")]
    return Group(*parts[:-1])


def _title(run: Run) -> Text:
    title = Text(no_wrap=True, overflow="ellipsis")
    title.append(name(run), "bold").append("  ")
    title.append(run.state, show.STYLES.get(run.state, ""))
    end = run.finished_at or datetime.now(UTC)
    if run.began_at:
        title.append(f"  {show.between(run.began_at, end)}", "dim")
    why = run.stopping or run.error or run.reason
    return title.append(f"  {show.clean(show.first_line(why))}") if why else title


def _bars(run: Run, pace: Pace, console: Console, layout: Layout) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, width=layout.name, overflow="ellipsis")
    if layout.bar:
        grid.add_column(no_wrap=True, width=layout.bar)
    grid.add_column(no_wrap=True, width=layout.amount, justify="right")
    grid.add_column(width=layout.remarks)  # what is long goes on under itself
    for stage in run.stages:
        drawn = [bar(stage, console, layout.bar)] if layout.bar else []
        grid.add_row(f"  {stage.name}", *drawn, _amount(stage), _remarks(run, stage, pace))
    return grid


def _amount(stage: Stage) -> str:
    return "" if stage.state == "waiting" else progress(stage)


def _remarks(run: Run, stage: Stage, pace: Pace) -> Text:
    """Failures first, then speed and what is left, or how the stage ended."""
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


def bar(stage: Stage, console: Console, width: int = _BAR[1]) -> Text:
    """Completed, skipped and failed shares in their colours; the rest is dots, so that it reads without colour too."""
    full, empty = ("#", ".") if console.options.ascii_only else ("━", "·")
    shares = {"completed": stage.completed, "skipped": stage.skipped + stage.cancelled, "failed": stage.failed}
    made = Text()
    done = 0
    for word, amount in shares.items():
        done += amount
        made.append(full * (done * width // stage.total - len(made) if stage.total else 0), show.STYLES[word])
    return made.append(empty * (width - len(made)), "dim")
