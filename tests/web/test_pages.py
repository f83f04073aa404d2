"""Every page, as people see it: it opens, nothing is wrong with it, it fits, and it can be read by all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Page, ViewportSize, expect

from tests.api.server import serving
from tests.web.conftest import NARROW, WIDE, Dashboard, dashboard_of
from tests.web.filling import HOSTILE, mill_of

AXE = (Path(__file__).parent / "vendored" / "axe.min.js").read_text()
PAGES = {
    "/": "No worker is running",
    "/subjects": "Subjects",
    "/subjects/1": "Millbrook",
    "/subjects?q=stale:1d": "Subjects",
    "/runs": "Runs",
    "/runs/1": "Run 1",
    "/jobs": "Jobs",
    "/jobs?q=state:failed": "Jobs",
    "/jobs/1": "Job 1",
    "/errors": "Errors",
    "/errors?every=1": "Errors",
    "/errors/{fingerprint}": "ValueError",
    "/queues": "Queues",
    "/queues/mail": "mail",
    "/workers": "Workers",
    "/workers?every=1": "Workers",
    "/schedules": "Schedules",
    "/schedules/nightly/history": "nightly",
    "/limits": "Limits",
    "/locks": "Locks",
    "/audit": "Audit",
    "/settings": "Settings",
}
CUT = """[...document.querySelectorAll('.scroll:not(.graph-box)')].filter(
    (box) => box.scrollWidth > box.clientWidth).map((box) => box.getAttribute('aria-label'))"""
BETWEEN = (641, 960, 961, 1180, 1181)  # pixels of width, on both sides of where tables and the menu change their form
EMPTY = [path for path in PAGES if "/1" not in path and "{" not in path and path.count("/") == 1]


def address(dashboard: Dashboard, path: str) -> str:
    if "{" not in path:
        return path
    return path.format(fingerprint=next(e.fingerprint for e in dashboard.mill.errors() if HOSTILE in str(e.error)))


def faults(page: Page) -> list[str]:
    """What axe finds serious; running it by the debugger's protocol is not stopped by the page's policy."""
    page.evaluate(AXE)
    found: dict[str, Any] = page.evaluate("axe.run({resultTypes: ['violations']})")
    return [
        f"{fault['id']}: {node['html'][:200]}"
        for fault in found["violations"]
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]


@pytest.mark.parametrize(("path", "title"), PAGES.items())
def test_a_page_opens_fits_and_has_no_serious_fault(dashboard: Dashboard, page: Page, path: str, title: str) -> None:
    looks: tuple[tuple[ViewportSize, Literal["light", "dark"]], ...] = ((WIDE, "light"), (NARROW, "dark"))
    for size, colours in looks:
        page.set_viewport_size(size)
        page.emulate_media(color_scheme=colours)
        answer = page.goto(address(dashboard, path))
        assert answer is not None
        assert answer.status == 200
        expect(page.locator("h1")).to_contain_text(title)
        wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wider == 0, f"{path} is {wider} pixels wider than the window"
        assert page.evaluate(CUT) == [], f"what stands at the right in these is cut off on {path}"
        assert faults(page) == []
    for width in BETWEEN:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(CUT) == [], f"what stands at the right in these is cut off on {path} of {width} pixels"


@pytest.fixture(scope="module")
def nothing(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> Iterator[Dashboard]:
    folder = tmp_path_factory.mktemp("nothing")
    (folder / "test.db").write_bytes(sqlite_template.read_bytes())
    with dashboard_of(f"sqlite:///{folder}/test.db") as served:
        yield served


@pytest.mark.parametrize("path", EMPTY)
def test_a_page_without_anything_says_so(nothing: Dashboard, opened: Callable[..., Page], path: str) -> None:
    page = opened(nothing.address)
    page.goto(path)
    words = {"/": "Nothing has been asked for yet", "/settings": "Is all well?"}
    expect(page.locator("main")).to_contain_text(words.get(path, "o "))
    if path != "/settings":
        expect(page.locator("main .empty, main .verdict").first).to_be_visible()
    assert faults(page) == []


def test_a_queue_that_nobody_serves_is_not_said_to_be_on(dashboard: Dashboard, page: Page) -> None:
    page.goto("/queues")
    expect(page.locator("#queue-find [data-label=State]")).to_have_text("no worker")


def test_the_overview_says_what_is_wrong_and_leads_there(dashboard: Dashboard, page: Page) -> None:
    page.goto("/")
    expect(page.locator("#verdict h1")).to_contain_text("No worker is running, and")
    expect(page.locator("#verdict")).to_contain_text("jobs failed within a day")
    page.locator("#verdict .button").click()
    expect(page).to_have_url(f"{dashboard.address}/workers")
    page.goto("/")
    page.locator("#verdict").get_by_text("Queue mail is paused: 21 jobs wait.").click()
    expect(page).to_have_url(f"{dashboard.address}/queues")


def test_hostile_text_is_only_text(dashboard: Dashboard, page: Page) -> None:
    subject = dashboard.mill.subject("minutes", HOSTILE)
    failed = dashboard.mill.jobs(task="fail", limit=1)[0]
    paths = ["/", "/subjects", f"/subjects/{subject.id}", "/runs", f"/runs/{subject.last_run}", "/jobs?q=state:failed"]
    paths += [f"/jobs/{failed.id}", "/errors", f"/errors/{failed.fingerprint}", "/queues/mail", "/audit"]
    paths += [f"/jobs/{failed.id}/peek", f"/jobs?q={HOSTILE.replace('&', '')}"]
    for path in paths:
        page.goto(path)
        page.wait_for_timeout(50)  # whatever would run, would have
        assert page.evaluate("window.hacked") is None, path
        assert page.locator("main b, main script, main img").count() == 0, path
    page.goto(f"/jobs/{failed.id}")
    expect(page.locator("main")).to_contain_text(HOSTILE)


def test_a_page_of_a_run_tells_all_about_it(dashboard: Dashboard, page: Page) -> None:
    page.goto("/runs/1")
    for stage in ("find", "read", "extract", "thumbnails", "publish"):
        expect(page.locator(".graph.across .name", has_text=stage)).to_be_visible()
    expect(page.locator("#stage-read")).to_contain_text("completed with errors")
    item = page.locator("[aria-label='Failed items'] li").first
    item.locator("summary").first.click()
    expect(item.locator(".peek")).to_contain_text("attempt 1", ignore_case=True)
    page.locator(".graph.across a", has_text="read").click()
    expect(page.locator("#search")).to_have_value("run:1 stage:read")


def test_from_a_subject_in_the_list_to_its_cause_without_leaving(dashboard: Dashboard, page: Page) -> None:
    page.goto("/subjects")
    page.locator("#subject-1").get_by_text("Why?").click()
    drawer = page.locator("#drawer")
    expect(drawer.locator("h2")).to_contain_text("Millbrook")
    expect(drawer).to_contain_text("failed in 'read'")
    expect(drawer.get_by_label("Traceback")).to_be_visible()
    expect(drawer.locator(".why").get_by_role("button", name="Retry what failed")).to_be_visible()
    expect(drawer.get_by_role("button", name="Retry what failed")).to_have_count(1)
    top = [drawer.locator(".actions > *").nth(n).bounding_box() for n in range(2)]
    assert len({round(box["y"]) for box in top if box}) == 1, "what can be done stands in one line"
    assert page.url == f"{dashboard.address}/subjects"
    page.keyboard.press("Escape")
    expect(drawer).to_be_hidden()


def test_subjects_with_any_name_are_found_by_the_links_to_them(dashboard: Dashboard, page: Page) -> None:
    name = 'https://a.org/"x" y'
    subject = dashboard.mill.set_subject("minutes", name, labels={"kind of": "a=b c"})
    page.goto(f"/subjects/{subject.id}")
    page.get_by_role("link", name="All of them").click()
    expect(page.locator("main .empty")).to_have_text("No runs match.")
    page.goto("/subjects?q=https://a.org/%5C%22x%5C%22")
    expect(page.locator("#wrong")).to_have_count(0)
    page.goto("/subjects?q=name:" + '"https://a.org/\\"x\\" y"')
    page.get_by_text("kind of=a=b c").click()
    expect(page.locator(f"#subject-{subject.id}")).to_contain_text(name)


def test_names_are_found_by_a_part_of_them_and_by_patterns(dashboard: Dashboard, page: Page) -> None:
    for path in ("/subjects?q=MILL", "/subjects?q=name:mill*", "/runs?q=mill", "/runs?q=subject:M?llbrook+stage:read"):
        page.goto(path)
        expect(page.locator("tbody tr")).to_have_count(1)
        expect(page.locator("tbody tr")).to_contain_text("Millbrook")
    page.goto("/jobs?q=subject:mill*+since:1d+state:failed")
    assert {row.split()[0] for row in page.locator("td[data-label=Key]").all_inner_texts()} == {"Millbrook"}
    [error] = {job.fingerprint for job in dashboard.mill.jobs(subject="Millbrook", state="failed", limit=1)}
    page.goto(f"/runs?q=error:{error}+since:1d")
    expect(page.locator("tbody")).to_contain_text("Millbrook")


def test_why_is_what_the_command_line_says(dashboard: Dashboard, page: Page) -> None:
    waiting = dashboard.mill.jobs(queue="mail", state="queued", limit=1)[0]
    page.goto(f"/jobs/{waiting.id}")
    why = dashboard.mill.why(job=waiting.id)
    expect(page.locator(".why")).to_contain_text(why.sentence)
    expect(page.locator(".why code")).to_have_text(f"gristmill {' '.join(why.command)}")


def test_shortcuts_go_places(dashboard: Dashboard, page: Page) -> None:
    page.goto("/")
    for keys, path in (("gr", "/runs"), ("gj", "/jobs"), ("ge", "/errors"), ("go", "/")):
        for key in keys:
            page.keyboard.press(key)
        expect(page).to_have_url(dashboard.address + path)
    page.keyboard.press("?")
    expect(page.locator("#shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    page.goto("/jobs")
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()
    page.keyboard.type("state:failed")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{dashboard.address}/jobs?q=state%3Afailed")
    page.keyboard.press("j")
    expect(page.locator("tr.here")).to_have_count(1)


def test_dark_is_remembered(dashboard: Dashboard, page: Page) -> None:
    ground = "getComputedStyle(document.querySelector('.card')).backgroundColor"
    page.goto("/settings")
    light = page.evaluate(ground)
    page.locator("#theme").click()
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    assert page.evaluate(ground) == dark


def test_states_have_a_word_and_a_shape(dashboard: Dashboard, page: Page) -> None:
    page.goto("/jobs?q=state:failed")
    chips = page.locator("main td .chip")
    assert chips.count() > 1
    for n in range(chips.count()):
        assert chips.nth(n).inner_text().strip()
        assert chips.nth(n).locator("use").get_attribute("href") == "#i-failed"


def test_a_search_that_is_wrong_says_why(dashboard: Dashboard, page: Page) -> None:
    page.goto("/jobs?q=stat:failed")
    expect(page.locator("#wrong")).to_contain_text("did you mean 'state'?")
    page.goto("/jobs?q=state:faild")
    expect(page.locator("#wrong")).to_contain_text("did you mean 'failed'?")
    page.goto("/subjects?q=stale:soon")
    expect(page.locator("#wrong")).to_contain_text("write 30m, 2h or 1d")


@pytest.mark.parametrize("folder", ["src/gristmill/web/static", "tests/web/vendored"])
def test_what_others_wrote_is_as_recorded(folder: str) -> None:
    import hashlib

    place = Path(__file__).parents[2] / folder
    recorded = json.loads((place / "VENDORED.json").read_text())
    for name, about in recorded.items():
        assert hashlib.sha256((place / name).read_bytes()).hexdigest() == about["sha256"], name
        assert about["version"]
        assert about["licence"]
    scripts = {path.name for path in place.glob("*.js")} - {"app.js"}
    assert scripts == recorded.keys()


def test_the_pages_are_the_same_on_postgresql(pg_url: str) -> None:
    from tests.web.filling import fill

    with mill_of(pg_url) as mill:
        fill(mill)
    with dashboard_of(pg_url) as served, served.served.client() as client:
        for path, title in PAGES.items():
            answer = client.get(address(served, path))
            assert (path, answer.status_code) == (path, 200)
            assert title in answer.text


def test_what_a_limit_holds_back_is_said_where_it_waits(dashboard: Dashboard, page: Page) -> None:
    for path, place in (("/", "#queue-web"), ("/queues", "#queue-web"), ("/queues/web", "h1")):
        page.goto(path)
        expect(page.locator(place)).to_contain_text("held back")


def test_a_subject_says_how_good_its_last_run_was_and_how_many_more_failed(dashboard: Dashboard, page: Page) -> None:
    run = dashboard.mill.run(1)
    failures = sum(stage.failed for stage in run.stages)
    assert (run.subject, run.state, failures > 5) == ("Millbrook", "completed_with_errors", True)
    page.goto(f"/subjects/{dashboard.mill.subject('minutes', 'Millbrook').id}")
    expect(page.locator(".facts > div", has_text="Last good run")).to_contain_text("with errors")
    page.get_by_role("link", name=f"and {failures - 5} more").click()
    expect(page.locator("tbody tr")).to_have_count(failures)


def test_what_this_server_cannot_start_is_not_offered(ledger: str, opened: Callable[..., Page]) -> None:
    with mill_of(ledger) as mill:
        mill.declare_schedules()
    with serving(ledger, app=None) as served:  # without the application that declares them
        page = opened(served.address)
        page.goto("/schedules")
        expect(page.get_by_role("button", name="Pause").first).to_be_visible()
        expect(page.get_by_role("button", name="Run now")).to_have_count(0)
        page.close()
