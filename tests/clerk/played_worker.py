"""A worker of clerk as a program, whose documents are played: `python -m tests.clerk.played_worker TYPE SLOTS [burst]`."""

from __future__ import annotations

import logging
import sys

from clerk.app import work
from clerk.config import load
from clerk.db import migrations
from clerk.pipeline import site
from gristmill import Mill
from tests.clerk.played_app import played


def open_played() -> Mill:
    url = load().database_url
    return Mill.open(url, site, migrations(url), played)


def main(kind: str, slots: str, how: str = "") -> None:
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(name)s %(message)s")
    with open_played() as mill:
        work(mill, kind, int(slots), until="drained" if how else None, lease=15.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
