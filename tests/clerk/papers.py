"""Documents for tests: text layers by ReportLab, scans by Pillow, and broken ones by hand."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

WIDE, HIGH = 288, 72  # points: 4 × 1 inches, so that OCR takes no time
LINE = "The council approved the budget of the water district by a vote of five to none."


def typed(path: Path, pages: Sequence[str], **options: Any) -> Path:
    """One page for each text, with a text layer."""
    from reportlab.pdfgen import canvas

    path.parent.mkdir(parents=True, exist_ok=True)
    paper = canvas.Canvas(str(path), pagesize=(612, HIGH), **options)
    for text in pages:
        paper.drawString(10, 30, text)
        paper.showPage()
    paper.save()
    return path


def picture(words: str, dpi: int = 200, mode: str = "L") -> Image.Image:
    """A page with a few words, as a scanner sees it."""
    image = Image.new("L", (WIDE * dpi // 72, HIGH * dpi // 72), 255)
    font = ImageFont.load_default(size=dpi / 6)
    ImageDraw.Draw(image).text((dpi / 5, dpi / 3), words, fill=0, font=font)
    return image.convert(mode)


def scanned(path: Path, pages: Sequence[str], dpi: int = 200, mode: str = "L") -> Path:
    """One image for each page: JPEG in grey or colour, CCITT in mode "1"."""
    first, *rest = [picture(words, dpi, mode) for words in pages]
    path.parent.mkdir(parents=True, exist_ok=True)
    first.save(path, "PDF", resolution=dpi, save_all=True, append_images=rest)
    return path


def made(path: Path, page: bytes, content: bytes, *others: bytes, filters: bytes = b"") -> Path:
    """A PDF of one page by hand: what its dictionary says, its content, and objects from 5 on."""
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/Contents 4 0 R%s>>" % page,
        stream(content, filters),
        *others,
    ]
    out, places = bytearray(b"%PDF-1.7\n"), []
    for number, one in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, one)
    table = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"trailer <</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, table)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(out)
    return path


def stream(data: bytes, about: bytes = b"") -> bytes:
    return b"<</Length %d%s>>\nstream\n%s\nendstream" % (len(data), about, data)


def image_page(path: Path, width: int, height: int, data: bytes, about: bytes) -> Path:
    """A page that is one image."""
    image = stream(data, b"/Type/XObject/Subtype/Image/Width %d/Height %d%s" % (width, height, about))
    box = b"/MediaBox[0 0 %d %d]/Resources<</XObject<</I 5 0 R>>>>" % (WIDE, HIGH)
    return made(path, box, b"%d 0 0 %d 0 0 cm /I Do" % (WIDE, HIGH), image)


def bomb(path: Path, gigabytes: int) -> Path:
    """A content of that many gigabytes of spaces, in a few kilobytes: deflated twice."""
    spaces = _deflated(b" " * (1 << 20), 1024 * gigabytes)
    twice = zlib.compress(spaces)
    return made(path, b"/MediaBox[0 0 100 100]", twice, filters=b"/Filter[/FlateDecode/FlateDecode]")


def _deflated(block: bytes, times: int) -> bytes:
    """The block so many times, deflated only once: full flushes make its pieces independent."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    piece = deflate.compress(block) + deflate.flush(zlib.Z_FULL_FLUSH)
    return b"\x78\x9c" + piece * times + deflate.flush()


def program(folder: Path, body: str) -> Path:
    """A `tesseract` of our own, which has English and does with an image what the shell's `body` says."""
    path = folder / "tesseract"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nif [ \"$1\" = --list-langs ]; then printf 'List:\\neng\\nspa\\n'; exit; fi\n{body}\n")
    path.chmod(0o755)
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
