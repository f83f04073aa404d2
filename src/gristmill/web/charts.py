"""Charts as SVG in the page: sizes are attributes and colours come from the style sheet, so no inline style is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from markupsafe import Markup

from gristmill.model import Run, Stage
from gristmill.progress import worked_since
from gristmill.web import phrases
from gristmill.wording import count, span

_SHARES = (("completed", "good"), ("skipped", "off"), ("cancelled", "off"), ("failed", "bad"))


def bar(stage: Stage) -> Markup:
    """How much of a stage is done, and how it ended."""
    total = max(stage.total, 1)
    at, parts = 0.0, list[Markup]()
    for name, tone in _SHARES:
        share = 100 * getattr(stage, name) / total
        if share:
            parts.append(_rect(at, max(share, 0.6), tone, f"{count(getattr(stage, name))} {name}"))
            at += share
    said = f"{count(stage.done)} of {count(stage.total)} done"
    return Markup('<svg class="bar" role="img" aria-label="{}">{}</svg>').format(said, Markup("").join(parts))


def meter(share: float, tone: str, said: str) -> Markup:
    """One share of a whole."""
    width = 100 * min(max(share, 0.0), 1.0)
    inner = _rect(0, width, tone, said) if width else ""
    return Markup('<svg class="bar" role="img" aria-label="{}">{}</svg>').format(said, inner)


def _rect(x: float, width: float, tone: str, said: str) -> Markup:
    return Markup('<rect class="{}" x="{:.2f}%" y="0" width="{:.2f}%" height="100%"><title>{}</title></rect>').format(
        tone, x, min(width, 100 - x), said
    )


# ---- what was done, by time


@dataclass(frozen=True)
class Period:
    """How far back a chart goes, and in which steps."""

    name: str  #: as an address has it
    label: str
    within: str
    step: int  #: seconds
    columns: int
    by: str
    tick: int  #: seconds between two times below it
    shown: str  #: how these are written
    fresh: float  #: seconds after which it is read again

    @property
    def seconds(self) -> int:
        return self.step * self.columns


PERIODS = (
    Period("1h", "1 h", "an hour", 60, 60, "minute", 900, "%H:%M", 5.0),
    Period("24h", "24 h", "a day", 900, 96, "quarter of an hour", 14_400, "%H:%M", 20.0),
    Period("7d", "7 d", "a week", 3600, 168, "hour", 86_400, "%a", 60.0),
)


def period(name: str) -> Period:
    """What is not known is the shortest."""
    return next((one for one in PERIODS if one.name == name), PERIODS[0])


@dataclass(frozen=True)
class Column:
    """An interval of time, and what ended in it."""

    at: datetime
    good: int
    bad: int
    other: int = 0  #: cancelled or skipped: neither well nor failed
    whole: bool = True  #: it is over: nothing will be added

    @property
    def total(self) -> int:
        return self.good + self.bad + self.other


def throughput(columns: Sequence[Column]) -> Markup:
    """Stacked columns; the newest is at the right."""
    return _chart(columns, "chart", top(columns))


_NEAR = (4, 85)  # percent from the left: what is beyond would, on a narrow screen, touch what stands at the ends


def ticks(columns: Sequence[Column], period: Period) -> Markup:
    """Times below a chart, in UTC."""
    width = 100 / max(len(columns), 1)
    drawn = [
        Markup('<text x="{:.2f}%" y="1em">{}</text>').format(n * width, column.at.astimezone(UTC).strftime(period.shown))
        for n, column in enumerate(columns)
        if column.at.timestamp() % period.tick == 0 and _NEAR[0] < n * width < _NEAR[1]
    ]
    return Markup('<svg class="ticks" aria-hidden="true">{}</svg>').format(Markup("").join(drawn))


def spark(columns: Sequence[Column]) -> Markup:
    """The same, as small as a word, and as high as its own highest."""
    return _chart(columns, "spark", max([1, *(column.total for column in columns)]))


def _chart(columns: Sequence[Column], kind: str, highest: int) -> Markup:
    width = 100 / max(len(columns), 1)
    drawn = Markup("".join(_column(column, n * width, width, highest) for n, column in enumerate(columns)))
    total, bad = sum(column.total for column in columns), sum(column.bad for column in columns)
    said = f"{count(total)} jobs ended, {count(bad)} of them failed"
    return Markup('<svg class="{}" role="img" aria-label="{}" preserveAspectRatio="none">{}</svg>').format(kind, said, drawn)


def top(columns: Sequence[Column]) -> int:
    """What the highest line of the chart stands for."""
    return nice(max((column.total for column in columns), default=0))


def _column(column: Column, x: float, width: float, highest: int) -> str:
    """Only numbers and our own words, so that there is nothing to escape: that took longer than all the rest of a page."""
    good, bad, other = (100 * number / highest for number in (column.good, column.bad, column.other))
    gap = min(width * 0.2, 0.5)
    so_far = "" if column.whole else " so far"
    beside = f", {count(column.other)} cancelled or skipped" if column.other else ""
    ended = f"{count(column.good)} ended well, {count(column.bad)} failed{beside}{so_far}"
    said = f"{column.at.astimezone(UTC):%a %H:%M} UTC: {ended}"
    parts = [
        f'<rect class="{tone}" x="{x + gap / 2:.3f}%" y="{y:.2f}%" width="{width - gap:.3f}%" height="{height:.2f}%"/>'
        for tone, y, height in (
            ("off", 100 - good - bad - other, other),
            ("good", 100 - good - bad, good),
            ("bad", 100 - bad, bad),
        )
        if height
    ]
    hover = f'<rect class="hover" x="{x:.3f}%" y="0" width="{width:.3f}%" height="100%"/>'
    kind = "" if column.whole else ' class="unfinished"'
    return f"<g{kind}><title>{said}</title>{hover}{''.join(parts)}</g>"


def nice(most: int) -> int:
    """The round number that an axis ends with."""
    if most <= 5:
        return 5
    size = int(10 ** (len(str(most)) - 1))
    return next(n * size // 10 for n in (10, 15, 20, 30, 40, 50, 60, 80, 100) if n * size // 10 >= most)


# ---- when the stages of a run were worked on


@dataclass(frozen=True)
class Span:
    stage: Stage
    drawn: Markup
    took: str


def timeline(run: Run) -> tuple[list[Span], str]:
    """A line for each stage, and how long the whole is."""
    begin, end = run.began_at or run.created_at, run.finished_at or datetime.now(UTC)
    if begin is None:
        return [], ""
    if run.began_at is None:
        return [_nothing(stage) for stage in run.stages], ""
    times = [(stage, worked_since(run, stage), stage.closed_at or end) for stage in run.stages]
    first = min([begin, *(start for _, start, _ in times if start)])
    whole = max(end - first, timedelta(microseconds=1))
    return [_span(stage, start, stop, first, whole) for stage, start, stop in times], span(whole.total_seconds())


def _nothing(stage: Stage) -> Span:
    return Span(stage, Markup('<svg class="bar line"></svg>'), "")


def _span(stage: Stage, start: datetime | None, stop: datetime, first: datetime, whole: timedelta) -> Span:
    if start is None or stage.taken_from is not None or (not stage.total and stage.closed_at is None):
        return _nothing(stage)
    x = 100 * (start - first) / whole
    width = max(100 * (stop - start) / whole, 0.8)
    x = min(x, 100 - width)
    tone = "busy" if stage.closed_at is None else phrases.tone(stage.outcome or "completed")
    took = span((stop - start).total_seconds())
    said = f"{stage.name}: began {span((start - first).total_seconds())} after the start, took {took}"
    svg = Markup('<svg class="bar line" role="img" aria-label="{}">{}</svg>').format(said, _rect(x, width, tone, said))
    return Span(stage, svg, took)
