"""What the files of a site prove: which documents there are, and which of them were read to the end.

The older clerk wrote a marker beside the text of a document, without a digest in it, and deleted PDFs that it had read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from clerk.names import KINDS
from clerk.pipeline.gate import is_behind
from clerk.storage import Document, SiteFiles

State = Literal["read", "fetched", "missing"]
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Evidence:
    """Of one site."""

    files: SiteFiles
    documents: dict[Document, State]

    @property
    def is_there(self) -> bool:
        """Its folder is: then there is nothing that is not in it."""
        return self.files.root.is_dir()

    @property
    def total(self) -> int:
        return len(self.documents)

    @property
    def completed(self) -> int:
        return sum(state == "read" for state in self.documents.values())

    def allows(self, stage: str) -> bool:
        """Whether a site whose files are these can be in this stage."""
        if stage in ("fetch", "ocr"):
            return True
        read = self.completed > 0 and "fetched" not in self.documents.values()
        return read and (stage == "compilation" or not is_behind(self.files))


def look(root: Path, subdomain: str) -> Evidence:
    files = SiteFiles(root, subdomain)
    return Evidence(files, {document: _state(files, document) for document in _documents(files)})


def _documents(files: SiteFiles) -> list[Document]:
    found = {one for kind in KINDS for under in ("pdfs", "txt", "processed") for one in files.documents(kind, under)}
    return sorted(one for one in found if files.source(one) or files.pages(one) or files.marker(one).is_file())


def _state(files: SiteFiles, document: Document) -> State:
    """Text alone is finished: its PDF was deleted then. Beside a PDF it takes a marker. A marker alone proves nothing."""
    source = files.source(document)
    if files.pages(document) and (source is None or files.marker(document).is_file()):
        return "read"
    return "missing" if source is None else "fetched"


def rows(evidence: Evidence) -> Iterator[dict[str, Any]]:
    """For clerk's table. Markers get the digest that they lack, so that what was read is not read again."""
    for document in evidence.documents:
        try:
            yield _row(evidence.files, document)
        except FileNotFoundError:  # an older worker has read it meanwhile, and deleted its PDF
            yield _row(evidence.files, document)


def _row(files: SiteFiles, document: Document) -> dict[str, Any]:
    source = files.source(document)
    pages = files.pages(document)
    state = _state(files, document) if source is not None else "read" if pages else "missing"
    return {
        "subdomain": files.subdomain,
        "key": document.key,
        "kind": document.kind,
        "meeting": document.meeting,
        "date": document.date,
        "sha256": _mark(files, document, source, pages) if state == "read" else _digest([source] if source else []),
        "content_type": "text/html" if source is not None and source.suffix == ".html" else "application/pdf",
        "state": state,
        "pages": len(pages) if state == "read" else 0,
        "page_errors": "{}",
        "fetched_at": _time(source),
        "read_at": _time(pages[-1]) if state == "read" else None,
    }


def _mark(files: SiteFiles, document: Document, source: Path | None, pages: list[Path]) -> str:
    """The digest of what was read; where that is gone, of what it became."""
    there = files.finished(document)
    if there is not None and _SHA256.fullmatch(there):
        return there
    digest = _digest([source] if source else pages)
    assert digest is not None
    files.adopt(document, digest)
    return digest


def _digest(paths: list[Path]) -> str | None:
    """Of these files, one after another; None: there are none."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest() if paths else None


def _time(path: Path | None) -> datetime | None:
    return None if path is None else datetime.fromtimestamp(path.stat().st_mtime, UTC)
