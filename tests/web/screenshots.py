"""Takes the pictures of the dashboard for its page in docs/: `./run screenshots`."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

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
COLOURS = 96  # enough for flat areas, and a third of the size
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
    "limits": "/limits",
    "locks": "/locks",
    "audit": "/audit",
    "settings": "/settings",
}


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
        with working(url, 4), dashboard_of(url) as served, sync_playwright() as playwright:
            while len(served.mill.jobs(state="in_progress")) < 3:
                time.sleep(0.2)
            run = served.mill.runs(limit=1)[0].id
            failed = next(job for job in served.mill.jobs(state="failed", task="minutes.read"))
            names = {"run": run, "failed": failed.id, "error": failed.fingerprint}
            path = chromium.find()
            browser = playwright.chromium.launch(executable_path=path, args=chromium.OPTIONS)
            take_all(browser, served.address, {name: text.format(**names) for name, text in PAGES.items()})
            held.unlink()
            browser.close()


def take_all(browser: Browser, address: str, pages: dict[str, str]) -> None:
    for suffix, size, scheme, names in (
        ("", WIDE, "light", list(pages)),
        ("-dark", WIDE, "dark", ["overview", "run"]),
        ("-narrow", NARROW, "light", ["overview", "run", "jobs"]),
    ):
        context = browser.new_context(base_url=address, viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
        page = context.new_page()
        for name in names:
            page.goto(pages[name])
            take(page, FOLDER / f"{name}{suffix}.png")
        context.close()


def take(page: Page, path: Path) -> None:
    page.wait_for_timeout(2500)  # rates are known after a second look
    page.screenshot(path=path)
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(COLOURS).save(path, optimize=True)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
