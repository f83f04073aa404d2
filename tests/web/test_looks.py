"""How it looks: what stands where, in which words, and what a narrow screen leaves out."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from playwright.sync_api import Locator, Page, expect

from gristmill.model import AuditEntry, Reason, Signature, Why
from gristmill.web import phrases
from gristmill.wording import audited
from tests.web.conftest import NARROW, Dashboard


def edges(found: Locator, which: str) -> set[int]:
    """Where some boxes begin (`x`, `y`) or end (`right`), all at one moment: what is live may move."""
    return set(found.evaluate_all(f"all => all.map((one) => Math.round(one.getBoundingClientRect().{which}))"))


def test_labels_of_the_tiles_stand_in_one_line(dashboard: Dashboard, page: Page) -> None:
    page.set_viewport_size({"width": 1200, "height": 900})
    page.goto("/")
    assert len(edges(page.locator(".tile > span:not(.value)"), "y")) == 1
    page.goto("/queues/mail")
    assert page.locator(".tile", has_text="worker").inner_text().split()[1] == "workers"  # of which there is none


def test_bars_of_runs_have_the_same_length_and_amounts_end_together(dashboard: Dashboard, page: Page) -> None:
    for subject, pages in (("Short", 3), ("Long", 4000)):
        dashboard.mill.start("minutes", subject, args={"pages": pages})
    page.goto("/runs?q=state:queued,in_progress")
    for which in ("x", "right"):
        assert len(edges(page.locator("td .stage-line svg.bar"), which)) == 1
    assert len(edges(page.locator("td .stage-line .amount"), "right")) == 1


def test_stages_stand_one_below_the_other_where_it_is_narrow(dashboard: Dashboard, page: Page) -> None:
    page.goto("/runs/1")
    expect(page.locator(".graph.down")).to_be_hidden()
    page.set_viewport_size(NARROW)
    expect(page.locator(".graph.across")).to_be_hidden()
    stages = page.locator(".graph.down .node > rect:first-of-type")
    assert (stages.count(), len(edges(stages, "x"))) == (5, 1)
    box = page.locator(".graph-box")
    assert box.evaluate("box => box.scrollWidth - box.clientWidth") == 0


def test_a_narrow_screen_has_one_line_above_and_no_hints_for_keyboards(dashboard: Dashboard, page: Page) -> None:
    page.set_viewport_size(NARROW)
    page.goto("/jobs")
    expect(page.locator(".search kbd")).to_be_hidden()
    header = page.locator("header.side").bounding_box()
    assert header is not None
    assert header["height"] < 60
    page.get_by_text("Menu").click()
    page.get_by_role("link", name="Errors", exact=True).click()
    expect(page.locator("h1")).to_have_text("Errors")


def test_what_is_done_to_many_waits_until_some_are_marked(dashboard: Dashboard, page: Page) -> None:
    for path in ("/jobs?q=queue:mail", "/runs?q=state:completed"):
        page.goto(path)
        buttons = page.locator(".bulk button")
        expect(buttons.first).to_be_disabled()
        page.locator("tbody input[type=checkbox]").first.check()
        expect(buttons.first).to_be_enabled()
        expect(buttons.last).to_be_enabled()
        page.locator("tbody input[type=checkbox]").first.uncheck()
        expect(buttons.first).to_be_disabled()
        page.get_by_label("all that match").check()
        expect(buttons.first).to_be_enabled()


def test_an_error_is_headed_by_what_it_says(dashboard: Dashboard, page: Page) -> None:
    error = next(one for one in dashboard.mill.errors() if "cannot decode" in str(one.error))
    page.goto("/errors")
    card = page.locator(f"#error-{error.fingerprint}")
    expect(card.locator("h2")).to_contain_text("cannot decode image of page")
    assert card.inner_text().count("ValueError") == 1
    count, meter = card.get_by_text("failed now").bounding_box(), card.locator("svg.bar").bounding_box()
    assert count is not None
    assert meter is not None
    assert count["y"] <= meter["y"] <= count["y"] + count["height"], "the count stands beside its bar"
    card.locator("h2 a").click()
    expect(page.locator("h1")).to_contain_text("cannot decode image of page")


def test_a_failed_job_shows_why_before_what_it_was_given(dashboard: Dashboard, page: Page) -> None:
    [failed] = dashboard.mill.jobs(task="minutes.read", state="failed", limit=1)
    page.goto(f"/jobs/{failed.id}")
    attempts, arguments = page.get_by_label("Attempts").bounding_box(), page.locator("[aria-label=Arguments]").bounding_box()
    assert attempts is not None
    assert arguments is not None
    assert attempts["y"] < arguments["y"]
    expect(page.locator("main")).not_to_contain_text("None.")
    expect(page.get_by_label("Result", exact=True)).to_have_count(0)


def test_how_a_run_ended_is_said_in_words_with_one_time(dashboard: Dashboard, page: Page) -> None:
    page.goto("/subjects/1")
    why = page.locator(".why p").first
    expect(why).to_contain_text("run 1 completed with errors")
    expect(why.locator("time")).to_have_count(1)
    expect(why).not_to_contain_text("UTC")


def test_a_limit_is_set_by_a_button_in_its_line(dashboard: Dashboard, page: Page) -> None:
    page.goto("/limits")
    row = page.locator("tbody tr").last
    set_ = row.locator("summary")
    assert set_.evaluate("one => getComputedStyle(one).listStyleType") == "none"
    assert len(edges(row.locator("summary, form.inline button"), "y")) == 1


def test_the_audit_is_searched_as_other_lists_are(dashboard: Dashboard, page: Page) -> None:
    page.goto("/audit")
    expect(page.locator("tbody")).to_contain_text("interval 24 h")
    for text, number in (("who:ann verb:queue.*", 1), ("nightly", 1), ("verb:subject since:1d", 1), ("who:nobody", 0)):
        page.fill("#search", text)
        page.keyboard.press("Enter")
        expect(page.locator("tbody tr")).to_have_count(number)
    page.goto("/audit?q=whom:ann")
    expect(page.locator("#wrong")).to_contain_text("did you mean 'who'?")


# ---- words


def test_states_of_stages_are_said_as_people_do() -> None:
    words = {state: phrases.said(state) for state in ("open", "sealed", "completed_with_errors")}
    assert words == {"open": "more may come", "sealed": "in progress", "completed_with_errors": "completed with errors"}


def signature(error: str | None, kind: str | None) -> Signature:
    return Signature("f" * 12, kind, error, 1, 1, 1, None, None, False)


def test_the_class_of_an_error_is_not_in_its_heading_too() -> None:
    assert phrases.cause(signature("ValueError: no\nsuch page", "ValueError")) == "no"
    assert phrases.cause(signature("the page is encrypted", "Permanent")) == "the page is encrypted"
    assert phrases.cause(signature(None, "crash")) == "crash"
    assert phrases.cause(signature("", None)) == "unknown"


AT = datetime(2020, 1, 1, tzinfo=UTC)


def told(sentence: str, at: datetime | None = AT) -> str:
    return str(phrases.reason(Why("run 1", Reason.FINISHED, sentence, (), at)))


def test_what_stands_still_is_said_with_how_long_and_no_markup_of_its_own() -> None:
    assert told("job <b> waits", None) == "job &lt;b&gt; waits"
    ended = told("run 1 ended completed_with_errors at 2020-01-01 00:00:00 UTC: <i>")
    assert ended.startswith('run 1 completed with errors <time datetime="2020-01-01T00:00:00Z"')
    assert ended.endswith(" d ago</time>: &lt;i&gt;")
    assert told("the oldest is job 2, since 2020-01-01 00:00:00 UTC").startswith("the oldest is job 2, for <time")


@pytest.mark.parametrize("moment", ["0000-00-00 00:00:00", "2019-05-05 00:00:00"])
@pytest.mark.parametrize("at", [AT, None])
def test_a_time_in_the_words_of_others_stays_as_it_is(moment: str, at: datetime | None) -> None:
    for words in (f"no row at {moment} UTC", f"none since {moment} UTC"):
        assert words in told(f"job 1 is not to run before 2020-01-01 00:00:00 UTC, after: {words}", at)
        assert words in told(f"job 1 ended failed at 2020-01-01 00:00:00 UTC: {words}", at)


def test_an_interval_is_recorded_in_words_and_other_figures_as_they_are() -> None:
    entry = AuditEntry(1, None, "ann", "subject.set", "site a", {"interval": 86400.0, "labels": {"n": 20}}, {}, False)
    assert audited(entry) == "interval 24 h, labels n=20"
