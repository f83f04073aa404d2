"""Pages: the text layer where there is one, else the scan as it is, else the page as drawn; and PDFs that cannot be read."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from clerk.config import Config
from clerk.errors import Unreadable
from clerk.parts import PageText
from clerk.reading import backends, reader
from clerk.reading.pdf import Pdf, refuse_at_sight
from tests.clerk import papers

CONFIG = Config(ocr_lang="eng")


def read(path: Path, config: Config = CONFIG) -> list[PageText]:
    return list(reader.pages(path, 1, None, config, backends.find("tesseract")))


def image_of(path: Path, folder: Path) -> Path:
    """What OCR is given of the first page. In this process: these PDFs are good ones."""
    with Pdf(path).page(1) as page:
        assert page.layer(50) is None
        return page.image(folder)


# ---- the text layer


def test_a_text_layer_is_taken_as_it_is(tmp_path: Path) -> None:
    path = papers.typed(tmp_path / "a.pdf", [papers.LINE, f"Second. {papers.LINE}"])
    assert read(path) == [PageText(1, papers.LINE, None, "layer"), PageText(2, f"Second. {papers.LINE}", None, "layer")]


def test_a_page_without_anything_on_it_is_blank_and_a_success(tmp_path: Path) -> None:
    path = papers.made(tmp_path / "a.pdf", b"/MediaBox[0 0 100 100]", b"")
    assert read(path) == [PageText(1, "", None, "layer")]


@pytest.mark.parametrize("least", [len("Motioncarried."), len("Motioncarried.") + 1])
def test_a_layer_of_too_few_characters_is_read_again_from_the_image(tmp_path: Path, least: int) -> None:
    path = papers.typed(tmp_path / "a.pdf", ["Motion carried."])
    [page] = read(path, Config(ocr_lang="eng", text_layer_min_chars=least))
    assert (page.text, page.source) == ("Motion carried.", "layer" if least == 14 else "tesseract")


@pytest.mark.parametrize(("unmapped", "taken"), [(60, False), (4, False), (2, True)])
def test_a_layer_whose_glyphs_have_no_meaning_is_not_taken(tmp_path: Path, unmapped: int, taken: bool) -> None:
    glyphs = b"".join(b"%04X" % (300 + index) for index in range(unmapped))
    content = b"BT /F1 8 Tf 5 50 Td <%s> Tj /F2 8 Tf (%s) Tj ET" % (glyphs, b"a" * (60 - unmapped))
    fonts = b"/MediaBox[0 0 300 120]/Resources<</Font<</F1 5 0 R/F2<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>>>"
    path = papers.made(
        tmp_path / "a.pdf",
        fonts,
        content,
        b"<</Type/Font/Subtype/Type0/BaseFont/X/Encoding/Identity-H/DescendantFonts[6 0 R]>>",
        b"<</Type/Font/Subtype/CIDFontType2/BaseFont/X/CIDSystemInfo<</Registry(Adobe)/Ordering(Identity)/Supplement 0>>>>",
    )
    with Pdf(path).page(1) as page:
        assert (page.layer(50) is not None) is taken


def test_words_that_a_line_divides_are_whole_and_control_characters_are_gone(tmp_path: Path) -> None:
    text = b"BT /F1 12 Tf 5 90 Td (The council of the water district has appro-) Tj 0 -14 Td (ved the bud\\001get.) Tj ET"
    fonts = b"/MediaBox[0 0 300 120]/Resources<</Font<</F1<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>>>"
    [page] = read(papers.made(tmp_path / "a.pdf", fonts, text), Config(ocr_lang="eng", text_layer_min_chars=10))
    assert page.text == "The council of the water district has approved the budget."


# ---- images of pages


@pytest.mark.parametrize(("mode", "name"), [("L", "page.jpg"), ("RGB", "page.jpg"), ("1", "page.pgm")])
def test_a_scan_is_given_to_ocr_as_it_is(tmp_path: Path, mode: str, name: str) -> None:
    from PIL import Image

    path = papers.scanned(tmp_path / "a.pdf", ["Motion carried"], mode=mode)
    image = image_of(path, tmp_path)
    assert image.name == name
    with Image.open(image) as opened:
        assert opened.size == (800, 200)
        assert opened.convert("L").resize((1, 1), Image.Resampling.BOX).getpixel((0, 0)) in range(200, 255)  # not inverted


def test_scans_of_every_kind_are_read_by_tesseract(tmp_path: Path) -> None:
    grey = papers.scanned(tmp_path / "a.pdf", ["Motion carried", "Council adjourned"])
    black = papers.scanned(tmp_path / "b.pdf", ["Budget approved"], mode="1")
    assert [(page.text, page.source) for page in read(grey) + read(black)] == [
        ("Motion carried", "tesseract"),
        ("Council adjourned", "tesseract"),
        ("Budget approved", "tesseract"),
    ]


@pytest.mark.parametrize(
    ("width", "high", "extra", "content"),
    [
        (200, 50, b"", b"288 0 0 72 0 0 cm /I Do"),  # 50 dpi
        (800, 100, b"", b"288 0 0 72 0 0 cm /I Do"),  # 200 × 100 dpi
        (800, 200, b"/Rotate 90", b"288 0 0 72 0 0 cm /I Do"),
        (800, 200, b"", b"288 0 0 -72 0 72 cm /I Do"),  # upside down
        (800, 200, b"", b"144 0 0 36 0 0 cm /I Do"),  # a logo
        (800, 200, b"", b"q 288 0 0 72 0 0 cm /I Do Q 0 0 9 9 re f"),  # something is drawn over it
    ],
)
def test_what_is_not_just_an_upright_scan_is_drawn(
    tmp_path: Path, width: int, high: int, extra: bytes, content: bytes
) -> None:
    from PIL import Image

    about = b"/Type/XObject/Subtype/Image/Width %d/Height %d/ColorSpace/DeviceGray/BitsPerComponent 8" % (width, high)
    box = b"/MediaBox[0 0 288 72]/Resources<</XObject<</I 5 0 R>>>>"
    image = papers.stream(b"\x80" * (width * high), about)
    path = papers.made(tmp_path / "a.pdf", box + extra, content, image)
    with Image.open(image_of(path, tmp_path)) as opened:
        assert sorted(opened.size) == [300, 1200]


def test_a_large_page_is_drawn_with_fewer_dots_and_a_huge_one_is_not(tmp_path: Path) -> None:
    from PIL import Image

    large = papers.made(tmp_path / "large.pdf", b"/MediaBox[0 0 2592 1728]", b"0 0 99 99 re f")  # 36 × 24 inches
    with Image.open(image_of(large, tmp_path)) as opened:
        assert 45_000_000 < opened.width * opened.height < 50_100_000
    huge = papers.made(tmp_path / "huge.pdf", b"/MediaBox[0 0 14400 14400]", b"0 0 99 99 re f")
    assert read(huge) == [PageText(1, "", "the page is 200 × 200 inches, too large to be read")]


def test_a_page_may_not_claim_more_text_than_fits_on_one(tmp_path: Path) -> None:
    """A few kilobytes of it would fill the disk: pages may share what is on them."""
    font = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"
    lines = b"BT/F 1 Tf 1 TL 9 700 Td" + b"(Order is kept, and so on.) Tj T*\n" * 10_000 + b"ET"
    page = b"/MediaBox[0 0 612 792]/Resources<</Font<</F 5 0 R>>>>"
    path = papers.made(tmp_path / "bomb.pdf", page, zlib.compress(lines), font, filters=b"/Filter/FlateDecode")
    assert path.stat().st_size < 3_000
    (came,) = read(path)
    assert (came.text, came.source) == ("", "")
    assert re.fullmatch(r"the page claims 2[6-8]\d{4} characters, more than 250000", came.error or "")


# ---- what cannot be read


def test_case_09_an_empty_or_corrupt_pdf_is_an_error_with_a_reason(tmp_path: Path) -> None:
    good = papers.typed(tmp_path / "good.pdf", [papers.LINE] * 3).read_bytes()
    html = b"<!DOCTYPE html><html><body>Please log in</body></html>"
    bad = {
        "the file is empty (0 bytes)": b"",
        "truncated: its end is missing after": good[: len(good) // 2],
        "the PDF is corrupt": b"%PDF-1.4\n" + b"\x00\xff junk" * 100 + b"\n%%EOF",
        "this is no PDF but a web page (HTML)": html,
        "this is no PDF but a JPEG image": b"\xff\xd8\xff\xe0\0\x10JFIF",
        "this is no PDF but a ZIP archive": b"PK\x03\x04\x14\0",
        "this is no PDF but plain text": b"404 not found\n",
        "this is no PDF but something else": bytes(range(256)),
    }
    for reason, content in bad.items():
        (tmp_path / "bad.pdf").write_bytes(content)
        with pytest.raises(Unreadable) as raised:
            reader.inspect(tmp_path / "bad.pdf", CONFIG)
        assert str(raised.value).startswith(f"{tmp_path.name}/bad.pdf: ")
        assert reason in str(raised.value)
    with pytest.raises(Unreadable, match="the file is missing"):
        reader.inspect(tmp_path / "none.pdf", CONFIG)
    assert reader.inspect(tmp_path / "good.pdf", CONFIG) == 3


def test_a_linearized_pdf_knows_how_long_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(b"%PDF-1.5\n1 0 obj <</Linearized 1/L 9000/N 2>> endobj\nstartxref\n0\n%%EOF\n")
    with pytest.raises(Unreadable, match="truncated"):
        refuse_at_sight(path)


def test_an_encrypted_pdf_is_refused_and_one_that_opens_without_a_password_is_read(tmp_path: Path) -> None:
    from reportlab.lib.pdfencrypt import StandardEncryption

    locked = papers.typed(tmp_path / "a.pdf", [papers.LINE], encrypt=StandardEncryption("secret", ownerPassword="owner"))
    with pytest.raises(Unreadable, match="is encrypted: it opens only with a password"):
        reader.inspect(locked, CONFIG)
    restricted = papers.typed(tmp_path / "b.pdf", [papers.LINE], encrypt=StandardEncryption("", ownerPassword="owner"))
    assert [page.text for page in read(restricted)] == [papers.LINE]


def test_a_pdf_that_lies_about_its_pages(tmp_path: Path) -> None:
    path = papers.typed(tmp_path / "a.pdf", [papers.LINE], pageCompression=0)
    told = path.read_bytes()
    path.write_bytes(told.replace(b"/Count 1 ", b"/Count 3 "))
    assert [page.error is None for page in read(path)] == [True, False, False]
    path.write_bytes(told.replace(b"/Count 1 ", b"/Count 999999 "))
    with pytest.raises(Unreadable, match="claims 999999 pages, more than 20000"):
        reader.inspect(path, CONFIG)


def test_an_image_bomb_is_an_error_of_its_page_before_it_is_decoded(tmp_path: Path) -> None:
    path = papers.image_page(tmp_path / "a.pdf", 60_000, 60_000, b"x", b"/ColorSpace/DeviceRGB/BitsPerComponent 8")
    assert read(path) == [
        PageText(1, "", "an image on the page has 60000 × 60000 pixels, more than 100 million"),
    ]


def test_a_pdf_that_explodes_in_memory_takes_less_than_a_gigabyte(tmp_path: Path) -> None:
    path = papers.bomb(tmp_path / "a.pdf", gigabytes=4)
    assert path.stat().st_size < 100_000
    script = """
import json, pathlib, resource, sys
from clerk.config import Config
from clerk.reading import backends, reader
try:
    said = [page.error or page.text for page in
            reader.pages(pathlib.Path(sys.argv[1]), 1, None, Config(ocr_lang="eng"), backends.find("tesseract"))]
except Exception as error:
    said = [type(error).__name__]
print(json.dumps([said, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss]))
"""
    said, kilobytes = run_python(script, str(path))
    assert said == ["Crashed"]
    assert kilobytes < 1 << 20


def run_python(script: str, *arguments: str) -> Any:
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, check=True, env=os.environ)
    return json.loads(done.stdout)
