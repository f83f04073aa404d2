"""The sites of the demonstration, as `clerk new` is told of them. Each gets its documents in another way."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from clerk.demo.towns import TOWNS, Town


@dataclass(frozen=True)
class NewSite:
    subdomain: str
    name: str
    state: str
    country: str
    kind: str
    scraper: str
    start_year: int
    lat_lng: str
    extra: Mapping[str, Any]

    def arguments(self) -> list[str]:
        """What comes after `clerk new`."""
        options = {
            "--name": self.name,
            "--state": self.state,
            "--country": self.country,
            "--kind": self.kind,
            "--scraper": self.scraper,
            "--start-year": str(self.start_year),
            "--lat-lng": self.lat_lng,
            "--extra": json.dumps(self.extra),
        }
        return [self.subdomain, *(part for option in options.items() for part in option)]


# {url} is the address of the server, {site} the subdomain.
_SOURCES: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "larkspurbend.ca": ("http_index", {"url": "{url}/{site}/", "meeting": "City Council", "depth": 0}),
    "portellery.me": ("feed", {"url": "{url}/{site}/feed.xml"}),
    "kestrelfalls.ny": ("legistar", {"client": "{site}", "base_url": "{url}/v1"}),
    "bramblecreek.k12": ("http_index", {"url": "{url}/{site}/archive/", "meeting": "Board of Trustees", "depth": 1}),
}


def sites(url: str, year: int = 2026) -> list[NewSite]:
    """All of them, with documents at this server; `year`: the one that the documents are of."""
    return [_site(town, url.rstrip("/"), year) for town in TOWNS]


def _site(town: Town, url: str, year: int) -> NewSite:
    scraper, settings = _SOURCES[town.subdomain]
    names = {"url": url, "site": town.subdomain}
    extra = {key: value.format_map(names) if isinstance(value, str) else value for key, value in settings.items()}
    return NewSite(town.subdomain, town.name, town.state, "US", town.kind, scraper, year, town.lat_lng, extra)
