"""Where the files of a site are. Everything that is written is written aside and renamed, so it is whole or not there.

STORAGE_DIR/<subdomain>/
  pdfs/<meeting>/<date>.pdf           minutes; agendas mirror the tree under _agendas/; .html if it is a web page
  txt/<meeting>/<date>/<page>.txt     one directory per document
  txt/…/<page>.txt.extracted.json     extraction cache
  processed/<meeting>/<date>.txt      marker: the SHA-256 of what was read, written last
  meetings.db, meetings.db.bk
  .published                          the DEPLOY_TARGET that it was last published to, and the machine that did so
STORAGE_DIR/.hosts/<host>             when it may be asked next, by any worker
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clerk import names
from clerk.errors import Critical, Transient, Usage
from clerk.names import Kind

_NOBODY_CAN_WRITE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}
_NOBODY_CAN_WRITE |= {errno.ESTALE, errno.ENOTCONN}  # a server of files that was started anew, or is gone
_AGENDAS = "_agendas"


@dataclass(frozen=True, order=True)
class Document:
    """What a document is known by within its site. `date` may end in `-2` for a second one on that day."""

    kind: Kind
    meeting: str
    date: str

    def __post_init__(self) -> None:
        if self.kind not in names.KINDS or self.meeting != names.meeting(self.meeting) or not names.is_date(self.date):
            raise Usage(f"no document is called {self.kind}/{self.meeting}/{self.date}")

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.meeting}/{self.date}"

    @classmethod
    def of_key(cls, key: str) -> Document:
        kind, _, rest = key.partition("/")
        meeting, _, date = rest.rpartition("/")
        return cls(kind, meeting, date)  # type: ignore[arg-type]  # checked above


class SiteFiles:
    """The folder of one site."""

    def __init__(self, storage: Path, subdomain: str) -> None:
        self.subdomain = names.subdomain(subdomain)
        self.root = Path(storage) / self.subdomain

    @property
    def database(self) -> Path:
        return self.root / "meetings.db"

    @property
    def published(self) -> Path:
        return self.root / ".published"

    def tree(self, kind: Kind) -> Path:
        return self.root / _AGENDAS if kind == "agendas" else self.root

    def pdf(self, document: Document) -> Path:
        return self.tree(document.kind) / "pdfs" / document.meeting / f"{document.date}.pdf"

    def html(self, document: Document) -> Path:
        """Where a document is kept that came as a web page."""
        return self.pdf(document).with_suffix(".html")

    def source(self, document: Document) -> Path | None:
        """The file that was fetched, of either type, if it is still here."""
        return next((path for path in (self.pdf(document), self.html(document)) if path.is_file()), None)

    def text(self, document: Document) -> Path:
        """The directory of its pages."""
        return self.tree(document.kind) / "txt" / document.meeting / document.date

    def marker(self, document: Document) -> Path:
        return self.tree(document.kind) / "processed" / document.meeting / f"{document.date}.txt"

    def finished(self, document: Document) -> str | None:
        """The SHA-256 of what its text was read from, if that was finished."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if self.text(document).is_dir():
                return self.marker(document).read_text().strip() or None
        return None

    def adopt(self, document: Document, sha256: str) -> None:
        """Its text is taken to be of this content, and to be as old as it is: newer, it would be compiled again."""
        marker = self.marker(document)
        when = (marker if marker.is_file() else self.pages(document)[-1]).stat()
        with written_aside(marker) as aside:
            aside.write_text(sha256)
            os.utime(aside, ns=(when.st_atime_ns, when.st_mtime_ns))

    def pages(self, document: Document) -> list[Path]:
        """The files of its pages, in the order of their numbers."""
        folder = self.text(document)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            pages = [name for name in os.listdir(folder) if name.endswith(".txt") and name[:-4].isdecimal()]  # noqa: PTH208
            return [folder / name for name in sorted(pages, key=lambda name: (int(name[:-4]), name))]
        return []

    def documents(self, kind: Kind, under: str = "txt") -> Iterator[Document]:
        """Those that have text (or, `under` "pdfs" or "processed", a file there), in order."""
        for meeting in sorted(_entries(self.tree(kind) / under)):
            dates = {entry.name if under == "txt" else entry.stem for entry in _entries(meeting)}
            for date in sorted(dates):
                if names.is_date(date) and meeting.name == names.meeting(meeting.name):
                    yield Document(kind, meeting.name, date)


def _entries(folder: Path) -> list[Path]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    return []


@contextlib.contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; at the end of the block what is there becomes `path`, on disk and at once."""
    with critical_if_nobody_can():
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:60]}.", dir=path.parent)
        os.close(handle)
        aside = Path(name)
        try:
            yield aside
            put(aside, path)
        finally:
            aside.unlink(missing_ok=True)


def put(aside: Path, path: Path) -> None:
    """What was written elsewhere on the same filesystem becomes `path`, on disk and at once."""
    with critical_if_nobody_can():
        path.parent.mkdir(parents=True, exist_ok=True)
        sync(aside)
        aside.chmod(0o644)
        aside.replace(path)
        sync(path.parent)


def write(path: Path, data: bytes) -> None:
    with written_aside(path) as aside:
        aside.write_bytes(data)


@contextlib.contextmanager
def folder_aside(path: Path) -> Iterator[Path]:
    """The same for a whole directory, which replaces an older one. Where the file system cannot exchange two names (NFS),
    there is none for a moment between two renames: readers that may not see that look at a marker, which is written last."""
    with critical_if_nobody_can():
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{path.name[:60]}.", dir=path.parent))
        old = aside.with_name(aside.name + ".old")
        try:
            yield aside
            aside.chmod(0o755)
            sync(aside)
            if not _exchange(aside, path):
                with contextlib.suppress(FileNotFoundError):
                    path.rename(old)
                aside.rename(path)
            sync(path.parent)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def critical_if_nobody_can() -> Iterator[None]:
    """A disk that is full or cannot be written is nobody's document's fault."""
    try:
        yield
    except OSError as error:
        if error.errno in _NOBODY_CAN_WRITE:
            raise Critical(f"the storage cannot be written: {error}") from error
        raise


def _exchange(one: Path, other: Path) -> bool:
    """Both names change places at once, where both are there and the system and the file system can do that."""
    import ctypes

    library = ctypes.CDLL(None)
    ours, theirs = os.fsencode(one), os.fsencode(other)
    if sys.platform == "darwin":
        return bool(library.renamex_np(ours, theirs, ctypes.c_uint(2)) == 0)  # RENAME_SWAP
    call = getattr(library, "renameat2", None)  # old C libraries have none
    here = -100  # AT_FDCWD
    return call is not None and bool(call(here, ours, here, theirs, ctypes.c_uint(2)) == 0)  # RENAME_EXCHANGE


@contextlib.contextmanager
def locked(path: Path, patience: float = 300.0) -> Iterator[None]:
    """One at a time holds the lock that this file is, over all processes and machines that share the storage. It ends
    with its process, however that ends, so what an earlier holder left half done is nobody's."""
    with critical_if_nobody_can():
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _lock(handle, path, time.monotonic() + patience)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, path: Path, until: float) -> None:
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise Transient(f"{path} is held by another process that works there; try again later") from None
        time.sleep(0.02)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """What was written to this file, or renamed in this folder, is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
