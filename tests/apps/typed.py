"""Arguments that are more than JSON."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel

from gristmill import Context, task


@dataclass
class Point:
    x: int
    y: int


class Page(BaseModel):
    url: str
    depth: int = 0


@task
def typed(ctx: Context, path: Path, at: datetime, point: Point, page: Page, pages: list[Page]) -> list[object]:
    """Uses what only the real types have."""
    return [
        path.suffix,
        at.astimezone(UTC).isoformat(),
        point.x + point.y,
        type(page).__name__,
        page.depth,
        [p.url for p in pages],
    ]
