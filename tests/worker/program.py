"""A worker as a program: `python -m tests.worker.program '{"url": …, "apps": […], "until": …, "slots": 1, …}'`."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from gristmill import Mill
from gristmill.execution.load import load_sources


def open_mill(url: str, *apps: str) -> Mill:
    """A mill with everything in these modules of `tests.apps`."""
    return Mill.open(url, load_sources(f"module:tests.apps.{app}" for app in apps))


def main(order: dict[str, Any]) -> None:
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(name)s %(message)s")
    with open_mill(order.pop("url"), *order.pop("apps")) as mill:
        mill.work(**order)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
