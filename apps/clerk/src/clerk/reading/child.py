"""The process in which native code runs: it opens a document and reads the pages that it is asked for, then perhaps another.

Lines of JSON, in: what to open, then `{"first": 1, "last": 20}` for each lot of pages, or the answer of a backend
that lives in the parent; `{}` when nobody wants more of it. Out: `{"pages": 60}`, then one line for each page as it is
done, or `{"failed": …}`, the last.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import re
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from clerk.errors import ClerkError, Critical, Unreadable
from clerk.reading import backends
from clerk.reading.html import html_text
from clerk.reading.pdf import Pdf

if TYPE_CHECKING:
    from clerk.parts import OcrBackend

_NO_TEXT: Final = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


class Link:
    """Lines from and to the parent. When the parent is gone, so is everything that was started here."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="ascii")
        os.dup2(2, 1)  # what libraries print is no answer
        self._lines: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.folder: Path | None = None
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            self._lines.put(json.loads(line))
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)

    def take(self) -> Any:
        return self._lines.get()

    def say(self, **line: Any) -> None:
        self._out.write(json.dumps(line) + "\n")
        self._out.flush()


class InParent:
    """A backend of a plugin, which only the parent has."""

    def __init__(self, link: Link, label: str) -> None:
        self.label = label
        self._link = link

    def read(self, image: Path, languages: str) -> str:
        self._link.say(image=str(image), languages=languages)
        answer = self._link.take()
        if "error" in answer:
            raise Unreadable(answer["error"])
        return str(answer["text"])


class Source(Protocol):
    count: int

    def read(self, number: int) -> tuple[str, str]:
        """The text of a page, and where that comes from."""
        ...


class HtmlSource:
    count = 1

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, number: int) -> tuple[str, str]:
        return html_text(self._path), "html"


class PdfSource:
    def __init__(self, pdf: Pdf, asked: dict[str, Any], readers: list[OcrBackend]) -> None:
        self._pdf = pdf
        self.count = pdf.count
        self._least, self._folder, self._languages = asked["least"], Path(asked["folder"]), asked["languages"]
        self._readers = readers

    def read(self, number: int) -> tuple[str, str]:
        with self._pdf.page(number) as page:
            text = page.layer(self._least)
            if text is not None:
                return text, "layer"
            image = page.image(self._folder)
        try:
            return self._ocr(image)
        finally:
            image.unlink(missing_ok=True)

    def _ocr(self, image: Path) -> tuple[str, str]:
        why: Unreadable | None = None
        for reader in self._readers:
            try:
                return reader.read(image, self._languages), reader.label
            except Unreadable as error:
                why = error
        raise why or Unreadable("nobody reads images here")


def clean(text: str) -> str:
    """Without what no text file and no database wants. U+FFFE is where PDFium joined a word that a line's end divides."""
    text = text.replace("\r\n", "\n")
    text = _NO_TEXT.sub("", re.sub("[\r\v\f\x85\u2028\u2029]", "\n", text))
    return "\n".join(line.rstrip() for line in text.split("\n")).strip("\n")


def page(source: Source, number: int) -> dict[str, Any]:
    try:
        text, origin = source.read(number)
    except Unreadable as error:
        return {"error": str(error)}
    except MemoryError:
        return {"error": "the page needs more memory than it may have"}
    return {"text": clean(text), "source": origin}


def limit(memory: int) -> None:
    """A bomb may not take the machine's memory; its remains are of no use."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if sys.platform == "linux":
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (memory if hard < 0 else min(memory, hard), hard))


def serve(link: Link) -> None:
    while True:
        with opened(link, link.take()) as source:
            link.say(pages=source.count)
            while lot := link.take():
                for number in range(lot["first"], lot["last"] + 1):
                    link.say(page=number, **page(source, number))


@contextlib.contextmanager
def opened(link: Link, asked: dict[str, Any]) -> Iterator[Source]:
    link.folder = Path(asked["folder"])
    readers: list[OcrBackend] = []
    if asked["built_in"]:
        readers = built_in(asked["backend"], asked["seconds"])
    elif asked["backend"]:
        readers = [InParent(link, asked["backend"])]
    limit(max((getattr(reader, "memory", 0) for reader in readers), default=0) or backends.Tesseract.memory)
    path = Path(asked["path"])
    if asked["html"]:
        yield HtmlSource(path)
    else:
        with contextlib.closing(Pdf(path)) as pdf:
            yield PdfSource(pdf, asked, readers)


@functools.cache
def built_in(label: str, seconds: float) -> list[OcrBackend]:
    """The same for each document: they may hold models."""
    return backends.chain(label, seconds)


def main() -> None:
    link = Link()
    try:
        serve(link)
    except ClerkError as error:
        link.say(failed=type(error).__name__, message=str(error))
    except MemoryError:
        link.say(failed=Unreadable.__name__, message="the document needs more memory than it may have")
    except OSError as error:
        link.say(failed=Critical.__name__, message=f"documents cannot be read on this machine now: {error}")
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # not by the interpreter's end, which would wait for the thread that listens


if __name__ == "__main__":
    main()
