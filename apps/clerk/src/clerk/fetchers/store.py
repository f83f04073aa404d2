"""What stores a fetched document: it comes into a file aside, gets its identity, and takes its place by a rename."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from clerk import storage
from clerk.errors import Unreadable
from clerk.parts import Fetched, Found, document_of
from clerk.storage import Document, SiteFiles

_INCOMING = ".incoming-"
_LEFT_BEHIND = 86_400.0  # seconds, after which nobody is writing there any more
_HEAD = 1_024  # bytes in which a PDF says that it is one


@dataclass(frozen=True)
class Received:
    path: Path
    sha256: str
    head: bytes


def receive(chunks: Iterable[bytes], into: Path, limit: int, what: str) -> Received:
    """Writes what comes to a new file under `into`. If anything goes wrong there is none."""
    with storage.critical_if_nobody_can():
        handle, name = tempfile.mkstemp(prefix="document-", dir=into)
    digest, size, head = hashlib.sha256(), 0, b""
    try:
        with storage.critical_if_nobody_can(), os.fdopen(handle, "wb") as file:
            for chunk in _readable(chunks):
                size += len(chunk)
                if size > limit:
                    raise Unreadable(f"{what} is larger than {limit // 1024**2} MB")
                digest.update(chunk)
                head = (head + chunk)[:_HEAD] if len(head) < _HEAD else head
                file.write(chunk)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Received(Path(name), digest.hexdigest(), head)


def _readable(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """An error of the source is not one of the storage."""
    try:
        yield from chunks
    except OSError as error:
        raise Unreadable(f"the source cannot be read: {error.strerror or error}") from error


@contextlib.contextmanager
def incoming(files: SiteFiles) -> Iterator[Path]:
    """A folder for what is on its way, on the filesystem of the site; it goes at the end, and so do those of the dead."""
    with storage.critical_if_nobody_can():
        files.root.mkdir(parents=True, exist_ok=True)
        for old in files.root.glob(_INCOMING + "*"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - old.stat().st_mtime > _LEFT_BEHIND:
                    shutil.rmtree(old, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=_INCOMING, dir=files.root))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Identities:
    """Which document a URL is. What is known stays as it is; what is new gets the next name that is free on its day."""

    def __init__(self, known: Mapping[str, str]) -> None:
        """`known`: the key of the document of each URL, from the database."""
        self._keys = dict(known)
        self._taken = set(self._keys.values())
        self._tried: dict[str, int] = {}  # of each day: all lower numbers are taken

    def of(self, found: Found) -> Document:
        key = self._keys.get(found.url)
        if key is None or not _is_of(Document.of_key(key), found):  # new, or now the address of another meeting
            key = self._free(found)
            self._keys[found.url] = key
            self._taken.add(key)
        return Document.of_key(key)

    def _free(self, found: Found) -> str:
        key = first = document_of(found, found.date).key
        number = self._tried.get(first, 1)
        while key in self._taken:
            number += 1
            key = document_of(found, f"{found.date}-{number}").key
        self._tried[first] = number
        return key


def _is_of(document: Document, found: Found) -> bool:
    return (document.kind, document.meeting, document.date[:10]) == (found.kind, found.meeting, found.date)


@dataclass(frozen=True)
class Stored:
    document: Document
    path: Path
    written: bool  # else the same bytes were there already


def keep(files: SiteFiles, document: Document, fetched: Fetched) -> Stored:
    """Puts new content where the document is kept, instead of what was there. A web page is kept as one."""
    if fetched.path is None:
        raise ValueError(f"{document.key} is unchanged: there is nothing to keep")
    places = files.html(document), files.pdf(document)
    target, other = places if fetched.content_type == "text/html" else places[::-1]
    written = _sha256(target) != fetched.sha256
    if written:
        storage.put(fetched.path, target)
    else:
        fetched.path.unlink(missing_ok=True)
    other.unlink(missing_ok=True)
    return Stored(document, target, written)


def _sha256(path: Path) -> str | None:
    with contextlib.suppress(FileNotFoundError):
        return storage.sha256_of(path)
    return None
