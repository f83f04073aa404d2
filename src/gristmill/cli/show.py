"""Printing: tables, ages, states. Coloured and cut to the width on a terminal, plain and complete elsewhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

import click

from gristmill.wording import age as age
from gristmill.wording import assignments as assignments
from gristmill.wording import between as between
from gristmill.wording import clean as clean
from gristmill.wording import count as count
from gristmill.wording import first_line as first_line
from gristmill.wording import moment as moment
from gristmill.wording import plural as plural
from gristmill.wording import short as short
from gristmill.wording import span as span

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

STYLES = {
    "completed": "green",
    "completed_with_errors": "yellow",
    "failed": "bold red",
    "cancelled": "magenta",
    "skipped": "cyan",
    "in_progress": "bold blue",
    "open": "bold blue",
    "sealed": "bold blue",
    "waiting": "dim",
    "paused": "yellow",
    "lost": "bold red",
    "active": "green",
}


def document(value: Any) -> None:
    """One JSON document on stdout."""
    from gristmill.model import to_json

    plain = (sys.stdout.encoding or "ascii").lower().replace("-", "") != "utf8"
    click.echo(json.dumps(to_json(value), indent=2, ensure_ascii=plain))


def line(text: str = "") -> None:
    click.echo(clean(text))


def note(text: str) -> None:
    """Something for the person, not for the program that reads our output."""
    click.echo(f"note: {clean(text)}", err=True)


def heading(text: str, state: str = "", rest: str = "") -> None:
    """`run 3  wordcount books  completed  (unchanged)`."""
    if not is_terminal(sys.stdout):
        return line("  ".join(part for part in (text, state, rest) if part))
    from rich.text import Text

    parts = [Text(clean(text), "bold")]
    parts += [Text(state, STYLES.get(state, ""))] if state else []
    parts += [Text(clean(rest))] if rest else []
    return console().print(Text("  ").join(parts), soft_wrap=True)


def facts(pairs: Iterable[tuple[str, str | None]]) -> None:
    """Names and values, aligned; what has no value is left out."""
    known = [(name, clean(value)) for name, value in pairs if value]
    if is_terminal(sys.stdout):
        return _rich_facts(known)
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        click.echo(f"  {name:<{width}}  {value}")
    return None


def _rich_facts(known: Iterable[tuple[str, str]]) -> None:
    """As above, but a long value goes on under itself."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for name, value in known:
        grid.add_row(Text(name), Text(value))
    console().print(Padding(grid, (0, 0, 0, 2)))


def block(text: str, indent: str = "    ") -> None:
    """Several lines as they are: a traceback, a log."""
    for part in text.rstrip("\n").split("\n"):
        click.echo(indent + clean(part))


# ---- tables


@dataclass(frozen=True)
class Column:
    title: str
    right: bool = False  # numbers
    free: bool = False  # text of any length: on a terminal it gives way to the others

    def aligned(self, text: str, width: int) -> str:
        space = " " * (width - _width(text))
        return space + text if self.right else text + space


def table(columns: Sequence[Column], rows: Iterable[Sequence[str]], indent: str = "") -> None:
    cells = [[clean(cell) for cell in row] for row in rows]
    if is_terminal(sys.stdout):
        _rich_table(columns, cells, indent)
    else:
        _plain_table(columns, cells, indent)


def _plain_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], indent: str) -> None:
    lines = [[column.title.upper() for column in columns], *rows]
    widths = [max(_width(cells[n]) for cells in lines) for n in range(len(columns))]
    for cells in lines:
        aligned = [column.aligned(cell, width) for column, cell, width in zip(columns, cells, widths, strict=True)]
        click.echo((indent + "  ".join(aligned)).rstrip())


def _rich_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], indent: str) -> None:
    from rich.padding import Padding
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        made.add_column(column.title.upper(), justify="right" if column.right else "left", no_wrap=not column.free)
    for row in rows:
        made.add_row(*(_cell(column, cell) for column, cell in zip(columns, row, strict=True)))
    console().print(Padding(made, (0, 0, 0, len(indent))))


def _cell(column: Column, text: str) -> Text:
    from rich.text import Text

    style = STYLES.get(text, "") if column.title in {"state", "outcome"} else ""
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def console(stream: TextIO | None = None) -> Console:
    """rich, for text that is never markup: keys and errors may hold square brackets."""
    from rich.console import Console

    return Console(file=stream or sys.stdout, markup=False, highlight=False, emoji=False)


def never_fail_on_a_letter() -> None:
    """Names come from anywhere; a terminal that cannot show one of their letters shows a question mark."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
