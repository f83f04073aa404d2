"""What was extracted from a page, kept beside its text: `<page>.txt.extracted.json`.

A cache is right for one text, one extractor, and one document around the page: who is in the roll call on page 1, and how a
vote at the foot of a page goes on over it, matter elsewhere. So its key has the hash of the page and of all the pages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from clerk.parts import Extracted, Extractor
from clerk.storage import Document, SiteFiles, write


@dataclass(frozen=True)
class Counts:
    """What was done with the pages of a document."""

    pages: int = 0
    extracted: int = 0  # the others were there
    votes: int = 0


@dataclass(frozen=True)
class _Key:
    text_sha256: str
    document_sha256: str
    extractor: str
    version: str


def cache_of(page: Path) -> Path:
    return page.with_name(page.name + ".extracted.json")


def extract_document(
    files: SiteFiles, document: Document, extractor: Extractor, progress: Callable[[int, int], None] | None = None
) -> Counts:
    """Sees to it that every page of a document has a cache that is right. `progress(done, of)` after each page, as the
    extractor gives it: a long document would else be silent until its end.

    Stopped halfway, it leaves whole caches; the next time only the missing ones are written.
    """
    pages = files.pages(document)
    texts = [page.read_text(errors="replace") for page in pages]
    keys = _keys(texts, extractor)
    cached = [_read(page, key) for page, key in zip(pages, keys, strict=True)]
    found = extractor.extract(texts) if None in cached else [one for one in cached if one is not None]
    votes = 0
    for number, (page, key, have, new) in enumerate(zip(pages, keys, cached, found, strict=True), 1):
        if have is None:
            write(cache_of(page), _written(key, new))
        votes += len((have or new).votes["votes"])
        if progress:
            progress(number, len(pages))
    return Counts(len(pages), cached.count(None), votes)


def _keys(texts: Sequence[str], extractor: Extractor) -> list[_Key]:
    hashes = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
    document = hashlib.sha256("\n".join(hashes).encode()).hexdigest()
    return [_Key(one, document, extractor.label, extractor.version) for one in hashes]


def _written(key: _Key, extracted: Extracted) -> bytes:
    return orjson.dumps(
        {
            "text_sha256": key.text_sha256,
            "document_sha256": key.document_sha256,
            "extractor": key.extractor,
            "version": key.version,
            "entities": extracted.entities,
            "votes": extracted.votes,
        }
    )


def _read(page: Path, key: _Key) -> Extracted | None:
    """What is cached for exactly this; None if nothing is, or if the file is broken: then it is made anew."""
    try:
        found: Any = orjson.loads(cache_of(page).read_bytes())
        if _Key(found["text_sha256"], found["document_sha256"], found["extractor"], found["version"]) != key:
            return None
        entities, votes = found["entities"], found["votes"]
        lists = [entities["persons"], entities["orgs"], entities["locations"], votes["votes"]]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return Extracted(entities, votes) if all(isinstance(one, list) for one in lists) else None
