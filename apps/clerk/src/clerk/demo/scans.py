"""Pages as a photocopier sees them: grey paper, a little askew, specks, a shadow at the edge, JPEG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from clerk.demo.layout import HEIGHT, WIDTH, placed
from clerk.demo.texts import Line

if TYPE_CHECKING:
    from PIL import Image, ImageFont

DPI: Final = 200  # what office scanners are set to; tesseract reads it well and faster than 300
_INK, _PAPER, _NOISE = 45, 236, 16  # of 255


def photocopy(lines: Sequence[Line], rng: Random, dpi: int = DPI) -> bytes:
    """The page as a grey JPEG."""
    from PIL import Image, ImageChops

    size = (round(WIDTH * dpi), round(HEIGHT * dpi))
    page = Image.new("L", size, _PAPER)
    _write(page, lines, dpi)
    # Bilinear: the letters get soft edges too.
    page = page.rotate(rng.uniform(-0.6, 0.6), Image.Resampling.BILINEAR, fillcolor=_PAPER)
    page = ImageChops.darker(page, _shadow(size))
    _specks(page, rng)
    noise = Image.frombytes("L", size, rng.randbytes(size[0] * size[1])).point(
        [value * _NOISE // 255 for value in range(256)]
    )
    out = io.BytesIO()
    ImageChops.subtract(page, noise).save(out, "JPEG", quality=60, dpi=(dpi, dpi))
    return out.getvalue()


def _write(page: Image.Image, lines: Sequence[Line], dpi: int) -> None:
    from PIL import ImageDraw

    draw = ImageDraw.Draw(page)
    for at in placed(lines):
        font = _font(at.bold, round(at.points * dpi / 72))
        across = (page.width - draw.textlength(at.text, font)) / 2 if at.centred else at.left * dpi
        draw.text((across, at.down * dpi), at.text, fill=_INK, font=font, anchor="ls")


@cache
def _font(bold: bool, pixels: int) -> ImageFont.FreeTypeFont:
    """Bitstream Vera, which comes with reportlab: no font of the system is needed."""
    import reportlab
    from PIL import ImageFont

    fonts = Path(reportlab.__file__).parent / "fonts"
    return ImageFont.truetype(str(fonts / ("VeraBd.ttf" if bold else "Vera.ttf")), pixels)


@cache
def _shadow(size: tuple[int, int]) -> Image.Image:
    """The side where the lid did not close: dark, within a quarter of an inch as light as the paper."""
    from PIL import Image

    width, height = size
    edge = width // 34
    row = bytes(min(255, 90 + 165 * across // edge) for across in range(width))
    return Image.frombytes("L", (width, 1), row).resize((width, height))


def _specks(page: Image.Image, rng: Random) -> None:
    from PIL import ImageDraw

    draw = ImageDraw.Draw(page)
    for _ in range(25):
        across, down = rng.randrange(page.width), rng.randrange(page.height)
        draw.ellipse((across, down, across + 1, down + 1), fill=120)
