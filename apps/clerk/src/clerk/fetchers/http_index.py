"""The fetcher `http_index`: the PDF links of a web page, and of the pages that it links to."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from clerk import names
from clerk.errors import Incomplete, Transient, Unreadable
from clerk.fetchers import pages, selection, urls, words
from clerk.fetchers.options import Options
from clerk.parts import Fetched, Found, Known, Wanted, Web

_log = logging.getLogger(__name__)
_PDF = re.compile(r"\.pdf(?:$|[?&])", re.IGNORECASE)
_NO_PAGE = re.compile(
    r"\.(?:pdf|docx?|xlsx?|pptx?|zip|jpe?g|png|gif|svg|webp|mp[34]|m4a|wav|ics|css|js|xml)$", re.IGNORECASE
)
_HTML = r"html|^text/plain$"
_MOST_PAGES = 300  # of one pass; a site that has more is given a narrower url


class HttpIndex:
    """Without `link_pattern`: links to PDFs. With one: every link whose URL it matches, and a group of it named `meeting`
    names the meeting. Documents may be on any host; pages are only followed on the same one."""

    def __init__(self, extra: Mapping[str, Any], client: Web) -> None:
        keys = ("url", "link_pattern", "kind_pattern", "date_pattern", "meeting", "depth")
        options = Options("http_index", extra, keys)
        self._url = options.url("url")
        self._links = options.pattern("link_pattern")
        self._kinds = options.pattern("kind_pattern")
        self._dates = options.pattern("date_pattern")
        self._meeting = options.text("meeting")
        self._depth = options.number("depth", 0, 2)
        self._client = client

    def get(self, found: Found, known: Known | None, into: Path) -> Fetched:
        return self._client.get(found, known, into)

    def find(self, wanted: Wanted) -> Iterator[Found]:
        hosts = {_host(self._url)}
        todo = deque([(self._url, 0)])
        seen = {self._url}
        lost: list[Transient] = []  # pages that may be there in a moment
        listed: dict[str, bool] = {}  # whether a date was found: a second link to the same document may say it
        while todo:
            url, depth = todo.popleft()
            for target, link in self._links_of(url, depth, hosts, seen, lost):
                if self._is_document(target):
                    if not listed.get(target):
                        date = words.date_of(_texts(target, link), self._dates)
                        listed[target] = date is not None
                        yield from self._found(target, link, date, wanted)
                elif depth < self._depth and target not in seen and self._is_page(target, hosts):
                    seen.add(target)
                    if len(seen) <= _MOST_PAGES:
                        todo.append((target, depth + 1))
        self._report(sum(not dated for dated in listed.values()), len(seen))
        if lost:
            raise Incomplete(f"{len(lost)} of {len(seen)} pages of the index could not be read: {lost[0]}")

    def _report(self, undated: int, seen: int) -> None:
        if seen > _MOST_PAGES:
            _log.warning("%s leads to %d pages; the first %d were read", urls.shown(self._url), seen, _MOST_PAGES)
        if undated:
            _log.warning("%s lists %d documents without a date: date_pattern may find it", urls.shown(self._url), undated)

    def _links_of(
        self, url: str, depth: int, hosts: set[str], seen: set[str], lost: list[Transient]
    ) -> Iterator[tuple[str, pages.Link]]:
        try:
            page = self._client.page(url, types=_HTML)
        except Transient as error:
            if not depth:
                raise
            lost.append(error)
            return
        except Unreadable as error:
            if not depth:
                raise
            _log.warning("a page of the index is left out: %s", error)
            return
        if not depth:
            hosts.add(_host(page.url))
        seen.add(page.url)  # after a redirect it is another
        base = page.url
        for link in pages.links(page.text):
            target = urls.absolute(base, link.href)
            if link.is_base:
                base = target or base
            elif target is not None:
                yield target, link

    def _is_document(self, url: str) -> bool:
        """On whatever host: many towns have their files elsewhere."""
        return (_PDF if self._links is None else self._links).search(url) is not None

    def _is_page(self, url: str, hosts: set[str]) -> bool:
        return _host(url) in hosts and not _NO_PAGE.search(urlsplit(url).path)

    def _found(self, url: str, link: pages.Link, date: str | None, wanted: Wanted) -> Iterator[Found]:
        said = _texts(url, link) if self._kinds is None else [link.text, urls.file_name(url), url]
        kind = words.kind_of(said, self._kinds)
        if date is not None and kind is not None and selection.is_recent(date, wanted):
            named = self._links.named(url, "meeting") if self._links else None
            yield Found(url, kind, names.meeting(self._meeting or named or ""), date)


def _texts(url: str, link: pages.Link) -> list[str]:
    """What may say something of a document, the surest first."""
    return [link.text, urls.file_name(url), link.row, link.heading, url]


def _host(url: str) -> str:
    return urls.parse(url).host.removeprefix("www.")
