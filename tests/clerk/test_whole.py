"""Everything real: PDFs in a folder become a published database that can be searched."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from reportlab.lib.pagesizes import letter
from reportlab.pdfgen.canvas import Canvas
from sqlalchemy import text

from clerk import health, reconciling, sites
from clerk.app import open_mill, work
from clerk.config import Config, load
from clerk.errors import Crashed, Transient, Unreadable
from clerk.pipeline import configure
from clerk.reading import backends
from clerk.reading.documents import Part, Read, read_document, read_part
from clerk.sites import Description
from clerk.storage import Document, SiteFiles
from gristmill import Mill, Unavailable
from gristmill.errors import DatabaseError
from gristmill.testing import FrozenClock, drain
from tests.clerk import papers
from tests.clerk.test_pipeline import SITE, counters
from tests.clerk.web import Web, answer

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


def test_case_09_corrupt_and_empty_pdfs_are_failed_and_their_errors_stored(mill: Mill, source: Path) -> None:
    bad = {"2026-04-05": b"", "2026-04-06": b"%PDF-1.4 and then nothing"}
    for date, content in bad.items():
        (source / "minutes" / "City Council" / f"{date}.pdf").write_bytes(content)
    assert (run(mill).outcome, counters(mill, "ocr")) == ("completed", (3, 2, 5))
    with mill.transaction() as connection:
        rows = connection.execute(text("SELECT date, error FROM clerk_document WHERE state = 'failed' ORDER BY date")).all()
    assert [(row.date, "empty" in row.error, "truncated" in row.error) for row in rows] == [
        ("2026-04-05", True, False),
        ("2026-04-06", False, True),
    ]


@pytest.mark.alike
def test_pages_that_cannot_be_read_are_written_down_with_their_document(mill: Mill, source: Path) -> None:
    torn = papers.typed(source / "minutes" / "City Council" / "2026-04-05.pdf", [papers.LINE], pageCompression=0)
    torn.write_bytes(torn.read_bytes().replace(b"/Count 1 ", b"/Count 2 "))
    assert (run(mill).outcome, counters(mill, "ocr")) == ("completed", (4, 0, 4))
    with mill.transaction() as connection:
        sql = "SELECT state, pages, page_errors, url, sha256 FROM clerk_document WHERE date = '2026-04-05'"
        [row] = connection.execute(text(sql)).all()
    assert (row.state, row.pages, list(json.loads(row.page_errors))) == ("read", 2, ["2"])
    assert (row.url.endswith("2026-04-05.pdf"), row.sha256) == (True, papers.sha256(torn))


@pytest.mark.alike
def test_a_web_page_at_a_legistar_becomes_text_that_is_searched_and_keeps_its_etag(
    mill: Mill, clerk_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FETCH_ALLOW_PRIVATE", "1")
    with Web() as web:
        meeting = {"EventId": 1, "EventBodyName": "City Council", "EventDate": f"{datetime.now(UTC).year}-01-05T00:00:00"}
        events = [{**meeting, "EventAgendaFile": None, "EventMinutesFile": web.url("/view?id=1")}]
        page = b"<html><body><p>The zeppelin was moored at last.</p></body></html>"
        web.routes["/city/events"] = answer(json.dumps(events).encode(), Content_Type="application/json")
        web.routes["/view"] = answer(page, Content_Type="text/html", ETag='"first"')
        sites.create(mill, Description("web.ca", "Web", "legistar", extra={"client": "city", "base_url": web.url("")}))
        for outcome in ("completed", "unchanged"):
            sites.update(mill, "web.ca")
            work(mill, "all", 2, until="drained")
            assert sites.find(mill, "web.ca").outcome == outcome
        assert web.headers[-1]["if-none-match"] == '"first"'
    [(body, _, number)] = found(clerk_config.storage / "web.ca" / "meetings.db", "zeppelin")
    assert (body, number) == ("CityCouncil", 1)


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


def test_a_pdf_that_cannot_be_removed_does_not_fail_its_document(
    calm: Mill, clerk_config: Config, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KEEP_PDFS", "0")
    remove = Path.unlink

    def refused(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".pdf":
            raise PermissionError(13, "Permission denied", str(path))
        remove(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refused)
    sites.update(calm, SITE, sites.Options(all_years=True))
    drain(calm)
    assert (sites.find(calm, SITE).outcome, counters(calm, "ocr")) == ("completed", (3, 0, 3))
    assert len(list((clerk_config.storage / SITE).rglob("*.pdf"))) == 3
    assert sum("Permission denied" in record.getMessage() for record in caplog.records) == 3


def test_a_document_that_is_found_read_is_noted_with_its_pages(calm: Mill, clerk_config: Config) -> None:
    """Who read it was killed before it could do that."""
    sites.update(calm, SITE, sites.Options(all_years=True))
    drain(calm, queues=["fetch"])
    files, document = SiteFiles(clerk_config.storage, SITE), Document("minutes", "CityCouncil", "2026-02-05")
    sha256 = papers.sha256(files.pdf(document))
    assert isinstance(read_document(files, document, sha256, clerk_config, backends.find("tesseract")), Read)
    found = reconciling.reconcile(calm)
    assert [repair.what for repair in found or []] == ["adopt"]
    drain(calm)
    assert (sites.find(calm, SITE).outcome, counters(calm, "ocr")) == ("completed", (3, 0, 3))
    assert document_row(calm, "2026-02-05") == ("read", 3, [])


# ---- parts that fail


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        *((Transient("for now"), True), (ConnectionError("for now"), True)),
        *((DatabaseError("away"), True), (Unavailable("away"), True)),
        *((Unreadable("torn"), False), (Crashed("it died"), False), (ValueError("a bug"), False)),
    ],
)
def test_pages_are_given_up_only_for_what_they_are_themselves(
    calm: Mill, monkeypatch: pytest.MonkeyPatch, error: Exception, passing: bool
) -> None:
    """For other reasons the next run reads them."""
    monkeypatch.setenv("OCR_SPLIT_PAGES", "2")
    monkeypatch.setenv("PDF_CHUNK_SIZE", "1")

    def breaks_at_2(files: SiteFiles, document: Document, sha256: str, part: Part, *how: Any) -> None:
        if part.first == 2:
            raise error
        read_part(files, document, sha256, part, *how)

    monkeypatch.setattr("clerk.pipeline.documents.read_part", breaks_at_2)
    sites.update(calm, SITE, sites.Options(all_years=True))
    drain(calm)
    assert counters(calm, "ocr") == ((2, 1, 3) if passing else (3, 0, 3))
    assert document_row(calm, "2026-02-05") == (("fetched", 0, []) if passing else ("read", 3, ["2"]))


def document_row(mill: Mill, date: str) -> tuple[str, int, list[str]]:
    """Its state, how many pages it has, and which of them have no text."""
    with mill.transaction() as connection:
        sql = "SELECT state, pages, page_errors FROM clerk_document WHERE date = :date"
        row = connection.execute(text(sql), {"date": date}).one()
    return row.state, row.pages, list(json.loads(row.page_errors))


# ---- a reader that is not there

ENGINE = """
from clerk.plugins import hookimpl


class Engine:
    label = "textshot"

    def read(self, image, languages):
        return "by textshot"


@hookimpl
def ocr_backend(label):
    return Engine() if label == "textshot" else None
"""


@pytest.fixture
def calm(clerk_config: Config, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mill]:
    """One whose clock goes on when somebody waits."""
    monkeypatch.setenv("CLERK_PLUGINS_DIR", str(tmp_path / "plugins"))
    with open_mill(clerk_config, clock=FrozenClock(datetime.now(UTC))) as opened:
        sites.create(opened, Description(SITE, "Oakfield", "folder", start_year=2026, extra={"path": str(source)}))
        yield opened


IMPOSSIBLE = pytest.param("vision", marks=pytest.mark.skipif(sys.platform == "darwin", reason="it is possible there"))


@pytest.mark.parametrize("label", [IMPOSSIBLE, "rapidocr", "textshot"])
def test_documents_whose_reader_is_missing_here_go_back_unspent(calm: Mill, clerk_config: Config, label: str) -> None:
    sites.update(calm, SITE, sites.Options(all_years=True, ocr_backend=label))
    drain(calm, until="idle")
    assert counters(calm, "ocr") == (0, 0, 3)
    jobs = calm.jobs(stage="ocr")
    assert {(job.state, job.errors) for job in jobs} == {("queued", 0)}
    found = health.look(calm, clerk_config)
    assert found.exit_code == 2
    assert any(issue.startswith(f"nobody can work on {SITE}: ") and label in issue for issue in found.issues)


def test_documents_go_on_once_their_reader_is_there(
    calm: Mill, tmp_path: Path, clerk_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites.update(calm, SITE, sites.Options(all_years=True, ocr_backend="textshot"))
    drain(calm, until="idle")
    better = tmp_path / "better"
    better.mkdir()
    (better / "textshot.py").write_text(ENGINE)
    monkeypatch.setenv("CLERK_PLUGINS_DIR", str(better))
    drain(calm)
    assert (sites.find(calm, SITE).outcome, counters(calm, "ocr")) == ("completed", (3, 0, 3))
