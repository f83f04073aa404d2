"""The page of the figures: docs/benchmarks.md and its charts, or the same elsewhere."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from pathlib import Path

from bench import charts
from bench.figures import Figures, Result, number, spread
from bench.plan import MEASURES
from bench.reaches import reaches
from bench.systems import BY_NAME, LOOPS, OURS, SYSTEMS, System

NOTES = Path(__file__).parent / "notes.md"  # why a row is not reached, with a profile; written by hand

INTRO = """\
# Beside its peers

`./run bench` measures Gristmill and what people would pick instead, in one run on one machine, and writes this page. Read
ratios, not numbers: they are of one machine, and of jobs that do nothing but say that they ran.

"""

HOW = """
## How

- Every peer is installed from the package index into an environment of its own (`bench/peers/locks`), and has the settings
  that its own documentation recommends for two cores. Its program is in `bench/peers`; what is measured is in
  `bench/peers/scenarios.py` and the same for all. A job writes one mark to a file; figures come from those marks alone.
- All take turns: a measure for each system, then the next one, then another round. A figure is the median of its rounds,
  with the least and the most beside it if there are several (Gristmill and the loops have more of them than their peers).
  Each order has a fresh database.
- PostgreSQL has fsync and synchronous_commit on, SQLite commits to the disk (synchronous FULL), Valkey's append-only file
  is written out every second.
- Drains: the jobs are there, then the workers start; the rate is that between a tenth and nine tenths of them. A slow peer
  gets fewer jobs (about as many as it drains in 3 s), and only those that drain 8,000 per second are given 100,000, and
  1,000,000 of which as many are drained as can be in 4 s.
- Killed midway: all workers get SIGKILL when a third of their jobs have ended and others are at work (of 300; of 3,000
  for those that take them by the hundred), and are started again at once; what has not ended 66 s later is unfinished.
  A second variant of a peer is only drained and killed, and its idle latency taken.
- The raw loop is what PostgreSQL or SQLite allow at most on the same tables: one process that claims and finishes batches
  of 500 and does nothing else.
"""


def write(figures: Figures, folder: Path) -> Path:
    """The page in this folder, its charts and the figures themselves in `benchmarks/` beside it."""
    beside = folder / "benchmarks"
    beside.mkdir(parents=True, exist_ok=True)
    (beside / "figures.json").write_text(figures.text())
    drawn = {name: chart for name, chart in draw(figures).items() if chart}
    for name, chart in drawn.items():
        (beside / f"{name}.svg").write_text(chart)
    path = folder / "benchmarks.md"
    path.write_text(page(figures, list(drawn)))
    return path


def page(figures: Figures, drawn: Iterable[str]) -> str:
    systems = [system for system in SYSTEMS if system.name in figures.results]
    told = f"Measured in {figures.seconds / 60:.0f} minutes ({figures.mode}) on {figures.machine}.\n"
    pictures = "".join(f"\n![{TITLES[name]}](benchmarks/{name}.svg)\n" for name in drawn)
    notes = f"\n{NOTES.read_text()}" if NOTES.exists() else ""
    tables = [
        reach_table(figures),
        speed_table(figures, systems),
        fault_table(figures, systems),
        about_table(figures, systems),
    ]
    return INTRO + told + tables[0] + notes + pictures + "".join(tables[1:]) + failures(figures, systems) + HOW


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines)


def reach_table(figures: Figures) -> str:
    rows = [[reach.row, reach.wanted, reach.measured, reach.word] for reach in reaches(figures)]
    return "\n## What was to be reached\n\n" + table(["row", "reach", "measured", ""], rows)


# ---- how fast ----------------------------------------------------------------------------------------------------

SPEEDS = ("drain", "drain-many", "backlog", "bulk", "enqueue", "fan", "fan-many", "latency", "load", "io", "startup")


def speed_table(figures: Figures, systems: list[System]) -> str:
    titles = {measure.name: measure.title for measure in MEASURES}
    shown = [name for name in SPEEDS if any(figures.results[s.name].get(name) for s in systems)]
    rows = [[system.title, *(cell(figures, system, name) for name in shown)] for system in systems]
    note = "\np50 / p99; seconds to the first job / MiB of all processes when idle. No figure: see below.\n"
    return "\n## How fast\n\n" + table(["", *(titles[name] for name in shown)], rows) + note


def cell(figures: Figures, system: System, measure: str) -> str:
    found = figures.of(system.name, measure)
    if not found:
        return "none" if figures.why_not(system.name, measure).startswith("unsupported") else "–"
    return CELLS.get(measure, rates)(figures, system, measure)


def rates(figures: Figures, system: System, measure: str) -> str:
    values = figures.values(system.name, measure)
    return spread(values, number) if values else "0"


def fan_seconds(figures: Figures, system: System, measure: str) -> str:
    values = figures.values(system.name, measure)
    if not values:
        return f"> {figures.of(system.name, measure)[0]['waited']:.0f}"
    return spread(values, number)


def latency(figures: Figures, system: System, measure: str) -> str:
    found = figures.of(system.name, measure)
    p99 = sorted(result["p99"] for result in found)[len(found) // 2]
    return f"{spread([result['p50'] for result in found], number)} / {number(p99)}"


def loaded(figures: Figures, system: System, measure: str) -> str:
    """Half of what each drains is not the same for all."""
    jobs = statistics.median(result["per_second"] for result in figures.of(system.name, measure))
    return f"{latency(figures, system, measure)} at {number(jobs)}/s"


def startup(figures: Figures, system: System, measure: str) -> str:
    found = figures.of(system.name, measure)[0]
    return f"{found['seconds']:.1f} / {found['mebibytes']:.0f}"


CELLS: dict[str, Callable[[Figures, System, str], str]] = {
    "fan": fan_seconds,
    "fan-many": fan_seconds,
    "latency": latency,
    "load": loaded,
    "startup": startup,
}


# ---- what goes wrong, and what each promises ---------------------------------------------------------------------


def fault_table(figures: Figures, systems: list[System]) -> str:
    head = ["", "5% of the children fail: does the callback run?", "killed: unfinished", "begun twice", "done again after"]
    rows = [
        [system.title, callback(figures, system), *killed(figures, system)] for system in systems if system.program != LOOPS
    ]
    return "\n## When something fails\n\n" + table(head, rows)


def callback(figures: Figures, system: System) -> str:
    found = figures.of(system.name, "fail")
    if not found:
        return "no fan-in" if figures.why_not(system.name, "fail").startswith("unsupported") else "–"
    return callback_said(found[0])


def callback_said(result: Result) -> str:
    """Only who has run all children and then nothing is said to have forgotten the callback."""
    if result["callbacks"]:
        return "once" if result["callbacks"] == 1 else f"{result['callbacks']} times"
    left = result["count"] - round(result["count"] * 0.05) - result["children"]
    return "**never**" if left <= 0 else f"not in {result['waited']:.0f} s: {left} children had not run"


def killed(figures: Figures, system: System) -> list[str]:
    found = figures.of(system.name, "kill")
    if not found:
        return ["–", "–", "–"]
    result = found[0]
    again = f"{result['seconds']:.0f} s" if not result["unfinished"] else f"not in {result['seconds']:.0f} s"
    return [f"{result['unfinished']} of {result['count']}", str(result["begun_twice"]), again]


def about_table(figures: Figures, systems: list[System]) -> str:
    keys = ("version", "settings", "durability", "row_per_job", "acks", "isolation", "fan_in", "bulk")
    head = ["", "version", "settings", "durability", "a row per job", "acknowledged", "isolation", "fan-in", "bulk"]
    rows = [[system.title, *(said(figures.about.get(system.name, {}).get(key, "–")) for key in keys)] for system in systems]
    return "\n## What each promises\n\n" + table(head, rows)


def said(value: object) -> str:
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def failures(figures: Figures, systems: list[System]) -> str:
    """What was to be measured and was not, also if other rounds of it were."""
    lines = [
        f"- {system.title}, {measure.title}{lost_rounds(figures, system, measure.name)}: {why.splitlines()[-1]}\n"
        for system in systems
        for measure in MEASURES
        if (why := figures.why_not(system.name, measure.name)) and system.program != LOOPS
    ]
    return "\n## Not measured\n\n" + "".join(lines) if lines else ""


def lost_rounds(figures: Figures, system: System, measure: str) -> str:
    """How many of its rounds, where there are others."""
    asked, found = figures.results[system.name][measure], figures.of(system.name, measure)
    return f", {len(asked) - len(found)} of {len(asked)} rounds" if found else ""


# ---- charts ------------------------------------------------------------------------------------------------------

TITLES = {
    "drain": "Drain of trivial jobs",
    "fan": "Fan-out and fan-in of 1,000",
    "latency": "From enqueueing to the first line of the job, idle",
    "bulk": "Enqueueing in bulk",
}
UNITS = {"drain": "jobs per second", "fan": "seconds", "latency": "milliseconds (p50)", "bulk": "jobs per second"}
LESS_IS_BETTER = ("fan", "latency")


def draw(figures: Figures) -> dict[str, str]:
    return {name: chart(figures, name) for name in TITLES}


def chart(figures: Figures, measure: str) -> str:
    found = [(name, figures.median(name, measure)) for name in figures.results]
    rows = [charts.Bar(BY_NAME[name].title, value, kind(name)) for name, value in found if value]
    rows.sort(key=lambda row: row.value, reverse=measure not in LESS_IS_BETTER)
    return charts.bars(TITLES[measure], UNITS[measure], rows)


def kind(name: str) -> str:
    return {OURS: "ours", LOOPS: "loop"}.get(BY_NAME[name].program, "peer")
