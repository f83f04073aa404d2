"""The fetcher `feed`: the documents of an RSS, Atom or JSON feed, as enclosures or as links to PDFs."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clerk import names
from clerk.errors import Unreadable
from clerk.fetchers import dates, pages, selection, urls, words
from clerk.fetchers.options import Options
from clerk.parts import Fetched, Found, Known, Page, Wanted, Web

_PDF = re.compile(r"\.pdf(?:$|[?&])", re.IGNORECASE)
_ACCEPT = "application/rss+xml,application/atom+xml,application/feed+json,application/xml;q=0.9,*/*;q=0.5"
_LARGEST = 5 * 1024 * 1024  # the parser of feeds takes seconds for each of them


@dataclass
class _Entry:
    """What the three formats have in common."""

    title: str
    published: str | None  # a day
    categories: list[str]
    links: list[tuple[str, str, str]] = field(default_factory=list)  # href, type, title
    html: str = ""


class Feed:
    """The date is the one in the title of an entry, or in the name of the file, else the day it was published. The meeting
    is what the title says besides, else its only category, else the title of the feed."""

    def __init__(self, extra: Mapping[str, Any], client: Web) -> None:
        options = Options("feed", extra, ("url", "kind_pattern"))
        self._url = options.url("url")
        self._kinds = options.pattern("kind_pattern")
        self._client = client

    def get(self, found: Found, known: Known | None, into: Path) -> Fetched:
        return self._client.get(found, known, into)

    def find(self, wanted: Wanted) -> Iterator[Found]:
        page = self._client.page(self._url, _ACCEPT)
        title, entries = _read(page)
        seen: set[str] = set()
        for entry in entries:
            for url, text in _documents(page.url, entry):
                if url not in seen:
                    seen.add(url)
                    yield from self._found(url, text, entry, title, wanted)

    def _found(self, url: str, text: str, entry: _Entry, feed: str, wanted: Wanted) -> Iterator[Found]:
        texts = [text, entry.title, urls.file_name(url)]
        kind = words.kind_of([*texts, url, *entry.categories, feed], self._kinds)
        date = words.date_of([entry.title, text, urls.file_name(url)], None) or entry.published
        if kind is not None and date is not None and selection.is_recent(date, wanted):
            only = entry.categories[0] if len(entry.categories) == 1 else ""
            meeting = words.meeting_of(entry.title) or words.meeting_of(only) or words.meeting_of(feed)
            yield Found(url, kind, names.meeting(meeting), date)


def _documents(base: str, entry: _Entry) -> Iterator[tuple[str, str]]:
    """The URL and the words of each."""
    for href, kind, title in entry.links:
        url = urls.absolute(base, href)
        if url and (_PDF.search(url) or kind.partition(";")[0].strip().lower() == "application/pdf"):
            yield url, title
    for link in pages.links(entry.html):
        url = urls.absolute(base, link.href)
        if url and _PDF.search(url) and not link.is_base:
            yield url, link.text


def _read(page: Page) -> tuple[str, list[_Entry]]:
    if len(page.data) > _LARGEST:
        raise Unreadable(f"{urls.shown(page.url)} is larger than {_LARGEST // 1024**2} MB, too large for a feed")
    return _read_json(page) if page.data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{") else _read_xml(page)


def _read_xml(page: Page) -> tuple[str, list[_Entry]]:
    import feedparser

    # From memory: given a text, the parser would open a file or an address of that name.
    read = feedparser.parse(
        io.BytesIO(page.data),
        response_headers={"content-type": f"{page.content_type}; charset={page.charset}"} if page.charset else {},
        resolve_relative_uris=False,
        sanitize_html=False,
    )
    if not read.get("version") and not read.entries:
        raise Unreadable(f"{urls.shown(page.url)} is no feed")
    return _text(read.feed.get("title")), [_of_xml(entry) for entry in read.entries]


def _of_xml(entry: Mapping[str, Any]) -> _Entry:
    moment = entry.get("published_parsed") or entry.get("updated_parsed")
    return _Entry(
        _text(entry.get("title")),
        time.strftime("%Y-%m-%d", moment) if moment and moment.tm_year >= 1000 else None,
        [_text(tag.get("term")) for tag in entry.get("tags", ()) if tag.get("term")],
        [(_text(one.get("href")), _text(one.get("type")), _text(one.get("title"))) for one in entry.get("links", ())],
        " ".join([_text(entry.get("summary")), *(_text(part.get("value")) for part in entry.get("content", ()))]),
    )


def _read_json(page: Page) -> tuple[str, list[_Entry]]:
    read = page.json()
    items = read.get("items")
    if "jsonfeed.org" not in _text(read.get("version")) or not isinstance(items, list):
        raise Unreadable(f"{urls.shown(page.url)} is JSON, but no JSON Feed")
    return _text(read.get("title")), [_of_json(item) for item in items if isinstance(item, dict)]


def _of_json(item: Mapping[str, Any]) -> _Entry:
    attachments = item.get("attachments")
    tags = item.get("tags")
    links = [(_text(item.get(key)), "", "") for key in ("url", "external_url")]
    for one in attachments if isinstance(attachments, list) else ():
        if isinstance(one, dict):
            links.append((_text(one.get("url")), _text(one.get("mime_type")), _text(one.get("title"))))
    return _Entry(
        _text(item.get("title")),
        dates.find((_text(item.get("date_published")) or _text(item.get("date_modified")))[:10]),
        [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else [],
        links,
        _text(item.get("content_html")),
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
