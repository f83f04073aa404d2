"""Bars as SVG, readable on light and on dark pages; drawn here, since no library is worth it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from bench.figures import number

WIDTH, LABEL, VALUE = 760, 210, 90  # of all, of the names at the left, of the numbers at the right
ROW, TOP, BOTTOM = 24, 44, 34

# A ground of its own, so that it can be read wherever a page puts it, and whatever that page's colours are.
STYLE = """
  .ground { fill: #ffffff } .grid { stroke: #d8dee4 } text { fill: #1f2328; font: 13px system-ui, sans-serif }
  .title { font-weight: 600 } .tick, .note { fill: #59636e; font-size: 11px }
  .peer { fill: #8c959f } .ours { fill: #0969da } .loop { fill: #bf8700 }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0d1117 } .grid { stroke: #30363d } text { fill: #e6edf3 } .tick, .note { fill: #9198a1 }
    .peer { fill: #6e7681 } .ours { fill: #4493f8 } .loop { fill: #d29922 }
  }
"""


@dataclass(frozen=True)
class Bar:
    label: str
    value: float
    kind: str = "peer"  # or ours, or loop


def ticks(low: float, high: float) -> list[float]:
    """The powers of ten from the one below the least to the one above the most."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def bars(title: str, unit: str, rows: Sequence[Bar]) -> str:
    """On a logarithmic scale: between the first and the last there are often three powers of ten."""
    rows = [row for row in rows if row.value > 0]
    if not rows:
        return ""
    marks = ticks(min(row.value for row in rows), max(row.value for row in rows))
    height = TOP + ROW * len(rows) + BOTTOM
    parts = [_tick(mark, marks, height) for mark in marks]
    parts += [_bar(row, at, marks) for at, row in enumerate(rows)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        f' role="img" aria-label="{escape(title, {chr(34): "&quot;"})}">\n<style>{STYLE}</style>\n'
        f'<rect class="ground" width="{WIDTH}" height="{height}" rx="6"/>\n'
        f'<text class="title" x="16" y="26">{escape(title)}</text>\n'
        + "\n".join(parts)
        + f'\n<text class="note" x="{LABEL}" y="{height - 6}">{escape(unit)}, logarithmic</text>\n</svg>\n'
    )


def _place(value: float, marks: Sequence[float]) -> float:
    whole = math.log10(marks[-1]) - math.log10(marks[0])
    return LABEL + (math.log10(value) - math.log10(marks[0])) / whole * (WIDTH - LABEL - VALUE)


def _tick(mark: float, marks: Sequence[float], height: int) -> str:
    x = _place(mark, marks)
    return (
        f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{height - BOTTOM}"/>'
        f'<text class="tick" x="{x:.1f}" y="{height - BOTTOM + 14}" text-anchor="middle">{mark:,g}</text>'
    )


def _bar(row: Bar, at: int, marks: Sequence[float]) -> str:
    y, end = TOP + ROW * at, _place(row.value, marks)
    return (
        f'<text x="{LABEL - 8}" y="{y + 13}" text-anchor="end">{escape(row.label)}</text>'
        f'<rect class="{row.kind}" x="{LABEL}" y="{y}" width="{max(end - LABEL, 1):.1f}" height="{ROW - 7}" rx="2"/>'
        f'<text x="{end + 6:.1f}" y="{y + 13}">{number(row.value)}</text>'
    )
