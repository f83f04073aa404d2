"""Progress of runs as it happens: bars per stage on a terminal, plain lines elsewhere."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, TextIO

import click

from gristmill.cli import show
from gristmill.errors import Unavailable
from gristmill.model import Run
from gristmill.progress import Pace, ending, name, speed, standing

if TYPE_CHECKING:
    from rich.console import Console

# Seconds between looks, the last repeats: the end of a short run is seen at once, a long one is cheap to watch.
_LOOKS = (0.05, 0.1, 0.15, 0.25)
_LINE_EVERY = 1.0  # seconds between plain lines of one run
_PATIENCE = 60.0  # seconds that the database may be away

Look = Callable[[], Sequence[Run]]


def follow(look: Look, stream: TextIO, *, stay: bool = False) -> list[Run]:
    """Shows the runs that `look` sees until all have ended (`stay`: until Ctrl-C); says how they ended."""
    pauses = chain(_LOOKS, repeat(_LOOKS[-1]))
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
    while True:
        runs = look()
        lines.show(runs, time.monotonic())
        if _over(runs):
            return list(runs)
        time.sleep(next(pauses))


def documents(look: Look, stream: TextIO) -> None:
    """One JSON document per line: a run, each time that something about it changed, until all have ended."""
    from gristmill.model import to_json

    pauses = chain(_LOOKS, repeat(_LOOKS[-1]))
    look = _patient(look)
    said: dict[int, str] = {}
    while True:
        runs = look()
        for run in runs:
            text = json.dumps(to_json(run))
            if said.get(run.id) != text:
                said[run.id] = text
                click.echo(text, file=stream)
        stream.flush()
        if _over(runs):
            return
        time.sleep(next(pauses))


def _with_bars(look: Look, pauses: Iterator[float], console: Console, stay: bool) -> list[Run]:
    from rich.live import Live

    from gristmill.cli.bars import picture

    pace = Pace()
    with Live(console=console, auto_refresh=False) as live:
        while True:
            runs = look()
            pace.look(runs, time.monotonic())
            live.update(picture(runs, pace, console), refresh=True)
            if _over(runs) and not stay:
                return list(runs)
            time.sleep(next(pauses))


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
            rest = "" if run.terminal else self._speed(run)
            click.echo(f"{name(run)}: {show.clean(text)}{rest}", file=self._stream)

    def _speed(self, run: Run) -> str:
        """The rate and the rest of the stage that has most to do."""
        busy = max((s for s in run.stages if s.state in {"open", "sealed"}), key=lambda s: s.total - s.done, default=None)
        if busy is None or not (rate := self._pace.rate(run, busy)):
            return ""
        left = self._pace.left(run, busy)
        return f" | {speed(rate)}" + (f", {show.span(left)} left" if left and left >= 1 else "")
