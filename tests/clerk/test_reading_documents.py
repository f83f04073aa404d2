"""A document becomes a folder of text and a marker; in parts if it is long; twice or killed, it is the old or the new."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clerk import storage
from clerk.config import Config
from clerk.errors import Transient, Unreadable
from clerk.parts import PageText
from clerk.reading import backends, documents, reader
from clerk.reading.documents import Long, Part, Read, finish_document, is_finished, plan, read_document, read_part
from clerk.reading.html import html_text
from clerk.storage import Document, SiteFiles
from tests.clerk import papers

MINUTES = Document("minutes", "CityCouncil", "2026-01-31")
CONFIG = Config(ocr_lang="eng")
LINE = papers.LINE


@pytest.fixture
def files(tmp_path: Path) -> SiteFiles:
    return SiteFiles(tmp_path / "sites", "a.civic.band")


def texts(files: SiteFiles, document: Document = MINUTES) -> list[str]:
    return [page.read_text() for page in files.pages(document)]


def typed(files: SiteFiles, *pages: str) -> str:
    return papers.sha256(papers.typed(files.pdf(MINUTES), pages))


def read(files: SiteFiles, sha256: str, config: Config = CONFIG, **options: Any) -> Read | Long:
    return read_document(files, MINUTES, sha256, config, backends.find("tesseract"), **options)


def everything_in(files: SiteFiles) -> list[str]:
    return sorted(str(path.relative_to(files.root)) for path in files.root.rglob("*") if path.is_file())


def test_case_27_a_document_becomes_text_and_a_marker_in_folders_that_were_missing(files: SiteFiles) -> None:
    sha256 = typed(files, LINE, f"Second. {LINE}")
    assert not is_finished(files, MINUTES, sha256)
    assert read(files, sha256) == Read(2, {}, {"layer": 2})
    assert texts(files) == [LINE, f"Second. {LINE}"]
    assert files.finished(MINUTES) == sha256
    assert is_finished(files, MINUTES, sha256)
    assert not is_finished(files, MINUTES, "0" * 64)
    assert everything_in(files) == [
        "pdfs/CityCouncil/2026-01-31.pdf",
        "processed/CityCouncil/2026-01-31.txt",
        "txt/CityCouncil/2026-01-31/1.txt",
        "txt/CityCouncil/2026-01-31/2.txt",
        "txt/CityCouncil/2026-01-31/reading.json",
    ]


def test_a_second_job_for_it_finds_that_it_is_done(files: SiteFiles) -> None:
    sha256 = typed(files, LINE)
    first = read(files, sha256)
    files.pdf(MINUTES).unlink()
    assert read(files, sha256) == first


def test_a_second_job_for_one_that_has_bad_pages_and_was_not_kept_finds_that_it_is_done(files: SiteFiles) -> None:
    sha256 = with_missing_pages(files, 2)
    first = read(files, sha256)
    files.pdf(MINUTES).unlink()
    assert read(files, sha256) == first


def test_new_content_replaces_the_text_of_the_old(files: SiteFiles) -> None:
    read(files, typed(files, LINE, LINE, LINE))
    sha256 = typed(files, f"New. {LINE}")
    assert read(files, sha256) == Read(1, {}, {"layer": 1})
    assert texts(files) == [f"New. {LINE}"]
    assert files.finished(MINUTES) == sha256


def test_a_file_that_is_not_what_was_fetched_is_not_read(files: SiteFiles) -> None:
    typed(files, LINE)
    with pytest.raises(Transient, match=r"2026-01-31\.pdf: this is not the content that was fetched"):
        read(files, "0" * 64)
    files.pdf(MINUTES).unlink()
    with pytest.raises(Unreadable, match="the file is missing"):
        read(files, "0" * 64)
    assert everything_in(files) == []


def with_missing_pages(files: SiteFiles, claimed: int) -> str:
    """One page that can be read, and a page tree that claims more."""
    path = papers.typed(files.pdf(MINUTES), [LINE], pageCompression=0)
    path.write_bytes(path.read_bytes().replace(b"/Count 1 ", b"/Count %d " % claimed))
    return papers.sha256(path)


def test_a_document_is_finished_with_pages_that_cannot_be_read(files: SiteFiles) -> None:
    sha256 = with_missing_pages(files, 3)
    why = "the page cannot be loaded: it is corrupt or missing"
    assert read(files, sha256) == Read(3, {2: why, 3: why}, {"layer": 1})
    assert [page.name for page in files.pages(MINUTES)] == ["1.txt"]
    assert is_finished(files, MINUTES, sha256)


def test_a_document_of_which_no_page_can_be_read_fails_and_leaves_the_old_text(files: SiteFiles) -> None:
    old = typed(files, LINE)
    read(files, old)
    huge = papers.made(files.pdf(MINUTES), b"/MediaBox[0 0 14400 14400]", b"0 0 9 9 re f")
    with pytest.raises(Unreadable, match=r"minutes/CityCouncil/2026-01-31: no page can be read; page 1: the page is 200"):
        read(files, papers.sha256(huge))
    assert texts(files) == [LINE]
    assert files.finished(MINUTES) == old


def test_a_web_page_is_read_without_ocr(files: SiteFiles) -> None:
    source = "<html><head><title>x</title></head><body><h1>Minutes</h1><p>Motion<br>carried</p></body></html>"
    storage.write(files.pdf(MINUTES), source.encode())
    sha256 = papers.sha256(files.pdf(MINUTES))
    with pytest.raises(Unreadable, match=r"this is no PDF but a web page \(HTML\)"):
        read(files, sha256)
    assert read(files, sha256, html=True) == Read(1, {}, {"html": 1})
    assert texts(files) == ["Minutes\nMotion\ncarried"]


# ---- long documents


def test_parts_cover_all_pages_once() -> None:
    assert plan(45, 20) == (Part(1, 20), Part(21, 40), Part(41, 45))
    assert plan(2, 1) == (Part(1, 1), Part(2, 2))
    assert plan(20, 20) == (Part(1, 20),)


def test_a_long_document_is_read_in_parts_in_any_order_and_then_finished(files: SiteFiles) -> None:
    config, backend = Config(ocr_lang="eng", split_pages=4, chunk_size=2), backends.find("tesseract")
    sha256 = typed(files, *(f"Page {number}. {LINE}" for number in range(1, 6)))
    assert read(files, sha256, config) == Long(5, (Part(1, 2), Part(3, 4), Part(5, 5)))
    parts = plan(5, 2)
    for part in (parts[2], parts[0]):
        read_part(files, MINUTES, sha256, part, config, backend)
    with pytest.raises(Transient, match="pages 3 to 4 have not been read yet"):
        finish_document(files, MINUTES, sha256, parts, backend)
    assert texts(files) == []
    read_part(files, MINUTES, sha256, parts[1], config, backend)
    for _ in range(2):
        assert finish_document(files, MINUTES, sha256, parts, backend) == Read(5, {}, {"layer": 5})
    assert texts(files) == [f"Page {number}. {LINE}" for number in range(1, 6)]
    assert [path.name for path in files.text(MINUTES).parent.iterdir()] == ["2026-01-31"]


def test_what_an_earlier_attempt_has_read_is_not_read_again(files: SiteFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(ocr_lang="eng", chunk_size=2)
    sha256 = typed(files, *(f"Page {number}. {LINE}" for number in range(1, 6)))
    asked: list[tuple[int, int]] = []
    really = reader.Reader.read

    def dying(self: reader.Reader, first: int, last: int) -> Any:
        asked.append((first, last))
        if first == 3 and len(asked) == 2:
            raise Transient("the machine went away")
        return really(self, first, last)

    monkeypatch.setattr(reader.Reader, "read", dying)
    with pytest.raises(Transient):
        read(files, sha256, config)
    assert read(files, sha256, config) == Read(5, {}, {"layer": 5})
    assert asked == [(1, 2), (3, 4), (3, 4), (5, 5)]


def test_a_document_may_not_claim_more_text_than_any_has(files: SiteFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MOST_CHARACTERS", 2 * len(LINE))
    read(files, typed(files, LINE, LINE))
    with pytest.raises(Unreadable, match="minutes/CityCouncil/2026-01-31: it claims more than"):
        read(files, typed(files, LINE, LINE, LINE))
    assert texts(files) == [LINE, LINE]


def test_pages_that_failed_are_tried_again_with_their_document(files: SiteFiles) -> None:
    sha256, backend = with_missing_pages(files, 2), backends.find("tesseract")
    parts = plan(2, 1)
    for part in parts:
        read_part(files, MINUTES, sha256, part, CONFIG, backend)
    kept = documents._Parts(files, MINUTES, sha256, "tesseract")
    assert [kept.is_good(part) for part in parts] == [True, False]


def test_case_23_two_hundred_pages_are_read_with_256_open_files(files: SiteFiles) -> None:
    sha256 = typed(files, *(f"Page {number}. {LINE}" for number in range(1, 201)))
    script = """
import pathlib, sys
from clerk.config import Config
from clerk.reading import backends, documents
from clerk.storage import Document, SiteFiles
files, document = SiteFiles(pathlib.Path(sys.argv[1]), "a.civic.band"), Document.of_key(sys.argv[2])
config = Config(ocr_lang="eng", split_pages=200)
print(documents.read_document(files, document, sys.argv[3], config, backends.find("tesseract")).pages)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(files.root.parent), MINUTES.key, sha256],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("200\n", "")
    assert len(texts(files)) == 200


# ---- killed at any moment


def dies_at(call: int, work: Callable[[], object]) -> bool:
    """Runs that in a fork which is killed at its n-th change of the file system; True: it was."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    left = call

    def deadly(really: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            return really(*arguments, **options)

        return step

    try:
        for name in ("rename", "replace", "unlink", "fsync", "mkdir", "rmdir"):
            setattr(os, name, deadly(getattr(os, name)))
        storage._exchange = deadly(storage._exchange)
        work()
    finally:
        os._exit(0)


def test_killed_at_any_moment_there_is_the_old_text_or_the_new(files: SiteFiles) -> None:
    backend, parts = backends.find("tesseract"), plan(3, 2)
    old_texts, new_texts = ["old 1", "old 2", "old 3"], ["new 1", "new 2", "new 3"]

    def store(sha256: str, pages: list[str]) -> None:
        kept = documents._Parts(files, MINUTES, sha256, "tesseract")
        for part in parts:
            numbers = range(part.first, part.last + 1)
            kept.store(part, [PageText(number, pages[number - 1], None, "layer") for number in numbers])

    store("0" * 64, old_texts)
    finish_document(files, MINUTES, "0" * 64, parts, backend)
    deaths, new = 0, "f" * 64
    for call in range(1, 100):
        store(new, new_texts)
        if not dies_at(call, lambda: finish_document(files, MINUTES, new, parts, backend)):
            break
        deaths += 1
        assert texts(files) in (old_texts, new_texts)
        vouched = {"0" * 64: old_texts, new: new_texts, None: texts(files)}
        assert texts(files) == vouched[files.finished(MINUTES)]
        store(new, new_texts)
        assert finish_document(files, MINUTES, new, parts, backend).pages == 3
        assert (texts(files), files.finished(MINUTES)) == (new_texts, new)
        store("0" * 64, old_texts)
        finish_document(files, MINUTES, "0" * 64, parts, backend)
    assert deaths > 10
    assert (texts(files), files.finished(MINUTES)) == (new_texts, new)


def test_what_was_left_aside_is_swept_after_a_day(files: SiteFiles) -> None:
    folder = files.text(MINUTES).parent
    for name, age in ((".2026-01-31.abc", 90_000), (".2026-01-31.def", 10), (".2026-01-31-2.abc", 90_000)):
        storage.write(folder / name / "1.txt", b"x")
        then = (folder / name).stat().st_mtime - age
        os.utime(folder / name, (then, then))
    read(files, typed(files, LINE))
    assert sorted(path.name for path in folder.iterdir()) == [".2026-01-31-2.abc", ".2026-01-31.def", "2026-01-31"]


# ---- web pages


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (b"<p>One <b>two</b>\n three<br>four</p>five", "One two three\nfour\nfive"),
        (b"<div>a<div>b</div>c</div><ul><li>d<li>e</ul>", "a\nb\nc\nd\ne"),
        (b"<table><tr><th>Aye</th><td>5</td></tr><tr><td>Nay</td></tr></table>", "Aye 5\nNay"),
        (b"<pre>one\n  two</pre>", "one\ntwo"),
        (b"<script>x()</script><style>p{}</style><p hidden>no</p><!-- no --><p>yes &amp; \xc3\xa9</p>", "yes & é"),
        (b"<meta charset=windows-1252><p>caf\xe9", "café"),
        (b"<p>caf\xe9", "café"),
        (b"\xff\xfe<\0p\0>\0x\0", "x"),
        (b"<meta charset=nonsense><p>\xc3\xa9", "é"),
        (b"plain", "plain"),
        (b"<html></html>", ""),
    ],
)
def test_the_text_of_a_web_page_is_what_people_see(tmp_path: Path, source: bytes, text: str) -> None:
    (tmp_path / "a.html").write_bytes(source)
    assert html_text(tmp_path / "a.html") == text


def test_what_is_no_web_page_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    for content, why in ((b"", "empty"), (b"%PDF-1.4", "but a PDF")):
        path.write_bytes(content)
        with pytest.raises(Unreadable, match=why):
            html_text(path)
    with path.open("wb") as file:
        file.truncate(20_000_001)
    with pytest.raises(Unreadable, match="larger than 20 MB"):
        html_text(path)


def test_the_record_is_json_that_others_can_read(files: SiteFiles) -> None:
    read(files, with_missing_pages(files, 2))
    record = json.loads((files.text(MINUTES) / "reading.json").read_bytes())
    assert record["pages"] == 2
    assert list(record["errors"]) == ["2"]
