"""A hundred thousand jobs: lists come in pages, and all that match can be meant."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.web import town
from tests.web.conftest import Dashboard, dashboard_of
from tests.web.filling import mill_of

MANY = 100_000


@pytest.fixture(scope="module")
def crowded(ledger: str) -> Iterator[Dashboard]:
    with mill_of(ledger) as mill:
        for _ in range(10):
            mill.enqueue_many(town.notify, ({"to": str(n)} for n in range(MANY // 10)))
        mill.enqueue_many(town.hold, [{"path": ""}] * 10)
        for n in range(120):
            mill.set_subject(town.minutes, f"town-{n:03}")
    with dashboard_of(ledger) as served:
        yield served


def number_of(row: Locator) -> int:
    return int(str(row.get_attribute("id")).removeprefix("job-"))


def test_lists_go_on_page_after_page(crowded: Dashboard, opened: Callable[..., Page]) -> None:
    page = opened(crowded.address)
    page.goto("/jobs?q=queue:mail")
    expect(page.locator("tbody tr")).to_have_count(50)
    before = number_of(page.locator("tbody tr").last)
    page.get_by_role("link", name="Next page").click()
    expect(page.locator("tbody tr")).to_have_count(50)
    assert number_of(page.locator("tbody tr").first) < before
    page.get_by_role("link", name="First page").click()
    page.goto("/subjects")
    page.get_by_role("link", name="Next page").click()
    page.get_by_role("link", name="Next page").click()
    expect(page.locator("tbody tr")).to_have_count(20)


def test_all_that_match_are_meant_not_only_those_on_the_page(crowded: Dashboard, opened: Callable[..., Page]) -> None:
    page = opened(crowded.address)
    page.goto("/")
    expect(page.locator(".tile", has_text="jobs ready")).to_contain_text("100,010")
    expect(page.locator("#verdict h1")).to_have_text("No worker is running, and 100,010 jobs wait.")
    page.goto("/jobs?q=queue:mail")
    page.get_by_label("all that match").check()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".effect")).to_contain_text("100,000 jobs cancelled")
    page.get_by_role("link", name="Back").click()
    page.goto("/jobs?q=queue:slow")
    page.get_by_label("all that match").check()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".said")).to_contain_text("10 jobs cancelled")
    assert len(crowded.mill.jobs(queue="mail", state="queued", limit=60)) == 60
