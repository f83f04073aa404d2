"""What a worker knows about the tasks, runs and stages of the jobs in its hands, and what a report means to the ledger."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import orjson
from orjson import Fragment

from gristmill.execution.run import Report
from gristmill.ledger import infos
from gristmill.ledger.applied import Guard
from gristmill.ledger.claim import Claimed, Kind
from gristmill.ledger.finish import Outcome, Verdict
from gristmill.ledger.infos import RunInfo, StageInfo, TaskInfo
from gristmill.ledger.store import Tx

_NUMBERS = 10**15  # that are smaller: attempts, and microseconds that a job ran (31 years)
_RESULTS = {str, type(None)}
_MOST_RUNS, _MOST_BYTES = 10_000, 32 << 20  # that are remembered before those without a job in hand are forgotten


def runs_of(kinds: Iterable[Kind]) -> set[int]:
    return {run for kind in kinds if (run := kind.origin.run_id) is not None}


def stages_of(kinds: Iterable[Kind]) -> set[int]:
    return {stage for kind in kinds if (stage := kind.origin.stage_id) is not None}


@dataclass
class Knowledge:
    """What is known about tasks, runs and stages: rows that do not change while jobs of them are held."""

    tasks: dict[int, TaskInfo] = field(default_factory=dict)
    runs: dict[int, RunInfo] = field(default_factory=dict)
    stages: dict[int, StageInfo] = field(default_factory=dict)
    watched: set[int] = field(default_factory=set)  # tasks that have an `on_terminal`
    _bytes: int = 0  # of arguments of runs, of those that were met since some were forgotten

    def suffices(self, begun: Set[int], kinds: Collection[Kind]) -> bool:
        """Is there nothing to ask about jobs of these kinds, and nothing to say? `begun`: runs that have."""
        return not any(self._lacks(kinds)) and runs_of(kinds) <= begun and not any(kind.limited for kind in kinds)

    def _lacks(self, kinds: Collection[Kind]) -> tuple[set[int], set[int], set[int]]:
        """Tasks, runs and stages of theirs that are not known yet."""
        tasks = {kind.task_id for kind in kinds}
        return tasks - self.tasks.keys(), runs_of(kinds) - self.runs.keys(), stages_of(kinds) - self.stages.keys()

    def meet(self, tx: Tx, kinds: Collection[Kind]) -> None:
        """Reads what is not known yet about jobs of these kinds."""
        tasks, runs, stages = self._lacks(kinds)
        if tasks:
            self.tasks.update(infos.tasks(tx, tasks))
            self.watched.update(task for task in tasks if "on_terminal" in self.tasks[task].spec)
        if stages:
            self.stages.update(infos.stages(tx, stages))
        if runs:
            met = infos.runs(tx, runs)
            self.runs.update(met)
            self._bytes += sum(len(run.args) for run in met.values())

    def time_limit(self, kind: Kind) -> float:
        """Seconds that a job of this kind may take; infinity: no limit."""
        return self.tasks[kind.task_id].spec["timeout"] or float("inf")

    @property
    def too_much(self) -> bool:
        """Should runs be forgotten that no job is in hand of? Children remember them too, and decoded."""
        return len(self.runs) > _MOST_RUNS or self._bytes > _MOST_BYTES

    def keep(self, runs: Set[int], stages: Set[int]) -> None:
        """Only these."""
        self.runs = {number: info for number, info in self.runs.items() if number in runs}
        self.stages = {number: info for number, info in self.stages.items() if number in stages}
        self._bytes = 0


def end_of(job: Claimed, verdict: Verdict, **details: Any) -> Outcome:
    """What becomes of a job that is in our hands, whatever its function says."""
    return Outcome(job.id, job.attempt, job.run_id, verdict, part_of=job.part_of, **details)


def encoded(args: Sequence[str | None]) -> Fragment:
    """Arguments as they are in the ledger, as one list: none is decoded here."""
    return Fragment(f"[{','.join([each or 'null' for each in args])}]")


def check_completed(attempts: Sequence[int], results: Sequence[str | None], ran: Sequence[int]) -> None:
    """Refuses columns of plain completions that none of our children says."""
    if min(ran) < 0 or max(ran) >= _NUMBERS or max(attempts) >= _NUMBERS or not set(map(type, results)) <= _RESULTS:
        raise ValueError("these are no ends of jobs")


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < _NUMBERS


def outcome_of(report: Report, job: Claimed) -> Outcome:
    """What a report says, as the ledger wants it."""
    verdict = Verdict(report.verdict)
    texts = (report.result, report.reason, report.error_class, report.traceback, report.log, report.digest)
    if not (_is_number(report.attempt) and _is_number(report.ran) and all(t is None or isinstance(t, str) for t in texts)):
        raise ValueError("this is no end of a job")
    return Outcome(
        report.job,
        report.attempt,
        job.run_id,
        verdict,
        report.result,
        report.ran,
        None if report.progress is None else orjson.dumps(report.progress).decode(),
        report.reason,
        report.error_class,
        tuple(report.error_types),
        report.traceback,
        report.log,
        report.delay if verdict is Verdict.LATER else 0.0,
        digest=report.digest,
        guards=tuple(Guard(*guard) for guard in report.guards),
        part_of=job.part_of,
    )
