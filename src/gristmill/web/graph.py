"""The stages of a run as a graph: columns by what comes after what, lines between them; or downwards, for narrow screens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from gristmill.model import Run, Stage
from gristmill.progress import others, progress
from gristmill.web.phrases import said, shape, tone
from gristmill.wording import count

_WIDTH, _HEIGHT, _ACROSS, _DOWN, _EDGE = 190, 92, 32, 18, 3
_BROAD, _FALL, _PASSING = 300, 22, 24  # of a stage when they stand one below the other, between two, and beside them
_SIGNS, _ICON = 23, 2  # of a line that fit, and as many as the icon takes of the first
_SHORT = {"completed_with_errors": "with errors"}


class Drawing(NamedTuple):
    """Where the stages stand, how wide they are, and how many signs of a line fit into one."""

    places: Mapping[str, tuple[int, int]]
    wide: int
    signs: int


def drawn(run: Run, after: Mapping[str, Sequence[str]], address: str, left: Mapping[str, str], down: bool = False) -> Markup:
    """`address`: where the jobs of a stage are, to which its name is added; `left`: what is said about its rest."""
    drawing = _down(run.stages) if down else Drawing(_places(run.stages, after), _WIDTH, _SIGNS)
    places = drawing.places
    width = max(x for x, _ in places.values()) + drawing.wide + 2 * _EDGE
    height = max(y for _, y in places.values()) + _HEIGHT + 2 * _EDGE
    pairs = [(places[before], places[name]) for name in places for before in after.get(name, ()) if before in places]
    lines = [_fall(*pair) if down else _line(*pair) for pair in pairs]
    nodes = [_node(stage, drawing, address, left.get(stage.name, "")) for stage in run.stages]
    return Markup(
        '<svg class="graph {}" width="{}" height="{}" viewBox="-{e} -{e} {} {}" role="group" aria-label="stages">{}{}</svg>'
    ).format(
        *("down" if down else "across", width, height, width, height),
        *(Markup("").join(lines), Markup("").join(nodes)),
        e=_EDGE,
    )


def _down(stages: Sequence[Stage]) -> Drawing:
    """One below the other in their order, with room at the left for lines that pass some by."""
    places = {stage.name: (_PASSING, n * (_HEIGHT + _FALL)) for n, stage in enumerate(stages)}
    return Drawing(places, _BROAD, _SIGNS * _BROAD // _WIDTH)


def _places(stages: Sequence[Stage], after: Mapping[str, Sequence[str]]) -> dict[str, tuple[int, int]]:
    """Left to right by the longest way from a beginning; those of one column one below the other, in the middle."""
    column: dict[str, int] = {}
    for stage in stages:  # in their order: what comes before is known
        column[stage.name] = max((column[name] + 1 for name in after.get(stage.name, ()) if name in column), default=0)
    ranks: dict[int, list[str]] = {}
    for name, rank in column.items():
        ranks.setdefault(rank, []).append(name)
    tallest = max((len(names) for names in ranks.values()), default=1)
    return {
        name: (rank * (_WIDTH + _ACROSS), int((n + (tallest - len(names)) / 2) * (_HEIGHT + _DOWN)))
        for rank, names in ranks.items()
        for n, name in enumerate(names)
    }


def _line(start: tuple[int, int], end: tuple[int, int]) -> Markup:
    x, y = start[0] + _WIDTH, start[1] + _HEIGHT // 2
    to_x, to_y = end[0] - 5, end[1] + _HEIGHT // 2
    bend = (to_x - x) // 2
    return Markup('<path class="edge" d="M{} {} C{} {} {} {} {} {}"/><path class="tip" d="M{} {} l-6 -4 v8 z"/>').format(
        x, y, x + bend, y, to_x - bend, to_y, to_x, to_y, to_x + 5, to_y
    )


def _fall(start: tuple[int, int], end: tuple[int, int]) -> Markup:
    """Straight to the one below; around what stands between."""
    x, y, to_y = start[0], start[1] + _HEIGHT, end[1]
    if to_y - y == _FALL:
        x += _BROAD // 2
        return Markup('<path class="edge" d="M{} {} V{}"/><path class="tip" d="M{} {} l-4 -6 h8 z"/>').format(
            x, y, to_y - 5, x, to_y
        )
    y, to_y, out = y - _HEIGHT // 2, to_y + _HEIGHT // 2, x - _PASSING + 4
    return Markup('<path class="edge" d="M{} {} C{} {} {} {} {} {}"/><path class="tip" d="M{} {} l-6 -4 v8 z"/>').format(
        x, y, out, y, out, to_y, x - 5, to_y, x, to_y
    )


def _node(stage: Stage, drawing: Drawing, address: str, left: str) -> Markup:
    (x, y), wide, signs = drawing.places[stage.name], drawing.wide, drawing.signs
    state = "skipped" if stage.taken_from is not None else stage.outcome or stage.state
    name = _cut(stage.name, signs - _ICON)
    begun = stage.state != "waiting" and (stage.total or stage.closed_at is not None)
    amount = progress(stage) if begun else "nothing yet"
    rest = f"from run {stage.taken_from}" if stage.taken_from is not None else left or _SHORT.get(state) or said(state)
    if not begun and state == "open":  # that more may come is all that there is to it
        amount = ""
    below = others(stage) or f"queue {stage.queue}"
    title = f"{stage.name}: {said(state)}, {count(stage.done)} of {count(stage.total)} done. {others(stage)}"
    return Markup(
        '<a href="{}{}" class="node {}"><title>{}</title><rect x="{}" y="{}" width="{}" height="{}" rx="9"/>'
        '<svg x="{}" y="{}" width="16" height="16" class="icon"><use href="#i-{}"/></svg>'
        '<text x="{}" y="{}" class="name">{}</text><text x="{}" y="{}">{}</text>'
        '<text x="{}" y="{}" class="rest">{}</text>{}<text x="{}" y="{}" class="{}">{}</text></a>'
    ).format(
        *(address, stage.name, tone(state), title, x, y, wide, _HEIGHT, x + 12, y + 12, shape(state)),
        *(x + 34, y + 24, name, x + 12, y + 46, amount),
        *(x + wide - 12, y + 46, _cut(rest, signs - len(amount)), _bar(stage, x + 12, y + 56, wide - 24)),
        *(x + 12, y + 80, "below bad" if stage.failed else "below", _cut(below, signs)),
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _bar(stage: Stage, x: int, y: int, whole: int) -> Markup:
    parts = [Markup('<rect class="rail" x="{}" y="{}" width="{}" height="6" rx="3"/>').format(x, y, whole)]
    at = float(x)
    for amount, kind in ((stage.completed, "good"), (stage.skipped + stage.cancelled, "off"), (stage.failed, "bad")):
        if amount:
            width = max(whole * amount / max(stage.total, 1), 2)
            shape_ = '<rect class="{}" x="{:.1f}" y="{}" width="{:.1f}" height="6" rx="3"/>'
            parts.append(Markup(shape_).format(kind, at, y, min(width, x + whole - at)))
            at += whole * amount / max(stage.total, 1)
    return Markup("").join(parts)
