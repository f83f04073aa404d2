"""The reconciler: looks at everything, slowly, for what the verbs' guarantees say cannot be, and mends it.

With an application it also asks that one, in a child process, for work that was done but not recorded (probes), and for
what only the application can see (checks).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import Any, NamedTuple

import orjson

from gristmill.errors import AppError, DatabaseError, GristmillError, Refused
from gristmill.execution.inquiry import Inquiry
from gristmill.housekeeping import carry_on, sweep_run
from gristmill.identity import gone, host
from gristmill.ledger import adopt, chores, infos, limiting, moment, recover, repair, repair_parts, stop, workers
from gristmill.ledger.adopt import Adoption
from gristmill.ledger.emit import Item
from gristmill.ledger.store import Ledger, Tx
from gristmill.ledger.whose import ALL, Whose
from gristmill.model import Repair

log = logging.getLogger("gristmill.reconciler")

EVERY = 60.0  # seconds between two passes of the loop
_AGAIN = 2.0  # after the database could not be reached
_SHOWN = 60  # characters of a result in a line
_EXPIRED, _GONE = "its lease is over", "its process is gone"

Act = Callable[[str, dict[str, Any]], object]  # one of the mill's verbs, by name


class Scope(NamedTuple):
    """What a pass looks at, and what it leaves alone."""

    mend: bool
    subject: str | None = None
    pipeline: str | None = None
    quiet: int = 0  # microseconds: only what has not changed for so long
    tried: int = 0  # probe only items that were tried so often

    @property
    def everything(self) -> bool:
        return self.whose == ALL

    @property
    def whose(self) -> Whose:
        return Whose(self.subject, self.pipeline)

    def matches(self, pipeline: str | None, subject: str | None) -> bool:
        return self.subject in (None, subject) and self.pipeline in (None, pipeline)


def tally(found: Sequence[Repair]) -> tuple[int, int]:
    """How many were mended (or would be), and how many are left to a person.

    What could not be mended is listed twice: as what should be done, and then why it was not.
    """
    left = sum(repair.left for repair in found)
    tried = sum(not one.left and why.left and one.target == why.target for one, why in pairwise(found))
    return len(found) - left - tried, left


class Reconciler:
    """`loop` for a service, `run` for the command."""

    def __init__(
        self,
        ledger: Ledger,
        scope: Scope,
        sources: Sequence[str] = (),
        act: Act | None = None,
        by: str = "reconciler",
        patience: float = 60.0,
    ) -> None:
        self.ledger = ledger
        self.scope = scope
        self.sources = sources  # of the application; none: only the ledger is looked at
        self.act = act
        self.by = by
        self.patience = patience
        self._probed: set[tuple[int, int]] = set()  # by the loop: a probe need not be asked twice about one attempt

    def loop(self, stop: threading.Event, every: float = EVERY) -> None:
        """A pass now and then, until told to stop. What one cannot do, the next one tries again."""
        self.scope = self.scope._replace(tried=1)
        wait = 0.0
        while not stop.wait(wait):
            wait = every
            try:
                for found in self.run(once=True) or ():
                    how = "not mended" if found.left else "mended"
                    log.warning("%s: %s %s: %s", how, found.what, found.target, found.detail)
            except DatabaseError as error:
                log.warning("%s; trying again in %g s", error, _AGAIN)
                wait = _AGAIN
            except Exception as error:  # an application that cannot be loaded just now, or a bug: neither ends the loop
                log.error("reconcile", exc_info=error)

    def run(self, *, once: bool = False) -> list[Repair] | None:
        """One pass; None: another reconciler is at work, and this one stepped aside. `once`: each attempt is probed once."""
        scope = self.scope
        with ExitStack() as stack:
            if scope.mend and not stack.enter_context(self.ledger.sole("reconcile")):
                return None
            with self.ledger.reading() as tx:
                at = recover.now(tx)
            found = self._ledger(scope, at)
            if self.sources:
                found += self._application(scope, at, once)
            if scope.mend:
                self._sweep(scope)
            return found

    # ---- the ledger itself

    def _ledger(self, scope: Scope, at: int) -> list[Repair]:
        found = self._workers(scope, at)
        found += self._repair_jobs(repair.repair_orphans, scope)
        found += self._repair_jobs(repair.repair_line, scope)
        found += self._repair_jobs(limiting.repair_permits, scope)
        found += self._repair_jobs(repair_parts.repair_parts, scope)
        found += self._repair_jobs(repair_parts.repair_left_behind, scope)
        found += self._moments(scope)
        with self.ledger.reading() as tx:
            stranded = repair.stranded_runs(tx, scope.subject, scope.pipeline)
            runs = repair.active_runs(tx, scope.subject, scope.pipeline)
        for run in stranded:
            found += self._repair(repair.repair_stranded, scope, run, at)
        for run in runs:
            found += self._repair(repair.repair_run, scope, run, at)
        return found

    def _sweep(self, scope: Scope) -> None:
        with self.ledger.reading() as tx:
            active = set(repair.active_runs(tx, scope.subject, scope.pipeline))
            stopping = active.intersection(stop.stopping_runs(tx))
            unfinished = active.intersection(chores.pending(tx))
        for run in sorted(stopping):
            sweep_run(self.ledger, run)
        for run in sorted(unfinished):
            carry_on(self.ledger, run)

    def _repair(self, verb: Callable[..., list[Repair]], scope: Scope, run: int, at: int) -> list[Repair]:
        """Looks first, beside everybody else's work; what was found is looked at again under its lock, and mended."""
        with self.ledger.reading() as tx:
            found = verb(tx, run, False, scope.quiet, at)
        if not found or not scope.mend:
            return found
        try:
            return self.ledger.do(verb, run, True, scope.quiet, at)
        except Refused:
            return []  # it has become right meanwhile

    def _repair_jobs(self, verb: Callable[..., list[Repair]], scope: Scope) -> list[Repair]:
        """The same for jobs, as many at a time as one transaction should touch."""
        with self.ledger.reading() as tx:
            found = verb(tx, False, scope.quiet, whose=scope.whose)
        if not found or not scope.mend:
            return found
        mended: list[Repair] = []
        while more := self.ledger.do(verb, True, scope.quiet, whose=scope.whose):
            if more == mended[-len(more) :]:  # it cannot be mended: once more would find the same again
                break
            mended += more
        return mended

    def _moments(self, scope: Scope) -> list[Repair]:
        """What applications declared for the end of their jobs, and failed then."""
        with self.ledger.reading() as tx:
            missed = moment.missed(tx, whose=scope.whose)
        if not missed or not scope.mend:
            return [Repair("on_terminal", f"job {job}", error) for job, error in missed]
        found: list[Repair] = []
        after: int | None = 0
        while after is not None:
            after, some = self.ledger.do(moment.catch_up, after, whose=scope.whose)
            found += some
        return found

    def _workers(self, scope: Scope, at: int) -> list[Repair]:
        """All that are lost, whoever asks: that is always right. Named are those that held something of the scope."""
        with self.ledger.reading() as tx:
            lost = dict.fromkeys(workers.expired(tx), _EXPIRED)
            lost |= {number: _GONE for number, pid, birth in workers.on_host(tx, host()) if gone(pid, birth)}
            named = [number for number in lost if self._held_something(tx, scope, number)]
        if scope.mend:
            lost = {number: why for number, why in lost.items() if self._rescued(number, why, at)}
        return [Repair("rescue", f"worker {number}", why) for number, why in lost.items() if number in named]

    def _rescued(self, worker: int, why: str, at: int) -> bool:
        """Unless it is back, or others were faster."""
        return self.ledger.do(recover.rescue, worker, why == _GONE, at, why) is not None

    def _held_something(self, tx: Tx, scope: Scope, worker: int) -> bool:
        if scope.everything:
            return True
        return not workers.runs_of(tx, worker).isdisjoint(repair.active_runs(tx, scope.subject, scope.pipeline))

    # ---- what the application knows

    def _application(self, scope: Scope, at: int, once: bool) -> list[Repair]:
        with Inquiry(self.sources, self.ledger.absolute_url, self.patience) as inquiry:
            found = self._adopt(scope, at, once, inquiry) if inquiry.probes else []
            for check in inquiry.checks:
                found += self._check(scope, at, check, inquiry.ask("check", check, scope.pipeline, scope.subject))
            return found

    def _adopt(self, scope: Scope, at: int, once: bool, inquiry: Inquiry) -> list[Repair]:
        with self.ledger.reading() as tx:
            runs = repair.active_runs(tx, scope.subject, scope.pipeline)
            stages = adopt.stages_to_probe(tx, runs, inquiry.probes)
        found: list[Repair] = []
        queued: set[tuple[int, int]] = set()
        for stage in stages:
            after: str | None = None
            while True:
                with self.ledger.reading() as tx:
                    rows = adopt.candidates(tx, stage.id, after, tried=scope.tried, quiet=scope.quiet)
                    known = infos.runs(tx, [stage.run_id]), infos.stages(tx, [stage.id])
                if not rows:
                    break
                after = rows[-1].key
                queued |= {(row.id, row.attempt) for row in rows}
                fresh = [row for row in rows if not once or (row.id, row.attempt) not in self._probed]
                found += self._adopt_some(scope, at, stage, fresh, known, inquiry)
        self._probed = queued if once else self._probed
        return found

    def _adopt_some(
        self, scope: Scope, at: int, stage: Any, rows: Iterable[Any], known: tuple[Any, Any], inquiry: Inquiry
    ) -> list[Repair]:
        if stage.run_id not in known[0] or stage.id not in known[1]:
            return []
        run, target = known[0][stage.run_id], f"run {stage.run_id} stage {stage.name}"
        run_row = (*run[:-1], orjson.loads(run.args))
        common = (stage.task, None, None, stage.run_id, run_row, tuple(known[1][stage.id]))
        found: list[Repair] = []
        adoptions: dict[int, Adoption] = {}
        diffs: dict[int, Repair] = {}
        for row in rows:
            args = None if row.args is None else orjson.loads(row.args)
            name = f"job {row.id} {target}" + (f" key {row.key}" if row.key else "")
            match inquiry.ask("probe", [0, row.id, row.attempt, row.key, args], common):
                case ["there", result, items]:
                    adoptions[row.id] = Adoption(row.id, row.attempt, stage.run_id, result, [Item(*i) for i in items])
                    shown = "" if result is None else f", result {result[:_SHOWN]}"
                    diffs[row.id] = Repair("adopt", name, f"queued → completed{shown}")
                case ["error", text, *_]:
                    found.append(Repair("probe failed", name, text))
        if scope.mend and adoptions:
            done = self.ledger.do(self._adopt_and_note, list(adoptions.values()), diffs, target, at)
            return found + [diffs[job] for job in done]
        return found + list(diffs.values())

    def _adopt_and_note(
        self, tx: Any, adoptions: Sequence[Adoption], diffs: dict[int, Repair], target: str, at: int
    ) -> list[int]:
        done = adopt.adopt(tx, adoptions, by=self.by, target=target)
        if done:
            recover.note(tx, adoptions[0].run, at, "adopt", [diffs[job] for job in done])
        return done

    def _check(self, scope: Scope, at: int, check: str, answer: list[Any]) -> list[Repair]:
        if answer[0] != "found":
            return [Repair("check failed", check, answer[1])]
        found: list[Repair] = []
        for finding in answer[1]:
            pipeline, subject = finding["pipeline"], finding["subject"]
            if scope.matches(pipeline, subject):
                target = " ".join(filter(None, (pipeline, subject))) or check
                found.append(Repair(finding["verb"] or "look into", target, f"{check}: {finding['detail']}"))
                if scope.mend and finding["verb"]:
                    found += self._act(check, finding, found[-1], at)
        return found

    def _act(self, check: str, finding: dict[str, Any], said: Repair, at: int) -> list[Repair]:
        """Mends by a verb of the mill. A subject that needs it too often is left to a person."""
        pipeline, subject = finding["pipeline"], finding["subject"]
        if pipeline and subject and not self.ledger.do(recover.note_check, pipeline, subject, at, said):
            return [Repair("fail", said.target, "recovered too often within a day: left to a person")]
        arguments = dict(finding["arguments"])
        if finding["verb"] == "start":
            arguments |= {"pipeline": pipeline, "subject": subject}
        elif finding["verb"] == "enqueue":  # the next pass must not add another while the first one waits
            arguments.setdefault("unique", f"check {check} {subject or finding['detail']}"[:200])
        try:
            if self.act is None:
                raise AppError("there is no application to do it with")
            self.act(finding["verb"], arguments)
        except (GristmillError, TypeError) as error:
            return [Repair("not mended", said.target, str(error))]
        return []
