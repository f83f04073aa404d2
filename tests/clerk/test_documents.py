"""What the pipeline asks of reading, beside what that promises by itself."""

from __future__ import annotations

from pathlib import Path

from clerk.config import Config
from clerk.reading import backends
from clerk.reading.documents import Long, Part, Read, finish_document, give_up, read_document, read_part
from clerk.storage import Document, SiteFiles
from tests.clerk import papers

MINUTES = Document("minutes", "CityCouncil", "2026-01-31")


def test_pages_of_a_part_that_nobody_can_read_are_errors_and_the_others_count(tmp_path: Path) -> None:
    files, config = SiteFiles(tmp_path, "a.b"), Config(ocr_lang="eng", split_pages=2, chunk_size=2)
    sha256 = papers.sha256(papers.typed(files.pdf(MINUTES), [f"Page {number}. {papers.LINE}" for number in range(1, 5)]))
    backend = backends.find("tesseract")
    long = read_document(files, MINUTES, sha256, config, backend)
    assert long == Long(4, (Part(1, 2), Part(3, 4)))
    read_part(files, MINUTES, sha256, Part(1, 2), config, backend)
    give_up(files, MINUTES, sha256, Part(3, 4), backend, "it was stopped at its time limit")
    read = finish_document(files, MINUTES, sha256, [Part(1, 2), Part(3, 4)], backend)
    said = "it was stopped at its time limit"
    assert read == Read(4, {3: said, 4: said}, {"layer": 2})
    assert [page.name for page in files.pages(MINUTES)] == ["1.txt", "2.txt"]


def test_a_web_page_is_read_from_where_the_fetch_keeps_it(tmp_path: Path) -> None:
    files = SiteFiles(tmp_path, "a.b")
    page = files.html(MINUTES)
    page.parent.mkdir(parents=True)
    page.write_text("<html><body><p>The motion carried.</p></body></html>")
    sha256 = papers.sha256(page)
    read = read_document(files, MINUTES, sha256, Config(ocr_lang="eng"), backends.find("tesseract"), html=True)
    assert isinstance(read, Read)
    assert files.pages(MINUTES)[0].read_text().strip() == "The motion carried."
