"""What is kept of reading a document. Every step may be repeated, and dying within one leaves the old text or the new.

While it is read: txt/<meeting>/.<date>.<sha256>.<backend>.parts/<first>-<last>.json, one file for each lot of pages, unless
one lot is all of it.
Then: txt/<meeting>/<date>/<page>.txt for each page that could be read, reading.json with what became of the others, and
last the marker.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from clerk import storage
from clerk.config import Config
from clerk.errors import Transient, Unreadable
from clerk.parts import OcrBackend, PageText
from clerk.reading.reader import opened
from clerk.storage import Document, SiteFiles

_RECORD: Final = "reading.json"
_FORGOTTEN: Final = 86_400  # seconds after which what a killed process left aside is removed
MOST_CHARACTERS: Final = 100_000_000  # of a document: 20,000 pages of small print have fewer
_HTML: Final = "html"


class Part(NamedTuple):
    """Pages that are read in one go, both included."""

    first: int
    last: int


@dataclass(frozen=True)
class Read:
    """What came of a document."""

    pages: int
    errors: Mapping[int, str]  # pages without text, and why
    sources: Mapping[str, int]  # how many pages by "layer", "tesseract", …


@dataclass(frozen=True)
class Long:
    """Too long for one job: each part is to be read by itself, then the document finished."""

    pages: int
    parts: tuple[Part, ...]


def plan(pages: int, size: int) -> tuple[Part, ...]:
    return tuple(Part(first, min(first + size - 1, pages)) for first in range(1, pages + 1, size))


def is_finished(files: SiteFiles, document: Document, sha256: str) -> bool:
    """Whether its text is all there, and was read from this very content."""
    return files.finished(document) == sha256 and any(files.pages(document))


def read_document(
    files: SiteFiles, document: Document, sha256: str, config: Config, backend: OcrBackend, *, html: bool = False
) -> Read | Long:
    """Reads and finishes it, or says in which parts that is to be done. Pages that an earlier attempt has read are kept."""
    label = _HTML if html else backend.label
    before = earlier(files, document, sha256, label)
    if before and (not before.errors or files.source(document) is None):  # read, and not kept
        return before
    path = _verified(files.source(document) or files.pdf(document), sha256)
    parts = _Parts(files, document, sha256, label)
    with opened(path, config, backend, html=html) as reader:
        planned = plan(reader.count, config.chunk_size)
        if reader.count > config.split_pages:
            return Long(reader.count, planned)
        store = parts.store if len(planned) > 1 else parts.hold
        for part in planned:
            if not parts.is_good(part):
                store(part, reader.read(*part))
    return _finish(files, document, sha256, parts, planned)


def read_part(files: SiteFiles, document: Document, sha256: str, part: Part, config: Config, backend: OcrBackend) -> None:
    """Reads one part of a long document and keeps it for `finish_document`."""
    parts = _Parts(files, document, sha256, backend.label)
    if parts.is_good(part):
        return
    path = _verified(files.pdf(document), sha256)
    with opened(path, config, backend) as reader:
        parts.store(part, reader.read(*part))


def give_up(files: SiteFiles, document: Document, sha256: str, part: Part, backend: OcrBackend, error: str) -> None:
    """Nobody can read this part: each of its pages has no text for that reason, and the others still count."""
    pages = (PageText(number, error=error) for number in range(part.first, part.last + 1))
    _Parts(files, document, sha256, backend.label).store(part, pages)


def finish_document(files: SiteFiles, document: Document, sha256: str, planned: Iterable[Part], backend: OcrBackend) -> Read:
    """Makes the text of a long document of its parts."""
    parts = _Parts(files, document, sha256, backend.label)
    before = earlier(files, document, sha256, backend.label)
    if before and not parts.folder.is_dir():
        return before
    return _finish(files, document, sha256, parts, planned)


class _Parts:
    """What has been read so far, of this content by this backend."""

    def __init__(self, files: SiteFiles, document: Document, sha256: str, label: str) -> None:
        self.label = label
        text = files.text(document)
        by = re.sub(r"[^\w-]", "_", f"{sha256}-{label}")[:120]
        self.folder = text.with_name(f".{text.name}.{by}.parts")
        self._held: dict[Part, list[PageText]] = {}

    def store(self, part: Part, pages: Iterable[PageText]) -> None:
        storage.write(self._file(part), json.dumps([asdict(page) for page in pages]).encode())

    def hold(self, part: Part, pages: Iterable[PageText]) -> None:
        """Like `store`, for a lot that is all of its document: that is finished at once, and needs no file until then."""
        self._held[part] = list(pages)

    def load(self, part: Part) -> list[PageText] | None:
        if part in self._held:
            return self._held[part]
        with contextlib.suppress(FileNotFoundError):
            return [PageText(**page) for page in json.loads(self._file(part).read_bytes())]
        return None

    def is_good(self, part: Part) -> bool:
        """Read already, all of it: a page that failed is tried again when its document is."""
        pages = self.load(part)
        return pages is not None and all(page.error is None for page in pages)

    def _file(self, part: Part) -> Path:
        return self.folder / f"{part.first}-{part.last}.json"


def _finish(files: SiteFiles, document: Document, sha256: str, parts: _Parts, planned: Iterable[Part]) -> Read:
    pages: list[PageText] = []
    characters = 0
    for part in planned:
        read = parts.load(part)
        if read is None:
            raise Transient(f"{document.key}: pages {part.first} to {part.last} have not been read yet")
        pages += read
        characters += sum(len(page.text) for page in read)
        if characters > MOST_CHARACTERS:
            raise Unreadable(f"{document.key}: it claims more than {MOST_CHARACTERS // 10**6} million characters")
    failed = {page.number: page.error for page in pages if page.error is not None}
    if len(failed) == len(pages):
        raise Unreadable(f"{document.key}: no page can be read; page 1: {failed[1]}")
    sources = dict(Counter(page.source for page in pages if page.error is None))
    record = {"backend": parts.label, "pages": len(pages), "errors": failed, "sources": sources}
    marker = files.marker(document)
    with storage.critical_if_nobody_can():
        marker.unlink(missing_ok=True)  # it may not vouch for text that it was not written for
        with storage.folder_aside(files.text(document)) as aside:
            texts = {f"{page.number}.txt": page.text for page in pages if page.error is None}
            _write_durably(aside, {**texts, _RECORD: json.dumps(record)})
        storage.write(marker, f"{sha256}\n".encode())
    _sweep(files.text(document))
    return Read(len(pages), failed, sources)


def _write_durably(folder: Path, texts: Mapping[str, str]) -> None:
    """All are written before the first is waited for: then one commit of the journal serves nearly all of them."""
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", newline="")
    for name in texts:
        storage.sync(folder / name)


def _sweep(text: Path) -> None:
    """Parts are of no more use, and what killed processes left aside never was."""
    for left in text.parent.glob(f".{text.name}.*"):
        with contextlib.suppress(FileNotFoundError):
            if left.suffix == ".parts" or left.stat().st_mtime < time.time() - _FORGOTTEN:
                shutil.rmtree(left, ignore_errors=True)


def earlier(files: SiteFiles, document: Document, sha256: str, label: str | None = None) -> Read | None:
    """What came of it the last time, if that was this content and this backend (None: any): a job may run twice."""
    if not is_finished(files, document, sha256):
        return None
    try:
        record: dict[str, Any] = json.loads((files.text(document) / _RECORD).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    if label is not None and record["backend"] != label:
        return None
    return Read(record["pages"], {int(page): why for page, why in record["errors"].items()}, record["sources"])


def _verified(path: Path, sha256: str) -> Path:
    """The marker says what was read: it may not be what came in its place meanwhile."""
    try:
        with storage.critical_if_nobody_can():
            found = storage.sha256_of(path)
    except FileNotFoundError:
        raise Unreadable(f"{path.parent.name}/{path.name}: the file is missing") from None
    if found != sha256:
        raise Transient(f"{path.parent.name}/{path.name}: this is not the content that was fetched, its SHA-256 is {found}")
    return path
