"""From a stuck subject to its cause and its cure: the overview says that there is one, and leads to it."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page, expect
from sqlalchemy import text

from gristmill import Mill
from tests.web import town
from tests.web.conftest import dashboard_of
from tests.web.filling import mill_of


def get_stuck(mill: Mill, subject: str) -> int:
    """A run whose only job has ended, and nothing followed from it."""
    run = mill.start(town.minutes, subject, args={"pages": 1}).id
    with mill.transaction() as connection:
        for change in (
            "UPDATE gm_run SET state = 1, started_at = created_at WHERE id = :run",
            "UPDATE gm_job SET state = 2, ready = NULL, run_at = NULL, finished_at = 1 WHERE run_id = :run",
            "UPDATE gm_stage SET completed = total WHERE run_id = :run",
        ):
            connection.execute(text(change), {"run": run})
    return run


def test_what_is_stuck_is_on_the_overview_with_its_cause(ledger: str, opened: Callable[..., Page]) -> None:
    with mill_of(ledger) as mill:
        runs = [get_stuck(mill, name) for name in ("Millbrook", "Oakfield")]
        mill.start(town.minutes, "Riverton", args={"pages": 1})
    with dashboard_of(ledger) as served:
        page = opened(served.address)
        page.goto("/")
        page.locator("#verdict").get_by_text("Oakfield and Millbrook are stuck").click()
        expect(page.locator("tbody tr")).to_have_count(2)
        page.locator(f"#run-{runs[0]}").get_by_text("Why?").click()
        expect(page.locator("#drawer .command")).to_contain_text("gristmill reconcile")
        page.keyboard.press("Escape")
        with served.served.client() as client:
            assert {run["id"] for run in client.get("/api/runs/stuck").json()["items"]} == set(runs)
        page.get_by_label("all that match").check()
        page.get_by_role("button", name="Stop").click()
        expect(page.locator(".effect")).to_contain_text("2 stopped")
        page.close()  # before its server ends
