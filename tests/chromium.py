"""A real browser for the tests of the pages: finds the one of the system, or says how to get one.

`python -m tests.chromium` prints where it is; its exit code tells `./run` whether there is one.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

PATH_VARIABLE = "GRISTMILL_TEST_BROWSER"
_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome", "microsoft-edge")
_PLACES = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
HOW = (
    "there is no browser for the tests of the pages. Debian, Ubuntu: apt-get install chromium. macOS: brew install"
    f" --cask chromium. {PATH_VARIABLE} names one elsewhere. Or leave these tests out: ./run test --without=browser"
)
# No sandbox: tests run as root in containers, and open only what they serve themselves.
OPTIONS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-gpu"]


def find() -> str | None:
    """Its path; None: there is none."""
    if given := os.environ.get(PATH_VARIABLE):
        return given if Path(given).exists() else None
    found = [path for name in _NAMES if (path := shutil.which(name))]
    return next(iter([*found, *(place for place in _PLACES if Path(place).exists())]), None)


if __name__ == "__main__":
    path = find()
    print(path or HOW, file=sys.stdout if path else sys.stderr)
    sys.exit(0 if path else 69)
