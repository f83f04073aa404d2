"""The core in a simulated world, seed after seed: its clock, dice, children, doorbell, and how its ledger fails."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from chaos.play import ROOT, Play, Violation

TITLE = "a simulated core"
DATABASES = ("none",)  # SQLite, in memory, one per process

PROCESSES = 2
_AGAIN = 10  # seeds of each process that are played once more
APART = 1_000_000  # between the seeds of two plays


def play(play: Play) -> str:
    seeds = play.pick(200, 10_000) // PROCESSES
    first = [play.seed * APART + n * APART // PROCESSES for n in range(PROCESSES)]
    began = time.monotonic()
    limit = [] if play.full else ["--seconds", "18", "--least", str(seeds)]
    most = seeds if play.full else APART // PROCESSES
    told = _sum(simulate(play, [[str(seed), "--count", str(most), *limit] for seed in first]), began)
    _replay(play, first)
    return told


def simulate(play: Play, orders: list[list[str]]) -> list[list[dict[str, Any]]]:
    """What each of these processes said, line by line."""
    started = []
    for n, order in enumerate(orders):
        said, wrong = play.folder / f"said{n}", play.folder / f"wrong{n}"
        with said.open("wb") as output, wrong.open("wb") as errors:
            command = [sys.executable, "-m", "chaos.sim", *order]
            process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=errors)
        play.stack.callback(process.kill)
        started.append((process, said, wrong))
    return [_heard(*one) for one in started]


def _heard(process: subprocess.Popen[bytes], said: Path, wrong: Path) -> list[dict[str, Any]]:
    if process.wait() not in (0, 1):
        raise Violation(f"the simulation itself failed: {wrong.read_text()[-2000:]}")
    return [json.loads(line) for line in said.read_text().splitlines()]


def ends_of(told: list[list[dict[str, Any]]], how: str = "") -> list[dict[str, Any]]:
    """What each process said in the end; none of its seeds may have broken anything."""
    broken = [line for lines in told for line in lines if line.get("broken")]
    if broken:
        shown = "\n  ".join(f"seed {line['seed']}: {line['broken']}" for line in broken[:10])
        again = f"python -m chaos.sim {broken[0]['seed']}{how} --trace"
        raise Violation(f"{len(broken)} seeds broke something; one of them again: {again}\n  {shown}")
    return [lines[-1] for lines in told]


def _sum(told: list[list[dict[str, Any]]], began: float) -> str:
    ends = ends_of(told)
    seeds, steps, jobs, attempts = (sum(end[name] for end in ends) for name in ("played", "steps", "jobs", "attempts"))
    rate = seeds / (time.monotonic() - began)
    longest = max(end["longest"] for end in ends)
    return (
        f"{seeds:,} seeds without a violation ({rate:.0f} a second on {PROCESSES} cores): {steps:,} steps, {jobs:,} jobs,"
        f" {attempts:,} attempts; longest pause after the faults {longest:.1f} simulated s; SQLite only;"
        f" {_AGAIN} seeds played twice, in two processes: the same traces"
    )


def _replay(play: Play, first: list[int]) -> None:
    """Some seeds twice, in two processes, and once after others: their traces have the same hashes."""
    some = [_digests(play, first, _AGAIN), _digests(play, [seed + _AGAIN // 2 for seed in first], _AGAIN)]
    both = some[0].keys() & some[1].keys()
    different = sorted(seed for seed in both if some[0][seed] != some[1][seed])
    if different or len(both) < len(first):
        raise Violation(f"seeds that did not play the same way twice: {different} of {sorted(both)}")


def _digests(play: Play, first: list[int], count: int) -> dict[int, str]:
    told = simulate(play, [[str(seed), "--count", str(count), "--digests"] for seed in first])
    return {line["seed"]: line["digest"] for lines in told for line in lines if "digest" in line}
