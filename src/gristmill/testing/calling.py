"""Calling one task or stage with a real context and without a database."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from gristmill.binding import check_key, encode
from gristmill.errors import Invalid, Skip, did_you_mean
from gristmill.execution import parts as handing
from gristmill.execution.context import Common, Context
from gristmill.execution.emitter import Emitter
from gristmill.execution.locking import Lock, Locks, Program
from gristmill.execution.parts import Parts
from gristmill.execution.run import Report
from gristmill.ledger.applied import Version, guard
from gristmill.model import Stage as StageModel
from gristmill.pipeline import Part, Stage, Task
from gristmill.priority import Priority
from gristmill.registry import Registry
from gristmill.testing.performing import perform

Results = Mapping[str, Any]  # stage: its result, or those of its items by key


class Item(NamedTuple):
    """An item that a stage emitted: its key (empty: it goes on under its producer's), and the stage (None: all)."""

    key: str
    args: dict[str, Any]
    stage: str | None = None


@dataclass(frozen=True)
class Called:
    """How one attempt ended."""

    outcome: str  #: completed, completed_with_errors, skipped, permanent, error, later, waiting, unspent, end_run, cancelled
    items: list[Item] = field(default_factory=list)  #: emitted, in their order
    parts: list[Item] = field(default_factory=list)  #: handed over, in their order; `stage` is the name of the part
    progress: dict[str, Any] | None = None  #: the last that it said
    reason: str | None = None  #: why it was skipped or failed, in words
    delay: float = 0.0  #: seconds, for `Later` and `Unspent`
    error: BaseException | None = field(default=None, repr=False)  #: what the function raised
    value: Any = field(default=None, repr=False)

    @property
    def result(self) -> Any:
        """What the function returned, as the database would give it back; raises what it raised."""
        if self.error is not None:
            raise self.error
        return self.value


def call(
    task: Task[Any, Any],
    *,
    args: Mapping[str, Any] | None = None,
    run_args: Mapping[str, Any] | None = None,
    key: str | None = None,
    subject: str = "subject",
    attempt: int = 1,
    results: Results | None = None,
    parts: Mapping[str, Any] | None = None,
    cancelled: bool = False,
) -> Called:
    """Runs a task or stage once, in this process, without a database.

    `args` are the job's; of a plain stage, the run's. An `each` stage gets its item's as `args`, the run's as `run_args`.
    `results`: what `ctx.results(stage)` gives: a result, or for an `each` stage a dict of results by key.
    `parts`: what became of its parts, by key: a result, or an error for one that failed. Without, it is called for the
    first time, and ends `waiting` if it has any.
    `cancelled`: somebody asked for the job to stop before it began.
    """
    if not isinstance(task, Task):
        raise Invalid(f"{task!r} is not a task; put @task above the function, or give a stage of a pipeline")
    own, shared = _arguments(task, args or {}, run_args or {})
    ctx = _Context(_common(task, subject, shared), _key(task, key), own, attempt, _results(task, results or {}))
    ctx._called, ctx._ended_parts = task, parts
    ctx._asked = cancelled
    sent: list[Any] = []
    emitter = _emitter(ctx, task, shared, sent)
    report, error = perform(task, ctx, emitter)
    return _called(report, error, sent, ctx._handed_over)


def _called(report: Report, error: BaseException | None, sent: list[Any], parts: list[Item]) -> Called:
    rows = sent + (list(report.items[1]) if report.items else [])
    items = [Item(key, {} if args is None else orjson.loads(args), stage) for key, args, stage in rows]
    value = None if report.result is None else orjson.loads(report.result)
    return Called(report.verdict, items, parts, report.progress, report.reason, report.delay, error, value)


def _arguments(
    task: Task[Any, Any], args: Mapping[str, Any], run_args: Mapping[str, Any]
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """(the job's, the run's) arguments, checked like those of work that is asked for, and as JSON brings them back."""
    if not isinstance(task, Stage) and not _is_part_of_stage(task):
        if run_args:
            raise Invalid(f"{task!r} is no stage, so there is no run whose arguments it could get: give them as args")
        return _as_json(task.parameters.check(args)), None
    task.parameters.refuse_unknown(args)
    task.parameters.refuse_missing(args, run_args)
    own, shared = _as_json(task.parameters.check_named(args)), _as_json(task.parameters.check_named(run_args))
    return (None, {**shared, **own}) if isinstance(task, Stage) and not task.each else (own, shared)


def _is_part_of_stage(task: Task[Any, Any]) -> bool:
    return isinstance(task, Part) and isinstance(task.of, Stage)


def _as_json(args: Mapping[str, Any]) -> dict[str, Any]:
    decoded: dict[str, Any] = orjson.loads(encode(args, "the arguments"))
    return decoded


def _key(task: Task[Any, Any], key: str | None) -> str | None:
    if isinstance(task, Part) or (isinstance(task, Stage) and task.each):
        return check_key(("part" if isinstance(task, Part) else "item") if key is None else key)
    if key is not None:
        raise Invalid(f"{task!r} has no items, so no key")
    return None


def _results(task: Task[Any, Any], results: Results) -> dict[str, list[tuple[str, Any]]]:
    """(key, result) by stage, in the order of the keys, as the ledger gives them."""
    task = task.of if isinstance(task, Part) else task
    if not isinstance(task, Stage):
        return {}
    stages = task.pipeline.stages
    given: dict[str, list[tuple[str, Any]]] = {}
    for name, value in results.items():
        if name not in stages:
            raise Invalid(f"pipeline {task.pipeline.name!r} has no stage {name!r}{did_you_mean(name, stages)}")
        if stages[name].each and not isinstance(value, Mapping):
            raise Invalid(f"stage {name!r} has many items: give their results as a dict by key, not {value!r:.60}")
        pairs: Iterable[tuple[str, Any]] = sorted(value.items()) if stages[name].each else [("", value)]
        given[name] = [(key, orjson.loads(encode(result, "a result"))) for key, result in pairs]
    return given


def _common(task: Task[Any, Any], subject: str, run_args: Mapping[str, Any] | None) -> Common:
    part_of = 1 if isinstance(task, Part) else None
    stage = task.of if isinstance(task, Part) else task
    if not isinstance(stage, Stage):
        return Common(task.name, task.timeout, task.demands[0].memory or None, part_of=part_of)
    run_row = (stage.pipeline.name, check_key(subject, "subject"), int(Priority.NORMAL), 1, run_args or {})
    stage_row = (stage.stage_name, stage.each, _targets(stage) if stage is task else [])
    return Common(task.name, task.timeout, task.demands[0].memory or None, 1, run_row, stage_row, part_of)


def _targets(stage: Stage[Any, Any]) -> list[list[str]]:
    """The `each` stages that get its items, as `start` would write them down."""
    followers = (other for other in stage.pipeline.ordered() if other.each)
    return [[other.stage_name, other.name] for other in followers if stage.stage_name in other.after]


def _emitter(ctx: Context, task: Task[Any, Any], run_args: Mapping[str, Any] | None, sent: list[Any]) -> Emitter | None:
    if not isinstance(task, Stage) or not (targets := _targets(task)):
        return None

    def send(kind: str, job: int, attempt: int, number: int, batch: list[Any]) -> None:
        sent.extend(batch)
        emitter.acknowledged(None)

    emitter = Emitter(ctx, targets, Registry(task.pipeline), run_args or {}, send)
    return emitter


def _ended(keys: Iterable[str], became: Mapping[str, Any]) -> Parts[Any]:
    """Parts as the test says that they ended."""
    failed: dict[str, str] = {}
    completed: list[tuple[str, Any]] = []
    total = 0
    for total, key in enumerate(sorted(keys), 1):  # noqa: B007 - how many there were
        if key not in became:
            raise Invalid(f"it was not said what became of the part {key!r}: call(…, parts={{{key!r}: …}})")
        value = became[key]
        if isinstance(value, BaseException):
            failed |= {} if isinstance(value, Skip) else {key: str(value) or type(value).__name__}
        else:
            completed.append((key, orjson.loads(encode(value, "a result"))))
    return Parts(total, failed, completed)


class _Context(Context):
    """A context whose run's results are given by the test."""

    def __init__(
        self,
        common: Common,
        key: str | None,
        args: Mapping[str, Any] | None,
        attempt: int,
        results: Mapping[str, list[tuple[str, Any]]],
    ) -> None:
        super().__init__((0, 1, attempt, key, args), common, time.monotonic())
        self._results = results
        self._called: Task[Any, Any] | None = None
        self._ended_parts: Mapping[str, Any] | None = None
        self._handed_over: list[Item] = []
        self._free = Locks(None, debug=True)

    def parts(self, part: Part[Any, Any] | str, items: Iterable[Any]) -> Parts[Any]:
        wanted = handing.part_of(self, part)
        there = {item.key for item in self._handed_over}
        for key, args in handing.rows(wanted, items, self._common.run_args):
            if key in there:
                raise Invalid(f"the part {key!r} was asked for twice; keys must be unique among the parts of a job")
            there.add(key)
            self._handed_over.append(Item(key, {} if args is None else orjson.loads(args), wanted.part_name))
        keys = [item.key for item in self._handed_over if item.stage == wanted.part_name]
        if keys and self._ended_parts is None:
            handing.wait(self)
        return handing.judged(self, wanted, _ended(keys, self._ended_parts or {}))

    def lock(self, kind: str | int, item: str | int, *, timeout: float | None = None) -> Lock:
        return self._free.lock(kind, item, timeout, Program())

    def skip_stale(self, *resource: str | int, version: Version, **options: Any) -> None:
        """Nothing was applied before."""
        guard(resource, version, options.get("label"), bool(options.get("force")))

    def _task(self) -> Task[Any, Any]:
        assert self._called is not None
        return self._called

    def results(self, stage: str) -> Iterator[tuple[str, Any]]:
        self._run()
        if stage not in self._results:
            raise Invalid(f"no results of stage {stage!r} were given: call(…, results={{{stage!r}: …}})")
        return iter(self._results[stage])

    def counts(self, stage: str) -> StageModel:
        raise Invalid("a function that is called without a database has no counters; start a run and drain a mill")
