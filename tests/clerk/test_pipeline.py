"""How a run of a site ends, by what its documents are: counters, stages, errors, status."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import socket
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, text, update

from clerk import health, reconciling, sites, status
from clerk.app import open_mill
from clerk.compiling import write_sites
from clerk.config import Config
from clerk.db import tables
from clerk.errors import Transient
from clerk.legacy import evidence
from clerk.names import STAGES
from clerk.pipeline import wiring
from clerk.pipeline.book import Book
from clerk.pipeline.working import working
from clerk.sites import Description, Options
from clerk.storage import Document, SiteFiles
from gristmill import Context, Mill
from gristmill.errors import Unavailable
from gristmill.testing import FrozenClock, drain
from tests.clerk import played_reading
from tests.clerk.playing import Play, minutes
from tests.worker.helpers import lines

pytestmark = pytest.mark.alike
SITE = "oakfield.ca"
A_MOMENT = timedelta(seconds=1)  # SQLite has only milliseconds of a time


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


def listed(config: Config, subdomain: str = SITE) -> dict[str, Any]:
    """As `sites.db` has it."""
    with closing(sqlite3.connect(config.storage / "sites.db")) as db:
        db.row_factory = sqlite3.Row
        return dict(db.execute("SELECT * FROM sites WHERE subdomain = ?", [subdomain]).fetchone())


def test_the_list_of_sites_knows_of_the_run_that_writes_it(mill: Mill, play: Play, clerk_config: Config) -> None:
    play.site(SITE, minutes(3, pages=2))
    before = datetime.now(UTC)
    site = run(mill)
    found = listed(clerk_config)
    assert found["pages"] == site.pages == 6
    assert before - A_MOMENT < datetime.fromisoformat(found["last_deployed"]) <= datetime.now(UTC)
    assert found["last_updated"] == found["last_deployed"]


def test_the_list_of_sites_knows_of_others_whose_run_has_not_ended_yet(
    mill: Mill, play: Play, clerk_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are published, and this one's list is written before their jobs end."""
    sites.create(mill, Description("elm.ca", "Elm", "played"))
    for name in (SITE, "elm.ca"):
        play.site(name, minutes(1))
    place = "clerk.pipeline.publishing.write_sites"

    def write_late(storage: Path, rows: Any) -> Path:
        monkeypatch.setattr(place, write_sites)
        sites.update(mill, "elm.ca")
        drain(mill)
        assert listed(clerk_config)["last_deployed"] is not None
        return write_sites(storage, rows)

    monkeypatch.setattr(place, write_late)
    run(mill)
    assert all(listed(clerk_config, name)["last_deployed"] for name in (SITE, "elm.ca"))


def test_what_runs_after_a_deploy_sees_the_site_as_operators_do(mill: Mill, play: Play) -> None:
    play.site(SITE, minutes(3, pages=2))
    run(mill)
    found, after = json.loads((play.folder / "post_deploy.json").read_text()), row(mill)
    assert found.keys() == after.keys()
    assert (found["status"], found["extraction_status"], found["current_stage"]) == ("needs_deploy", "completed", "deploy")
    assert [found[f"ocr_{count}"] for count in ("total", "completed", "failed")] == [3, 3, 0]
    assert (found["pages"], found["extra"], found["coordinator_enqueued"]) == (6, {}, False)
    assert datetime.fromisoformat(found["last_deployed"]) > datetime.fromisoformat(found["started_at"]) - A_MOMENT


# ---- what operators see of it


JOB_TYPES = ["fetch-site", "ocr-page", "db-compilation", "extract-site", "deploy-site"]
STATUSES = ["fetching", "needs_ocr", "needs_compilation", "needs_extraction", "needs_deploy", "deployed"]


def test_each_stage_has_its_status_its_job_type_and_its_progress(mill: Mill, play: Play) -> None:
    play.site(SITE, minutes(3, pages=2))
    assert (row(mill)["status"], row(mill)["current_stage"]) == ("new", None)
    sites.update(mill, SITE)
    for number, stage in enumerate(STAGES):
        assert (row(mill)["status"], row(mill)["current_stage"]) == (STATUSES[number], stage)
        with mill.transaction() as connection:
            [shown] = connection.execute(text("SELECT * FROM site_progress")).mappings()
            tracked = connection.execute(text("SELECT stage, job_type, site_id, subdomain FROM job_tracking")).all()
        total = {"ocr": 3, "extraction": 0}.get(stage, 1)  # of pages nobody knows before somebody has counted them
        assert (shown["site_id"], shown["subdomain"], shown["current_stage"]) == (SITE, SITE, stage)
        assert (shown["stage_total"], shown["stage_completed"]) == (total, 0)
        known = dict(zip(STAGES, JOB_TYPES, strict=True))
        assert {(name, known[name], SITE, SITE) for name in STAGES[: number + 1]} <= {tuple(one) for one in tracked}
        drain(mill, queues=[stage])
        if stage == "ocr":
            with pytest.raises(AssertionError, match="still work to do"):
                drain(mill, queues=["compilation"], most=0)  # the hand-over, which waits there before it
    assert (row(mill)["status"], row(mill)["current_stage"]) == (STATUSES[-1], "completed")


def test_nothing_that_is_only_looked_at_moves_the_time_of_the_last_change(
    mill: Mill, play: Play, clerk_config: Config, clock: FrozenClock
) -> None:
    play.site(SITE, minutes(2))
    sites.update(mill, SITE)
    drain(mill, queues=["fetch"])
    before = sites.find(mill, SITE)
    clock.advance(60)
    health.look(mill, clerk_config)
    status.of_site(mill, SITE)
    status.overview(mill)
    assert reconciling.reconcile(mill, threshold_hours=2) == []
    assert sites.find(mill, SITE) == before


def test_a_long_error_is_cut_and_gone_with_the_next_run(mill: Mill, play: Play) -> None:
    play.site(SITE, {**minutes(1), **minutes(1, first=3, read="Unreadable", why="x" * 2000)})
    said = run(mill).last_error_message or ""
    assert (len(said), said.endswith("xxx")) == (500, True)
    play.site(SITE, {**minutes(1), **minutes(1, first=3, get="Unreadable", why="y" * 2000)})
    said = run(mill).last_error_message or ""
    assert (len(said), said.endswith("yyy")) == (500, True)
    play.site(SITE, minutes(1))
    site = run(mill)
    assert (site.last_error_stage, site.last_error_message, site.last_error_at) == (None, None, None)


BREAKS = """
from clerk.plugins import hookimpl

class Breaks:
    label, version = "breaks", "1"

    def extract(self, pages):
        raise ValueError("no model")

@hookimpl
def extractor(label):
    return Breaks() if label == "breaks" else None
"""


def test_a_site_whose_extraction_failed_is_in_deploy_and_is_published_all_the_same(mill: Mill, play: Play) -> None:
    (play.folder / "plugins" / "breaks.py").write_text(BREAKS)
    wiring._loaded.cache_clear()
    sites.create(mill, Description("elm.ca", "Elm", "played", extra={"extractor": "breaks"}))
    play.site("elm.ca", minutes(2))
    sites.update(mill, "elm.ca")
    drain(mill, queues=["fetch", "ocr", "compilation", "extraction"])
    assert (counters(mill, "extraction", "elm.ca"), row(mill, "elm.ca")["extraction_status"]) == ((0, 1, 1), "failed")
    assert (row(mill, "elm.ca")["current_stage"], row(mill, "elm.ca")["status"]) == ("deploy", "needs_deploy")
    drain(mill)
    site = sites.find(mill, "elm.ca")
    assert (site.current_stage, site.outcome, site.last_error_stage) == ("completed", "completed", "extraction")
    assert site.last_deployed is not None


BREAKS_ONCE = """
from clerk.errors import Transient
from clerk.parts import Extracted
from clerk.plugins import hookimpl

class Breaks:
    label, version = "breaks", "1"
    tried = 0

    def extract(self, pages):
        self.tried += 1
        if self.tried == 1:
            raise Transient("no model now")
        return [Extracted({"persons": [], "orgs": [], "locations": []}, {"votes": []}) for _ in pages]

breaks = Breaks()

@hookimpl
def extractor(label):
    return breaks if label == "breaks" else None
"""


def test_extraction_that_was_begun_in_time_is_tried_again_also_after_two_hours(mill: Mill, play: Play) -> None:
    (play.folder / "plugins" / "breaks.py").write_text(BREAKS_ONCE)
    wiring._loaded.cache_clear()
    sites.create(mill, Description("elm.ca", "Elm", "played", extra={"extractor": "breaks"}))
    play.site("elm.ca", minutes(2))
    sites.update(mill, "elm.ca")
    drain(mill, "idle")
    assert (counters(mill, "extraction", "elm.ca"), [job.attempt for job in mill.jobs(stage="extraction")]) == (
        (0, 0, 1),
        [1],
    )
    with mill.transaction() as connection:
        connection.execute(text("UPDATE gm_stage SET closed_at = closed_at - 7300000000 WHERE name = 'compilation'"))
    assert reconciling.late_extractions(mill) == []
    drain(mill)
    assert (counters(mill, "extraction", "elm.ca"), sites.find(mill, "elm.ca").outcome) == ((1, 0, 1), "completed")


def test_a_failed_compilation_fails_the_run_in_its_stage(mill: Mill, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> None:
        raise ValueError("no such index")

    monkeypatch.setattr("clerk.pipeline.publishing.compile_site", breaks)
    play.site(SITE, minutes(2))
    site = run(mill)
    assert (site.current_stage, site.outcome, site.last_error_stage) == ("compilation", "failed", "compilation")
    assert (counters(mill, "compilation"), counters(mill, "deploy")[0], site.last_deployed) == ((0, 1, 1), 0, None)


@pytest.mark.parametrize("queue", STAGES[1:])
def test_where_the_storage_is_not_mounted_nothing_fails_and_nothing_empty_is_published(
    mill: Mill, play: Play, clerk_config: Config, queue: str
) -> None:
    """Of several machines, one may have lost it."""
    play.site(SITE, minutes(3))
    sites.update(mill, SITE)
    for stage in STAGES[: STAGES.index(queue)]:
        drain(mill, queues=[stage])
    if queue == "compilation":
        with pytest.raises(AssertionError, match="still work to do"):
            drain(mill, queues=[queue], most=0)  # the hand-over, which waits there before it
    here, away = clerk_config.storage, clerk_config.storage.with_name("away")
    here.rename(away)
    here.mkdir()
    with pytest.raises(AssertionError, match="still work to do"):
        drain(mill, most=4)
    assert (list(here.iterdir()), Path(clerk_config.deploy_target).exists()) == ([], False)
    assert health.look(mill, clerk_config).exit_code == 2
    assert "the storage is not there" in str(sites.find(mill, SITE).last_error_message)
    here.rmdir()
    away.rename(here)
    drain(mill)
    site = sites.find(mill, SITE)
    assert (site.outcome, site.pages, counters(mill, "ocr")) == ("completed", 3, (3, 0, 3))


@pytest.mark.parametrize("mounted", [False, True])
def test_where_the_storage_is_not_mounted_what_was_fetched_is_not_fetched_again(
    mill: Mill, play: Play, clerk_config: Config, mounted: bool
) -> None:
    play.site(SITE, minutes(2))
    assert run(mill).outcome == "completed"
    here, away = clerk_config.storage, clerk_config.storage.with_name("away")
    if mounted:  # and all folders of sites were removed, by somebody who wants them anew
        shutil.rmtree(here / SITE)
        (here / "sites.db").touch()
        assert (run(mill).outcome, sites.find(mill, SITE).pages) == ("completed", 2)
        return
    here.rename(away)
    sites.update(mill, SITE)
    with pytest.raises(AssertionError, match="still work to do"):
        drain(mill, most=4)
    assert not (here / SITE).exists()
    assert f"To fetch all of it anew: mkdir {here / SITE}" in str(sites.find(mill, SITE).last_error_message)
    away.rename(here)
    drain(mill)
    assert sites.find(mill, SITE).outcome == "unchanged"
    assert sorted(lines(play.folder / "asked")) == sorted(lines(play.folder / "asked_if_changed") * 2)


# ---- hooks and choices


HOOKED = """
from clerk.plugins import hookimpl
from tests.apps.barriers import mark
from clerk.config import load

def told(word):
    folder = load().storage
    made = (folder / "oakfield.ca" / "meetings.db").exists()
    mark(folder / "told", f"{word} {made}")

@hookimpl
def pre_compilation(subdomain): told(f"pre_compilation {subdomain}")

@hookimpl
def post_compilation(subdomain): told(f"post_compilation {subdomain}")

@hookimpl
def deploy_municipality(subdomain): told(f"deploy_municipality {subdomain}")
"""


def test_a_run_calls_hooks_around_the_compilation_and_one_that_deploys_takes_the_place_of_our_deployer(
    mill: Mill, play: Play, clerk_config: Config
) -> None:
    (play.folder / "plugins" / "hooked.py").write_text(HOOKED)
    play.site(SITE, minutes(1))
    assert run(mill).outcome == "completed"
    told = [("pre_compilation", False), ("post_compilation", True), ("deploy_municipality", True)]
    assert lines(clerk_config.storage / "told") == [f"{word} {SITE} {made}" for word, made in told]
    assert not Path(clerk_config.deploy_target).exists()
    assert (play.folder / "post_deploy").read_text() == f"{SITE}\n"


def test_a_run_whose_post_deploy_fails_is_not_completed_and_the_next_one_calls_it_again(mill: Mill, play: Play) -> None:
    broken = play.folder / "plugins" / "broken.py"
    broken.write_text("from clerk.plugins import hookimpl\n@hookimpl\ndef post_deploy(site):\n    raise ValueError('no')\n")
    play.site(SITE, minutes(1))
    site = run(mill)
    assert (site.outcome, site.current_stage, site.last_error_stage) == ("failed", "deploy", "deploy")
    assert "broken.py" in str(site.last_error_message)
    broken.write_text("")
    wiring._loaded.cache_clear()
    assert (run(mill).outcome, counters(mill, "deploy")) == ("completed", (1, 0, 1))


def test_who_reads_is_as_the_option_says_then_as_the_site_does_then_as_usual(
    mill: Mill, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEFAULT_OCR_BACKEND", "usual")
    sites.create(mill, Description("elm.ca", "Elm", "played", extra={"ocr_backend": "sites"}))
    chosen = []
    for name, option in ((SITE, None), ("elm.ca", None), ("elm.ca", "option")):
        play.site(name, minutes(1, version=option))
        sites.update(mill, name, Options(ocr_backend=option))
        drain(mill)
        [job] = mill.jobs(stage="ocr", subject=name, run=sites.find(mill, name).run_id)
        chosen.append((job.args or {})["backend"])
    assert chosen == ["usual", "sites", "option"]


def test_all_years_are_those_from_the_start_year_on(mill: Mill, play: Play) -> None:
    sites.create(mill, Description("elm.ca", "Elm", "played", start_year=2019))
    play.site("elm.ca", minutes(1))
    for all_years in (False, False, True):
        sites.update(mill, "elm.ca", Options(all_years=all_years))
        drain(mill)
        _listed_at(mill, datetime(2026, 6, 1, tzinfo=UTC))
    assert lines(play.folder / "since") == ["2019", "2026", "2019"]


@pytest.mark.parametrize(("start_year", "since"), [(2019, "2025"), (2026, "2026")])
def test_minutes_may_come_late_in_spring_but_nothing_is_wanted_from_before_the_start_year(
    mill: Mill, play: Play, start_year: int, since: str
) -> None:
    sites.create(mill, Description("elm.ca", "Elm", "played", start_year=start_year))
    play.site("elm.ca", minutes(1))
    for _ in range(2):
        sites.update(mill, "elm.ca")
        drain(mill)
        _listed_at(mill, datetime(2026, 2, 1, tzinfo=UTC))
    assert lines(play.folder / "since") == [str(start_year), since]


def _listed_at(mill: Mill, at: datetime) -> None:
    with mill.transaction() as connection:
        connection.execute(update(tables.run).values(listed=at))


def test_agendas_are_fetched_where_minutes_are_missing_or_all_of_them_if_wanted(mill: Mill, play: Play) -> None:
    [day, other] = [key.rpartition("/")[2] for key in minutes(2)]
    agendas = {f"agendas/Council/{date}": dict[str, Any]() for date in (day, other)}
    play.site(SITE, {**minutes(1), **agendas})
    run(mill)
    asked = [f"minutes/Council/{day}", f"agendas/Council/{other}"]
    assert sorted(lines(play.folder / "asked")) == sorted(asked)
    run(mill, Options(all_agendas=True))
    assert f"agendas/Council/{day}" in lines(play.folder / "asked")
    assert counters(mill, "ocr") == (1, 0, 1)


# ---- the table of situations


@pytest.mark.parametrize("letter", ["\0", "\udcff"], ids=["nul", "half a character"])
def test_an_error_with_letters_that_no_database_takes_is_one_documents_error(mill: Mill, play: Play, letter: str) -> None:
    [key, *others] = minutes(3)
    play.site(SITE, {**minutes(3), key: {"get": "Unreadable", "why": f": {letter}!"}})
    site = run(mill)
    assert (site.outcome, site.last_error_stage, counters(mill, "ocr")) == ("completed", "fetch", (len(others), 0, 2))
    with mill.transaction() as connection:
        missing = select(tables.document.c.error).where(tables.document.c.state == "missing")
        assert connection.execute(missing).scalar_one() == f"{key} cannot be had: ?!"


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


def test_what_another_machine_has_published_in_a_folder_of_its_own_is_not_missed_here(
    mill: Mill, play: Play, clerk_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    play.site(SITE, minutes(2))
    with monkeypatch.context() as there:
        there.setattr(socket, "gethostname", lambda: "another")
        run(mill)
    shutil.rmtree(clerk_config.deploy_target)  # where this one compiles, there never was one
    assert run(mill).outcome == "unchanged"
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    assert (run(mill).outcome, counters(mill, "deploy")) == ("completed", (1, 0, 1))
    noted = clerk_config.storage / SITE / ".published"
    noted.write_text(clerk_config.deploy_target)  # as an older clerk wrote it
    assert run(mill).outcome == "unchanged"
    shutil.rmtree(clerk_config.deploy_target)
    assert run(mill).outcome == "completed"


def test_what_was_compiled_in_development_is_published_by_the_first_run_after_it(
    mill: Mill, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CIVIC_DEV_MODE", "1")
    play.site(SITE, minutes(2))
    assert (run(mill).outcome, row(mill)["status"]) == ("completed", "needs_deploy")
    assert (run(mill).outcome, row(mill)["status"]) == ("unchanged", "needs_deploy")
    monkeypatch.delenv("CIVIC_DEV_MODE")
    assert (run(mill).outcome, counters(mill, "deploy")) == ("completed", (1, 0, 1))
    assert (run(mill).outcome, row(mill)["status"]) == ("unchanged", "deployed")


def test_a_target_that_has_changed_gets_what_has_not(
    mill: Mill, play: Play, clerk_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    play.site(SITE, minutes(2))
    run(mill)
    other = Path(clerk_config.deploy_target).with_name("other")
    shutil.copytree(clerk_config.deploy_target, other, symlinks=True)  # something is there, as in a place that nobody asks
    monkeypatch.setenv("DEPLOY_TARGET", str(other))
    assert (run(mill).outcome, counters(mill, "deploy")) == ("completed", (1, 0, 1))
    assert run(mill).outcome == "unchanged"
    (clerk_config.storage / SITE / ".published").unlink()  # as an older clerk left it
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


def test_a_job_that_is_tried_again_has_not_failed(
    mill: Mill, play: Play, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither for who reads milestones nor for Sentry: a database that was away for a moment harms no document."""
    errors: list[Exception] = [Unavailable("the database is away"), Transient("so is the storage")]

    def read(ctx: Context, *about: str) -> dict[str, Any]:
        with working(ctx):
            if errors:
                raise errors.pop()
        return played_reading.read(ctx, *about)

    monkeypatch.setattr("clerk.pipeline.documents.read", read)
    play.site(SITE, minutes(1))
    with caplog.at_level(logging.INFO):
        assert run(mill).outcome == "completed"
    said = Counter(record.getMessage() for record in caplog.records)
    assert (len(mill.attempts(_job(mill, "ocr"))), said["ocr_failed"]) == (2, 0)


def test_a_fetch_that_takes_longer_than_it_may_goes_on_from_where_it_was(
    mill: Mill, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clerk.pipeline import fetching

    play.site(SITE, {**minutes(60), **minutes(1, first=60, get="Unreadable")})
    monkeypatch.setattr(fetching, "_ENOUGH", 0.0)  # each batch is as much as one attempt has time for
    monkeypatch.setattr(fetching, "_LONG", 0.0)
    site = run(mill)
    assert (site.outcome, counters(mill, "ocr"), counters(mill, "fetch")) == ("completed", (60, 0, 60), (1, 0, 1))
    fetched = mill.job(_job(mill, "fetch"))
    assert (fetched.attempt > 2, fetched.result["listed"]) == (True, 61)
    asked = Counter((play.folder / "asked").read_text().split())
    assert (len(asked), min(asked.values())) == (61, 1)  # again only what was on its way when an attempt ended
    (play.folder / "asked").unlink()
    site = run(mill)
    assert (site.outcome, mill.job(_job(mill, "fetch")).attempt > 1) == ("unchanged", True)  # 40 at most in a batch
    asked = Counter((play.folder / "asked").read_text().split())
    assert (len(asked), min(asked.values())) == (61, 1)


def test_a_fetch_whose_files_vanish_does_not_go_on_for_ever(mill: Mill, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    from clerk.pipeline import fetching

    play.site(SITE, minutes(3))
    monkeypatch.setattr(fetching, "_ENOUGH", 0.0)
    monkeypatch.setattr(Book, "known", lambda book, document: None)
    assert (run(mill).outcome, mill.job(_job(mill, "fetch")).attempt <= 4) == ("completed", True)


def test_a_page_of_the_index_that_never_comes_holds_nothing_up_for_long(mill: Mill, play: Play) -> None:
    play.site(SITE, minutes(2), broken_off="Incomplete")
    site = run(mill)
    assert (site.outcome, counters(mill, "ocr"), site.last_error_stage) == ("completed", (2, 0, 2), "fetch")
    assert site.last_error_message == "a page of the index is out of reach"
    assert len(mill.attempts(_job(mill, "fetch"))) == 2  # it was tried again twice, and then the rest had to do


def test_a_lost_page_of_the_index_and_lost_documents_are_both_said(mill: Mill, play: Play) -> None:
    play.site(SITE, {**minutes(2), **minutes(1, first=5, get="Unreadable")}, broken_off="Incomplete")
    said = run(mill).last_error_message or ""
    assert said.startswith("a page of the index is out of reach; 1 of 3 documents could not be downloaded: ")


def test_a_source_that_breaks_off_for_another_reason_fails_the_fetch(mill: Mill, play: Play) -> None:
    play.site(SITE, minutes(2), broken_off="Transient")
    site = run(mill)
    assert (site.outcome, site.last_error_stage, counters(mill, "fetch")) == ("failed", "fetch", (0, 1, 1))


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


def known_from_before(mill: Mill, storage: Path, documents: dict[str, dict[str, Any]]) -> None:
    """What an earlier run leaves of them. That run itself would take much longer than what comes after it."""
    files, rows = SiteFiles(storage, SITE), []
    for key, what in documents.items():
        document, content = Document.of_key(key), json.dumps({"key": key, **what}).encode()
        sha256 = hashlib.sha256(content).hexdigest()
        texts = {files.pdf(document): content, files.marker(document): sha256.encode()}
        for path, data in {**texts, files.text(document) / "1.txt": f"page 1 of {key}".encode()}.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        about = {"kind": document.kind, "meeting": document.meeting, "date": document.date, "url": f"played://{SITE}/{key}"}
        rows.append({"subdomain": SITE, "key": key, **about, "sha256": sha256, "state": "read", "backend": "tesseract"})
    with mill.transaction() as connection:
        connection.execute(tables.document.insert(), rows)


@pytest.mark.parametrize("clerk_url", ["sqlite"], indirect=True)
def test_one_new_document_among_a_thousand_costs_one_reading_and_one_compilation(
    mill: Mill, play: Play, clerk_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENABLE_EXTRACTION", "0")  # whose caches are tested elsewhere
    bodies = ("Council", "Planning", "Parks", "Library")
    known = {key.replace("Council", body): what for body in bodies for key, what in minutes(250).items()}
    [new] = minutes(1, first=300)
    known_from_before(mill, clerk_config.storage, known)
    play.site(SITE, {**known, new: {}})
    site = run(mill)
    assert (site.outcome, site.pages, counters(mill, "ocr")) == ("completed", 1001, (1, 0, 1))
    assert lines(play.folder / "read") == [f"{SITE} {new}"]
    assert sorted(lines(play.folder / "asked_if_changed")) == sorted(known)
    assert sorted(lines(play.folder / "asked")) == sorted([*known, new])
    assert Counter(job.stage for job in mill.jobs(run=site.run_id, limit=100)) == dict.fromkeys([*STAGES, "gate"], 1)


def test_the_same_content_under_a_new_etag_is_asked_for_by_that_from_then_on(mill: Mill, play: Play) -> None:
    """Else a server that was set up anew would send everything again, in each run."""
    for etag in ('"a"', '"b"'):
        play.site(SITE, minutes(2), etag=etag)
        run(mill)
        with mill.transaction() as connection:
            assert connection.execute(select(tables.document.c.etag, tables.document.c.state)).all() == [(etag, "read")] * 2


# ---- from which year on

RECENT = (datetime.now(UTC) - timedelta(days=90)).year  # minutes come late: those of December in spring
OLD = "minutes/Council/2016-03-01"


def asked_since(play: Play) -> list[int]:
    return [int(line) for line in lines(play.folder / "since")]


def test_what_an_earlier_run_could_not_get_is_asked_for_by_its_address_and_not_its_whole_year_again(
    mill: Mill, play: Play
) -> None:
    play.site(SITE)
    assert run(mill).outcome == "no_documents"
    play.site(SITE, {**minutes(1), OLD: {"get": "Unreadable"}})
    run(mill)
    play.site(SITE, {**minutes(1), OLD: {"get": "Unreadable"}})
    site = run(mill)
    assert (site.outcome, site.last_error_message) == (
        "unchanged",
        f"1 documents of earlier runs still could not be downloaded: {OLD} cannot be had",
    )
    play.site(SITE, {**minutes(1), OLD: {}})
    assert (run(mill).outcome, counters(mill, "ocr")) == ("completed", (1, 0, 1))
    assert run(mill).outcome == "unchanged"
    assert asked_since(play) == [1900, 1900, RECENT, RECENT, RECENT]  # all while there were none
    assert lines(play.folder / "asked").count(OLD) == 3


def test_a_site_of_which_only_something_old_is_missing_does_not_fail_by_that(mill: Mill, play: Play) -> None:
    play.site(SITE, {**minutes(1), OLD: {"get": "Unreadable"}})
    run(mill)
    play.site(SITE, {OLD: {"get": "Unreadable"}})
    assert run(mill).outcome == "unchanged"


@pytest.mark.parametrize("options", [Options(skip_fetch=True), None], ids=["not asked", "broken off"])
def test_a_run_that_was_not_told_all_does_not_say_from_when_on_to_look(
    mill: Mill, play: Play, clerk_config: Config, clock: FrozenClock, options: Options | None
) -> None:
    """Else what only its source has would never come."""
    known_from_before(mill, clerk_config.storage, minutes(1))
    play.site(SITE, minutes(1), broken_off="Incomplete")
    sites.update(mill, SITE, options)
    while not sites.find(mill, SITE).outcome:
        drain(mill)
        clock.advance(3_600)
    assert sites.find(mill, SITE).outcome == "completed"
    play.site(SITE, {**minutes(1), OLD: {}})
    assert (run(mill).outcome, lines(play.folder / "read")) == ("completed", [f"{SITE} {OLD}"])
    assert set(asked_since(play)) == {1900}
    run(mill)
    assert asked_since(play)[-1] == RECENT


def test_text_whose_pdf_the_older_clerk_deleted_is_not_read_again_when_its_source_lists_it(
    mill: Mill, play: Play, clerk_config: Config
) -> None:
    """Pages that are read again have other addresses: old links would lead nowhere."""
    [key] = minutes(1)
    files, document = SiteFiles(clerk_config.storage, SITE), Document.of_key(key)
    page = files.text(document) / "1.txt"
    page.parent.mkdir(parents=True)
    page.write_text("as it was read long ago")
    with mill.transaction() as connection:
        connection.execute(tables.document.insert(), list(evidence.rows(evidence.look(clerk_config.storage, SITE))))
    run(mill, Options(skip_fetch=True))
    play.site(SITE, minutes(1), etag='"1"')
    assert run(mill).outcome == "unchanged"
    assert files.finished(document) == hashlib.sha256(files.pdf(document).read_bytes()).hexdigest()
    play.site(SITE, minutes(1, version=2), etag='"2"')
    site = run(mill)
    assert (site.outcome, lines(play.folder / "read")) == ("completed", [f"{SITE} {key}"])


# ---- what is new, and what is tried again


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
