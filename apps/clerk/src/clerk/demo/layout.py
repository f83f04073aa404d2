"""Where the lines of a page are on paper, the same for a scan and for a page with a text layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from clerk.demo.texts import Line

WIDTH, HEIGHT = 8.5, 11.0  # inches: letter
_LEFT, _TOP, _FOOT = 0.9, 0.9, 10.4
_POINTS: Final = {"plain": 10.5, "heading": 10.5, "title": 12.5, "foot": 9.5}
_PITCH: Final = 15.5 / 72  # inches from line to line, for a page that is not crowded
_LOWEST: Final = 10.1  # of the last line above the foot


@dataclass(frozen=True)
class Placed:
    text: str
    down: float  # inches from the top to the line that the letters stand on
    left: float
    points: float
    bold: bool
    centred: bool


def placed(lines: Sequence[Line]) -> Iterator[Placed]:
    body = sum(line.look != "foot" for line in lines)
    pitch = min(_PITCH, (_LOWEST - _TOP) / max(1, body - 1))
    down = _TOP
    for line in lines:
        foot = line.look == "foot"
        if line.text:
            yield Placed(
                line.text,
                _FOOT if foot else down,
                _LEFT,
                _POINTS[line.look],
                line.look in ("heading", "title"),
                line.look in ("title", "foot"),
            )
        if not foot:
            down += pitch
