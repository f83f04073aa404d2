"""How a run of a site ends, by what its documents are: counters, stages, errors, status."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, text

from clerk import sites
from clerk.app import open_mill
from clerk.config import Config
from clerk.db import tables
from clerk.pipeline.book import Book
from clerk.sites import Description, Options
from gristmill import Mill
from gristmill.testing import FrozenClock, drain
from tests.clerk import played_reading
from tests.clerk.playing import Play, minutes

pytestmark = pytest.mark.alike
SITE = "oakfield.ca"


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    played = Play(tmp_path / "play")
    monkeypatch.setenv("CLERK_PLAY", str(played.folder))
    monkeypatch.setenv("CLERK_PLUGINS_DIR", str(played.folder / "plugins"))
    return played


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock(datetime.now(UTC))


@pytest.fixture
def mill(clerk_config: Config, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mill]:
    monkeypatch.setattr("clerk.pipeline.documents.read", played_reading.read)
    with open_mill(clerk_config, clock=clock) as opened:
        sites.create(opened, Description(SITE, "Oakfield", "played"))
        yield opened


def row(mill: Mill, subdomain: str = SITE) -> dict[str, Any]:
    """As the view `sites` has it."""
    with mill.transaction() as connection:
        return dict(connection.execute(text("SELECT * FROM sites WHERE subdomain = :s"), {"s": subdomain}).mappings().one())


def counters(mill: Mill, stage: str, subdomain: str = SITE) -> tuple[int, int, int]:
    found = row(mill, subdomain)
    return found[f"{stage}_completed"], found[f"{stage}_failed"], found[f"{stage}_total"]


def run(mill: Mill, options: Options | None = None) -> sites.Site:
    sites.update(mill, SITE, options)
    drain(mill)
    return sites.find(mill, SITE)


def test_a_run_goes_through_all_stages(mill: Mill, play: Play, tmp_path: Path) -> None:
    play.site(SITE, minutes(3, pages=2))
    site = run(mill)
    assert (site.current_stage, site.outcome, site.pages) == ("completed", "completed", 6)
    for stage, count in {"fetch": 1, "ocr": 3, "compilation": 1, "extraction": 1, "deploy": 1}.items():
        assert counters(mill, stage) == (count, 0, count)
    assert row(mill)["status"] == "deployed"
    assert site.last_deployed is not None
    assert site.last_extracted is not None
    assert site.last_updated == site.updated_at
    assert (tmp_path / "play" / "post_deploy").read_text() == f"{SITE}\n"


# ---- the table of situations


def test_without_documents_and_text_a_run_completes_as_no_documents(mill: Mill, play: Play) -> None:
    play.site(SITE)
    site = run(mill)
    assert (site.current_stage, site.outcome, site.last_error_stage) == ("completed", "no_documents", "fetch")
    assert str(site.last_error_message).startswith("No PDFs found")
    assert row(mill)["status"] == "no_documents"
    assert site.last_deployed is None


def test_with_nothing_new_a_run_ends_unchanged_and_touches_nothing(mill: Mill, play: Play, clerk_config: Config) -> None:
    play.site(SITE, minutes(2))
    run(mill)
    made = clerk_config.storage / SITE / "meetings.db"
    before = made.stat().st_mtime_ns
    site = run(mill)
    assert (site.current_stage, site.outcome) == ("completed", "unchanged")
    assert [counters(mill, stage) for stage in ("ocr", "compilation", "deploy")] == [(0, 0, 0)] * 3
    assert made.stat().st_mtime_ns == before
    assert row(mill)["status"] == "deployed"


def test_text_that_is_newer_than_the_database_is_compiled_though_nothing_is_new(
    mill: Mill, play: Play, clerk_config: Config
) -> None:
    play.site(SITE, minutes(2))
    run(mill)
    marker = next((clerk_config.storage / SITE / "processed").rglob("*.txt"))
    later = (clerk_config.storage / SITE / "meetings.db").stat().st_mtime_ns + 10**9
    os.utime(marker, ns=(later, later))
    site = run(mill)
    assert (site.outcome, counters(mill, "compilation"), counters(mill, "deploy")) == ("completed", (1, 0, 1), (1, 0, 1))


def test_what_was_compiled_and_not_published_is_published_by_the_next_run(
    mill: Mill, play: Play, clerk_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    play.site(SITE, minutes(2))
    monkeypatch.setenv("DEPLOY_TARGET", "nowhere://at/all")
    site = run(mill)
    assert (site.current_stage, site.outcome, site.last_error_stage) == ("deploy", "failed", "deploy")
    assert row(mill)["status"] == "error"
    monkeypatch.setenv("DEPLOY_TARGET", clerk_config.deploy_target)
    site = run(mill)
    assert (site.current_stage, site.outcome, counters(mill, "deploy")) == ("completed", "completed", (1, 0, 1))


def test_what_was_published_and_is_gone_is_published_again(mill: Mill, play: Play, clerk_config: Config) -> None:
    play.site(SITE, minutes(2))
    run(mill)
    published = Path(clerk_config.deploy_target)
    shutil.rmtree(published)
    site = run(mill)
    assert (site.outcome, counters(mill, "ocr"), counters(mill, "deploy")) == ("completed", (0, 0, 0), (1, 0, 1))
    assert (published / SITE / "meetings.db").is_file()
    assert run(mill).outcome == "unchanged"


def test_what_was_never_published_here_is_not_missed(
    mill: Mill, play: Play, clerk_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CIVIC_DEV_MODE", "1")
    play.site(SITE, minutes(2))
    run(mill)
    assert run(mill).outcome == "unchanged"
    monkeypatch.delenv("CIVIC_DEV_MODE")
    assert run(mill).outcome == "unchanged"


def test_some_that_fail_are_counted_and_the_run_goes_on(mill: Mill, play: Play) -> None:
    play.site(SITE, {**minutes(19), **minutes(1, first=19, read="Unreadable")})
    site = run(mill)
    assert counters(mill, "ocr") == (19, 1, 20)
    assert (site.current_stage, site.outcome, site.last_error_stage) == ("completed", "completed", "ocr")
    assert "cannot be read" in str(site.last_error_message)


def test_if_all_fail_and_there_is_no_text_the_run_fails_in_ocr(mill: Mill, play: Play) -> None:
    play.site(SITE, minutes(3, read="Unreadable"))
    site = run(mill)
    assert (site.current_stage, site.outcome, site.last_error_stage) == ("ocr", "failed", "ocr")
    assert counters(mill, "ocr") == (0, 3, 3)
    assert "none of 3 documents" in str(site.last_error_message)
    again = run(mill)  # they would fail again: none is tried, and it is still for a person
    assert (again.current_stage, again.outcome, counters(mill, "ocr")) == ("ocr", "failed", (0, 0, 0))


def test_if_all_fail_and_there_is_older_text_the_publication_stays(mill: Mill, play: Play) -> None:
    play.site(SITE, minutes(2))
    published = run(mill).last_deployed
    play.site(SITE, {**minutes(2), **minutes(1, first=2, read="Unreadable")})
    site = run(mill)
    assert (site.current_stage, site.outcome, site.last_error_stage) == ("completed", "unchanged", "ocr")
    assert counters(mill, "ocr") == (0, 1, 1)
    assert site.last_deployed == published


def test_an_index_out_of_reach_fails_the_run_after_its_retries(mill: Mill, play: Play, clock: FrozenClock) -> None:
    play.site(SITE, find="Transient")
    began = clock.now
    site = run(mill)
    assert (site.current_stage, site.outcome, site.last_error_stage) == ("fetch", "failed", "fetch")
    assert counters(mill, "fetch") == (0, 1, 1)
    assert len(mill.attempts(_job(mill, "fetch"))) == 3
    assert 12 <= (clock.now - began).total_seconds() <= 15


def test_if_no_listed_document_can_be_had_fetch_fails(mill: Mill, play: Play) -> None:
    play.site(SITE, minutes(2, get="Unreadable"))
    site = run(mill)
    assert (site.current_stage, site.outcome, counters(mill, "fetch")) == ("fetch", "failed", (0, 1, 1))
    assert len(mill.attempts(_job(mill, "fetch"))) == 1


def test_some_that_cannot_be_had_are_recorded_and_are_no_items(mill: Mill, play: Play) -> None:
    play.site(SITE, {**minutes(2), **minutes(1, first=2, get="Unreadable")})
    site = run(mill)
    assert (site.outcome, counters(mill, "ocr"), site.last_error_stage) == ("completed", (2, 0, 2), "fetch")
    with mill.transaction() as connection:
        states = connection.execute(text("SELECT state, count(*) FROM clerk_document GROUP BY state")).all()
    assert dict(tuple(state) for state in states) == {"read": 2, "missing": 1}


def _job(mill: Mill, stage: str) -> int:
    return mill.jobs(stage=stage)[0].id


# ---- what is read again, and what is not


def test_a_document_that_failed_is_read_again_only_if_it_or_its_reader_has_changed(mill: Mill, play: Play) -> None:
    bad = minutes(1, first=5, read="Unreadable")
    play.site(SITE, {**minutes(2), **bad})
    run(mill)
    assert run(mill).outcome == "unchanged"
    assert counters(mill, "ocr") == (0, 0, 0)
    run(mill, Options(retry_failed=True))
    assert counters(mill, "ocr") == (0, 1, 1)
    run(mill, Options(ocr_backend="vision"))
    assert counters(mill, "ocr") == (0, 1, 1)
    run(mill, Options(ocr_backend="vision"))
    assert counters(mill, "ocr") == (0, 0, 0)
    play.site(SITE, {**minutes(2), **minutes(1, first=5, version=2)})
    assert run(mill, Options(ocr_backend="vision")).outcome == "completed"
    assert counters(mill, "ocr") == (1, 0, 1)


def test_the_same_content_under_a_new_etag_is_asked_for_by_that_from_then_on(mill: Mill, play: Play) -> None:
    """Else a server that was set up anew would send everything again, in each run."""
    for etag in ('"a"', '"b"'):
        play.site(SITE, minutes(2), etag=etag)
        run(mill)
        with mill.transaction() as connection:
            assert connection.execute(select(tables.document.c.etag, tables.document.c.state)).all() == [(etag, "read")] * 2


def test_a_run_looks_from_the_year_of_what_an_earlier_one_could_not_get(mill: Mill, play: Play) -> None:
    play.site(SITE)
    assert run(mill).outcome == "no_documents"
    old = {"minutes/Council/2016-03-01": {"get": "Unreadable"}}
    play.site(SITE, {**minutes(1), **old})
    run(mill)
    play.site(SITE, {**minutes(1), "minutes/Council/2016-03-01": {}})
    run(mill)
    run(mill)
    year = datetime.now(UTC).year
    asked = [int(line) for line in (play.folder / "since").read_text().split()]
    assert asked[:3] == [asked[0], asked[0], 2016]  # all, since there were none; then from what is owed
    assert asked[3] == year
    assert asked[0] < 2016


def test_new_content_of_a_document_replaces_its_text(mill: Mill, play: Play, clerk_config: Config) -> None:
    play.site(SITE, minutes(1, pages=2))
    run(mill)
    play.site(SITE, minutes(1, pages=1, version=2))
    site = run(mill)
    assert (site.outcome, counters(mill, "ocr")) == ("completed", (1, 0, 1))


def test_what_failed_for_a_passing_reason_is_tried_again_by_the_next_run(mill: Mill, play: Play) -> None:
    play.site(SITE, {**minutes(1), **minutes(1, first=1, read="Transient")})
    run(mill)
    assert counters(mill, "ocr") == (1, 1, 2)
    run(mill)
    assert counters(mill, "ocr") == (0, 1, 1)


def test_what_a_cancelled_run_did_not_get_to_is_read_by_the_next_one(mill: Mill, play: Play) -> None:
    play.site(SITE, minutes(3))
    sites.update(mill, SITE)
    drain(mill, queues=["fetch"])
    mill.purge_queue("ocr")
    drain(mill)
    assert counters(mill, "ocr") == (0, 3, 3)
    assert sites.find(mill, SITE).outcome == "failed"
    play.site(SITE)  # and its source does not list them any more
    assert run(mill).outcome == "completed"
    assert counters(mill, "ocr") == (3, 0, 3)


def test_without_a_fetch_what_is_in_the_storage_is_read(mill: Mill, play: Play, clerk_config: Config) -> None:
    play.site(SITE, find="Transient")
    pdf = clerk_config.storage / SITE / "pdfs" / "Council" / "2026-01-01.pdf"
    pdf.parent.mkdir(parents=True)
    pdf.write_text("{}")
    site = run(mill, Options(skip_fetch=True))
    assert (site.outcome, counters(mill, "ocr")) == ("completed", (1, 0, 1))
    assert run(mill, Options(skip_fetch=True)).outcome == "unchanged"


def test_a_fetch_that_dies_with_documents_in_place_but_not_written_down_has_each_once(
    mill: Mill, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are written in batches, after they are in place: what is there without a row is brought again."""
    play.site(SITE, minutes(6))
    write, died = Book.write, list[int]()

    def dies_once(book: Book) -> None:
        if book._unwritten and not died:
            died.append(len(book._unwritten))
            raise ConnectionError("gone between the files and their rows")
        write(book)

    monkeypatch.setattr(Book, "write", dies_once)
    assert run(mill).outcome == "completed"
    assert died
    assert counters(mill, "ocr") == (6, 0, 6)
    with mill.transaction() as connection:
        assert connection.execute(select(func.count()).select_from(tables.document)).scalar_one() == 6
    assert run(mill).outcome == "unchanged"
