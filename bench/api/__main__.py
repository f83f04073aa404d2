"""`./run bench api [NAME …] [--quick]`: all measurements of the HTTP API and the dashboard, or those that are named."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from bench.api.filling import place
from bench.core import Figure

NAMES = ("pages", "overview", "metrics", "events", "watching")


def figures(names: list[str], quick: bool, keep: str | None) -> Iterator[Figure]:
    with place(quick, keep) as filled:
        for name in names:
            yield from importlib.import_module(f"bench.api.{name}").measure(filled, quick)


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run bench api", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="small numbers, few rounds: to see that it works")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    parser.add_argument("--keep", metavar="URL", help="use this empty or filled database of PostgreSQL, and leave it")
    options = parser.parse_args()
    found: list[Figure] = []
    for figure in figures(options.names or list(NAMES), options.quick, options.keep):
        found.append(figure)
        mark = "reached    " if figure.holds else "NOT reached"
        print(f"{mark}  {figure.name}: {figure.measured}  ({figure.reach})", flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(figure) for figure in found], indent=1) + "\n")
    missed = sum(not figure.holds for figure in found)
    print(f"{len(found) - missed} of {len(found)} figures reached")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
