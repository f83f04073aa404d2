"""How the demonstration's municipalities list their documents: a page with a table, an archive with a page per year, an RSS
feed, and the JSON of Legistar. Each is made from the files that are there when it is asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from html import escape
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from zlib import crc32

from clerk.demo.towns import TOWNS
from clerk.errors import Usage
from clerk.names import KINDS, Kind

MOST: Final = 1000  # events in one answer, as Legistar has it
_WORDS: Final[Mapping[Kind, str]] = {"minutes": "Minutes", "agendas": "Agenda"}
_SINCE: Final = re.compile(r"EventDate\s+ge\s+datetime'(\d{4}-\d{2}-\d{2})(?:T[\d:.]+)?'")
_ORDER: Final = re.compile(r"(EventDate|EventId)(?:\s+(asc|desc))?")


@dataclass(frozen=True)
class Row:
    """A meeting, and which papers of it there are."""

    day: date
    body: str
    stem: str  # of the files; a second meeting of the day has -2 there
    files: Mapping[Kind, Path]

    @property
    def said(self) -> str:
        return f"{self.day:%B} {self.day.day}, {self.day.year}"


def rows(folder: Path, site: str) -> list[Row]:
    """The meetings of a site, the latest first."""
    found: dict[tuple[date, str, str], dict[Kind, Path]] = {}
    for kind in KINDS:
        for path in (folder / site / kind).glob("*/????-??-??*.pdf"):
            found.setdefault((date.fromisoformat(path.stem[:10]), path.parent.name, path.stem), {})[kind] = path
    return [Row(*key, found[key]) for key in sorted(found, reverse=True)]


def address(site: str, kind: Kind, row: Row) -> str:
    return "/" + "/".join(quote(part) for part in (site, "documents", kind, row.body, f"{row.stem}.pdf"))


def name_of(site: str) -> str:
    return next((town.name for town in TOWNS if town.subdomain == site), site)


# ---- pages


def start(sites: Sequence[str]) -> str:
    links = "".join(f'<li><a href="/{quote(site)}/">{escape(name_of(site))}</a></li>' for site in sites)
    return _page("Municipalities", f"<ul>{links}</ul>")


def table(site: str, of: Sequence[Row]) -> str:
    """One page with everything."""
    head = "<tr><th>Date</th><th>Meeting</th><th>Agenda</th><th>Minutes</th></tr>"
    body = "".join(_table_row(site, row) for row in of)
    return _page(f"{name_of(site)}: Agendas and Minutes", f"<table>{head}{body}</table>")


def archive(site: str, of: Sequence[Row]) -> str:
    """A page that only leads to those of the years."""
    years = sorted({row.day.year for row in of}, reverse=True)
    links = "".join(f'<li><a href="/{quote(site)}/archive/{year}.html">{year} meetings</a></li>' for year in years)
    return _page(f"{name_of(site)}: Archive", f"<ul>{links}</ul>")


def _table_row(site: str, row: Row) -> str:
    cells = (_link(site, kind, row) if kind in row.files else "" for kind in ("agendas", "minutes"))
    inner = "".join(f"<td>{cell}</td>" for cell in (f"{row.day:%A}, {row.said}", escape(row.body), *cells))
    return f"<tr>{inner}</tr>"


def _link(site: str, kind: Any, row: Row) -> str:
    title = escape(f"{row.body} {_WORDS[kind]}, {row.said}", quote=True)
    return f'<a href="{escape(address(site, kind, row), quote=True)}" title="{title}">{_WORDS[kind]}</a>'


def _page(title: str, body: str) -> str:
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title></head>\n'
        f"<body><h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )


# ---- feed


def feed(site: str, of: Sequence[Row], base: str) -> str:
    items = "".join(_items(site, of, base))
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<rss version="2.0"><channel>'
        f"<title>{escape(name_of(site))}</title><link>{base}/{quote(site)}/</link>"
        f"<description>Agendas and minutes</description>{items}</channel></rss>\n"
    )


def _items(site: str, of: Sequence[Row], base: str) -> Iterator[str]:
    for row in of:
        for kind, path in row.files.items():
            url = escape(base + address(site, kind, row), quote=True)
            yield (
                f"<item><title>{escape(row.body)} {_WORDS[kind]} - {row.said}</title><category>{escape(row.body)}</category>"
                f'<link>{url}</link><guid isPermaLink="true">{url}</guid>'
                f"<pubDate>{row.day:%a, %d %b %Y} 20:00:00 GMT</pubDate>"
                f'<enclosure url="{url}" length="{path.stat().st_size}" type="application/pdf"/></item>'
            )


# ---- Legistar


def events(site: str, of: Sequence[Row], base: str, query: Mapping[str, str]) -> str:
    """A page of the events: `$top`, `$skip`, `$orderby`, and `$filter` by the first day."""
    found = [_event(site, row, base) for row in reversed(of)]
    if wish := query.get("$filter"):
        since = _SINCE.fullmatch(wish.strip())
        if not since:
            raise Usage("$filter is understood only as EventDate ge datetime'2026-01-01'")
        found = [event for event in found if event["EventDate"][:10] >= since[1]]
    if wish := query.get("$orderby"):
        order = _ORDER.fullmatch(wish.strip())
        if not order:
            raise Usage("$orderby is understood only for EventDate and EventId, asc or desc")
        found.sort(key=lambda event: (event[order[1]], event["EventId"]), reverse=order[2] == "desc")
    skip, top = _number(query, "$skip", 0), min(_number(query, "$top", MOST), MOST)
    return json.dumps(found[skip : skip + top], indent=1)


def _event(site: str, row: Row, base: str) -> dict[str, Any]:
    files = {kind: base + address(site, kind, row) if kind in row.files else None for kind in KINDS}
    number = row.day.toordinal() * 1000 + crc32(f"{row.body}/{row.stem}".encode()) % 1000
    return {
        "EventId": number,
        "EventGuid": f"{number:032X}",
        "EventBodyName": row.body,
        "EventDate": f"{row.day}T00:00:00",
        "EventTime": "7:00 PM",
        "EventAgendaFile": files["agendas"],
        "EventMinutesFile": files["minutes"],
    }


def _number(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name, str(default))
    if not text.isdecimal():
        raise Usage(f"{name} wants a whole number, not {text[:40]!r}")
    return int(text)
