"""Takes the pictures of the dashboard for its page in docs/: `./run screenshots`."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from gristmill.ledger.migrate import upgrade
from tests import chromium
from tests.servers import ROOT
from tests.web import town
from tests.web.conftest import dashboard_of, working
from tests.web.filling import busy_hour, fill, mill_of

FOLDER = ROOT / "docs" / "dashboard"
WIDE, NARROW = {"width": 1200, "height": 760}, {"width": 400, "height": 760}
_ELSEWHERE = """folders => {
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
    while (walk.nextNode())
        for (const folder of folders) walk.currentNode.data = walk.currentNode.data.replaceAll(folder, "/srv/town")
}"""  # no picture shows where it was taken
SLOTS = 8  # of which one holds a lock: so many pages are read that some have failed when the others are held
FULL = ("overview", "run", "job", "error", "subject")  # where what is below matters too
PAGES = {
    "overview": "/",
    "subjects": "/subjects",
    "subject": "/subjects/1",
    "runs": "/runs",
    "run": "/runs/{run}",
    "jobs": "/jobs?q=state:failed",
    "job": "/jobs/{failed}",
    "errors": "/errors",
    "error": "/errors/{error}",
    "queues": "/queues",
    "queue": "/queues/ocr",
    "workers": "/workers",
    "schedules": "/schedules",
    "schedule": "/schedules/nightly/history",
    "limits": "/limits",
    "locks": "/locks",
    "audit": "/audit",
    "settings": "/settings",
    "question": "/jobs?q=state:failed",
    "drawer": "/subjects",
}


def _ask(page: Page) -> None:
    page.get_by_label("all that match").check()
    page.get_by_role("button", name="Retry").click()
    page.locator(".question").wait_for()


def _look_closer(page: Page) -> None:
    page.locator("#subject-1").get_by_text("Why?").click()
    page.locator("#drawer").get_by_label("Traceback").wait_for()


BEFORE = {"question": _ask, "drawer": _look_closer}  # what is done on a page before its picture is taken


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        url, held = f"sqlite:///{folder}/mill.db", Path(folder) / "held"
        held.touch()
        upgrade(url)
        busy_hour(url)
        with mill_of(url) as mill:
            fill(mill, hostile=False)
            mill.start(town.minutes, "Riverton", args={"pages": 60, "hold": str(held)})
            mill.enqueue(town.hold, args={"path": str(held)})
        with working(url, SLOTS), dashboard_of(url) as served, sync_playwright() as playwright:
            while len(served.mill.jobs(state="in_progress")) < SLOTS:
                time.sleep(0.2)
            run = served.mill.runs(limit=1)[0].id
            failed = next(job for job in served.mill.jobs(state="failed", task="minutes.read"))
            names = {"run": run, "failed": failed.id, "error": failed.fingerprint}
            path = chromium.find()
            browser = playwright.chromium.launch(executable_path=path, args=chromium.OPTIONS)
            take_all(browser, served.address, {name: text.format(**names) for name, text in PAGES.items()}, folder)
            served.mill.create_token("ann", "viewer")  # from now on people sign in
            take_all(browser, served.address, {"sign-in": "/login"}, folder)
            held.unlink()
            browser.close()
    shrink(sorted(FOLDER.glob("*.png")))


def take_all(browser: Browser, address: str, pages: dict[str, str], folder: str) -> None:
    for suffix, size, scheme, names in (
        ("", WIDE, "light", list(pages)),
        ("-dark", WIDE, "dark", ["overview", "run"]),
        ("-narrow", NARROW, "light", ["overview", "run", "jobs"]),
    ):
        names = [name for name in names if name in pages]
        context = browser.new_context(base_url=address, viewport=size, color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
        page = context.new_page()
        for name in names:
            page.goto(pages[name])
            page.wait_for_timeout(2500)  # rates are known after a second look
            BEFORE.get(name, lambda _: None)(page)
            page.evaluate(_ELSEWHERE, [str(ROOT), folder])
            page.screenshot(path=FOLDER / f"{name}{suffix}.png", full_page=name in FULL and suffix != "-dark")
        context.close()


def shrink(paths: list[Path]) -> None:
    """Fewer colours, a third of the size; the same for all, or the same sign would look different in two pictures.

    Those that there is most of are kept as they are, which are all areas; others are few, at the edges of letters.
    """
    pictures = [Image.open(path).convert("RGB") for path in paths]
    found: Counter[Any] = Counter()
    for picture in pictures:
        found.update({colour: number for number, colour in picture.getcolors(picture.width * picture.height) or ()})
    palette = Image.new("P", (1, 1))
    palette.putpalette([value for colour, _ in found.most_common(256) for value in colour])
    for path, picture in zip(paths, pictures, strict=True):
        picture.quantize(palette=palette, dither=Image.Dither.NONE).save(path, optimize=True)
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
