"""The reconciler: looks at everything, slowly, for what the verbs' guarantees say cannot be, and mends it."""

from __future__ import annotations

from collections.abc import Callable

from gristmill.housekeeping import carry_on, sweep_run
from gristmill.identity import gone, host
from gristmill.ledger import chores, repair, repair_parts, stop, workers
from gristmill.ledger.store import Ledger
from gristmill.model import Repair

_EVERY = 60.0


class Reconciler:
    """`tick` for a loop, `run` for the command."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def tick(self, now: float) -> float:
        self.run(mend=True)
        return _EVERY

    def run(self, *, mend: bool, subject: str | None = None) -> list[Repair]:
        found: list[Repair] = []
        if subject is None:
            found += self._workers(mend)
            found += self._repair(repair.repair_orphans, mend)
            found += self._repair(repair.repair_line, mend)
            found += self._repair(repair_parts.repair_parts, mend)
            found += self._repair(repair_parts.repair_left_behind, mend)
        with self.ledger.reading() as tx:
            runs = repair.active_runs(tx, subject)
            stopping = set(stop.stopping_runs(tx)) & set(runs)
            unfinished = set(chores.pending(tx)) & set(runs)
        for run in runs:
            found += self._repair(repair.repair_run, mend, run)
        if mend:
            for run in sorted(stopping):
                sweep_run(self.ledger, run)
            for run in sorted(unfinished):
                carry_on(self.ledger, run)
        return found

    def _repair(self, verb: Callable[..., list[Repair]], mend: bool, *which: int) -> list[Repair]:
        """Looks first, beside everybody else's work; what was found is looked at again under its lock, and mended."""
        with self.ledger.reading() as tx:
            found = verb(tx, *which, mend=False)
        if not found or not mend:
            return found
        mended = more = self.ledger.do(verb, *which, mend=True)
        while more and not which:  # of all jobs, as many as one transaction should touch
            more = self.ledger.do(verb, mend=True)
            mended = mended + more
        return mended

    def _workers(self, mend: bool) -> list[Repair]:
        with self.ledger.reading() as tx:
            lost = dict.fromkeys(workers.expired(tx), "its lease is over")
            lost |= {number: "its process is gone" for number, pid, birth in workers.on_host(tx, host()) if gone(pid, birth)}
        if mend:
            for number, why in lost.items():
                self.ledger.do(workers.rescue, number, why == "its process is gone")
        return [Repair("rescue", f"worker {number}", why) for number, why in lost.items()]
