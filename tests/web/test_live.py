"""What changes is seen without loading the page again, and without losing what somebody does on it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.api.server import serving
from tests.web import town
from tests.web.conftest import APP, Dashboard, dashboard_of, working

# Seconds are measured by the page's own clock, from the change on: see `until`.
WAIT = 30_000


def until(page: Page, condition: str) -> float:
    """Seconds until a condition holds in the page."""
    seconds: float = page.evaluate(
        """(condition) => new Promise((seen) => {
            const begun = performance.now();
            const holds = new Function(`return (${condition})`);
            const look = () => holds() ? seen((performance.now() - begun) / 1000) : setTimeout(look, 20);
            look();
        })""",
        condition,
    )
    return seconds


def test_a_change_is_seen_without_loading_the_page_again(dashboard: Dashboard, page: Page) -> None:
    page.goto("/queues")
    page.evaluate("window.stayed = true")
    dashboard.mill.pause("web", by="ann")
    expect(page.locator("#queue-web")).to_contain_text("paused", timeout=WAIT)
    dashboard.mill.resume("web", by="ann")
    expect(page.locator("#queue-web")).not_to_contain_text("paused", timeout=WAIT)
    assert page.evaluate("window.stayed")


def test_the_page_follows_what_the_server_tells(dashboard: Dashboard, page: Page) -> None:
    page.goto("/queues")
    until(page, "live.source !== null")
    page.evaluate("live.every = 3600000; plan(live.every)")  # it does not look by itself any more
    dashboard.mill.pause("web", by="ann")
    expect(page.locator("#queue-web")).to_contain_text("paused", timeout=WAIT)
    dashboard.mill.resume("web", by="ann")
    expect(page.locator("#queue-web")).not_to_contain_text("paused", timeout=WAIT)


@pytest.mark.timing
def test_a_change_is_seen_within_two_seconds(dashboard: Dashboard, page: Page) -> None:
    page.goto("/queues")
    page.wait_for_timeout(1000)
    for _ in range(5):
        dashboard.mill.pause("web", by="ann")
        assert until(page, "document.getElementById('queue-web').textContent.includes('paused')") < 2
        dashboard.mill.resume("web", by="ann")
        assert until(page, "!document.getElementById('queue-web').textContent.includes('paused')") < 2


def test_a_run_counts_while_one_looks_at_it(dashboard: Dashboard, page: Page, tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.touch()
    run = dashboard.mill.start(town.minutes, "Liveton", args={"pages": 12, "hold": str(held)})
    page.goto(f"/runs/{run.id}")
    expect(page.locator("h1")).to_contain_text("queued")
    with working(dashboard.served.database):
        expect(page.locator("h1")).to_contain_text("in progress", timeout=WAIT)
        expect(page.locator(".why")).to_contain_text("in progress", timeout=WAIT)
        expect(page.locator("#stage-read")).to_contain_text("in progress", timeout=WAIT)
        held.unlink()
        expect(page.locator("h1")).to_contain_text("completed with errors", timeout=WAIT)
    expect(page.locator("[aria-label='Failed items']")).to_contain_text("unexpected end of file")


def test_what_is_open_marked_and_written_stays(dashboard: Dashboard, page: Page) -> None:
    page.goto("/queues/ocr")
    page.locator("#set summary").click()
    page.get_by_label("Weight").fill("9")
    dashboard.mill.pause("ocr", by="ann")
    expect(page.locator("h1")).to_contain_text("paused", timeout=WAIT)
    expect(page.get_by_label("Weight")).to_have_value("9")
    expect(page.get_by_label("Weight")).to_be_visible()
    dashboard.mill.resume("ocr", by="ann")
    page.goto("/jobs?q=task:notify")
    page.locator("tbody input[type=checkbox]").first.check()
    job = dashboard.mill.enqueue(town.notify, args={"to": "new"})
    expect(page.locator(f"#job-{job.id}")).to_be_visible(timeout=WAIT)
    assert page.locator("tbody input[type=checkbox]:checked").count() == 1
    expect(page.locator(f"#job-{job.id} input")).not_to_be_checked()


def test_all_that_match_stay_meant_while_the_page_looks_again(dashboard: Dashboard, page: Page) -> None:
    page.goto("/jobs?q=queue:mail")
    page.get_by_label("all that match").check()
    page.evaluate("document.body.addEventListener('htmx:after:swap', () => { document.body.dataset.looked = '1'; })")
    expect(page.locator("body[data-looked]")).to_have_count(1)
    expect(page.get_by_label("all that match")).to_be_checked()
    expect(page.get_by_role("button", name="Cancel")).to_be_enabled()


def test_a_page_that_nobody_sees_does_not_look(dashboard: Dashboard, page: Page) -> None:
    page.goto("/queues")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.evaluate(
        "Object.defineProperty(document, 'hidden', {value: true}); document.dispatchEvent(new Event('visibilitychange'))"
    )
    page.wait_for_timeout(200)  # one may be under way
    asked.clear()
    page.wait_for_timeout(4000)
    assert asked == []


def test_a_server_that_is_away_is_said_and_waited_for(
    dashboard: Dashboard, opened: Callable[..., Page], tmp_path: Path
) -> None:
    with serving(dashboard.served.database, app=APP) as served:
        page = opened(served.address)
        page.goto("/queues")
        port = served.address.rpartition(":")[2]
    expect(page.locator("#live-mark")).to_have_text("no answer", timeout=WAIT)
    expect(page.locator("#stale")).to_have_text(re.compile(r"^no answer since \d\d:\d\d:\d\d; this is how it was then$"))
    expect(page.locator("main.stale")).to_be_visible()
    with serving(dashboard.served.database, "--port", port, app=APP):
        expect(page.locator("#live-mark")).to_have_text("live", timeout=60_000)
        expect(page.locator("#stale")).to_be_hidden()
        expect(page.locator("main:not(.stale)")).to_be_visible()
        page.close()  # or it would miss this server too
    getattr(page, "complaints").clear()  # noqa: B009  # what the browser says of refused connections


def test_who_may_not_look_any_more_is_asked_to_sign_in(opened: Callable[..., Page], tmp_path: Path, filled: Path) -> None:
    with dashboard_of(f"sqlite:///{shutil.copy(filled, tmp_path / 'test.db')}") as served:
        token = served.mill.create_token("anna", "viewer")
        page = opened(served.address)
        page.goto("/queues")
        page.get_by_label("Token").fill(token.text)
        page.get_by_role("button", name="Sign in").click()
        expect(page).to_have_url(f"{served.address}/queues")
        served.mill.revoke_token("anna")
        expect(page).to_have_url(re.compile("/login"), timeout=WAIT)
        getattr(page, "complaints").clear()  # noqa: B009  # what the browser says of the refusal
        page.close()


def test_a_page_of_what_was_deleted_says_so(dashboard: Dashboard, page: Page) -> None:
    job = dashboard.mill.enqueue(town.notify, args={"to": "nobody"}, delay=3600)
    page.goto(f"/jobs/{job.id}")
    dashboard.mill.cancel_jobs(ids=[job.id], by="ann")
    dashboard.mill.delete_jobs(ids=[job.id], by="ann")
    expect(page.locator("#stale")).to_contain_text("not there any more since", timeout=WAIT)
    page.close()
    getattr(page, "complaints").clear()  # noqa: B009


def test_a_stream_that_was_refused_is_asked_for_again(dashboard: Dashboard, page: Page) -> None:
    """The browser does not do that by itself: after a proxy's 503 the page would only look every now and then."""
    page.clock.install()
    page.route("**/api/events", lambda route: route.fulfill(status=503, body="not now"))
    page.goto("/queues")
    until(page, "live.later !== 0")
    page.unroute("**/api/events")
    page.clock.fast_forward(15_000)
    page.clock.resume()
    until(page, "live.source !== null")
    getattr(page, "complaints").clear()  # noqa: B009  # what the browser says of the refusal


def test_an_answer_that_does_not_come_is_said_too(dashboard: Dashboard, page: Page) -> None:
    page.goto("/queues")
    page.route("**/queues", lambda route: None)  # nobody ever answers
    page.evaluate("live.patience = 0")
    expect(page.locator("#stale")).to_contain_text("no answer since", timeout=WAIT)
    page.close()
