"""What changes is seen without loading the page again, and without losing what somebody does on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.api.server import serving
from tests.web import town
from tests.web.conftest import APP, Dashboard, working

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
        expect(page.locator("#stage-read")).to_contain_text("sealed", timeout=WAIT)
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
    with serving(dashboard.served.database, "--port", port, app=APP):
        expect(page.locator("#live-mark")).to_have_text("live", timeout=60_000)
        page.close()  # or it would miss this server too
    getattr(page, "complaints").clear()  # noqa: B009  # what the browser says of refused connections
