"""The stages of a run as a graph: columns by what comes after what, lines between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from gristmill.model import Run, Stage
from gristmill.progress import others, progress
from gristmill.web.phrases import shape, tone, words
from gristmill.wording import count

_WIDTH, _HEIGHT, _ACROSS, _DOWN, _EDGE = 190, 92, 32, 18, 3
_LETTERS, _SIGNS = 21, 26  # of a name, and of a line, that fit


def drawn(run: Run, after: Mapping[str, Sequence[str]], address: str, left: Mapping[str, str]) -> Markup:
    """`address`: where the jobs of a stage are, to which its name is added; `left`: what is said about its rest."""
    places = _places(run.stages, after)
    width = max(x for x, _ in places.values()) + _WIDTH + 2 * _EDGE
    height = max(y for _, y in places.values()) + _HEIGHT + 2 * _EDGE
    lines = [_line(places[before], places[name]) for name in places for before in after.get(name, ()) if before in places]
    nodes = [_node(stage, places[stage.name], address, left.get(stage.name, "")) for stage in run.stages]
    return Markup(
        '<svg class="graph" width="{}" height="{}" viewBox="-{e} -{e} {} {}" role="group" aria-label="stages">{}{}</svg>'
    ).format(width, height, width, height, Markup("").join(lines), Markup("").join(nodes), e=_EDGE)


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


def _node(stage: Stage, place: tuple[int, int], address: str, left: str) -> Markup:
    x, y = place
    state = "skipped" if stage.taken_from is not None else stage.outcome or stage.state
    name = stage.name if len(stage.name) <= _LETTERS else f"{stage.name[: _LETTERS - 1]}…"
    begun = stage.state != "waiting" and (stage.total or stage.closed_at is not None)
    amount = progress(stage) if begun else "nothing yet"
    said = f"from run {stage.taken_from}" if stage.taken_from is not None else left or words(state)
    below = others(stage) or f"queue {stage.queue}"
    title = f"{stage.name}: {words(state)}, {count(stage.done)} of {count(stage.total)} done. {others(stage)}"
    return Markup(
        '<a href="{}{}" class="node {}"><title>{}</title><rect x="{}" y="{}" width="{}" height="{}" rx="9"/>'
        '<svg x="{}" y="{}" width="16" height="16" class="icon"><use href="#i-{}"/></svg>'
        '<text x="{}" y="{}" class="name">{}</text><text x="{}" y="{}">{}</text>'
        '<text x="{}" y="{}" class="rest">{}</text>{}<text x="{}" y="{}" class="{}">{}</text></a>'
    ).format(
        *(address, stage.name, tone(state), title, x, y, _WIDTH, _HEIGHT, x + 12, y + 12, shape(state)),
        *(x + 34, y + 24, name, x + 12, y + 46, amount),
        *(x + _WIDTH - 12, y + 46, _cut(said, _SIGNS - len(amount)), _bar(stage, x + 12, y + 56)),
        *(x + 12, y + 80, "below bad" if stage.failed else "below", _cut(below, _SIGNS)),
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _bar(stage: Stage, x: int, y: int) -> Markup:
    whole = _WIDTH - 24
    parts = [Markup('<rect class="rail" x="{}" y="{}" width="{}" height="6" rx="3"/>').format(x, y, whole)]
    at = float(x)
    for amount, kind in ((stage.completed, "good"), (stage.skipped + stage.cancelled, "off"), (stage.failed, "bad")):
        if amount:
            width = max(whole * amount / max(stage.total, 1), 2)
            shape_ = '<rect class="{}" x="{:.1f}" y="{}" width="{:.1f}" height="6" rx="3"/>'
            parts.append(Markup(shape_).format(kind, at, y, min(width, x + whole - at)))
            at += whole * amount / max(stage.total, 1)
    return Markup("").join(parts)
