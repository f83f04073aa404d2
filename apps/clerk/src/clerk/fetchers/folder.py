"""The fetcher `folder`: documents in a folder of this machine, `<kind>/<meeting>/<date>.pdf` or named in any way."""

from __future__ import annotations

import datetime
import fnmatch
import logging
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from clerk import names
from clerk.errors import Transient, Unreadable
from clerk.fetchers import dates, selection, store, words
from clerk.fetchers.options import Options
from clerk.names import Kind
from clerk.parts import Fetched, Found, Known, Wanted, Web

_KINDS: dict[str, Kind] = {"minutes": "minutes", "agendas": "agendas", "agenda": "agendas"}
_log = logging.getLogger(__name__)
_YEAR = re.compile(r"(?:18|19|20)[0-9]{2}")
_CHUNK = 1 << 20


class Folder:
    """`pattern` is compared with the path below the folder; its `*` also spans folders. No link leads out of it."""

    def __init__(self, extra: Mapping[str, Any], client: Web) -> None:
        options = Options("folder", extra, ("path", "pattern"))
        self._root = Path(options.needed("path")).expanduser().resolve()
        pattern = (options.text("pattern") or "*.pdf").removeprefix("./").replace("**/", "*").lower()
        if pattern.startswith("/") or ".." in PurePosixPath(pattern).parts:
            raise options.wrong(
                "'pattern' is compared with the path below the folder: it cannot begin with / or have .. in it"
            )
        self._pattern = re.compile(fnmatch.translate(pattern))
        self._max_bytes = client.max_bytes

    def find(self, wanted: Wanted) -> Iterator[Found]:
        if not self._root.is_dir():
            raise Unreadable(f"there is no folder {self._root}")
        for path in self._files():
            relative = path.relative_to(self._root)
            try:
                relative.as_posix().encode()
                date = dates.find(relative.stem) or _day_of_change(path)
            except (OSError, ValueError, OverflowError) as error:  # a name that is no text, a year beyond 9999
                _log.warning("%r is left out: %s", relative.as_posix(), error)
                continue
            if selection.is_recent(date, wanted):
                yield Found(relative.as_posix(), self._kind(relative), self._meeting(relative), date)

    def _files(self) -> Iterator[Path]:
        for folder, below, files in os.walk(self._root, onerror=self._unreadable):
            below.sort()
            below[:] = [name for name in below if not name.startswith(".")]
            for name in sorted(files, key=lambda name: (Path(name).stem, name)):  # 2026-01-31 comes before 2026-01-31-2
                path = Path(folder, name)
                fits = self._pattern.match(path.relative_to(self._root).as_posix().lower())
                if fits and not name.startswith(".") and self._inside(path) is not None:
                    yield path

    def _unreadable(self, error: OSError) -> None:
        """One folder below does not keep the others from being read."""
        if Path(error.filename) == self._root:
            raise Unreadable(f"the folder {self._root} cannot be read: {error.strerror}") from error
        _log.warning("the folder %s is left out: %s", error.filename, error.strerror)

    def _inside(self, path: Path) -> Path | None:
        """Where the file really is, if that is a file within the folder."""
        try:
            real = path.resolve(strict=True)
            return real if real.is_relative_to(self._root) and real.is_file() else None
        except (OSError, RuntimeError):
            return None

    def _kind(self, relative: Path) -> Kind:
        known = _KINDS.get(relative.parts[0].lower()) if len(relative.parts) > 1 else None
        return known or words.kind_of((relative.stem, str(relative.parent)), None) or "minutes"

    def _meeting(self, relative: Path) -> str:
        folders = [part for part in relative.parts[:-1] if part.lower() not in _KINDS and not _YEAR.fullmatch(part)]
        return names.meeting(folders[-1] if folders else "")

    def get(self, found: Found, known: Known | None, into: Path) -> Fetched:
        real = self._inside(self._root / found.url)
        if real is None:
            raise Unreadable(f"{found.url} is not in {self._root}, or leads out of it")
        with _opened(real, found.url) as file:
            before = _state(file)
            if known is not None and known.modified == before:
                return Fetched(found, sha256=known.sha256, modified=before, unchanged=True)
            received = store.receive(iter(lambda: file.read(_CHUNK), b""), into, self._max_bytes, found.url)
            if _state(file) != before:
                received.path.unlink()
                raise Transient(f"{found.url} is being written just now")
        if known is not None and received.sha256 == known.sha256:
            received.path.unlink()
            return Fetched(found, sha256=known.sha256, modified=before, unchanged=True)
        kind = "text/html" if real.suffix.lower() in {".html", ".htm", ".xhtml"} else "application/pdf"
        return Fetched(found, path=received.path, sha256=received.sha256, modified=before, content_type=kind)


def _opened(real: Path, shown: str) -> BinaryIO:
    """Not through a link that was put there meanwhile, and not waiting for one who writes into a pipe."""
    try:
        file = os.fdopen(os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except OSError as error:
        raise Unreadable(f"{shown} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise Unreadable(f"{shown} is no file")
    return file


def _state(file: BinaryIO) -> str:
    """What changes with the content; kept where a server's Last-Modified would be."""
    now = os.fstat(file.fileno())
    return f"{now.st_mtime_ns}-{now.st_size}"


def _day_of_change(path: Path) -> str:
    return datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC).date().isoformat()
