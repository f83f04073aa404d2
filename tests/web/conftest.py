"""A browser, and a dashboard for it: a real server over a ledger with something of everything in it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, ViewportSize, expect, sync_playwright

from gristmill import Mill
from tests import chromium
from tests.api.server import Served, calling, serving
from tests.web.filling import fill, mill_of

APP = Path(__file__).parent / "town.py"
PATIENCE = 30_000  # milliseconds: a machine may be busy, and nothing here asserts how long something takes
expect.set_options(timeout=PATIENCE)
WIDE, NARROW = ViewportSize(width=1280, height=900), ViewportSize(width=400, height=800)


class Dashboard:
    """A server, and the mill that it serves."""

    def __init__(self, served: Served, mill: Mill) -> None:
        self.served, self.mill = served, mill
        self.address = served.address


@contextmanager
def dashboard_of(url: str, *options: str) -> Iterator[Dashboard]:
    with serving(url, *options, app=APP) as served, mill_of(url) as mill:
        yield Dashboard(served, mill)


@pytest.fixture(scope="package")  # no longer: while it is there, no other test in this process can run an event loop
def browser() -> Iterator[Browser]:
    path = chromium.find()
    if path is None:
        pytest.fail(chromium.HOW)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=chromium.OPTIONS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> str:
    folder = tmp_path_factory.mktemp("dashboard")
    (folder / "test.db").write_bytes(sqlite_template.read_bytes())
    return f"sqlite:///{folder}/test.db"


@pytest.fixture(scope="package")
def filled(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> Path:
    """A database with something of everything in it. Workers fill it, so that is done once, and then copied."""
    path = Path(shutil.copy(sqlite_template, tmp_path_factory.mktemp("filled") / "filled.db"))
    with mill_of(f"sqlite:///{path}") as mill:
        fill(mill)
    return path


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory, filled: Path) -> Iterator[Dashboard]:
    """One for a module of tests; each acts on what it makes itself."""
    path = shutil.copy(filled, tmp_path_factory.mktemp("dashboard") / "test.db")
    with dashboard_of(f"sqlite:///{path}") as served:
        yield served


@pytest.fixture
def opened(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Makes pages; at the end, none of them has complained about anything."""
    complaints: list[str] = []
    contexts = []

    def listen(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            complaints.append(f"{message.text} at {message.location}")

    def make(address: str, **options: Any) -> Page:
        context = browser.new_context(base_url=address, **{"viewport": WIDE, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", listen)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        page.complaints = complaints  # type: ignore[attr-defined]
        return page

    yield make
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def page(dashboard: Dashboard, opened: Callable[..., Page]) -> Page:
    return opened(dashboard.address)


@contextmanager
def working(url: str, slots: int = 2) -> Iterator[None]:
    """A worker beside the server, as `gristmill up` is one."""
    with calling("-A", str(APP), "--database", url, "up", "-n", str(slots), stderr=subprocess.DEVNULL):
        yield
