"""Retention as a loop: removes what no rule keeps, a little at a time, and never more than a fortieth of the time."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence

from gristmill.clock import SECOND
from gristmill.housekeeping import remove_pending
from gristmill.ledger import names, prune, remove
from gristmill.ledger.prune import Cut, Record
from gristmill.ledger.store import Ledger
from gristmill.model import Pruned
from gristmill.retention import Rule

Rules = Mapping[str, Sequence[Rule]]  # by the name of a task or pipeline

_EVERY = 3600.0  # seconds between two sweeps
# Rests so many times as long as it worked: claims may lose a tenth, and what a commit leaves behind (the log, vacuum) costs
# them more than its own time; on SQLite, where all wait for whoever writes, twice as much.
_REST = 39
_LEAST = 0.01
_RUNS = 100  # runs that one look finds
_PAGE = 5000  # jobs that one look reads
_WORKERS = 30 * 86_400 * SECOND  # how long workers are remembered after they have gone


class Pruner:
    """`tick` for a loop, `run` for the command. What has no rules of its own goes by `others`."""

    def __init__(
        self,
        ledger: Ledger,
        pipelines: Rules,
        tasks: Rules,
        others: Sequence[Rule] = (),
        by: str = "retention",
        audit: int = 0,
    ) -> None:
        self.ledger = ledger
        self.pipelines = pipelines
        self.tasks = tasks
        self.others = others
        self.by = by
        self.audit = audit  # how long its entries are kept, in microseconds; 0: for ever
        self._sweep: Iterator[None] | None = None
        self.record = Record()
        self.workers = self.entries = 0  # what was removed beside runs and jobs
        self._most: int | None = None  # runs and jobs that may be removed

    @property
    def any_rule(self) -> bool:
        """Is there anything that is not kept for ever?"""
        return bool(self.pipelines or self.tasks or self.others)

    @property
    def idle(self) -> bool:
        """Is no sweep under way?"""
        return self._sweep is None

    def tick(self, now: float) -> float:
        """One step of a sweep: one look, or one transaction."""
        began = time.monotonic()
        sweep, self._sweep = self._sweep or self._steps(), None  # an error ends it; the next tick begins anew
        if next(sweep, self) is self:
            return _EVERY
        self._sweep = sweep
        return max(_LEAST, self._rest_after(time.monotonic() - began))

    def _rest_after(self, worked: float) -> float:
        return _REST * worked * (2 if self.ledger.is_sqlite else 1)

    def run(self, *, dry_run: bool = False, most: int | None = None, within: float = math.inf) -> Pruned:
        """A whole sweep; of at most so many runs and jobs, and for as long as there is time (seconds)."""
        self._most = most
        sweep, until, whole = self._steps(dry_run), time.monotonic() + within, False
        while not whole and time.monotonic() < until:
            began = time.monotonic()
            whole = next(sweep, self) is self
            if not whole and not dry_run:
                time.sleep(self._rest_after(time.monotonic() - began))
        return Pruned(self.record.runs, self.record.jobs, self.workers, self.entries, open=not whole)

    def _room(self) -> float:
        """How many more may be removed."""
        return math.inf if self._most is None else self._most - self.record.runs - self.record.jobs

    def _steps(self, dry_run: bool = False) -> Iterator[None]:
        self.record = Record()
        self.workers = self.entries = 0
        with self.ledger.reading() as tx:
            pipelines = prune.pipelines(tx)
            tasks = names.tasks(tx)
        for pipeline in pipelines:
            for rule in self.pipelines.get(pipeline, self.others):
                yield from self._runs(pipeline, rule, dry_run)
        yield from self._jobs(tasks, dry_run)
        if not dry_run:
            remove_pending(self.ledger)
        yield from self._records(dry_run)

    def _records(self, dry_run: bool) -> Iterator[None]:
        """What is about the ledger's own past: workers that are long gone, old entries of the audit."""
        with self.ledger.reading() as tx:
            gone = prune.gone_workers(tx, _WORKERS, _PAGE)
        if gone and not dry_run:
            yield
            gone = self.ledger.do(prune.forget_workers, _WORKERS, _PAGE)
        self.workers = gone
        after = 0
        while self.audit:
            yield
            with self.ledger.reading() as tx:
                entries = prune.old_entries(tx, self.audit, after, remove.BATCH)
            if not entries:
                return
            after = entries[-1]
            self.entries += len(entries) if dry_run else self.ledger.do(prune.forget_entries, entries)

    def _runs(self, pipeline: str, rule: Rule, dry_run: bool) -> Iterator[None]:
        after = 0
        while True:
            with self.ledger.reading() as tx:
                old = prune.old_runs(tx, pipeline, rule, after, _RUNS)
            yield
            for run, jobs in old:
                after = run
                if dry_run:
                    self.record = Record(None, self.record.runs + 1, self.record.jobs + jobs)
                elif 1 + jobs <= self._room():
                    self.record = self.ledger.do(prune.prune_run, run, self.record, by=self.by)
                    yield
                    yield from self._rest_of_run(jobs)
            if len(old) < _RUNS:
                return

    def _rest_of_run(self, jobs: int) -> Iterator[None]:
        """The jobs of a run that is too large for one transaction."""
        if jobs <= remove.BATCH:
            return
        with self.ledger.reading() as tx:
            stages = remove.pending(tx)
        for stage in stages:
            while self.ledger.do(remove.remove_jobs, stage):
                yield

    def _jobs(self, tasks: Sequence[tuple[int, str]], dry_run: bool) -> Iterator[None]:
        """Jobs on their own, in the order of their numbers: no index is kept for this, since every job would pay for it."""
        cuts = self._cuts(tasks)
        after: int | None = 0
        while cuts and after is not None:
            yield
            with self.ledger.reading() as tx:
                page = prune.old_jobs(tx, cuts, after, _PAGE)
            after = page.last
            for first in range(0, len(page.jobs), remove.BATCH):
                batch = page.jobs[first : first + remove.BATCH]
                if dry_run:
                    self.record = self.record._replace(jobs=self.record.jobs + len(batch))
                elif batch := batch[: int(min(len(batch), self._room()))]:
                    yield
                    self.record = self.ledger.do(prune.prune_jobs, batch, self.record, by=self.by)

    def _cuts(self, tasks: Sequence[tuple[int, str]]) -> list[Cut]:
        numbers: dict[str, list[int]] = {}
        for number, name in tasks:
            numbers.setdefault(name, []).append(number)
        with self.ledger.reading() as tx:
            return [cut for name, ids in numbers.items() for cut in prune.cuts(tx, ids, self.tasks.get(name, self.others))]
