"""Pages of a document, read by a child process: it may crash or hang, and this process goes on.

To start a child takes as long as to read a sixth of a page, so one that did well stays for the next document.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

from clerk.config import Config
from clerk.errors import ClerkError, Crashed, Critical, TimedOut, Unreadable, Usage
from clerk.parts import OcrBackend, PageText
from clerk.reading import backends
from clerk.scratch import Scratch

_KINDS: Final[dict[str, type[ClerkError]]] = {one.__name__: one for one in (Unreadable, Critical, Usage)}
_SHARE_OF_A_PAGE: Final = 1 / 3  # of the time for a lot: one page that takes forever does not cost the others
_MOST_DOCUMENTS: Final = 100  # of one child: libraries leak


class _Child:
    """A new Python, not a fork: what Vision and others hold does not survive one."""

    def __init__(self) -> None:
        self.is_well = True  # nothing went wrong, and it waits for what to do next
        self.documents = 0
        self.environ = dict(os.environ)
        self._name = ""
        self._said = bytearray()
        self._limit = self._deadline = 0.0
        self._complaints = tempfile.TemporaryFile(prefix="clerk-")  # noqa: SIM115  # until `end`
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "clerk.reading.child"],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            process_group=0,
        )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def open(self, path: Path, within: float, how: dict[str, Any]) -> int:
        """How many pages it has."""
        self._name = f"{path.parent.name}/{path.name}"
        self.documents += 1
        self.is_well = False
        self._complaints.seek(0)  # for both of us
        self._complaints.truncate()
        self.allow(within)
        self.send({"path": str(path.absolute()), **how})
        pages: int = self.answer("opening it")["pages"]
        self.is_well = True
        return pages

    def allow(self, seconds: float) -> None:
        self._limit, self._deadline = seconds, time.monotonic() + seconds

    def send(self, line: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        left = memoryview(json.dumps(line).encode() + b"\n")
        with contextlib.suppress(BrokenPipeError):  # it is dead: `answer` will say so
            while left:
                left = left[self._process.stdin.write(left) :]

    def answer(self, doing: str) -> dict[str, Any]:
        """Its next line, if that comes in time."""
        assert self._process.stdout is not None
        handle, poll = self._process.stdout.fileno(), select.poll()
        poll.register(handle, select.POLLIN)
        while (end := self._said.find(b"\n")) < 0:
            left = self._deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise TimedOut(f"{self._name}: {doing} took longer than {self._limit:g} s")
            data = os.read(handle, 1 << 16)
            if not data:
                raise self._crash(doing)
            self._said += data
        line = cast("dict[str, Any]", json.loads(self._said[:end]))
        del self._said[: end + 1]
        if "failed" in line:
            raise _KINDS[line["failed"]](f"{self._name}: {line['message']}")
        return line

    def _crash(self, doing: str) -> Crashed:
        code = self._kill()
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}: the file is broken, or takes too much memory"
        else:
            self._complaints.seek(0)
            lines = self._complaints.read().decode("utf-8", "replace").strip().splitlines() or [""]
            how = f"ended with code {code}: {lines[-1][:200]}"
        return Crashed(f"{self._name}: {doing}, the process {how}")

    def end(self) -> None:
        self._kill()
        self._complaints.close()

    def _kill(self) -> int:
        """With a tesseract that it may have started. Its number is its own until it is waited for."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        with self._process:
            return self._process.wait()


class _Waiting:
    """Children that have read a document and may read the next. They end with this process: then nobody writes to them."""

    def __init__(self) -> None:
        self._children: list[_Child] = []
        os.register_at_fork(after_in_child=self._children.clear)  # they are the other's

    def one(self) -> _Child:
        while self._children:
            child = self._children.pop()
            if child.is_alive and child.environ == os.environ:
                return child
            child.end()
        return _Child()

    def take_back(self, child: _Child) -> None:
        if child.is_well and child.documents < _MOST_DOCUMENTS:
            child.send({})  # it need not keep the document open
            self._children.append(child)
        else:
            child.end()


_waiting: Final = _Waiting()


class Reader:
    """An open document."""

    def __init__(self, child: _Child, count: int, seconds: float, backend: OcrBackend | None) -> None:
        self.count = count
        self.is_open = True
        self._child = child
        self._seconds = seconds
        self._backend = backend

    def close(self) -> None:
        self.is_open = False

    def read(self, first: int, last: int) -> Iterator[PageText]:
        """These pages, each as it is done. All of them have PDF_CONVERT_TIMEOUT."""
        if not self.is_open:
            raise ValueError("the document is closed: its child may have another one by now")
        self._child.is_well, well = False, self._child.is_well
        self._child.allow(self._seconds)
        self._child.send({"first": first, "last": last})
        for number in range(first, last + 1):
            line = self._page(f"reading pages {first} to {last}, at page {number}")
            well = well and "error" not in line
            self._child.is_well = well and number == last
            yield PageText(number, line.get("text", ""), line.get("error"), line.get("source", ""))

    def _page(self, doing: str) -> dict[str, Any]:
        while "image" in (line := self._child.answer(doing)):
            self._child.send(self._ocr(Path(line["image"]), line["languages"]))
        return line

    def _ocr(self, image: Path, languages: str) -> dict[str, Any]:
        """By a plugin: its code is in this process, and a failure of it is of the page unless it says otherwise."""
        assert self._backend is not None
        try:
            return {"text": self._backend.read(image, languages)}
        except Unreadable as error:
            return {"error": str(error)}
        except ClerkError:
            raise
        except Exception as error:
            return {"error": f"{self._backend.label} cannot read it: {type(error).__name__}: {error}"}


@contextlib.contextmanager
def opened(path: Path, config: Config, backend: OcrBackend | None = None, *, html: bool = False) -> Iterator[Reader]:
    """The document in a child that has nothing else to do until the end of the block. Without a backend nobody does OCR.

    Raises `Unreadable` (empty, truncated, corrupt, encrypted, no PDF), `Crashed`, `TimedOut`, `Critical`.
    """
    how = {
        "html": html,
        "backend": backend and backend.label,
        "built_in": backend is not None and type(backend) in backends.BUILT_IN.values(),
        "languages": backends.languages(backend.label, config.ocr_lang) if backend and not html else "",
        "least": config.text_layer_min_chars,
        "seconds": config.pdf_convert_timeout * _SHARE_OF_A_PAGE,
    }
    with contextlib.ExitStack() as stack:
        try:
            how["folder"] = str(stack.enter_context(Scratch("images")).path)
            child, count = _opened_by(stack, path, config.pdf_read_timeout, how)
        except OSError as error:
            raise Critical(f"documents cannot be read on this machine now: {error}") from error
        reader = Reader(child, count, config.pdf_convert_timeout, backend)
        stack.callback(reader.close)
        yield reader


def _opened_by(stack: contextlib.ExitStack, path: Path, within: float, how: dict[str, Any]) -> tuple[_Child, int]:
    """A child that has it open, and how many pages that has. One that crashes may have been killed while it waited, which is
    no fault of the document: then the next one tries."""
    while True:
        child = _waiting.one()
        stack.callback(_waiting.take_back, child)
        try:
            return child, child.open(path, within, how)
        except Crashed as error:
            if child.documents == 1 or isinstance(error, TimedOut):
                raise


def inspect(path: Path, config: Config) -> int:
    """How many pages a PDF has."""
    with opened(path, config) as reader:
        return reader.count


def pages(path: Path, first: int, last: int | None, config: Config, backend: OcrBackend) -> Iterator[PageText]:
    """The pages from `first` to `last` (None: the end), in lots of PDF_CHUNK_SIZE, by one child."""
    with opened(path, config, backend) as reader:
        end = min(last or reader.count, reader.count)
        for start in range(first, end + 1, config.chunk_size):
            yield from reader.read(start, min(start + config.chunk_size - 1, end))
