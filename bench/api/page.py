"""The figures of the API as a page: docs/api-figures.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from bench.core import Figure
from bench.page import table

INTRO = """\
# What it costs to look

`./run bench api --write` measures the [HTTP API](api.md) and the [dashboard](dashboard.md) over a ledger in PostgreSQL with
1,000,000 jobs and 5,000 subjects, and writes this page. Times are of one machine, which also ran the database.
"""
HOW = """
## How

- Every page and every list, with its usual filters, early and late pages, is asked for 20 times of a `gristmill serve` that
  keeps nothing of what it read a moment before; times are until the whole answer is there.
- The refresh of the overview is one before which nobody looked for five seconds: the sum of what EXPLAIN ANALYZE says of
  each of its statements. What the doctor says is asked every half minute, and not in it.
- Whoever follows the events has a connection of its own to one process; each is to get all of them, in order.
- A worker drains 40,000 jobs in each of 14 rounds; in half of them 20 people watch, whose pages refresh as a browser's do.
"""
NOT_YET = "not measured yet"


@dataclass(frozen=True)
class Wanted:
    """What was to be reached, and how the name of its figure begins."""

    sentence: str
    figure: str


WANTED = (
    Wanted("every page and list ≤ 200 ms at p95, 1,000,000 jobs and 5,000 subjects", "all "),
    Wanted("a refresh of the overview ≤ 20 ms of the database's time", "a refresh of the overview"),
    Wanted("200 clients follow the events of one process", "200 follow"),
    Wanted("draining slows by < 5% while 20 people watch", "draining while 20"),
)


def summary(figures: Sequence[Figure]) -> Iterator[tuple[str, str, str]]:
    """Each thing that was to be reached: whether it was, and what was measured."""
    for wanted in WANTED:
        found = next((figure for figure in figures if figure.name.startswith(wanted.figure)), None)
        yield (wanted.sentence, found.measured, _word(found)) if found else (wanted.sentence, NOT_YET, "")


def page(figures: Sequence[Figure], told: str) -> str:
    """`told`: when and where they were measured."""
    reached = table(["reach", "measured", ""], map(list, summary(figures)))
    every = [[f"`{figure.name}`", figure.measured, figure.reach, _word(figure)] for figure in figures]
    single = f"\n## Each of them\n\n{table(['', 'measured', 'reach', ''], every)}" if figures else ""
    return f"{INTRO}\n{told}\n\n## What was to be reached\n\n{reached}{HOW}{single}"


def lines(figures: Sequence[Figure]) -> Iterable[str]:
    return (f"{word or '-':<13}{sentence}: {measured}" for sentence, measured, word in summary(figures))


def _word(figure: Figure) -> str:
    return "reached" if figure.holds else "NOT reached"
