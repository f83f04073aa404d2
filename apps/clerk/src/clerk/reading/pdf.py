"""A PDF as PDFium sees it: its text layers, and images of its pages for OCR. Only children import PDFium: it may crash."""

from __future__ import annotations

import contextlib
import ctypes
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from clerk.errors import Unreadable

DPI: Final = 300  # small print (7 pt) has 1.2 % wrong words at 200 dpi, none at 300, for 10 % more time
LEAST_DPI: Final = 150
MOST_PIXELS: Final = 50_000_000  # of an image for OCR: tesseract takes up to 10 bytes for each
MOST_DECODED: Final = 100_000_000  # of any image on a page: 300 MB in colour
MOST_CHARACTERS: Final = 250_000  # on a page: one that is all small print has 20,000
MOST_PAGES: Final = 20_000  # the page tree may claim millions
_NEARLY: Final = 0.05
_DEEPEST_FORM: Final = 15
_LONGEST_TAIL: Final = 65_536  # what servers append to a document is shorter
_LINEARIZED: Final = re.compile(rb"/Linearized.{0,200}?/L\s+(\d+)", re.DOTALL)
_LOOKS: Final = (
    (re.compile(rb".{0,500}?<(!doctype\s+html|html|head|body)\b", re.IGNORECASE | re.DOTALL), "a web page (HTML)"),
    (re.compile(rb"\s*<\?xml"), "XML"),
    (re.compile(rb"\s*[{\[]\s*[\"{\[]"), "JSON"),
    (re.compile(rb"PK\x03\x04"), "a ZIP archive or an Office document"),
    (re.compile(rb"\xd0\xcf\x11\xe0"), "an old Office document"),
    (re.compile(rb"\{\\rtf"), "RTF"),
    (re.compile(rb"\xff\xd8\xff"), "a JPEG image"),
    (re.compile(rb"\x89PNG"), "a PNG image"),
    (re.compile(rb"(II\*\0|MM\0\*)"), "a TIFF image"),
    (re.compile(rb"\x1f\x8b"), "gzip data"),
    (re.compile(rb"[\t\n\r\x20-\x7e\x80-\xff]*\Z"), "plain text"),
)


def refuse_at_sight(path: Path) -> None:
    """What can be said without parsing. PDFium repairs what was cut off, and pages would be missing silently."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise Unreadable("the file is missing") from None
    if not size:
        raise Unreadable("the file is empty (0 bytes)")
    with path.open("rb") as file:
        head = file.read(1024)
        file.seek(max(0, size - _LONGEST_TAIL))
        tail = file.read()
    if b"%PDF-" not in head:
        look = next((name for pattern, name in _LOOKS if pattern.match(head)), "something else")
        raise Unreadable(f"this is no PDF but {look}")
    linearized = _LINEARIZED.search(head)
    if (linearized and int(linearized[1]) > size) or not (b"startxref" in tail or b"%%EOF" in tail):
        raise Unreadable(f"the PDF is truncated: its end is missing after {size} bytes")


class Pdf:
    """An open PDF."""

    def __init__(self, path: Path) -> None:
        refuse_at_sight(path)
        import pypdfium2

        try:
            self._document = pypdfium2.PdfDocument(path)
            self._document.init_forms()  # or what was filled into fields is not drawn
        except pypdfium2.PdfiumError as error:
            raise Unreadable(_reason(error)) from None
        self.count = len(self._document)
        if self.count > MOST_PAGES:
            raise Unreadable(f"the PDF claims {self.count} pages, more than {MOST_PAGES}")

    def close(self) -> None:
        self._document.close()

    @contextlib.contextmanager
    def page(self, number: int) -> Iterator[Page]:
        import pypdfium2

        try:
            loaded = self._document[number - 1]
        except pypdfium2.PdfiumError:
            raise Unreadable("the page cannot be loaded: it is corrupt or missing") from None
        try:
            yield Page(loaded)
        finally:
            loaded.close()


def _reason(error: Any) -> str:
    import pypdfium2.raw as c

    if error.err_code in (c.FPDF_ERR_PASSWORD, c.FPDF_ERR_SECURITY):
        return "the PDF is encrypted: it opens only with a password"
    if error.err_code == c.FPDF_ERR_SUCCESS:
        return "the PDF has no pages"
    return "the PDF is corrupt: it cannot be opened"


class Page:
    """A loaded page."""

    def __init__(self, loaded: Any) -> None:
        import pypdfium2.raw as c

        self._c = c
        self._page = loaded
        self._width, self._height = loaded.get_size()

    def layer(self, least: int) -> str | None:
        """Its text layer, if that has `least` non-space characters and nearly all of its glyphs have a meaning."""
        c = self._c
        if not c.FPDFPage_CountObjects(self._page) and c.FPDFPage_GetAnnotCount(self._page) < 1:
            return ""  # blank
        layer = self._page.get_textpage()
        try:
            if (count := layer.count_chars()) > MOST_CHARACTERS:
                raise Unreadable(f"the page claims {count} characters, more than {MOST_CHARACTERS}")
            text = str(layer.get_text_range())
            seen = len(text) - sum(map(str.isspace, text))
            if seen < least:
                return None
            unmapped = sum(c.FPDFText_HasUnicodeMapError(layer, index) == 1 for index in range(count))
        finally:
            layer.close()
        meaningless = sum(character == "\ufffd" or "\ue000" <= character <= "\uf8ff" for character in text)
        return text if max(unmapped, meaningless) < max(seen, 1) * _NEARLY else None

    def image(self, folder: Path) -> Path:
        """A file with what OCR shall see: the scan as it is where the page is nothing but that, else the page as drawn."""
        self._refuse_bombs()
        scan = self._scan()
        return (scan and self._extracted(scan, folder)) or self._drawn(folder)

    def _refuse_bombs(self) -> None:
        """Before anything is decoded."""
        c = self._c
        for one in _images(c, self._page, c.FPDFPage_CountObjects, c.FPDFPage_GetObject):
            width, height = self._pixels(one)
            if width * height > MOST_DECODED:
                most = f"{MOST_DECODED // 10**6} million"
                raise Unreadable(f"an image on the page has {width} × {height} pixels, more than {most}")

    def _pixels(self, image: Any) -> tuple[int, int]:
        width, height = ctypes.c_uint(), ctypes.c_uint()
        self._c.FPDFImageObj_GetImagePixelSize(image, ctypes.byref(width), ctypes.byref(height))
        return width.value, height.value

    def _scan(self) -> Any:
        """The one image that covers the page upright, at a resolution for OCR; text may lie over it only unseen."""
        c, page = self._c, self._page
        seen = []
        for index in range(c.FPDFPage_CountObjects(page)):
            one = c.FPDFPage_GetObject(page, index)
            kind = c.FPDFPageObj_GetType(one)
            if kind == c.FPDF_PAGEOBJ_TEXT and c.FPDFTextObj_GetTextRenderMode(one) == c.FPDF_TEXTRENDERMODE_INVISIBLE:
                continue
            seen.append((one, kind))
            if len(seen) > 1 or kind != c.FPDF_PAGEOBJ_IMAGE:
                return None
        if not seen or page.get_rotation() or c.FPDFPage_GetAnnotCount(page) > 0:
            return None
        return seen[0][0] if self._covers(seen[0][0]) else None

    def _covers(self, image: Any) -> bool:
        at = self._c.FS_MATRIX()
        self._c.FPDFPageObj_GetMatrix(image, ctypes.byref(at))
        left, bottom, _, _ = self._page.get_bbox()
        width, height = self._pixels(image)
        if at.b or at.c or at.a <= 0 or at.d <= 0 or not 0 < width * height <= MOST_PIXELS:
            return False
        across, down = width / at.a * 72, height / at.d * 72  # dpi
        return bool(
            max(abs(at.e - left), abs(at.a - self._width)) <= _NEARLY * self._width
            and max(abs(at.f - bottom), abs(at.d - self._height)) <= _NEARLY * self._height
            and min(across, down) >= LEAST_DPI
            and abs(across - down) <= 2 * _NEARLY * down
        )

    def _extracted(self, scan: Any, folder: Path) -> Path | None:
        import pypdfium2

        c, image = self._c, pypdfium2.PdfObject(scan, page=self._page)
        about = image.get_metadata()
        if image.get_filters() == ["DCTDecode"] and about.bits_per_pixel in (8, 24):
            path = folder / "page.jpg"
            path.write_bytes(image.get_data())
            return path
        if about.colorspace == c.FPDF_COLORSPACE_UNKNOWN:
            return None  # a stencil: what it looks like is decided when it is drawn
        bitmap = image.get_bitmap()
        try:
            return _saved(bitmap, folder)
        finally:
            bitmap.close()

    def _drawn(self, folder: Path) -> Path:
        if not (0 < self._width < math.inf and 0 < self._height < math.inf):
            raise Unreadable("the page has no size")
        dpi = min(DPI, 72 * math.sqrt(MOST_PIXELS / (self._width * self._height)))
        if dpi < LEAST_DPI:
            raise Unreadable(f"the page is {self._width / 72:.0f} × {self._height / 72:.0f} inches, too large to be read")
        bitmap = self._page.render(scale=dpi / 72, grayscale=True)
        try:
            return _saved(bitmap, folder)
        finally:
            bitmap.close()


def _images(c: Any, holder: Any, count: Callable[..., int], get: Callable[..., Any], depth: int = 0) -> Iterator[Any]:
    """All of them, with those within forms."""
    for index in range(count(holder)):
        one = get(holder, index)
        kind = c.FPDFPageObj_GetType(one)
        if kind == c.FPDF_PAGEOBJ_IMAGE:
            yield one
        elif kind == c.FPDF_PAGEOBJ_FORM and depth < _DEEPEST_FORM:
            yield from _images(c, one, c.FPDFFormObj_CountObjects, c.FPDFFormObj_GetObject, depth + 1)


def _saved(bitmap: Any, folder: Path) -> Path:
    """As grey pixels, uncompressed: that costs less than any compression, and OCR looks at nothing else."""
    import pypdfium2.raw as c

    path = folder / "page.pgm"
    if bitmap.format != c.FPDFBitmap_Gray:
        bitmap.to_pil().convert("L").save(path)
        return path
    pixels = memoryview(bitmap.buffer).cast("B")
    with path.open("wb") as file:
        file.write(b"P5 %d %d 255\n" % (bitmap.width, bitmap.height))
        for row in range(bitmap.height):
            file.write(pixels[row * bitmap.stride : row * bitmap.stride + bitmap.width])
    return path
