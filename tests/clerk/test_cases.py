"""The regression cases of the specification that the pipeline, its tables and its schedule answer for, by their number.

Those about counting play their documents; where it is about processes, workers are real.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Generator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from clerk import sites
from clerk.app import open_mill
from clerk.config import Config, load
from clerk.errors import Critical, Transient
from clerk.pipeline import outcomes
from clerk.pipeline.working import working
from clerk.sites import Description, Options, SiteNotFound
from gristmill import Context, Mill
from gristmill.testing import FrozenClock, drain
from tests.clerk import played_reading
from tests.clerk.conftest import URLS
from tests.clerk.playing import Play, minutes
from tests.clerk.test_cli_mending import lose_a_worker, take_a_job
from tests.clerk.test_pipeline import SITE, counters, row
from tests.worker.helpers import lines

OTHER = "millbrook.ca"


@pytest.fixture(params=["sqlite", *(pytest.param(name, marks=pytest.mark.pg) for name in ("postgres", "worker"))])
def clerk_url(request: pytest.FixtureRequest) -> str:
    """All of it once more as a role that may only read, insert and update."""
    return str(request.getfixturevalue(URLS[request.param]))


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
        for subdomain in (SITE, OTHER):
            sites.create(opened, Description(subdomain, subdomain.title(), "played"))
        yield opened


def completions(mill: Mill, stage: str) -> int:
    return len(mill.jobs(stage=stage, state="completed"))


def test_case_01_one_failed_item_does_not_keep_the_hand_over_waiting(mill: Mill, play: Play) -> None:
    play.site(SITE, {**minutes(99), **minutes(1, first=99, read="Unreadable")})
    sites.update(mill, SITE)
    drain(mill)
    assert counters(mill, "ocr") == (99, 1, 100)
    assert completions(mill, "gate") == completions(mill, "deploy") == 1


def test_case_03_simultaneous_ticks_never_choose_the_same_site(mill: Mill, clerk_config: Config) -> None:
    names = [f"s{n}.ca" for n in range(3)] + [SITE, OTHER]
    for name in names[:3]:
        sites.create(mill, Description(name, name, "played"))
    chosen: list[str] = []
    barrier = threading.Barrier(10)

    def tick(own: Mill) -> None:
        barrier.wait(60)
        chosen.extend(one.subdomain for one in sites.next_sites(own))

    with contextlib.ExitStack() as stack:
        threads = [threading.Thread(target=tick, args=(stack.enter_context(open_mill(clerk_config)),)) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(chosen) == sorted(names)
    assert len(mill.runs(pipeline="site")) == 5


@pytest.mark.alike
def test_case_04_a_site_without_documents_is_done_and_nothing_is_padded(mill: Mill, play: Play) -> None:
    play.site(SITE)
    sites.update(mill, SITE)
    drain(mill)
    assert row(mill)["status"] == "no_documents"
    assert [counters(mill, stage)[2] for stage in ("ocr", "compilation", "extraction", "deploy")] == [0, 0, 0, 0]


@pytest.mark.alike
def test_case_05_documents_are_counted_not_pages(mill: Mill, play: Play) -> None:
    play.site(SITE, minutes(3, pages=40))
    sites.update(mill, SITE)
    drain(mill)
    assert (counters(mill, "ocr"), sites.find(mill, SITE).pages) == ((3, 0, 3), 120)


@pytest.mark.alike
def test_case_06_text_of_all_time_does_not_inflate_what_this_run_did(mill: Mill, play: Play) -> None:
    play.site(SITE, minutes(20))
    sites.update(mill, SITE)
    drain(mill)
    play.site(SITE, minutes(22))
    sites.update(mill, SITE)
    drain(mill)
    assert counters(mill, "ocr") == (2, 0, 2)


def test_case_08_a_fetch_that_loses_the_database_adds_the_missing_ones_and_none_twice(
    mill: Mill, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clerk.pipeline import fetching

    whole = fetching.documents
    attempts = itertools.count()

    def interrupted(*args: object) -> Generator[object, None, dict[str, int]]:
        first = next(attempts) == 0
        for number, item in enumerate(items := whole(*args)):  # type: ignore[arg-type]
            if first and number == 49:
                items.close()
                raise Transient("the database is away")
            yield item
        return {"failed_before": 0}

    play.site(SITE, minutes(60))
    monkeypatch.setattr(fetching, "documents", interrupted)
    sites.update(mill, SITE)
    drain(mill)
    assert next(attempts) == 2
    assert counters(mill, "ocr") == (60, 0, 60)
    assert len({job.key for job in mill.jobs(stage="ocr", limit=500)}) == 60


@pytest.mark.parametrize("clerk_url", ["sqlite", pytest.param("postgres", marks=pytest.mark.pg)], indirect=True)
@pytest.mark.alike
def test_case_12_jobs_that_were_stored_under_an_old_name_run(mill: Mill, play: Play) -> None:
    play.site(SITE, minutes(2))
    sites.update(mill, SITE)
    olds = {"fetch": "fetch-site", "ocr": "ocr-page", "compilation": "db-compilation", "extraction": "extract-site"}
    with mill.transaction() as connection:
        for stage, old in {**olds, "deploy": "deploy-site"}.items():
            values = {"old": f"site.{old}", "new": f"site.{stage}"}
            connection.execute(text("UPDATE gm_task SET name = :old WHERE name = :new"), values)
    drain(mill)
    assert (sites.find(mill, SITE).outcome, counters(mill, "ocr")) == ("completed", (2, 0, 2))


LOOKING = '''
"""Writes down what is there when the hook is called: how far the run is, the page count, and what can be searched for."""

import sqlite3

from clerk import sites
from clerk.app import open_mill
from clerk.config import load
from clerk.plugins import hookimpl
from tests.apps.barriers import mark


@hookimpl
def post_deploy(site):
    config = load()
    with open_mill(config) as mill:
        now = sites.find(mill, site["subdomain"])
        state = mill.run(now.run_id).state
    with sqlite3.connect(f"{config.deploy_target}/{now.subdomain}/meetings.db") as database:
        sql = "SELECT count(*) FROM minutes_fts WHERE minutes_fts MATCH 'page'"
        [(found,)] = database.execute(sql)
    mark(config.storage / "seen", f"{state} {now.current_stage} {now.outcome} {now.pages} {found}")
'''


@pytest.mark.alike
def test_case_13_hook_page_count_and_full_text_index_are_there_before_the_run_is_completed(
    mill: Mill, play: Play, clerk_config: Config
) -> None:
    (play.folder / "plugins" / "looking.py").write_text(LOOKING)
    for count in (2, 3):  # the index of the first run is no answer in the second
        play.site(SITE, minutes(count, pages=3))
        sites.update(mill, SITE)
        drain(mill)
        assert sites.find(mill, SITE).outcome == "completed"
    seen = [f"in_progress deploy None {pages} {pages}" for pages in (6, 9)]
    assert lines(clerk_config.storage / "seen") == seen
    uploaded = (play.folder / "uploaded").read_text().split()
    assert uploaded[:2] == [f"{SITE}/pdfs/Council/{key.rpartition('/')[2]}.pdf" for key in minutes(2)]


@pytest.mark.alike
def test_case_15_a_site_with_only_agendas_completes(mill: Mill, play: Play) -> None:
    play.site(SITE, {"agendas/Council/2026-01-05": {}, "agendas/Council/2026-01-12": {}})
    sites.update(mill, SITE)
    drain(mill)
    assert (sites.find(mill, SITE).outcome, counters(mill, "ocr")) == ("completed", (2, 0, 2))


@pytest.mark.alike
@pytest.mark.parametrize("enabled", ["0", "1"])
def test_case_16_there_is_one_deploy_with_and_without_extraction(
    mill: Mill, play: Play, monkeypatch: pytest.MonkeyPatch, enabled: str
) -> None:
    from clerk.pipeline import configure

    monkeypatch.setenv("ENABLE_EXTRACTION", enabled)
    configure(load())
    try:
        play.site(SITE, minutes(2))
        sites.update(mill, SITE)
        queues = ("fetch", "ocr", "compilation", "deploy", "extraction")
        drain(mill, queues=queues[: 4 + int(enabled)])  # without extraction nobody serves its queue
    finally:
        monkeypatch.delenv("ENABLE_EXTRACTION")
        configure(load())
    assert (sites.find(mill, SITE).current_stage, completions(mill, "deploy")) == ("completed", 1)
    assert counters(mill, "extraction") == (int(enabled), 0, int(enabled))


def test_case_17_high_belongs_to_the_run_and_a_worker_keeps_to_its_stage(mill: Mill, play: Play) -> None:
    for name in (SITE, OTHER):
        play.site(name, minutes(3))
    sites.enqueue(mill, [SITE])
    drain(mill, queues=["fetch"])
    sites.update(mill, OTHER)
    drain(mill, queues=["fetch"])
    assert {job.priority for job in mill.jobs(subject=OTHER)} == {"high"}
    assert not mill.jobs(stage="ocr", state="completed")
    drain(mill, queues=["ocr"])
    order = [line.split()[0] for line in (play.folder / "read").read_text().splitlines()]
    assert order == [OTHER] * 3 + [SITE] * 3
    drain(mill)
    assert {job.priority for job in mill.jobs(subject=OTHER)} == {"high"}
    assert {job.priority for job in mill.jobs(subject=SITE)} == {"normal"}


def test_case_19_only_sites_that_exist_are_enqueued_and_they_are_in_fetch_at_once(mill: Mill) -> None:
    asked, unknown = sites.enqueue(mill, [SITE, "nowhere.ca"], "low")
    assert ([one.subdomain for one in asked], unknown) == ([SITE], ["nowhere.ca"])
    assert (asked[0].priority, row(mill)["current_stage"], row(mill)["status"]) == ("normal", "fetch", "fetching")
    with pytest.raises(SiteNotFound, match=r"^Site 'nowhere.ca' not found$"):
        sites.update(mill, "nowhere.ca")


def test_case_21_times_are_right_in_any_time_zone(mill: Mill, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    play.site(SITE)
    try:
        for zone in ("Pacific/Kiritimati", "America/Los_Angeles", "UTC"):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            sites.update(mill, SITE)
            drain(mill)
            ended = sites.find(mill, SITE).last_updated
            assert ended is not None
            assert abs((ended - datetime.now(UTC)).total_seconds()) < 60
            assert [one.subdomain for one in sites.next_sites(mill, 5)] in ([OTHER], [])
            assert sites.next_sites(mill, 5) == []
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()


@pytest.mark.alike
def test_case_22_after_deploy_the_site_is_completed_and_its_time_stands_still(mill: Mill, play: Play) -> None:
    play.site(SITE, minutes(1))
    sites.update(mill, SITE)
    drain(mill)
    site = sites.find(mill, SITE)
    assert site.current_stage == "completed"
    mill.reconcile()
    sites.catch_up(mill)
    assert sites.find(mill, SITE) == site


@pytest.mark.alike
def test_case_27_missing_folders_are_made_on_demand(mill: Mill, play: Play, clerk_config: Config) -> None:
    assert not (clerk_config.storage / SITE).exists()
    play.site(SITE, {**minutes(1), "agendas/Council/2026-01-05": {}})
    sites.update(mill, SITE)
    drain(mill)
    assert sites.find(mill, SITE).outcome == "completed"
    folder = clerk_config.storage / SITE
    assert all((folder / name).is_dir() for name in ("pdfs", "txt", "processed", "_agendas/txt", "_agendas/processed"))


# ---- asking for runs


def test_an_active_run_is_raised_and_other_options_leave_one_follow_up(mill: Mill, play: Play) -> None:
    play.site(SITE, minutes(1))
    [(first)], _ = sites.enqueue(mill, [SITE])
    again = sites.update(mill, SITE)
    assert (again.run, again.created, again.priority, again.follow_up) == (first.run, False, "high", None)
    one = sites.update(mill, SITE, Options(all_years=True))
    two = sites.update(mill, SITE, Options(all_agendas=True))
    assert one.follow_up is not None
    assert (one.run, two.follow_up) == (first.run, one.follow_up)
    assert (one.was_waiting, two.was_waiting) == (False, True)
    drain(mill)
    asked = [(run.args["all_years"], run.args["all_agendas"]) for run in mill.runs(subject=SITE)]
    assert asked == [(True, True), (False, False)]
    assert sites.find(mill, SITE).run_id == one.follow_up
    assert sites.find(mill, SITE).outcome == "unchanged"


def test_a_follow_up_does_all_that_it_was_asked_for(mill: Mill, play: Play) -> None:
    play.site(SITE, minutes(1))
    sites.enqueue(mill, [SITE])
    sites.enqueue(mill, [SITE], options=Options(skip_fetch=True, ocr_backend="tesseract"))
    sites.enqueue(mill, [SITE], options=Options(skip_fetch=True, retry_failed=True))
    assert waiting(mill) == ("normal", Options(skip_fetch=True, retry_failed=True, ocr_backend="tesseract"))
    sites.update(mill, SITE, Options(all_years=True, all_agendas=True, ocr_backend="vision"))
    assert waiting(mill) == ("high", Options(True, True, False, True, "vision"))
    sites.enqueue(mill, [SITE], options=Options(retry_failed=True))
    assert waiting(mill) == ("high", Options(True, True, False, True, "vision"))


@pytest.mark.parametrize("part", [{"only": ["fetch"]}, {"from_stage": "compilation"}, {"from_stage": "deploy"}])
def test_a_run_of_some_stages_only_is_followed_by_the_whole_one_that_was_asked_for(
    mill: Mill, play: Play, part: dict[str, Any]
) -> None:
    play.site(SITE, minutes(1))
    sites.update(mill, SITE)
    drain(mill)
    active = mill.start("site", SITE, args=Options().args(), **part)
    asked = sites.update(mill, SITE)
    assert (asked.run, asked.created) == (active.id, False)
    assert waiting(mill) == ("high", Options())
    assert sites.update(mill, SITE).follow_up == asked.follow_up


def test_a_run_that_is_being_stopped_is_not_joined_and_its_follow_up_still_does_all(mill: Mill, play: Play) -> None:
    play.site(SITE, minutes(1))
    active = sites.update(mill, SITE)
    sites.update(mill, SITE, Options(all_years=True))
    take_a_job(mill)
    mill.cancel_run(active.run)
    sites.update(mill, SITE)  # as the one that is being stopped was asked for
    assert waiting(mill) == ("high", Options(all_years=True))


def waiting(mill: Mill) -> tuple[str, Options]:
    [run] = mill.runs(subject=SITE, state="waiting")
    return run.priority, Options(**run.args)


def test_two_who_ask_at_once_for_the_same_site_both_get_what_they_ask_for(mill: Mill, clerk_config: Config) -> None:
    asked = [Options(all_years=True), Options(all_agendas=True), Options(retry_failed=True)]
    barrier = threading.Barrier(len(asked))

    def ask(own: Mill, options: Options) -> None:
        for subdomain in names:
            barrier.wait(60)
            sites.update(own, subdomain, options)

    names = [f"s{n}.ca" for n in range(8)]
    for name in names:
        sites.create(mill, Description(name, name, "played"))
    sites.enqueue(mill, names)
    with contextlib.ExitStack() as stack:
        threads = [threading.Thread(target=ask, args=(stack.enter_context(open_mill(clerk_config)), o)) for o in asked]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = [Options(**run.args) for run in mill.runs(state="waiting")]
    assert found == [Options(all_years=True, all_agendas=True, retry_failed=True)] * len(names)


def test_a_site_is_due_a_lookback_after_its_last_run_of_any_outcome(mill: Mill, play: Play, clock: FrozenClock) -> None:
    play.site(SITE)
    [never] = sites.next_sites(mill)
    assert never.subdomain == OTHER  # by name, since neither was ever run
    assert [one.subdomain for one in sites.next_sites(mill, batch=5)] == [SITE]
    mill.cancel_run(never.run)
    drain(mill)
    assert sites.next_sites(mill, batch=5) == []
    assert {one.subdomain for one in sites.next_sites(mill, batch=5, lookback_hours=0)} == {SITE, OTHER}


def test_a_purged_site_has_no_run_any_more_and_keeps_its_history(mill: Mill, play: Play, clerk_config: Config) -> None:
    play.site(SITE, minutes(3))
    sites.update(mill, SITE)
    drain(mill, queues=["fetch"])
    assert sites.purge(mill, SITE) == sites.Purged(3, 3)
    assert (row(mill)["current_stage"], row(mill)["status"], sites.progress(mill, SITE)) == (None, "new", [])
    with mill.transaction() as connection:
        assert connection.execute(text("SELECT count(*) FROM job_tracking")).scalar_one() == 0
        assert connection.execute(text("SELECT outcome FROM clerk_run")).scalars().all() == ["cancelled"]
    assert (clerk_config.storage / SITE / "pdfs").is_dir()
    sites.catch_up(mill)
    assert row(mill)["current_stage"] is None
    assert sites.purge(mill, SITE) == sites.Purged(0, 0)
    sites.update(mill, SITE)
    drain(mill)
    assert counters(mill, "ocr") == (3, 0, 3)


def test_what_does_not_stop_is_purged_all_the_same_and_its_site_is_not_due_when_it_ends(mill: Mill, play: Play) -> None:
    play.site(SITE, minutes(3))
    sites.update(mill, SITE)
    drain(mill, queues=["fetch"])
    lose_a_worker(mill)
    assert sites.purge(mill, SITE, patience=0.1) == sites.Purged(3, 2)
    assert (row(mill)["current_stage"], sites.progress(mill, SITE)) == (None, [])
    mill.reconcile()
    assert [run.state for run in mill.runs(subject=SITE)] == ["cancelled"]
    sites.catch_up(mill)
    assert row(mill)["current_stage"] is None
    assert [one.subdomain for one in sites.next_sites(mill, batch=5)] == [OTHER]


def test_a_run_that_is_asked_for_while_another_is_purged_is_not_meant(
    mill: Mill, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    play.site(SITE, minutes(3))
    sites.update(mill, SITE)
    lose_a_worker(mill)
    asked: list[sites.Enqueued] = []

    def meanwhile(seconds: float) -> None:
        asked.append(sites.update(mill, SITE))
        mill.reconcile()

    with monkeypatch.context() as waits:
        waits.setattr(time, "sleep", meanwhile)
        assert sites.purge(mill, SITE) == sites.Purged(1, 1)
    assert (sites.find(mill, SITE).run_id, row(mill)["current_stage"]) == (asked[0].run, "fetch")
    assert len(asked) == 1
    with mill.transaction() as connection:
        found = connection.execute(text("SELECT purged FROM clerk_run WHERE subdomain = :s ORDER BY run_id"), {"s": SITE})
        assert [bool(purged) for purged in found.scalars()] == [True, False]


# ---- critical errors


def test_where_nobody_can_work_items_go_back_and_after_five_returns_the_run_fails(
    mill: Mill, play: Play, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "now", lambda: clock.now)
    play.site(SITE, {**minutes(2, read="Critical"), **minutes(1, first=5)})
    began = clock.now
    sites.update(mill, SITE)
    drain(mill)
    site = sites.find(mill, SITE)
    assert (site.current_stage, site.outcome) == ("ocr", "failed")
    assert "nobody could work on it" in str(site.last_error_message)
    assert (clock.now - began).total_seconds() >= 300
    play.site(SITE, {**minutes(2), **minutes(1, first=5)})  # the disk has room again
    sites.update(mill, SITE)
    drain(mill)
    assert sites.find(mill, SITE).outcome == "completed"


def papers_of(config: Config) -> list[Path]:
    return sorted((config.storage / SITE / "pdfs").rglob("*.pdf"))


def test_workers_that_meet_the_same_full_disk_at_once_have_returned_a_run_once(
    mill: Mill, play: Play, clerk_config: Config, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a disk that is full for a second, and eight workers, end every run."""
    monkeypatch.setattr(outcomes, "now", lambda at=clock.now: at)
    play.site(SITE, minutes(1, read="Critical"))
    sites.update(mill, SITE)
    with pytest.raises(AssertionError, match="still work to do"):
        drain(mill, most=20)
    for paper in papers_of(clerk_config):
        paper.write_text("{}")  # it has room again
    drain(mill)
    assert sites.find(mill, SITE).outcome == "completed"


def test_one_machine_that_cannot_work_does_not_end_the_run_that_others_work_on(
    mill: Mill, play: Play, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = itertools.count(1)

    def read(ctx: Context, *about: str) -> dict[str, Any]:
        with working(ctx):
            if next(tries) % 3:
                raise Critical("there is no tesseract on this machine")
        return played_reading.read(ctx, *about)

    monkeypatch.setattr(outcomes, "now", lambda: clock.now)
    monkeypatch.setattr("clerk.pipeline.documents.read", read)
    play.site(SITE, minutes(8))
    sites.update(mill, SITE)
    drain(mill)
    assert (sites.find(mill, SITE).outcome, counters(mill, "ocr"), next(tries)) == ("completed", (8, 0, 8), 25)
