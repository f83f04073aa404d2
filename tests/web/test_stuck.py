"""From a stuck subject to its cause and its cure: the overview says that there is one, and leads to it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect
from sqlalchemy import text

from gristmill import Mill
from gristmill.clock import SECOND
from gristmill.ledger import workers
from tests.stranding import strand
from tests.web import town
from tests.web.conftest import Dashboard, dashboard_of
from tests.web.filling import mill_of


def get_stuck(mill: Mill, subject: str) -> int:
    return strand(mill, mill.start(town.minutes, subject, args={"pages": 1}).id)


def test_what_waits_for_hours_beside_a_worker_and_what_the_doctor_finds_are_on_the_overview(
    tmp_path: Path, sqlite_template: Path
) -> None:
    ledger = f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'test.db')}"
    with mill_of(ledger, clock=lambda: time.time_ns() // 1000 - 2 * 3600 * SECOND) as then:
        then.enqueue(town.notify, args={"to": "ann"})
    with mill_of(ledger) as mill:
        mill.ledger.do(workers.register, workers.Registration("elsewhere", 1, "-", (), 1, "-"), 3600 * SECOND)
        job = mill.enqueue(town.fail, args={"text": "too often"}).id
        with mill.transaction() as connection:
            change = "UPDATE gm_job SET state = 4, ready = NULL, finished_at = 1, fingerprint = 'f', error_class = 'crash'"
            connection.execute(text(f"{change} WHERE id = :job"), {"job": job})
    with dashboard_of(ledger) as served, served.served.client() as client:
        shown = client.get("/").text
    assert "Queue mail: 1 job waits, the oldest for 2 h, and nothing of it is in progress." in shown
    assert "The doctor says of crashes: 1 failed job has killed the process, or the worker, too often." in shown


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
        expect(page.locator(".effect")).to_contain_text("2 runs stopped")
        page.close()  # before its server ends


def test_what_is_stuck_is_mended_from_the_page_that_says_so(ledger: str, opened: Callable[..., Page]) -> None:
    with mill_of(ledger) as mill:
        run = get_stuck(mill, "Fairview")
        subject = mill.subject(town.minutes, "Fairview").id
    with dashboard_of(ledger) as served:
        page = opened(served.address)
        page.goto(f"/subjects/{subject}")
        page.get_by_role("button", name="Reconcile").click()
        expect(page.locator(".effect")).to_contain_text("would be mended")
        assert [stuck.id for stuck in served.mill.stuck() if stuck.subject == "Fairview"] == [run], "it was a rehearsal"
        page.get_by_role("button", name="Reconcile").click()
        expect(page).to_have_url(f"{served.address}/subjects/{subject}")
        expect(page.locator(".said")).to_contain_text("mended")
        assert [stuck.id for stuck in served.mill.stuck() if stuck.subject == "Fairview"] == []
        [entry] = served.mill.audit(verb="reconcile")
        assert (entry.target, entry.detail) == ("minutes Fairview", {"mended": 1, "left": 0})
        assert entry.who.endswith("(web)")
        page.close()


def test_the_cure_is_beside_its_command(dashboard: Dashboard, page: Page) -> None:
    subject = dashboard.mill.subject(town.minutes, "Millbrook").id
    page.goto(f"/subjects/{subject}")
    expect(page.get_by_role("button", name="Retry what failed")).to_have_count(1)
    dashboard.mill.pause("find", by="ann")
    run = dashboard.mill.start(town.minutes, "Pausing", args={"pages": 1}).id
    page.goto(f"/runs/{run}")
    expect(page.locator(".why")).to_contain_text("gristmill queue resume find")
    page.get_by_role("button", name="Resume queue find").click()
    expect(page).to_have_url(f"{dashboard.address}/runs/{run}")
    expect(page.locator(".said")).to_have_text("queue find goes on")
    page.close()


def test_whoever_may_only_look_gets_the_command_alone(ledger: str) -> None:
    with mill_of(ledger) as mill:
        run = get_stuck(mill, "Lookout")
    with dashboard_of(ledger, "--read-only") as served, served.served.client() as client:
        shown = client.get(f"/runs/{run}").text
        assert "gristmill reconcile" in shown
        assert f"/runs/{run}/reconcile" not in shown
