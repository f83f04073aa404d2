"""Names of people: how they are written, and who in a document is meant by one."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from clerk.extraction.vocabulary import AMBIGUOUS, GIVEN_NAMES, MEMBER_TITLES, NOT_NAMES, TITLE_HEADS, TITLE_TAILS

# Every repetition has a bound, so that no text is slow.
_WORD = r"[A-ZÀ-Þ][\w'À-ÿ]{0,30}(?:-[A-Za-zÀ-ÿ][\w'À-ÿ]{0,30}){0,3}"
_SHORT = (
    r"(?:Mr|MR|Mrs|MRS|Ms|MS|Dr|DR|Rev|REV|Hon|Prof|Sgt|Lt|Capt|Col|Gen|Atty|Ald|Sel|Comms?|Chrm|Chmn|Fr|St|Ste"
    r"|Wm|Chas|Geo|Thos|Jas|Sr|Jr)\."
)
_PIECE = rf"(?:{_SHORT}|(?:[A-Z]\.){{1,3}}|{_WORD})"
_SMALL = r"(?:(?:de la|de los|de|del|van der|van|von|der|du|la|al|bin) )?"
_NICKNAME = r"(?:[\"'(][A-Z][\w. ]{1,15}[\"')] )?"
# Capitalised words in a row, on one line: a title and a name, or a heading, or a company.
RUN = re.compile(
    rf"(?:\b(?:de la|de los|del|de|van der|van|von|du) )?{_PIECE}(?: {{1,2}}{_NICKNAME}{_SMALL}{_PIECE}){{0,15}}"
    r"(?:,? (?:Jr|Sr)\b\.?|,? (?:II|III|IV)\b)?"
)
_TOKEN = re.compile(rf"{_SHORT}|(?:[A-Z]\.){{1,3}}|[\w'À-ÿ]+(?:-[\w'À-ÿ]+)*")
_NICK = re.compile(r"[\"'(][A-Z][\w. ]{1,15}[\"')]")
_SUFFIXES = {"jr", "sr", "ii", "iii", "iv"}
_ABBREVIATED = {"st", "ste", "wm", "chas", "geo", "thos", "jas"}
_BETWEEN_NAMES = {"and", "by", "to", "with", "from", "that", "second", "seconded", "moved", "motion"}
_TAILS = TITLE_TAILS | {"the", "and"}
_LONGEST = 5
_PARTICLES = frozenset({"St.", "De", "La", "Van", "Von", "Der", "Del", "Di", "Du", "Le", "Los", "El"})


@lru_cache(maxsize=20_000)
def fold(text: str) -> str:
    """What two spellings of a name have in common."""
    if not text.isascii():
        text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return text.casefold().replace(".", "").replace(",", "").replace("'", "")


class Name(NamedTuple):
    """A name as it is printed, without its titles."""

    text: str
    titled: bool = False
    member: bool = False  # the title is one of those who vote
    surname_only: bool = False

    @property
    def tokens(self) -> list[str]:
        return fold(self.text).split()


@lru_cache(maxsize=20_000)
def parse(run: str, whole: bool = False, sure: bool = False) -> Name | None:
    """The person in a run of capitalised words: leading titles go; None if what is left cannot be a name.

    `whole`: nothing but titles and a name may be in it. `sure`: it stands where names stand, so that "Hall" is one.
    """
    if '"' in run or "(" in run or "'" in run:
        run = _NICK.sub("", run).replace("'s ", " ").removesuffix("'s")
    tokens = _TOKEN.findall(run)
    start, member = _after_titles(tokens)
    given = start < len(tokens) and fold(tokens[start]) in GIVEN_NAMES
    kept = _kept(tokens[start:], whole, sure or given or start > 0)
    if not kept or (len(kept) == 1 and len(kept[0]) < 2):
        return None
    words = sum(one not in _PARTICLES and not one.islower() for one in kept)
    return Name(" ".join(kept), start > 0, member, words == 1)


def _after_titles(tokens: Sequence[str]) -> tuple[int, bool]:
    """Where the name begins, behind the last title; and whether that is a title of one who votes."""
    start, member = 0, False
    for i, token in enumerate(tokens):
        word = fold(token)
        if word in TITLE_HEADS:
            start = i + 1
            member = member or word in MEMBER_TITLES
        elif word == "of" and start == i and i:
            start = _after_tail(tokens, i + 1)
            if start == i + 1:
                return len(tokens), member  # "Board of Supervisors of Summit County"
        elif word in GIVEN_NAMES or word in _BETWEEN_NAMES or (len(token) == 2 and token[1] == "."):
            break
    return start, member


def _after_tail(tokens: Sequence[str], i: int) -> int:
    while i < len(tokens) and fold(tokens[i]) in _TAILS:
        i += 1
    return i


def _kept(tokens: list[str], whole: bool, sure: bool) -> list[str]:
    """Of these words those that are the name."""
    kept: list[str] = []
    for token in tokens:
        word = fold(token)
        if kept and word in _SUFFIXES:
            kept[-1] += f", {word.capitalize()}." if word in {"jr", "sr"} else f" {word.upper()}"
            return kept
        if len(kept) == _LONGEST or _ends_name(token, word, sure) or (kept and word in TITLE_HEADS):
            if whole:
                return []
            break
        kept.append(_cased(token) if token.isupper() else token)
    while kept and (kept[-1].endswith(".") or kept[-1].islower()):
        kept.pop()  # "Robert L." goes on somewhere else
    if len(kept) == 4 and all(fold(kept[i]) in GIVEN_NAMES for i in (0, 2)) and fold(kept[1]) not in GIVEN_NAMES:
        return kept[:2]  # two people, and nothing between them
    return kept


def _ends_name(token: str, word: str, sure: bool) -> bool:
    if token[0].isdigit():
        return True
    is_initial = len(token) == 2 and token[1] == "."
    return word in NOT_NAMES and not is_initial and not (sure and (word in AMBIGUOUS or word in GIVEN_NAMES))


def _cased(token: str) -> str:
    """`O'MALLEY`, `MCELROY`, `WU`: as people write it, as far as can be known. Initials stay."""
    if token.endswith(".") or len(token) == 1:
        return token
    parts = [part.capitalize() for part in token.split("-")]
    parts = [part[:2] + part[2:].capitalize() if part[1:2] == "'" or part[:2] == "Mc" else part for part in parts]
    return "-".join(parts)


@dataclass
class _Known:
    text: str
    member: bool


class People:
    """Who is known in a document, and who of them a shorter name means."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._canonical: dict[str, str] = {}
        self._surnames: set[str] = set()
        self.has_members = False

    def add(self, name: Name, member: bool = False) -> None:
        key = fold(name.text)
        known = self._known.setdefault(key, _Known(name.text, member))
        known.member = known.member or member
        self.has_members = self.has_members or member
        self._canonical.clear()

    def resolve(self, text: str) -> str | None:
        """The fullest name that is known for it, if that is one."""
        if not self._canonical:
            self._index()
        key = fold(text)
        return self._canonical.get(key) or self._canonical.get(" ".join(_plain(key.split())))

    def nearest(self, text: str) -> str | None:
        """The member whose surname differs in one letter: what a scan made of it."""
        if not self._canonical:
            self._index()
        key = fold(text)
        if len(key) < 5 or len(self._surnames) > 100:
            return None
        near = {self._canonical[one] for one in self._surnames if abs(len(one) - len(key)) < 2 and _one_apart(one, key)}
        return near.pop() if len(near) == 1 else None

    def _index(self) -> None:
        """Of each way to write a name: whom it means. Ones that mean several are left to those who vote, or to nobody."""
        meant: dict[str, set[str]] = {}
        for key in self._known:
            for short in _shorter(key):
                meant.setdefault(short, set()).add(key)
        self._canonical = {"": ""}
        self._surnames = set()
        for short, keys in meant.items():
            best = self._best(short, keys)
            if best is not None:
                self._canonical[short] = self._known[best].text
                if self._known[best].member and " " not in short:
                    self._surnames.add(short)

    def _best(self, short: str, keys: set[str]) -> str | None:
        longest = self._fullest(keys)
        if longest is None:
            longest = self._fullest({key for key in keys if self._known[key].member})
        return longest or (short if short in self._known else None)

    def _fullest(self, keys: set[str]) -> str | None:
        """The longest of them, if the others are shorter forms of it."""
        if len(keys) < 2:
            return next(iter(keys), None)
        best = max(keys, key=lambda key: (len(key.split()), len(key), key))
        forms = _shorter(best)
        return best if all(key == best or key in forms for key in keys) else None


def _plain(tokens: Sequence[str]) -> list[str]:
    """Without initials in the middle and without a suffix."""
    return [t for i, t in enumerate(tokens) if (len(t) > 1 or i == 0) and t not in _SUFFIXES]


@lru_cache(maxsize=20_000)
def _shorter(key: str) -> frozenset[str]:
    """The ways in which minutes write a name: in full, without initials, "T Hobbs", "Hobbs", "Bear Robe"."""
    tokens = key.split()
    plain = _plain(tokens)
    forms = {key, " ".join(t for t in tokens if t not in _SUFFIXES), " ".join(plain)}
    for i in range(1, len(plain)):
        rest = " ".join(plain[i:])
        forms |= {f"{plain[0][0]} {rest}", f"{plain[0]} {rest}"}
        if rest not in _ABBREVIATED:
            forms.add(rest)
    if len(plain) > 2 and len(plain[0]) == 1:
        forms.add(f"{plain[1]} {plain[-1]}")
    return frozenset(forms)


def _one_apart(a: str, b: str) -> bool:
    """One letter more, less or other."""
    if a == b:
        return True
    i = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[i + 1 :] == b[i + 1 :] or a[i:] == b[i + 1 :] or a[i + 1 :] == b[i:]
