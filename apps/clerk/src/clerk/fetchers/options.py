"""The settings of a fetcher, from the `extra` of a site: read by name and type, with an error that says what to write."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Any

from clerk.errors import Unreadable, Usage
from clerk.fetchers import urls

OF_SITE = ("ocr_backend", "extractor")  # settings in `extra` that are not a fetcher's
_LONGEST_PATTERN = 500
_LONGEST_MATCHED = 1_000


class Pattern:
    """A regular expression of an operator. It only ever sees short texts, which bounds what a slow one can cost."""

    def __init__(self, text: str) -> None:
        self._pattern = re.compile(text, re.IGNORECASE)

    def search(self, text: str) -> re.Match[str] | None:
        return self._pattern.search(text) if len(text) <= _LONGEST_MATCHED else None

    def picked(self, text: str, group: str) -> str | None:
        """What the group of this name matched, else the first group, else all of it."""
        match = self.search(text)
        if match is None:
            return None
        return match[group] if group in self._pattern.groupindex else match[1 if self._pattern.groups else 0]

    def named(self, text: str, group: str) -> str | None:
        match = self.search(text) if group in self._pattern.groupindex else None
        return match[group] if match else None

    @property
    def names_kinds(self) -> bool:
        return not {"agendas", "minutes"}.isdisjoint(self._pattern.groupindex)


class Options:
    def __init__(self, label: str, extra: Mapping[str, Any], keys: Collection[str]) -> None:
        self._label = label
        self._extra = extra
        for key in extra:
            if key not in keys and key not in OF_SITE:
                close = difflib.get_close_matches(str(key), keys, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(keys)}"
                raise self.wrong(f"{str(key)[:60]!r} is no setting of this fetcher; {hint}")

    def wrong(self, text: str) -> Usage:
        return Usage(f"{self._label}: {text}")

    def text(self, key: str) -> str | None:
        value = self._extra.get(key)
        if value is None or value == "":
            return None
        if not isinstance(value, str):
            raise self.wrong(f"{key!r} wants a text, not {str(value)[:60]!r}")
        return value

    def needed(self, key: str) -> str:
        value = self.text(key)
        if value is None:
            raise self.wrong(f"{key!r} is missing in --extra")
        return value

    def url(self, key: str) -> str:
        try:
            return urls.parse(self.needed(key).strip()).url
        except Unreadable as error:
            raise self.wrong(f"{key!r}: {error}") from None

    def pattern(self, key: str) -> Pattern | None:
        text = self.text(key)
        if text is None:
            return None
        if len(text) > _LONGEST_PATTERN:
            raise self.wrong(f"{key!r} is longer than {_LONGEST_PATTERN} characters")
        try:
            return Pattern(text)
        except (re.error, RecursionError, OverflowError) as error:
            raise self.wrong(f"{key!r} is no regular expression: {error}") from None

    def number(self, key: str, lowest: int, highest: int) -> int:
        value = self._extra.get(key)
        if value is None:
            return lowest
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            raise self.wrong(f"{key!r} wants a number from {lowest} to {highest}, not {str(value)[:60]!r}")
        return value
