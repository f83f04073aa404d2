"""`./run bench`: Gristmill beside its peers, in one run on one machine; `--guard`: only that it has not got slow."""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench import guard, page, plan, playing, systems
from bench.figures import Figures, Result, number, value_of
from bench.plan import Step
from bench.reaches import reaches

ROOT = Path(__file__).parent.parent
BUDGET = {"full": 28 * 60, "quick": 4.5 * 60}  # seconds; what was not begun by then is left out, and said


def main() -> int:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers, programs and their workers end too
    if options.guard:
        return guard.main()
    mode = "quick" if options.quick else "full"
    chosen, measures = systems.chosen(options.only, options.quick), plan.chosen(options.scenario)
    figures = Figures(mode, machine(), playing.about(chosen))
    began = time.monotonic()  # environments are made once, and are no part of it
    steps = list(plan.steps(chosen, measures, options.rounds or (1 if options.quick else 3), options.quick))
    with playing.servers() as servers:
        try:
            measure(figures, steps, servers, began + (60 * options.minutes or BUDGET[mode]))
        finally:  # before the servers end, and also if something went wrong: nothing is lost
            figures.seconds = time.monotonic() - began
            tell(figures, folder(options))
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./run bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under five minutes: one round, small numbers; writes no docs")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="only this system, such as rq or huey-redis"
    )
    parser.add_argument(
        "--scenario", action="append", default=[], metavar="NAME", help="only this: " + ", ".join(plan.BY_NAME)
    )
    parser.add_argument("--rounds", type=int, help="how often (default: 3, quick: 1)")
    parser.add_argument(
        "--into", type=Path, metavar="FOLDER", help="for page, charts and JSON (all of it: docs, else bench/.results)"
    )
    parser.add_argument(
        "--guard", action="store_true", help="compare the hot path with bench/floors.json and end with 1 if it is below"
    )
    parser.add_argument("--minutes", type=float, default=0, help="begin nothing after so many (default: 28, quick: 4.5)")
    return parser.parse_args()


def folder(options: argparse.Namespace) -> Path:
    """Only a whole run makes the page in docs anew."""
    if options.into:
        return Path(options.into)
    part = options.quick or options.only or options.scenario or options.rounds
    return ROOT / "bench" / ".results" if part else ROOT / "docs"


def machine() -> str:
    system, python, load = f"{platform.system()} {platform.machine()}", platform.python_version(), os.getloadavg()[0]
    return f"{system}, {os.cpu_count()} processors, Python {python}; load before it began: {load:.1f}"


def measure(figures: Figures, steps: list[Step], servers: playing.Servers, until: float) -> None:
    for (turn, measure), group in itertools.groupby(steps, key=lambda step: (step.number, step.measure)):
        print(f"\n## {measure.title} (round {turn + 1})", flush=True)
        for step, result in played(figures, list(group), servers, until):
            figures.add(step.system.name, measure.name, result)
            print(f"  {step.system.title:<32}{short(result)}", flush=True)


def played(figures: Figures, group: list[Step], servers: playing.Servers, until: float) -> Iterator[tuple[Step, Result]]:
    if group[0].measure.together:
        yield from playing.play_together(group, servers, until)
        return
    for step in group:
        if step.system.name in figures.broken:
            yield step, {"skipped": "it could not be drained"}
        elif time.monotonic() > until:
            yield step, {"skipped": "no time was left"}
        else:
            yield step, playing.play(step, servers, until, figures.median(step.system.name, "drain") or 0.0)


def short(result: Result) -> str:
    """A result in one line of progress."""
    for key in ("unsupported", "error", "skipped"):
        if key in result:
            return f"{key}: {str(result[key]).splitlines()[-1]}"
    value = value_of(result)
    rest = [f"{key} {told(entry)}" for key, entry in result.items() if key not in ("rate", "steady") and entry is not None]
    return f"{number(value) if value is not None else '–':<12}{', '.join(rest)}"


def told(value: object) -> str:
    return number(value) if isinstance(value, float) else str(value)


def tell(figures: Figures, into: Path) -> None:
    path = page.write(figures, into)
    print("\n" + page.speed_table(figures, [s for s in systems.SYSTEMS if s.name in figures.results]))
    for reach in reaches(figures):
        print(f"{reach.word.strip('*'):<18}{reach.row}: {reach.wanted}; {reach.measured}")
    print(f"\n{figures.seconds / 60:.1f} minutes; {path}, charts and figures.json in {path.parent / 'benchmarks'}")


if __name__ == "__main__":
    sys.exit(main())
