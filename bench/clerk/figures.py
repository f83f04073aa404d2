"""What the measurements of clerk share: how a figure is told, and the options of each of them."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

Measure = Callable[[Path, bool], Iterator["Figure"]]  # a folder to work in, and whether small numbers will do


@dataclass(frozen=True)
class Figure:
    name: str
    measured: str
    reach: str
    holds: bool

    def __str__(self) -> str:
        return f"{'holds' if self.holds else 'FAILS'}  {self.name}: {self.measured}  (reach: {self.reach})"


def spread(values: Sequence[float], form: str) -> str:
    """The median, and the least and the most beside it if there are several."""
    told = form.format(statistics.median(values))
    return told if len(values) == 1 else f"{told} ({form.format(min(values))} to {form.format(max(values))})"


def tell(*measures: Measure, quick: bool) -> int:
    """Prints each figure as it comes; how many fail."""
    failed = 0
    for measure in measures:
        with tempfile.TemporaryDirectory(prefix="clerk-bench-") as folder:
            for figure in measure(Path(folder), quick):
                failed += not figure.holds
                print(figure, flush=True)
    return failed


def main(measure: Measure, name: str, about: str | None) -> None:
    parser = argparse.ArgumentParser(prog=f"python -m bench.clerk.{name}", description=about)
    parser.add_argument("--quick", action="store_true", help="small numbers, one round: to see that it works")
    sys.exit(int(tell(measure, quick=parser.parse_args().quick) > 0))
