"""The fetchers by their labels: a plugin's first, then those that are built in, each imported when it is asked for."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable

from clerk.errors import Usage
from clerk.parts import FetcherClass

BUILT_IN = {
    "folder": ("clerk.fetchers.folder", "Folder"),
    "http_index": ("clerk.fetchers.http_index", "HttpIndex"),
    "feed": ("clerk.fetchers.feed", "Feed"),
    "legistar": ("clerk.fetchers.legistar", "Legistar"),
}


def fetcher_class(label: str, of_plugin: Callable[[str], FetcherClass | None] = lambda _: None) -> FetcherClass:
    """`of_plugin`: what the plugins answer for a label."""
    found = of_plugin(label)
    if found is not None:
        return found
    if label not in BUILT_IN:
        close = difflib.get_close_matches(label, BUILT_IN, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise Usage(f"there is no scraper {label[:60]!r}; {hint}built in are: {', '.join(BUILT_IN)}; plugins may add others")
    module, name = BUILT_IN[label]
    made: FetcherClass = getattr(importlib.import_module(module), name)
    return made
