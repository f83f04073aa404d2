"""A reconciler against workers, in simulated worlds where they meet in the middle of what each of them does.

A meeting is a pass of the reconciler that begins while a worker is in the middle of its turn, or between whose own
transactions others commit. Whatever has ended must stay as it is, seen by triggers in the transactions themselves; and
the reconciler finds nothing to mend but lost workers.
"""

from __future__ import annotations

from chaos.play import Play, Violation
from chaos.rows.r30_simulation import APART, PROCESSES, ends_of, simulate

TITLE = "a reconciler against workers"
DATABASES = ("none",)  # SQLite, in memory, one per process
_HOW = "--reconciled"


def play(play: Play) -> str:
    meetings = play.pick(800, 10_000) // PROCESSES
    first = [play.seed * APART + n * APART // PROCESSES for n in range(PROCESSES)]
    order = ["--count", str(APART // PROCESSES), "--meetings", str(meetings), _HOW]
    ends = ends_of(simulate(play, [[str(seed), *order] for seed in first]), f" {_HOW}")
    met, seeds, jobs, attempts = (sum(end[name] for end in ends) for name in ("meetings", "played", "jobs", "attempts"))
    if met < meetings * PROCESSES:
        raise Violation(f"only {met} meetings in {seeds} seeds")
    return f"{met} meetings in {seeds} seeds with {jobs} jobs and {attempts} attempts: 0 terminal rows changed; SQLite only"
