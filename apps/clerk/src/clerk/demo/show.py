"""What the demonstration shows: the sites as they go through the stages, and at the end what was found.

On a terminal there are bars that move; elsewhere a plain line when something changed.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO, TypeVar

from clerk.demo.finding import MARKS
from clerk.names import STAGES
from clerk.parts import Vote

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from clerk.demo.finding import Hit

T = TypeVar("T")

_LOOK_EVERY: Final = 0.15  # seconds
_LINE_EVERY: Final = 2.0  # seconds between plain lines about the same stage
UNCHANGED: Final = "unchanged"  # why a run may end early
_OVER: Final = frozenset({"completed", "failed", "skipped", UNCHANGED})
_SHORT: Final = {"compilation": "compile", "extraction": "extract"}  # what fits above a column


class Progress(NamedTuple):
    """How far a stage of a site is. Stages that nobody mentions wait."""

    subdomain: str
    stage: str  # of clerk.names.STAGES
    done: int
    total: int
    state: str  # "waiting", "running", "completed", "failed", "skipped", "unchanged"


Look = Callable[[], Sequence[tuple[str, str, int, int, str]]]


@dataclass(frozen=True)
class Signs:
    """What is drawn with; a terminal without Unicode gets letters."""

    full: str
    empty: str
    good: str
    bad: str
    none: str

    @classmethod
    def of(cls, encoding: str) -> Signs:
        return cls("━", "─", "✓", "✗", "·") if encoding.lower().startswith("utf") else cls("#", "-", "ok", "x", ".")


def console(stream: TextIO | None = None) -> Console:
    from rich.console import Console

    class Own(Console):
        def on_broken_pipe(self) -> None:
            """Called where that was caught: who reads has left, and it ends as other commands do."""
            raise

    stream = stream or sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")  # a letter that a terminal does not have is no reason to stop
    return Own(file=stream, highlight=False)


def say(to: Console, text: str) -> None:
    """A line as it is: long ones go on, so that paths in them can be copied."""
    if to.is_terminal:
        to.out(text, highlight=False)
    else:  # Rich would write a line again that an interrupt came just after
        print(text, file=to.file, flush=True)


# ---- (a) progress


def counted(to: Console, what: str, things: Iterable[T], total: int) -> list[T]:
    """All of them; on a terminal with a bar while they come."""
    if not to.is_terminal:
        say(to, what)
        return list(things)
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    with Progress(TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), console=to) as progress:
        return list(progress.track(things, total, description=what))


def watch(look: Look, over: Callable[[], bool], to: Console, clock: Callable[[], float] = time.monotonic) -> list[Progress]:
    """Shows what `look` sees until `over`; what it saw last is shown, and given back."""
    return _with_bars(look, over, to) if to.is_terminal else _with_lines(look, over, to, clock)


def _with_bars(look: Look, over: Callable[[], bool], to: Console) -> list[Progress]:
    from rich.live import Live

    signs = Signs.of(to.encoding)
    with Live(console=to, auto_refresh=False) as live:
        while True:
            ended = over()  # asked first: what is seen then is the end
            seen = [Progress(*one) for one in look()]
            live.update(bars(seen, to.width, signs), refresh=True)
            if ended:
                return seen
            time.sleep(_LOOK_EVERY)


def _with_lines(look: Look, over: Callable[[], bool], to: Console, clock: Callable[[], float]) -> list[Progress]:
    said: dict[tuple[str, str], tuple[str, float]] = {}
    while True:
        ended = over()
        seen = [Progress(*one) for one in look()]
        for one in seen:
            text, now = _line(one), clock()
            before, when = said.get(one[:2], ("", now - _LINE_EVERY))
            if text and text != before and (one.state in _OVER or now - when >= _LINE_EVERY):
                to.out(text)
                said[one[:2]] = (text, now)
        if ended:
            return seen
        time.sleep(_LOOK_EVERY)


def _line(one: Progress) -> str:
    if one.state == "skipped" or (one.state not in _OVER and (one.state == "waiting" or one.total < 2)):
        return ""  # that a single job has begun is soon followed by its end
    count = f" {one.done}/{one.total}" if one.total > 1 else ""
    return f"{one.subdomain}: {one.stage}{count}" + (f" {one.state}" if one.state in _OVER else "")


def bars(seen: Sequence[Progress], width: int, signs: Signs) -> Table:
    """A row per site, a cell per stage."""
    from rich.table import Table
    from rich.text import Text

    by = {one[:2]: one for one in seen}
    names = list(dict.fromkeys(one.subdomain for one in seen))
    site = max((len(name) for name in names), default=4)
    cell = max(8, min(20, (width - site - 1) // len(STAGES) - 2))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("site", width=site, no_wrap=True)
    for stage in STAGES:
        table.add_column(_SHORT.get(stage, stage), width=cell, no_wrap=True)
    for name in names:
        cells = [_cell(by.get((name, stage)), cell, signs) for stage in STAGES]
        table.add_row(Text(name, "bold"), *cells)
    return table


def _cell(one: Progress | None, width: int, signs: Signs) -> Text:
    """`━━━──  3/7` while it runs, `✓ 7` after; `✓ 6/7` if some of it failed."""
    from rich.text import Text

    if one is None or one.state == "waiting":
        return Text(signs.none, "dim")
    if one.state in ("skipped", UNCHANGED):
        return Text(f"{signs.none} {one.state}"[:width], "dim")
    whole = one.done >= one.total
    count = f"{one.total}" if whole else f"{one.done}/{one.total}"
    if one.state == "completed":
        return Text(f"{signs.good} {count}", "green" if whole else "yellow")
    if one.state == "failed":
        return Text(f"{signs.bad} {one.done}/{one.total}", "bold red")
    if one.total < 2:
        return Text("running"[:width], "cyan")
    count = f" {one.done}/{one.total}"
    length = max(0, width - len(count))
    filled = length * min(one.done, one.total) // one.total
    return Text.assemble((signs.full * filled, "cyan"), (signs.empty * (length - filled), "dim"), count)


# ---- (b) the end


class Found(NamedTuple):
    """A page that a search found, and what is known of it besides."""

    site: str
    hit: Hit
    source: str  # "a scan", "a text layer"


class Step(NamedTuple):
    what: str
    command: str


def unread(to: Console, documents: Sequence[tuple[str, str, str]]) -> None:
    """What the pipeline did without: site, document, and why."""
    from rich.text import Text

    if not documents:
        return
    _heading(to, "What could not be read; the rest went on without it")
    for site, document, why in documents:
        to.print(Text.assemble("  ", (site, "bold"), f"  {document}"))
        _indented(to, Text(why, "yellow"))


def hits(to: Console, word: str, found: Sequence[Found]) -> None:
    """The search, and the page that each hit is on."""
    from rich.text import Text

    _heading(to, f'Searching for "{word}"')
    if not found:
        to.print(f'  No page has "{word}".')
    for one in found:
        where = f"{one.hit.meeting} {one.hit.kind}, {one.hit.date}"
        line = Text.assemble("  ", (one.site, "bold"), "  ", where, ", ", (f"page {one.hit.page}", "bold cyan"))
        to.print(line.append(f", read from {one.source}"))
        _indented(to, excerpt(one.hit.excerpt))


def excerpt(text: str) -> Text:
    """With the word made bold; where nothing can be bold it stands as it is."""
    from rich.text import Text

    found = Text()
    for number, part in enumerate(text.replace(MARKS[1], MARKS[0]).split(MARKS[0])):
        found.append(part, "bold yellow" if number % 2 else "italic")
    return found


def votes(to: Console, of: Sequence[Vote], most: int = 4) -> None:
    """Who moved what, and how it went."""
    from rich.text import Text

    _heading(to, "The votes on that page")
    if not of:
        to.print("  None was found.")
    for vote in of[:most]:
        good = vote["result"] == "passed"
        line = Text.assemble("  ", (vote["result"], "bold green" if good else "bold red"), f" {_tally(vote)}".rstrip())
        line.append(f"  moved by {vote['motion_by'] or 'somebody'}, seconded by {vote['seconded_by'] or 'nobody'}")
        to.print(line)
        for kind in ("aye", "nay", "abstain", "absent"):
            names = [one["name"] for one in vote["individual_votes"] if one["vote"] == kind]
            if names:
                _indented(to, Text.assemble((f"{kind:8}", "dim"), ", ".join(names)))
    if len(of) > most:
        to.print(f"  and {len(of) - most} more")


def _tally(vote: Vote) -> str:
    ayes, nays = vote["tally"]["ayes"], vote["tally"]["nays"]
    return "" if ayes is None or nays is None else f"{ayes}-{nays}"


def asked_again(to: Console, counts: dict[int, int]) -> None:
    """What the server saw of a second pass over documents: 304 is "not modified"."""
    new, same = counts.get(200, 0), counts.get(304, 0)
    say(to, f"Nothing has changed: of {new + same} documents {same} were answered with 304 Not Modified, {new} were sent.")


def next_steps(to: Console, steps: Sequence[Step]) -> None:
    """Commands stand on lines of their own and are never broken, so that they can be copied."""
    _heading(to, "Where to look next")
    for step in steps:
        say(to, f"  {step.what}")
        to.out(f"    {step.command}", style="cyan", highlight=False)


def open_to_click(to: Console, address: str, keys: bool) -> None:
    """Where the dashboard is; `keys`: somebody can press one."""
    _heading(to, "The dashboard is open, with a worker that does what you click")
    to.out(f"    {address}", style="cyan", highlight=False)
    say(to, f"  {'Enter or ' if keys else ''}Ctrl-C ends it")


def stopped(to: Console, again: str) -> None:
    """Somebody has had enough."""
    say(to, f"\nStopped; nothing is running any more. It goes on where it was:\n  {again}")


def _indented(to: Console, text: Text) -> None:
    for line in text.wrap(to, to.width - 6):
        line.rstrip()
        line.pad_left(4)
        to.print(line)


def _heading(to: Console, text: str) -> None:
    from rich.text import Text

    to.print()
    to.print(Text(text, "bold"))
