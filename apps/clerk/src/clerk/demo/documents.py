"""The demonstration's documents as files: scans, PDFs with a text layer, a long one with both, a truncated one and one that
asks for a password.

They are laid out as `clerk new --scraper folder` reads them: <folder>/<subdomain>/<kind>/<meeting>/<date>.pdf.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final, Literal

from clerk.demo import texts
from clerk.demo.layout import HEIGHT, WIDTH, placed
from clerk.demo.scans import DPI, photocopy
from clerk.demo.texts import Meeting, Page
from clerk.demo.towns import town
from clerk.errors import ClerkError
from clerk.names import Kind
from clerk.storage import write

if TYPE_CHECKING:
    from reportlab.pdfgen.canvas import Canvas

Form = Literal["scan", "text", "mixed", "corrupt", "encrypted"]
Scale = Literal["tiny", "small"]

WORD: Final = "culvert"  # what the demonstration searches for: on one page of all, which is a scan
PASSWORD: Final = "closed-session"
_INCH: Final = 72.0
_COARSE: Final = 150  # dots per inch of the tiny ones: half the work, and still well read


@dataclass(frozen=True)
class _Plan:
    subdomain: str
    body: str
    kind: Kind
    nth: int  # of the body's meetings in the year, from 0
    form: Form
    pages: int = 3
    rare: str | None = None
    topic: str | None = None
    scanned: tuple[int, ...] = ()  # of a mixed one


_BEND, _PORT, _FALLS, _CREEK = "larkspurbend.ca", "portellery.me", "kestrelfalls.ny", "bramblecreek.k12"
_PLANS: Final = (
    _Plan(_BEND, "City Council", "agendas", 0, "text", 1),
    _Plan(_BEND, "City Council", "minutes", 0, "scan", 3),
    _Plan(_BEND, "City Council", "minutes", 1, "text", 4),
    _Plan(_BEND, "City Council", "minutes", 2, "scan", 4, rare=WORD),
    _Plan(_BEND, "City Council", "minutes", 3, "corrupt", 2),
    _Plan(_BEND, "City Council", "agendas", 4, "scan", 2),
    _Plan(_PORT, "Select Board", "minutes", 1, "scan", 3, rare="breakwater"),
    _Plan(_PORT, "Select Board", "minutes", 2, "encrypted", 2),
    _Plan(_PORT, "Planning Board", "minutes", 0, "scan", 3),
    _Plan(_PORT, "Select Board", "agendas", 3, "text", 1),
    _Plan(_FALLS, "Common Council", "minutes", 1, "mixed", 60, topic="budget", scanned=(17, 18, 34, 51)),
    _Plan(_FALLS, "Zoning Board of Appeals", "minutes", 0, "scan", 3, rare="beekeeping"),
    _Plan(_FALLS, "Zoning Board of Appeals", "agendas", 0, "text", 1),
    _Plan(_FALLS, "Common Council", "agendas", 2, "text", 2),
    _Plan(_CREEK, "Board of Trustees", "minutes", 1, "scan", 3),
    _Plan(_CREEK, "Board of Trustees", "minutes", 2, "scan", 4, rare="planetarium"),
    _Plan(_CREEK, "Board of Trustees", "minutes", 3, "text", 3),
    _Plan(_CREEK, "Board of Trustees", "agendas", 4, "scan", 1),
)


@dataclass(frozen=True)
class Made:
    """A document, and what is in it."""

    subdomain: str
    kind: Kind
    meeting: str  # as people say it
    date: str
    form: Form
    pages: tuple[Page, ...]
    scanned: frozenset[int]  # the numbers of the pages that are images only
    path: Path

    @property
    def readable(self) -> bool:
        return self.form not in ("corrupt", "encrypted")


@dataclass(frozen=True)
class Truth:
    folder: Path
    documents: tuple[Made, ...]
    word: str = WORD

    def wanted(self, subdomain: str) -> list[Made]:
        """What a first pass over that site brings: all minutes, and the agendas of meetings without minutes."""
        own = [made for made in self.documents if made.subdomain == subdomain]
        minuted = {(made.meeting, made.date) for made in own if made.kind == "minutes"}
        return [made for made in own if made.kind == "minutes" or (made.meeting, made.date) not in minuted]

    def pages_with(self, word: str) -> Iterator[tuple[Made, int]]:
        for made in self.documents:
            yield from ((made, number) for number, page in enumerate(made.pages, 1) if page.has(word))


COUNT: Final = len(_PLANS)


def make(folder: Path, seed: int = 1, scale: Scale = "small", year: int = 2026) -> Truth:
    """All documents of the demonstration, the same for the same seed and year. Twice is as good as once."""
    return Truth(folder, tuple(making(folder, seed, scale, year)))


def making(folder: Path, seed: int = 1, scale: Scale = "small", year: int = 2026) -> Iterator[Made]:
    """The same one after another. A file that is there stays: it took its place when it was whole."""
    return (_make(folder, plan, seed, scale, year) for plan in _PLANS)


def _make(folder: Path, plan: _Plan, seed: int, scale: Scale, year: int) -> Made:
    place = town(plan.subdomain)
    body = place.body(plan.body)
    meeting = Meeting(place, body, list(body.days(year))[plan.nth])
    count, scanned = (plan.pages, plan.scanned) if scale == "small" else _tiny(plan)
    if plan.kind == "minutes":
        pages = texts.minutes(meeting, seed, count, plan.rare, plan.topic)
    else:
        pages = texts.agenda(meeting, seed, count)
    images = frozenset(range(1, len(pages) + 1) if plan.form == "scan" else scanned)
    path = folder / plan.subdomain / plan.kind / plan.body / f"{meeting.day}.pdf"
    if not path.exists():
        rng = Random(f"{seed}/{path.relative_to(folder)}")
        data = pdf(pages, images, rng, PASSWORD if plan.form == "encrypted" else None, DPI if scale == "small" else _COARSE)
        # Without its end a PDF has no list of its pages; a third of it is not enough for any reader.
        write(path, data[: len(data) // 3] if plan.form == "corrupt" else data)
    return Made(plan.subdomain, plan.kind, plan.body, str(meeting.day), plan.form, pages, images, path)


def _tiny(plan: _Plan) -> tuple[int, tuple[int, ...]]:
    """The same documents with as few pages as show what they show."""
    return (6, (4,)) if plan.form == "mixed" else (min(plan.pages, 3 if plan.rare else 2), ())


def pdf(pages: Sequence[Page], scanned: Collection[int], rng: Random, password: str | None = None, dpi: int = DPI) -> bytes:
    """The pages as a PDF; those whose numbers are in `scanned` as images without text."""
    out = io.BytesIO()
    canvas = _canvas(out, password)
    for number, page in enumerate(pages, 1):
        if number in scanned:
            _draw_image(canvas, photocopy(page.lines, rng, dpi))
        else:
            _draw_text(canvas, page)
        canvas.showPage()
    canvas.save()
    return out.getvalue()


def _canvas(out: io.BytesIO, password: str | None) -> Canvas:
    try:
        from reportlab import rl_config
        from reportlab.lib.pdfencrypt import StandardEncryption
        from reportlab.pdfgen.canvas import Canvas
    except ImportError:
        raise ClerkError(
            "the demonstration makes its documents with reportlab: pip install 'gristmill-clerk[demo]'"
        ) from None

    rl_config.useA85 = 0  # images as scanners embed them, not in letters
    encrypt = StandardEncryption(password, canPrint=0) if password else None
    # invariant: no time of making in it, so that the same pages are the same bytes
    return Canvas(out, (WIDTH * _INCH, HEIGHT * _INCH), invariant=1, encrypt=encrypt)


def _draw_image(canvas: Canvas, jpeg: bytes) -> None:
    from reportlab.lib.utils import ImageReader

    canvas.drawImage(ImageReader(io.BytesIO(jpeg)), 0, 0, WIDTH * _INCH, HEIGHT * _INCH)


def _draw_text(canvas: Canvas, page: Page) -> None:
    for at in placed(page.lines):
        canvas.setFont("Times-Bold" if at.bold else "Times-Roman", at.points + 0.5)
        up = (HEIGHT - at.down) * _INCH
        if at.centred:
            canvas.drawCentredString(WIDTH * _INCH / 2, up, at.text)
        else:
            canvas.drawString(at.left * _INCH, up, at.text)


@dataclass(frozen=True)
class ScannedPage:
    path: Path
    text: str


def scan_pages(n: int, folder: Path, words: int = 250, seed: int = 1, dpi: int = DPI) -> list[ScannedPage]:
    """That many scans of one page each, all different, for measuring and testing how pages are read. At most 650 words."""
    if not 1 <= words <= 650:
        raise ValueError(f"a page has from 1 to 650 words, not {words}")
    found = []
    for number in range(1, n + 1):
        lines = texts.wrapped(texts.prose(seed * 1_000_000 + number, words))
        out = io.BytesIO()
        canvas = _canvas(out, None)
        _draw_image(canvas, photocopy(lines, Random(f"{seed}/{number}"), dpi))
        canvas.save()
        path = folder / f"{number:04}.pdf"
        write(path, out.getvalue())
        found.append(ScannedPage(path, "\n".join(line.text for line in lines)))
    return found
