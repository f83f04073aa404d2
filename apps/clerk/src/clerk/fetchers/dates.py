"""Finds the date in the name of a file or the text of a link. If two readings are possible there is none."""

from __future__ import annotations

import datetime
import re

_LONGEST = 1_000
_MONTHS = {
    name: number
    for number, names in enumerate(
        (
            ("january", "jan", "enero", "ene"),
            ("february", "feb", "febrero"),
            ("march", "mar", "marzo"),
            ("april", "apr", "abril", "abr"),
            ("may", "mayo"),
            ("june", "jun", "junio"),
            ("july", "jul", "julio"),
            ("august", "aug", "agosto", "ago"),
            ("september", "sept", "sep", "septiembre"),
            ("october", "oct", "octubre"),
            ("november", "nov", "noviembre"),
            ("december", "dec", "diciembre", "dic"),
        ),
        start=1,
    )
    for name in names
}
_WORD = "|".join(sorted(_MONTHS, key=len, reverse=True))
_YEAR = r"(?:18|19|20)[0-9]{2}"
_GAP = r"[\s_./,-]{0,3}"
_OF = rf"{_GAP}(?:(?:of|de|del){_GAP})?"
_DAY = r"[0-9]{1,2}(?:st|nd|rd|th)?"

# Tried in this order at each place, so that a longer reading comes before one that is part of it.
_SHAPES = (
    rf"(?<![0-9])(?P<y1>{_YEAR})[-_/. ](?P<m1>[0-9]{{1,2}})[-_/. ](?P<d1>[0-9]{{1,2}})(?![0-9])",
    rf"(?<![0-9])(?P<y2>{_YEAR})(?P<m2>[0-9]{{2}})(?P<d2>[0-9]{{2}})(?![0-9])",
    rf"(?<![0-9])(?P<m3>[0-9]{{2}})(?P<d3>[0-9]{{2}})(?P<y3>{_YEAR})(?![0-9])",
    rf"(?<![0-9])(?P<m4>[0-9]{{1,2}})(?P<s4>[-_/. ])(?P<d4>[0-9]{{1,2}})[-_/. ](?P<y4>{_YEAR})(?![0-9])",
    r"(?<![0-9])(?<![0-9][-_/.])(?P<m5>[0-9]{1,2})(?P<s5>[-_/.])(?P<d5>[0-9]{1,2})(?P=s5)(?P<y5>[0-9]{2})(?![-_/.]?[0-9])",
    rf"(?<![0-9])(?P<y6>{_YEAR}){_OF}(?P<m6>{_WORD})(?![a-z]){_OF}(?P<d6>{_DAY})(?![0-9a-z])",
    rf"(?<![0-9])(?P<d7>{_DAY}){_OF}(?P<m7>{_WORD})(?![a-z]){_OF}(?P<y7>{_YEAR}|['’][0-9]{{2}})(?![0-9])",
    rf"(?<![a-z])(?P<m8>{_WORD})(?![a-z]){_GAP}(?P<d8>{_DAY})(?:\s?[-–&]\s?{_DAY})?{_GAP}(?P<y8>{_YEAR}|['’][0-9]{{2}})(?![0-9])",
)
_ANY = re.compile("|".join(_SHAPES), re.IGNORECASE)
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")  # "MinutesJan312026"


def find(text: str) -> str | None:
    """`2026-01-31`, if the text names one day and no other.

    Numbers with the year last are read month first, as municipalities here write them, unless only the other way is a day.
    Days without a year and the six digits that could as well be a number of a document are not dates.
    """
    days = set(spans(text).values())
    return days.pop() if len(days) == 1 else None


def without(text: str) -> str:
    """The text with its dates taken out."""
    text = _humps(text)
    for start, end in sorted(spans(text), reverse=True):
        text = f"{text[:start]} {text[end:]}"
    return text


def spans(text: str) -> dict[tuple[int, int], str]:
    """Where dates are, once words that were run together are apart."""
    found = {}
    for match in _ANY.finditer(_humps(text)):
        day = _day(match)
        if day:
            found[match.span()] = day
    return found


def _humps(text: str) -> str:
    return _HUMP.sub(" ", text[:_LONGEST])


def _day(match: re.Match[str]) -> str | None:
    shape = (match.lastgroup or "")[-1]
    year, month, day = (match[f"{part}{shape}"].strip("'’").lower() for part in "ymd")
    number = _MONTHS.get(month) or int(month)
    first = int(re.sub(r"\D", "", day))
    if len(year) == 2:
        year = ("20" if int(year) < 70 else "19") + year
    elif shape == "4" and number > 12:
        number, first = first, number
    try:
        return datetime.date(int(year), number, first).isoformat()
    except ValueError:
        return None
