"""The fetcher `legistar`: the events of the Legistar Web API, with the files of their agendas and minutes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from clerk import config, names
from clerk.errors import Unreadable
from clerk.fetchers import dates, selection, urls
from clerk.fetchers.options import Options
from clerk.names import Kind
from clerk.parts import Fetched, Found, Known, Wanted, Web

PAGE = 1_000  # events, the most that the API gives at once
_BASE = "https://webapi.legistar.com/v1"
_FILES: tuple[tuple[Kind, str], ...] = (("minutes", "EventMinutesFile"), ("agendas", "EventAgendaFile"))
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


class Legistar:
    """`client` is the name of the municipality there; `token_env` names the variable with its token, if it needs one."""

    def __init__(self, extra: Mapping[str, Any], client: Web) -> None:
        options = Options("legistar", extra, ("client", "base_url", "token_env"))
        name = options.needed("client")
        if not _NAME.fullmatch(name) or name.strip(".") == "":
            raise options.wrong(f"'client' is a name such as 'oakland', not {name[:60]!r}")
        base = options.url("base_url") if options.text("base_url") else _BASE
        self._events = f"{base.rstrip('/')}/{name}/events"
        self._token = _token(options)
        self._client = client

    def get(self, found: Found, known: Known | None, into: Path) -> Fetched:
        return self._client.get(found, known, into)

    def find(self, wanted: Wanted) -> Iterator[Found]:
        for event in self._all(wanted.since_year):
            date = dates.find(str(event.get("EventDate") or "")[:10])
            if date is None or not selection.is_recent(date, wanted):
                continue
            for kind, key in _FILES:
                url = urls.absolute(self._events, str(event.get(key) or ""))
                if url is not None:
                    yield Found(url, kind, names.meeting(str(event.get("EventBodyName") or "")), date)

    def _all(self, year: int) -> Iterator[Mapping[str, Any]]:
        """In the order of their numbers, so that one that is added meanwhile moves no other to a page that was read."""
        last, skip = None, 0
        while True:
            events = self._page(year, skip)
            if events and events[0].get("EventId") == last:
                raise Unreadable(f"{urls.shown(self._events)} gives the same page again and again")
            yield from events
            if len(events) < PAGE:
                return
            last, skip = events[0].get("EventId"), skip + len(events)

    def _page(self, year: int, skip: int) -> list[Mapping[str, Any]]:
        query = {
            "$filter": f"EventDate ge datetime'{year:04d}-01-01'",
            "$orderby": "EventId",
            "$top": str(PAGE),
            "$skip": str(skip),
            **({"token": self._token} if self._token else {}),
        }
        page = self._client.page(f"{self._events}?{urlencode(query, safe='$', quote_via=quote)}", "application/json")
        events = page.json()
        if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
            raise Unreadable(f"{urls.shown(self._events)} gives no list of events")
        return events


def _token(options: Options) -> str | None:
    name = options.text("token_env")
    if name is None:
        return None
    token = config.variable(name) if _VARIABLE.fullmatch(name) else None
    if not token:
        raise options.wrong(f"'token_env' names a variable that holds the token, and {name[:60]!r} holds nothing")
    return token
