"""The charts of what ended: an hour, a day, a week; and lists that say what they leave out."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from gristmill.clock import SECOND, FrozenClock
from gristmill.ledger.finish import Verdict
from gristmill.web import charts
from tests.ledger.play import Play, solo
from tests.web import town
from tests.web.conftest import Dashboard, dashboard_of
from tests.web.filling import mill_of

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
HOUR, DAY, WEEK = charts.PERIODS


@pytest.fixture(scope="module")
def long_ago(ledger: str) -> Iterator[Dashboard]:
    """Two jobs ended just now, three some hours ago, four some days ago."""
    for hours, number in ((72, 4), (3, 3), (0, 2)):

        def then(hours: int = hours) -> int:
            return time.time_ns() // 1000 - hours * 3600 * SECOND

        with mill_of(ledger, clock=then) as mill:
            mill.enqueue_many(town.notify, [{"to": "x"}] * number)
            mill.work(until="idle", slots=1)
    with dashboard_of(ledger) as served:
        yield served


@pytest.mark.parametrize("path", ["/", "/queues/mail"])
def test_a_chart_goes_back_an_hour_a_day_or_a_week(long_ago: Dashboard, opened: Callable[..., Page], path: str) -> None:
    page = opened(long_ago.address)
    page.goto(path)
    chart = page.get_by_label("Throughput")
    for period, ended in ((HOUR, 2), (DAY, 5), (WEEK, 9)):
        chart.get_by_role("link", name=period.label, exact=True).click()
        expect(chart.get_by_role("link", name=period.label, exact=True)).to_have_attribute("aria-current", "true")
        expect(chart).to_contain_text(f"{ended} in {period.within}")
        expect(chart.locator("svg.chart g")).to_have_count(period.columns)
        expect(chart.locator("g.unfinished")).to_have_count(1)
        assert 2 <= chart.locator(".ticks text").count() <= 7
    page.goto(f"{path}?span=for+ever")
    expect(chart).to_contain_text("2 in an hour")


def test_what_is_not_over_is_said_to_be_so_far() -> None:
    done, now = charts.Column(NOON, 3, 1), charts.Column(NOON + timedelta(minutes=1), 1, 0, whole=False)
    drawn = str(charts.throughput([done, now]))
    assert "<g><title>Mon 12:00 UTC: 3 ended well, 1 failed</title>" in drawn
    assert '<g class="unfinished"><title>Mon 12:01 UTC: 1 ended well, 0 failed so far</title>' in drawn


def test_what_was_cancelled_or_skipped_is_neither_well_nor_failed(long_ago: Dashboard, opened: Callable[..., Page]) -> None:
    drawn = str(charts.throughput([charts.Column(NOON, 3, 1, 2)]))
    assert "3 ended well, 1 failed, 2 cancelled or skipped</title>" in drawn
    assert [tone for tone in ("off", "good", "bad") if f'<rect class="{tone}"' in drawn] == ["off", "good", "bad"]
    jobs = long_ago.mill.enqueue_many(town.notify, [{"to": "x"}] * 6)
    long_ago.mill.cancel_jobs(ids=jobs)
    page = opened(long_ago.address)
    page.goto("/queues/mail")
    chart = page.get_by_label("Throughput")
    expect(chart).to_contain_text("6 cancelled or skipped")
    expect(chart).to_contain_text("8 in an hour: 2 well 0 failed")


@pytest.mark.parametrize(
    ("period", "shown"),
    [
        (HOUR, ["12:15", "12:30", "12:45"]),
        (DAY, ["16:00", "20:00", "00:00", "04:00", "08:00"]),
        (WEEK, ["Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]),
    ],
)
def test_times_below_a_chart_are_round(period: charts.Period, shown: list[str]) -> None:
    columns = [charts.Column(NOON + timedelta(seconds=n * period.step), 0, 0) for n in range(period.columns)]
    drawn = str(charts.ticks(columns, period))
    assert [text for text in shown if f">{text}</text>" in drawn] == shown
    assert drawn.count("<text") == len(shown)


def test_no_time_below_a_chart_runs_into_its_end() -> None:
    late = [charts.Column(NOON + timedelta(minutes=n + 8), 0, 0) for n in range(60)]  # 13:00 would stand at 87%
    assert ">13:00<" not in str(charts.ticks(late, HOUR))
    assert ">12:45<" in str(charts.ticks(late, HOUR))


# ---- lists that are cut


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> Iterator[Dashboard]:
    """More of everything than a page shows: 13 queues, 7 workers, of which one holds 15 jobs, and 52 causes of failure."""
    path = Path(shutil.copy(sqlite_template, tmp_path_factory.mktemp("crowded") / "test.db"))
    play = Play(f"sqlite:///{path}", [], FrozenClock(time.time_ns() // 1000))
    play.mill.enqueue_many(solo, [{}] * 67)
    for n in range(12):
        play.mill.set_queue(f"queue-{n}", create=True)
    workers = [play.player() for _ in range(7)]
    for job in workers[0].take(52):
        workers[0].end(job, Verdict.PERMANENT, reason="no")
    workers[0].take(15)
    for table, number in (("gm_attempt", "job_id"), ("gm_job", "id")):
        play.change(f"UPDATE {table} SET fingerprint = printf('%012x', {number}) WHERE fingerprint IS NOT NULL")
    play.close()
    with dashboard_of(f"sqlite:///{path}") as served:
        yield served


def test_the_overview_says_how_much_it_leaves_out(crowded: Dashboard, opened: Callable[..., Page]) -> None:
    page = opened(crowded.address)
    page.goto("/")
    for where, more in (("Queues", "and 5 more"), ("Workers", "and 2 more"), ("Failures", "and 15+ more")):
        expect(page.get_by_label(where, exact=True).locator(".more")).to_have_text(more)
    expect(page.get_by_label("Jobs in progress").locator(".more")).to_have_text("and 7 more")
    expect(page.locator(".tile", has_text="failed within a day")).to_contain_text("20+")
    expect(page.locator(".tile", has_text="failed within a day")).to_contain_text("by the first 20 causes")


def test_jobs_of_a_worker_that_are_not_shown_are_led_to(crowded: Dashboard, opened: Callable[..., Page]) -> None:
    page = opened(crowded.address)
    page.goto("/workers")
    holding = crowded.mill.jobs(state="in_progress")[0].worker
    page.locator(f"#worker-{holding}").get_by_role("link", name="and 5 more").click()
    expect(page.locator("#search")).to_have_value(f"worker:{holding}")
    expect(page.locator("tbody tr")).to_have_count(15)
