"""What the words around a document say of it: its kind, its date, its meeting. The first text that is clear decides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from clerk import names
from clerk.fetchers import dates
from clerk.fetchers.options import Pattern
from clerk.names import Kind

_AGENDA, _MINUTES = re.compile("agenda", re.IGNORECASE), re.compile("minute", re.IGNORECASE)
_NO_NAME = re.compile(
    r"\b(?:agendas?|minutes?|packets?|meetings?|regular|special|draft|approved|final|amended|of|for|the|pdf)\b|[^\w&/' ]|_",
    re.IGNORECASE,
)


def kind_of(texts: Iterable[str], pattern: Pattern | None) -> Kind | None:
    """What the pattern matches is an agenda, everything else minutes. If it has groups named `agendas` or `minutes`, the
    group that matched says which, and what matches none is no document (None). Without a pattern: by the words."""
    if pattern is None:
        return _kind_by_words(texts)
    for text in texts:
        match = pattern.search(text)
        if match:
            groups = match.groupdict()
            return next((kind for kind in names.KINDS if groups.get(kind)), "agendas")
    return None if pattern.names_kinds else "minutes"


def _kind_by_words(texts: Iterable[str]) -> Kind:
    for text in texts:
        agenda, minutes = _AGENDA.search(text), _MINUTES.search(text)
        if bool(agenda) != bool(minutes):
            return "agendas" if agenda else "minutes"
    return "minutes"


def date_of(texts: Sequence[str], pattern: Pattern | None) -> str | None:
    """The first clear day; with a pattern, in what it picks (its group `date`, else its first, else all that it matched)."""
    if pattern is not None:
        picked = (pattern.picked(text, "date") for text in texts)
        texts = [text for text in picked if text]
    return next((day for text in texts if (day := dates.find(text))), None)


def meeting_of(title: str) -> str:
    """`City Council Regular Meeting Minutes - January 31, 2026` is of the City Council; empty if nothing is left."""
    left = " ".join(_NO_NAME.sub(" ", dates.without(title)).split()).strip("&/' ")
    return names.meeting(left) if left else ""
