"""Names, settings and files of clerk: what comes from outside cannot leave the storage, and files are whole or not there."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from clerk import config, names, storage
from clerk.errors import Critical, Transient, Usage
from clerk.extraction.rules import RulesExtractor
from clerk.pipeline import stages, wiring
from clerk.storage import Document, SiteFiles


@pytest.mark.parametrize("good", ["a", "alameda.ca", "x-1.civic.band", "a" * 100])
def test_a_subdomain_is_labels_joined_by_dots(good: str) -> None:
    assert names.subdomain(good) == good


@pytest.mark.parametrize(
    "bad",
    ["", ".", "..", "a..b", ".a", "a.", "-a", "a-", "A", "a/b", "../x", "a\n", "a b", "é", "a" * 101, "meetings.db"],
)
def test_what_is_no_subdomain_is_refused(bad: str) -> None:
    with pytest.raises(Usage, match="is no subdomain"):
        names.subdomain(bad)


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("City Council", "CityCouncil"),
        ("Parks & Recreation", "ParksAndRecreation"),
        ("Planning/Zoning*", "PlanningAndZoning"),
        ("../../etc", "And..Andetc"),
        ("..", "Meeting"),
        ("a\x00b\nc", "abc"),
        ("C:\\x", "C:Andx"),
        ("", "Meeting"),
    ],
)
def test_a_meeting_is_one_part_of_a_path(text: str, safe: str) -> None:
    assert names.meeting(text) == safe
    assert names.meeting(safe) == safe


def test_a_document_is_known_by_its_key() -> None:
    document = Document("agendas", "CityCouncil", "2026-01-31-2")
    assert Document.of_key(document.key) == document
    for bad in ("minutes/../2026-01-31", "minutes/A/../..", "x/A/2026-01-31", "minutes/A/2026-1-1", "", "minutes"):
        with pytest.raises(Usage, match="no document is called"):
            Document.of_key(bad)


def test_settings_come_from_the_environment_then_from_the_nearest_dotenv(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    (tmp_path / ".env").write_text(
        "OCR_JOB_TIMEOUT=10m\nDATABASE_URL=postgres://u:p@h/d\nOCR_WORKERS=0\nLOKI_URL=\nKEEP_PDFS=\n"
    )
    found = config.load({"OCR_JOB_TIMEOUT": "90s", "ENABLE_EXTRACTION": "0"}, below)
    assert (found.ocr_timeout, found.database_url) == (90.0, "postgresql://u:p@h/d")
    assert (found.ocr_workers, found.fetch_workers, found.extraction, found.loki_url) == (0, None, False, None)
    assert found.keep_pdfs is config.load({}, Path("/")).keep_pdfs is True
    assert config.load({}, Path("/")).storage == Path("../sites")


def test_the_defaults_are_those_that_were_promised() -> None:
    found = config.load({}, Path("/"))
    assert found == config.Config(
        database_url="sqlite:///civic.db",
        redis_url=None,
        storage=Path("../sites"),
        fetch_timeout=3600,
        ocr_timeout=600,
        compilation_timeout=1800,
        extraction_timeout=7200,
        deploy_timeout=600,
        ocr_backend="tesseract",
        split_pages=100,
        chunk_size=20,
        pdf_read_timeout=60,
        pdf_convert_timeout=300,
        text_layer_min_chars=50,
        keep_pdfs=True,
        extraction=True,
        spacy_processes=2,
        confidence=0.7,
        deploy_target="./published",
        dev_mode=False,
        dashboard_token=None,
        log_dir=Path("logs"),
        loki_url=None,
        sentry_dsn=None,
        sentry_environment="production",
        sentry_sample_rate=0.0,
        failed_retention_days=7,
        fetch_rate=2.0,
        max_document_mb=500,
    )
    assert [getattr(found, f"{stage}_workers") for stage in names.STAGES] == [None] * 5  # what this machine can do


def test_each_stage_has_the_time_that_its_setting_says() -> None:
    times = {stage: f"{number}m" for number, stage in enumerate(names.STAGES, 1)}
    variables = {f"{stage.upper()}_JOB_TIMEOUT": time for stage, time in times.items()}
    try:
        stages.configure(config.load(variables, Path("/")))
        given: list[Any] = [stages.fetch, stages.ocr, stages.compilation, stages.extraction, stages.deploy]
        assert [stage.timeout for stage in given] == [60, 120, 180, 240, 300]
        assert stages.chunk.timeout == 120  # each part of a long document has all of it
    finally:
        stages.configure(config.load())


def test_the_threshold_of_extraction_is_that_of_the_settings() -> None:
    by = wiring.extractor(config.Config(confidence=0.9), {})
    assert isinstance(by, RulesExtractor)
    assert by.threshold == 0.9


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OCR_WORKERS", "-1"),
        ("OCR_WORKERS", "many"),
        ("OCR_JOB_TIMEOUT", "soon"),
        ("OCR_JOB_TIMEOUT", "0"),
        ("FETCH_RATE_PER_HOST", "2/x"),
        ("OCR_JOB_TIMEOUT", "99999999999999999d"),
        ("OCR_JOB_TIMEOUT", "9" * 400),
        ("FETCH_RATE_PER_HOST", "0"),
        ("FETCH_RATE_PER_HOST", "1e-320"),
        ("ENABLE_EXTRACTION", "maybe"),
        ("ENTITY_CONFIDENCE_THRESHOLD", "1.5"),
        ("PDF_CHUNK_SIZE", "0"),
    ],
)
def test_a_bad_setting_is_named(variable: str, value: str) -> None:
    with pytest.raises(Usage, match=f"^{variable} "):
        config.load({variable: value}, Path("/"))


def test_a_file_of_settings_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"LOG_DIR=\xff\n")
    with pytest.raises(Usage, match=r"\.env cannot be read: 'utf-8' codec can't decode byte 0xff"):
        config.load({}, tmp_path)


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file"
    storage.write(target, b"one")
    with pytest.raises(IsADirectoryError), storage.written_aside(target) as aside:
        aside.write_bytes(b"half") and tmp_path.read_bytes()
    assert target.read_bytes() == b"one"
    assert [path.name for path in target.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_replaces_an_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool) -> None:
    if not exchange:
        monkeypatch.setattr(storage, "_exchange", lambda one, other: False)
    target = tmp_path / "txt" / "2026-01-31"
    for pages in (["1", "2"], ["1"]):
        with storage.folder_aside(target) as aside:
            for page in pages:
                (aside / f"{page}.txt").write_text(page)
    assert [path.name for path in target.iterdir()] == ["1.txt"]
    assert [path.name for path in target.parent.iterdir()] == ["2026-01-31"]


@pytest.mark.parametrize("code", ["ENOSPC", "EDQUOT", "EROFS", "EACCES", "EPERM", "EIO", "ESTALE", "ENOTCONN"])
def test_a_full_disk_or_a_server_of_files_that_is_gone_is_nobodys_fault(code: str) -> None:
    with pytest.raises(Critical, match="cannot be written"), storage.critical_if_nobody_can():
        raise OSError(getattr(errno, code), "it is not the document")


def test_a_file_that_is_not_there_is_no_fault_of_the_storage() -> None:
    with pytest.raises(FileNotFoundError), storage.critical_if_nobody_can():
        raise FileNotFoundError(errno.ENOENT, "not there")


def test_a_lock_is_held_by_one_and_ends_with_its_block(tmp_path: Path) -> None:
    lock = tmp_path / "deep" / ".lock"
    for _ in range(2):
        with storage.locked(lock), pytest.raises(Transient, match="held by another"), storage.locked(lock, patience=0.0):
            pass


def test_pages_are_in_the_order_of_their_numbers_and_documents_of_their_names(tmp_path: Path) -> None:
    files = SiteFiles(tmp_path, "a.b")
    document = Document("minutes", "CityCouncil", "2026-01-31")
    agenda = Document("agendas", "CityCouncil", "2026-01-31")
    for number in (10, 9, 1):
        storage.write(files.text(document) / f"{number}.txt", b"x")
    for stray in ("1.txt.extracted.json", "1a.txt", "notes.txt"):
        storage.write(files.text(document) / stray, b"{}")
    storage.write(files.text(agenda) / "1.txt", b"x")
    storage.write(files.root / "txt" / "stray.txt", b"x")
    assert [page.stem for page in files.pages(document)] == ["1", "9", "10"]
    assert list(files.documents("minutes")) == [document]
    assert list(files.documents("agendas")) == [agenda]
    assert files.finished(document) is None
    storage.write(files.marker(document), b"abc\n")
    assert files.finished(document) == "abc"
    assert list(files.documents("minutes", "processed")) == [document]
