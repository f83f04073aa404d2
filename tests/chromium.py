"""A real browser for the tests of the pages: finds the one of the system, or says how to get one.

`python -m tests.chromium` prints where it is; its exit code tells `./run` whether there is one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PATH_VARIABLE = "GRISTMILL_TEST_BROWSER"
_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome", "microsoft-edge")
_PLACES = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
_DOWNLOADED = ("chromium-*/chrome-linux*/chrome", "chromium-*/chrome-mac*/*.app/Contents/MacOS/*")  # by Playwright
HOW = (
    "there is no browser for the tests of the pages. Debian: apt-get install chromium. macOS: brew install --cask chromium."
    " Elsewhere, or not as root: .venv/bin/playwright install chromium."
    f" {PATH_VARIABLE} names another. Or leave these tests out: ./run test --without=browser"
)
# No sandbox: tests run as root in containers, and open only what they serve themselves.
OPTIONS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-gpu"]


def find() -> str | None:
    """Its path; None: there is none."""
    if given := os.environ.get(PATH_VARIABLE):
        return given if Path(given).exists() else None
    found = [path for name in _NAMES if (path := shutil.which(name))]
    found += [place for place in _PLACES if Path(place).exists()]
    return next(iter([*found, *_downloaded()]), None)


def _downloaded() -> list[str]:
    """The newest first."""
    given = os.environ.get("PLAYWRIGHT_BROWSERS_PATH")
    caches = [Path(given)] if given else [Path.home() / ".cache/ms-playwright", Path.home() / "Library/Caches/ms-playwright"]
    found = [path for cache in caches for pattern in _DOWNLOADED for path in cache.glob(pattern) if os.access(path, os.X_OK)]
    return [str(path) for path in sorted(found, reverse=True)]


def _trouble(path: str) -> str:
    """Why it does not start; empty: it does. Ubuntu has a `chromium-browser` that only says that there is none."""
    done = subprocess.run([path, "--version"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    said = (done.stderr or done.stdout).strip().splitlines() or [f"it ends with {done.returncode}"]
    return f"{path} does not start: {said[-1]}; {HOW}" if done.returncode else ""


def main() -> int:
    path = find()
    trouble = _trouble(path) if path else HOW
    print(trouble or path, file=sys.stderr if trouble else sys.stdout)
    return 69 if trouble else 0


if __name__ == "__main__":
    sys.exit(main())
