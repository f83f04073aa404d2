"""What the functions of jobs do: emit items, hand over parts, end well, fail, hang, take their process with them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import orjson

from chaos.sim.ledger import SimLedger
from chaos.sim.world import Broken
from gristmill.errors import GristmillError, Permanent, Waiting
from gristmill.execution.parts import Parts
from gristmill.execution.run import Report

if TYPE_CHECKING:
    from chaos.sim.process import SimProcess, Work

LATER, REST = 2.0, 3.0  # seconds
_ENDS = ("error", "error", "permanent", "skipped", "later", "unspent", "completed_with_errors", "crash", "hang", "end_run")
_NOT_OVER = (
    "SELECT count(*) FROM gm_job j JOIN gm_edge e ON e.upstream_id = j.stage_id"
    " WHERE e.downstream_id = {stage} AND j.state < 2"
)
_HELD = "SELECT 1 FROM gm_job WHERE id = {job} AND attempt = {attempt} AND state = 1"


def begin(process: SimProcess, work: Work) -> None:
    """Decides what will become of an attempt."""
    world, dice = process.world, process.world.dice
    world.trace(process.name, "begins", work.task, work.job, work.attempt)
    process.cast.began[work.job, work.attempt] = process.cast.began.get((work.job, work.attempt), 0) + 1
    _check_fan_in(process, work)
    work.until = world.now + dice.random() * dice.choice((0.005, 0.005, 0.5, 3.0))
    if world.chance(world.nature.failures):
        work.verdict = dice.choice(_ENDS)
    if work.verdict == "hang":
        work.until = math.inf if work.timeout else work.until
        work.verdict = "hang" if work.timeout else "error"
    if work.asked:
        work.verdict = "cancelled"
    items = process.cast.items_of(work, process.stages.get(work.stage or 0))
    while items:
        some = dice.randint(1, 3)
        work.batches.append(items[:some])
        items = items[some:]


def _check_fan_in(process: SimProcess, work: Work) -> None:
    """A stage that is not `each` begins when all that is before it is over; unless this attempt is nobody's any more."""
    info = process.stages.get(work.stage or 0)
    if work.part_of is not None or info is None or info[1]:
        return
    if process.cast.look(_NOT_OVER.format(stage=work.stage))[0][0] and process.cast.look(
        _HELD.format(job=work.job, attempt=work.attempt)
    ):
        raise Broken(f"job {work.job} of stage {info[0]!r} began before all was over that it comes after")


def ask(process: SimProcess, work: Work) -> None:
    """To stop. Most do, some do not."""
    work.asked = True
    if process.world.dice.random() < 0.7 and work in process.works:
        work.until, work.verdict = process.world.now, "cancelled"


def go_on(process: SimProcess, work: Work) -> None:
    """The next thing that a function does."""
    if work.verdict == "crash":
        process.die(-11)
        return
    last = len(work.batches) == 1 and process.world.dice.random() < 0.5  # it goes with the report
    if work.batches and not last:
        process.emit(work, work.batches.pop(0))
        work.until = process.world.now + process.world.dice.random() * 0.2
        return
    verdict, details = work.verdict, dict[str, Any]()
    if verdict == "completed" and work.part_of is None and process.cast.registry.tasks[work.task].parts:
        verdict, details = _hand_over(process, work)
    if process.dead:
        return
    _end(process, work, verdict, details)


def _end(process: SimProcess, work: Work, verdict: str, details: dict[str, Any]) -> None:
    report = Report(work.job, work.attempt, verdict, ran=int((process.world.now - work.started) * 1e6) + 1, **details)
    if verdict in ("completed", "completed_with_errors", "end_run"):
        report = report._replace(result=orjson.dumps({"attempt": work.attempt}).decode())
        process.cast.ended.add((work.job, work.attempt))
    elif verdict in ("error", "permanent"):
        report = report._replace(reason="ValueError: no", error_class="ValueError", error_types=("ValueError",))
    elif verdict in ("later", "unspent"):
        report = report._replace(delay=LATER if verdict == "later" else REST, reason="not now")
    else:
        report = report._replace(reason="so")
    if work.batches:
        report = report._replace(items=(work.sent + 1, work.batches.pop(0)))
    process.end(work, report)


def is_plain(report: Report) -> bool:
    return report.verdict == "completed" and report.items is None


class _Context:
    """As much of a job's context as parts need."""

    def __init__(self, process: SimProcess, work: Work) -> None:
        self._process, self.job, self.attempt = process, work.job, work.attempt
        self._name = work.task
        self._waits = self._finished = False
        self._common = self
        self.run_args: dict[str, Any] = {}
        self.failed = 0

    def _open(self) -> SimLedger:
        return self._process.cast.ledger(self._process)

    def _worker(self) -> int:
        worker: int = self._process.setup["worker"]
        return worker

    def _task(self) -> Any:
        return self._process.cast.registry.task(self._name)

    def phase(self, name: str, total: int) -> _Context:
        return self

    def fail(self, key: str, error: str) -> None:
        self.failed += 1


def _hand_over(process: SimProcess, work: Work) -> tuple[str, dict[str, Any]]:
    """Parts, by the code that a real context has; what it says then."""
    context: Any = _Context(process, work)
    (part,) = context._task().parts.values()
    try:
        Parts.of(context, part, process.cast.parts_of(work))
    except Waiting:
        return "waiting", {}
    except Permanent:
        return "permanent", {}
    except GristmillError as error:  # the ledger is not there, or the attempt is nobody's any more
        process.world.trace(process.name, "cannot hand over", error)
        return "error", {}
    return ("completed_with_errors" if context.failed else "completed"), {}
