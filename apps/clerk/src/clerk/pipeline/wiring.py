"""Where the pipeline meets the parts that can be exchanged: each is looked up by its label, in plugins first."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from clerk import plugins
from clerk.config import variable
from clerk.errors import ClerkError, Usage
from clerk.parts import Extractor, Fetched, Fetcher, FetcherClass, Found, Known, OcrBackend, Wanted
from clerk.plugins import Plugins
from clerk.storage import Document, SiteFiles

if TYPE_CHECKING:
    from clerk.config import Config
    from clerk.pipeline.book import Book
    from clerk.pipeline.working import Work

PLUGINS_DIR: Final = "CLERK_PLUGINS_DIR"  # what --plugins-dir says, for children too
HOSTS: Final = ".hosts"  # in the storage: when each host may be asked next
AT_ONCE: Final = 20  # documents of a site on their way; how fast one host is asked is limited elsewhere


def hooks() -> Plugins:
    """The plugins of this process; a child loads them once."""
    return _loaded(Path(variable(PLUGINS_DIR) or "plugins").absolute())


@cache
def _loaded(folder: Path) -> Plugins:
    return plugins.load(folder)


def backend_label(config: Config, extra: Mapping[str, Any], option: str | None = None) -> str:
    """Who reads: as this run was asked for, else as the site says, else by default."""
    return option or str(extra.get("ocr_backend") or config.ocr_backend)


def fetcher_of(label: str) -> FetcherClass:
    """What makes the fetcher of this label, built in or a plugin's."""
    from clerk.fetchers.registry import fetcher_class

    return fetcher_class(label, hooks().fetcher_class)


@contextlib.contextmanager
def source(config: Config, label: str, extra: Mapping[str, Any]) -> Iterator[Fetcher]:
    """Where the documents of a site with these settings come from. Nothing is asked for yet."""
    from clerk.fetchers.http import Client
    from clerk.fetchers.options import OF_SITE
    from clerk.fetchers.turns import SharedTurns

    make = fetcher_of(label)
    given = {**hooks().fetcher_extra(label), **extra}
    with Client(config, pace=SharedTurns(config.storage / HOSTS)) as client:
        try:
            fetcher = make({key: value for key, value in given.items() if key not in OF_SITE}, client)
        except ClerkError:
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise Usage(
                f"{label}: no fetcher can be made of these settings ({why}); look at --extra and its plugin"
            ) from error
        yield fetcher


@dataclass(frozen=True)
class _Keeping:
    """A fetcher that puts what it brought into its place, in the thread that brought it: a disk may take its time."""

    fetcher: Fetcher
    files: SiteFiles
    documents: dict[Found, Document]
    had: set[Found]  # in this run, by an attempt that was cut off

    def find(self, wanted: Wanted) -> Iterator[Found]:
        return self.fetcher.find(wanted)

    def get(self, found: Found, known: Known | None, into: Path) -> Fetched:
        from clerk.fetchers import store

        if found in self.had and known is not None:
            return Fetched(found, etag=known.etag, modified=known.modified, unchanged=True)
        came = self.fetcher.get(found, known, into)
        if not came.unchanged:
            store.keep(self.files, self.documents[found], came)
        return replace(came, found=found)  # a plugin may have said it in other words


class Came(NamedTuple):
    """What came of one document that a source lists; or does not list now, but could not be had when it did."""

    document: Document
    outcome: Fetched | tuple[Found, Exception]
    is_owed: bool


def downloads(work: Work, book: Book, wanted: Wanted) -> Iterator[list[Came]]:
    """What a source lists, each brought into its place, or why not; as they come, those together that came together. Then,
    by its address, what an earlier run could not get: how long ago that was listed does not matter."""
    from clerk.fetchers import store
    from clerk.fetchers.downloading import download_batches
    from clerk.fetchers.selection import choose

    identities, documents, had = store.Identities(book.keys), dict[Found, Document](), set[Found]()
    missing, owed = book.owed(), set[Found]()

    def known(found: Found) -> Known | None:
        documents[found] = identities.of(found)
        if book.had(documents[found]):
            had.add(found)
        return book.known(documents[found])

    def founds(fetcher: Fetcher) -> Iterator[Found]:
        listed = set[str]()
        for found in choose(fetcher.find(wanted), wanted, book.minutes):
            listed.add(found.url)
            yield found
        owed.update(found for found in missing if found.url not in listed)
        yield from owed

    with source(work.config, work.site.scraper, work.site.extra) as fetcher, store.incoming(work.files) as into:
        keeping = _Keeping(fetcher, work.files, documents, had)
        for batch in download_batches(keeping, founds(keeping), known, into, AT_ONCE):
            pairs = [(came.found if isinstance(came, Fetched) else came[0], came) for came in batch]
            yield [Came(documents[found], came, found in owed) for found, came in pairs]


def reader(label: str) -> OcrBackend:
    from clerk.reading import backends

    return backends.find(label, hooks().ocr_backend)


def extractor(config: Config, extra: Mapping[str, Any]) -> Extractor:
    """Rules, unless the site wants another: `{"extractor": "spacy"}`, or that of a plugin."""
    label = str(extra.get("extractor") or "rules")
    found = hooks().extractor(label)
    if found is not None:
        return found
    if label == "spacy":
        from clerk.extraction.spacy_extractor import SpacyExtractor

        return SpacyExtractor(threshold=config.confidence, processes=config.spacy_processes)
    if label != "rules":
        raise Usage(f"there is no extractor {label[:60]!r}; built in are: rules, spacy; plugins may add others")
    from clerk.extraction.rules import RulesExtractor

    return RulesExtractor(config.confidence)
