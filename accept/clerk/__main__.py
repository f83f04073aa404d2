"""`./run accept clerk [--only N …] [--json]`: what clerk was promised, done as an operator does it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from accept.clerk import dying, operating, sites, working
from accept.clerk.place import Fails
from accept.clerk.scene import CHECKS, Check, Scene

MODULES = (sites, working, operating, dying)  # importing them has filled the list


@dataclass(frozen=True)
class Told:
    number: int
    title: str
    holds: bool
    measured: str
    seconds: float

    def __str__(self) -> str:
        mark = "ok   " if self.holds else "FAILS"
        return f"{mark} {self.number:>2} {self.title}: {self.measured} ({self.seconds:.0f} s)"


def played(check: Check, scene: Scene) -> Told:
    began = time.monotonic()
    holds, measured = True, ""
    try:
        measured = check.does(scene)
    except Fails as error:
        holds, measured = False, str(error)
    except Exception as error:  # of the check or of its servers; the others go on
        traceback.print_exc()
        holds, measured = False, f"{type(error).__name__}: {error}"
    return Told(check.number, check.title, holds, measured, time.monotonic() - began)


def play(numbers: list[int], at_once: int, tell: Callable[[Told], None]) -> list[Told]:
    told = []
    with tempfile.TemporaryDirectory(prefix="clerk-accept-") as folder, ExitStack() as stack:
        scene = Scene(Path(folder), stack)
        with ThreadPoolExecutor(at_once) as pool:
            for one in pool.map(lambda number: played(CHECKS[number], scene), numbers):
                tell(one)
                told.append(one)
    return told


def main() -> int:
    numbers = sorted(CHECKS)
    parser = argparse.ArgumentParser(prog="./run accept clerk", description=__doc__)
    parser.add_argument(
        "--only", type=int, action="append", choices=numbers, metavar="N", help="only this one; may be repeated"
    )
    parser.add_argument(
        "--at-once", type=int, default=os.cpu_count() or 1, metavar="N", help="checks at once (default: cores)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of lines")
    options = parser.parse_args()
    chosen = sorted(set(options.only or numbers))
    told = play(chosen, options.at_once, (lambda _: None) if options.json else lambda one: print(one, flush=True))
    if options.json:
        print(json.dumps([asdict(one) for one in told], indent=2))
    return int(not all(one.holds for one in told))


if __name__ == "__main__":
    sys.exit(main())
