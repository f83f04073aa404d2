"""Text as OCR gives it, made even: words that a line or a speck has split are whole; lines that mean something stay."""

from __future__ import annotations

import re

LONGEST_PAGE = 60_000  # characters; more on one page is no page of minutes
_MUCH_SPACE = re.compile(r" {100,}")
_MANY_LINES = re.compile(r"\n(?:[ ]{0,200}\n){3,}")
_HYPHENATED = re.compile(r"(?<=[a-zà-ÿ])-[ ]?\n[ ]*(?=[a-zà-ÿ])")
_COMPOUND = re.compile(r"(?<=[A-Za-z])-[ ]?\n[ ]*(?=[A-Z])")
_DIGIT_IN_WORD = re.compile(r"\b(?:[A-Za-z]+[01]+[A-Za-z][A-Za-z01]*|[A-Za-z]{3,}[01]|[01][A-Za-z]{3,})\b")
_MIXED = re.compile(r"[A-Za-z][01]|[lI][0-9]|[0-9](?: - )?[A-Za-z]")
_LETTER_IN_NUMBER = re.compile(r"\b[lI](?=\d{1,3}\b)|(?<=\d)[lI]\b(?!\.[A-Z])|(?<=\d - )[lI]\b")
_SPACE_BEFORE_STOP = re.compile(r"(?<=\w)[ ]+(?=[,;:](?:\s|$)|\.(?:[ ]|$))", re.MULTILINE)
# fmt: off
_OFTEN = frozenset((
    "commissioner", "commissioners", "councilman", "councilmen", "seconded", "unanimously", "supervisor", "meeting",
    "motion", "carried",
))
_SIGNS = str.maketrans({
    "\u2019": "'", "\u2018": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": "-", "\u00a0": " ",
    "\t": "    ", "\r": None, "\f": None, "\u00ad": None, "|": " ",
})
# fmt: on
_SPLIT_WORD = re.compile(r"\b([CcSsUuMm](?:om|ou|ec|na|up|ee|ot)[a-z]*|[Cc]ar) (?=([a-z]{3,})\b)")
_BEGINS_ANEW = re.compile(r"(?:\d{1,2}[.)]|[A-Za-z][.)]|[-*•]|[A-Z][A-Za-z ]{2,30}:)(?:\s|$)|_{3}")
_GOES_ON = re.compile(
    r"(?:,|\b(?:and|by|of|the|to|that|with|Mr\.|Mrs\.|Ms\.|Dr\.|Councilmember|Commissioner|Trustee|Supervisor|Director))$"
)
_COLUMNS = re.compile(r"\S {3,}\S")


def clean(text: str) -> str:
    """A page for the rules to read. The text that is stored and searched is another matter, and is not touched."""
    text = text[:LONGEST_PAGE].translate(_SIGNS)
    text = _MUCH_SPACE.sub(" " * 100, _MANY_LINES.sub("\n\n\n", text))
    text = _COMPOUND.sub("-", _HYPHENATED.sub("", text))
    if _MIXED.search(text):
        text = _LETTER_IN_NUMBER.sub("1", _DIGIT_IN_WORD.sub(_letters, text))
    text = _SPACE_BEFORE_STOP.sub("", text)
    text = _SPLIT_WORD.sub(_joined, text)
    return _unwrapped(text)


def _letters(found: re.Match[str]) -> str:
    """`Counci1man`, `C1TY`: what a scan made of an l, an I or an O."""
    word = found[0]
    large = sum(c.isupper() for c in word) > 1 and word.upper() == word
    return word.replace("1", "I" if large else "l").replace("0", "O" if large else "o")


def _joined(found: re.Match[str]) -> str:
    """`Comm issioner`: the words that votes hang on."""
    return found[1] if (found[1] + found[2]).lower() in _OFTEN else found[0]


def _unwrapped(text: str) -> str:
    """Lines that were broken only because the next word had no room are one line."""
    lines = [line.rstrip() for line in text.split("\n")]
    width = max((len(line) for line in lines if "   " not in line.strip()), default=0)
    out: list[str] = []
    before = ""  # the last line as it was printed
    for line in lines:
        if out and _is_soft(before, line, width):
            out[-1] += " " + line.lstrip()
        else:
            out.append(line)
        before = line
    return "\n".join(out)


def _is_soft(before: str, line: str, width: int) -> bool:
    here = line.lstrip()
    if (
        not here
        or not before
        or _BEGINS_ANEW.match(here)
        or (_COLUMNS.search(before.lstrip()[-30:]) and not _GOES_ON.search(before))
    ):
        return False
    if here[0].islower() or _GOES_ON.search(before):
        return True
    return len(before) + 1 + len(here.split(" ", 1)[0]) > width - 3 and width > 45
