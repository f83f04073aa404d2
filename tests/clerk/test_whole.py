"""Everything real: PDFs in a folder become a published database that can be searched."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from reportlab.lib.pagesizes import letter
from reportlab.pdfgen.canvas import Canvas
from sqlalchemy import text

from clerk import sites
from clerk.app import open_mill, work
from clerk.config import Config, load
from clerk.pipeline import configure
from clerk.sites import Description
from gristmill import Mill
from tests.clerk.test_pipeline import SITE, counters

pytestmark = pytest.mark.alike
MINUTES = (
    "Members present: Ann Archer, Bob Baker, Cy Cole. Motion by Archer, seconded by Baker, to approve the {word} budget."
    " Ayes: 3. Nays: 0. Motion carried."
)


def pdf(path: Path, *words: str) -> None:
    """A page for each word, with a text layer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas = Canvas(str(path), pagesize=letter)
    for word in words:
        for line, part in enumerate(MINUTES.format(word=word).split(". ")):
            canvas.drawString(72, 700 - 20 * line, f"{part}.")
        canvas.showPage()
    canvas.save()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    pdf(folder / "minutes" / "City Council" / "2026-01-05.pdf", "zeppelin")
    pdf(folder / "minutes" / "City Council" / "2026-02-05.pdf", "library", "harbour", "orchard")
    pdf(folder / "agendas" / "City Council" / "2026-03-05.pdf", "agenda")
    return folder


@pytest.fixture
def mill(clerk_config: Config, source: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mill]:
    monkeypatch.setenv("OCR_SPLIT_PAGES", "2")
    monkeypatch.setenv("PDF_CHUNK_SIZE", "1")
    configure(load())
    with open_mill(clerk_config) as opened:
        sites.create(opened, Description(SITE, "Oakfield", "folder", start_year=2026, extra={"path": str(source)}))
        yield opened


def run(mill: Mill, options: sites.Options | None = None) -> sites.Site:
    sites.update(mill, SITE, options)
    work(mill, "all", 2, until="drained")
    return sites.find(mill, SITE)


def found(database: Path, word: str) -> list[tuple[str, str, int]]:
    sql = "SELECT m.meeting, m.date, m.page FROM minutes_fts f JOIN minutes m ON m.rowid = f.rowid WHERE minutes_fts MATCH ?"
    with sqlite3.connect(database) as connection:
        return connection.execute(sql, (word,)).fetchall()


def test_documents_become_a_database_that_is_searched_and_published(
    mill: Mill, source: Path, tmp_path: Path, clerk_config: Config
) -> None:
    site = run(mill, sites.Options(all_years=True))
    assert (site.outcome, site.current_stage, site.pages) == ("completed", "completed", 5)
    assert counters(mill, "ocr") == (3, 0, 3)  # the pages of the long one are no items
    made = clerk_config.storage / SITE / "meetings.db"
    assert found(made, "orchard") == [("CityCouncil", "2026-02-05", 3)]
    [public] = (tmp_path / "published").rglob("meetings.db")
    assert found(public, "zeppelin") == [("CityCouncil", "2026-01-05", 1)]
    with sqlite3.connect(public) as connection:
        assert connection.execute("SELECT count(*) FROM votes").fetchone()[0] >= 4
    with mill.transaction() as connection:
        rows = connection.execute(text("SELECT key, state, pages FROM clerk_document ORDER BY key")).all()
    assert [tuple(row) for row in rows] == [
        ("agendas/CityCouncil/2026-03-05", "read", 1),
        ("minutes/CityCouncil/2026-01-05", "read", 1),
        ("minutes/CityCouncil/2026-02-05", "read", 3),
    ]

    before = made.stat().st_mtime_ns
    assert run(mill).outcome == "unchanged"
    assert made.stat().st_mtime_ns == before

    (source / "minutes" / "City Council" / "2026-04-05.pdf").write_bytes(b"%PDF-1.4 and then nothing")
    pdf(source / "minutes" / "City Council" / "2026-05-05.pdf", "observatory")
    site = run(mill)
    assert (site.outcome, counters(mill, "ocr"), site.last_error_stage) == ("completed", (1, 1, 2), "ocr")
    assert found(made, "observatory") == [("CityCouncil", "2026-05-05", 1)]


def test_pdfs_that_are_not_kept_go_once_they_are_read_and_are_not_missed(
    mill: Mill, tmp_path: Path, clerk_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEEP_PDFS", "0")
    bad = tmp_path / "source" / "minutes" / "City Council" / "2026-04-05.pdf"
    bad.write_bytes(b"%PDF-1.4 and then nothing")
    assert run(mill, sites.Options(all_years=True)).outcome == "completed"
    assert counters(mill, "ocr") == (3, 1, 4)
    kept = [path.name for path in (clerk_config.storage / SITE).rglob("*.pdf")]
    assert kept == [bad.name]  # somebody may want to look at it
    assert run(mill, sites.Options(all_years=True)).outcome == "unchanged"
    pdf(tmp_path / "source" / "minutes" / "City Council" / "2026-05-05.pdf", "observatory")
    assert run(mill).outcome == "completed"
    assert counters(mill, "ocr") == (1, 0, 1)
    [public] = (tmp_path / "published").glob(f"{SITE}/meetings.db")
    assert found(public, "zeppelin") == [("CityCouncil", "2026-01-05", 1)]
    assert found(public, "observatory") == [("CityCouncil", "2026-05-05", 1)]
