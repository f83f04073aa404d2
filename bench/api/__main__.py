"""`./run bench api [NAME …] [--quick] [--write]`: all measurements of the HTTP API and the dashboard, or those named."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from bench.__main__ import machine
from bench.api.filling import place
from bench.api.page import lines, page
from bench.core import ROOT, Figure

NAMES = ("pages", "overview", "metrics", "events", "watching")
PAGE = ROOT / "docs" / "api-figures.md"


def figures(names: list[str], quick: bool, keep: str | None) -> Iterator[Figure]:
    with place(quick, keep) as filled:
        for name in names:
            yield from importlib.import_module(f"bench.api.{name}").measure(filled, quick)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./run bench api", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], metavar="NAME", help=f"of {', '.join(NAMES)}")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_true", help="20,000 jobs, few rounds, 40 seconds: to see that it works")
    how.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)} anew: all of it, in full")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    parser.add_argument("--keep", metavar="URL", help="use this empty or filled database of PostgreSQL, and leave it")
    chosen = parser.parse_args()
    if chosen.write and chosen.names:
        parser.error("--write is of all measurements, not of some")
    return chosen


def main() -> int:
    chosen = options()
    found: list[Figure] = []
    for figure in figures(chosen.names or list(NAMES), chosen.quick, chosen.keep):
        found.append(figure)
        mark = "reached    " if figure.holds else "NOT reached"
        print(f"{mark}  {figure.name}: {figure.measured}  ({figure.reach})", flush=True)
    if chosen.json:
        Path(chosen.json).write_text(json.dumps([asdict(figure) for figure in found], indent=1) + "\n")
    if chosen.write:
        PAGE.write_text(page(found, f"Measured {datetime.now(UTC):%Y-%m-%d} on {machine()}."))
    return tell(found, chosen.quick)


def tell(found: list[Figure], quick: bool) -> int:
    print("\n--quick: of 20,000 jobs, to see that it works" if quick else "", *lines(found), sep="\n")
    missed = sum(not figure.holds for figure in found)
    print(f"{len(found) - missed} of {len(found)} figures reached")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
