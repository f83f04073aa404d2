"""The links of a web page with the words around them, read in one pass.

A parser that builds the whole tree takes time with the square of the depth, so a page of nothing but `<div>` would hold a
worker for hours. Here every search goes forward only, and ends the page where it finds nothing.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_LONGEST_TEXT = 300  # of the words that are kept: they meet patterns of an operator
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]{0,20})")
_ATTRIBUTE = re.compile(r"""[\s/]*([^\s=>/"'<][^\s=>/]{0,50})\s*(?:=\s*("[^"]*"|'[^']*'|[^\s>"'][^\s>]*))?""")
_RAW = {name: re.compile(f"</{name}", re.IGNORECASE) for name in ("script", "style", "textarea", "title")}
_ROWS = {"tr": 3, "li": 2, "article": 2, "dd": 2, "p": 1, "div": 1}  # what is lower within a higher one is part of it
_AROUND_ROWS = {"table": 3, "tbody": 3, "ul": 2, "ol": 2, "dl": 2}  # rows are often not closed
_HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6", "caption", "dt"}


@dataclass
class Link:
    href: str
    text: str = ""  # with what its title says
    row: str = ""  # the words of the row of a table, or the item of a list, that it is in
    heading: str = ""  # the nearest one above
    is_base: bool = False  # no link, but where links begin


@dataclass
class _Reading:
    """What is known at the place where the reader is."""

    row: str = ""
    heading: str = ""
    in_heading: bool = False
    rank: int = 0  # of the row
    open: Link | None = None
    waiting: list[Link] = field(default_factory=list)  # until their row ends


def links(text: str) -> Iterator[Link]:
    """Every `<a href>` and `<area href>`, and the `<base href>`, in the order of the page."""
    now = _Reading()
    for tag, closing, attributes, words in _tokens(text):
        _hear(now, words)
        if not closing and tag in {"a", "area"}:
            now.open = Link(attributes["href"], _title(attributes), heading=now.heading) if attributes.get("href") else None
            if now.open:
                now.waiting.append(now.open)
        elif tag == "a":
            now.open = None
        elif tag == "base" and attributes.get("href"):
            yield Link(attributes["href"], is_base=True)
        elif tag in _HEADINGS:
            now.in_heading = not closing
            now.heading = now.heading if closing else ""
        elif _ROWS.get(tag, -1) >= now.rank:
            yield from _row_ended(now)
            now.rank = 0 if closing else _ROWS[tag]
        elif _AROUND_ROWS.get(tag, -1) >= now.rank:
            yield from _row_ended(now)
            now.rank = 0
    yield from _row_ended(now)


def _hear(now: _Reading, words: str) -> None:
    if not words.strip():
        return
    words = " ".join(html.unescape(words[: 4 * _LONGEST_TEXT]).split())
    if now.open:
        now.open.text = f"{now.open.text} {words}".strip()[:_LONGEST_TEXT]
    if now.in_heading:
        now.heading = f"{now.heading} {words}".strip()[:_LONGEST_TEXT]
    now.row = f"{now.row} {words}".strip()[:_LONGEST_TEXT]


def _row_ended(now: _Reading) -> Iterator[Link]:
    for link in now.waiting:
        link.row = now.row if now.rank else ""
        yield link
    now.waiting, now.row, now.open = [], "", None


def _title(attributes: dict[str, str]) -> str:
    return (attributes.get("title") or attributes.get("aria-label") or attributes.get("alt") or "")[:_LONGEST_TEXT]


def _tokens(text: str) -> Iterator[tuple[str, bool, dict[str, str], str]]:
    """Each tag: its name, whether it closes, its attributes, and the words before it."""
    at, said = 0, 0
    while (at := text.find("<", at)) >= 0:
        if text.startswith("<!--", at):
            words = text[said:at]
            end = text.find("-->", at + 4)
            at = end + 3 if end >= 0 else len(text)
            yield "", False, {}, words
        elif tag := _TAG.match(text, at):
            words, name, closing = text[said:at], tag[2].lower(), bool(tag[1])
            attributes, at = _attributes(text, tag.end(), name in {"a", "area", "base"} and not closing)
            yield name, closing, attributes, words
            if name in _RAW and not closing:
                raw_end = _RAW[name].search(text, at)
                at = raw_end.start() if raw_end else len(text)
        else:  # <!doctype>, <?xml?>, or a stray sign
            at += 1
            continue
        said = at
    yield "", False, {}, text[said:]


def _attributes(text: str, at: int, wanted: bool) -> tuple[dict[str, str], int]:
    """The attributes that begin here, and where the tag ends. Quotes may have `>` in them."""
    found: dict[str, str] = {}
    while part := _ATTRIBUTE.match(text, at):
        if part.end() == at:
            break
        at = part.end()
        if wanted:
            found.setdefault(part[1].lower(), html.unescape((part[2] or "")[:4_000].strip("\"'")))
    end = text.find(">", at)
    return found, end + 1 if end >= 0 else len(text)
