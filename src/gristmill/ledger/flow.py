"""What a change of counters sets off: stages close, what follows starts, runs end. All under the lock of the run.

Every route on which a job becomes terminal (finished, failed, cancelled, rescued) ends in `tally`, in the same
transaction. So the last item of a stage closes it exactly once, whichever route it takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from gristmill.errors import Refused
from gristmill.ledger import chores, parents
from gristmill.ledger.columns import STAGE, columns
from gristmill.ledger.moment import Ended, moment
from gristmill.ledger.read import LAST_WHOLE_RUN
from gristmill.ledger.sql import Sql
from gristmill.ledger.steps import Steps
from gristmill.ledger.store import Tx
from gristmill.need import Need
from gristmill.states import NOBODY, TERMINAL, StageState, State

LockedRuns = Mapping[int, Any]  # rows of gm_run that this transaction has locked, by id

_LOCK_RUNS = Sql(
    "SELECT id, subject_id, priority, state, epoch, stop, reason, error FROM gm_run WHERE id {in ids} ORDER BY id {lock}"
)
_COUNT = Sql(
    "UPDATE gm_stage SET completed = completed + f.done, with_errors = with_errors + f.partly,"
    " failed = failed + f.bad, skipped = skipped + f.passed, cancelled = cancelled + f.dropped"
    " FROM {rows f: stage bigint, done int, partly int, bad int, passed int, dropped int} WHERE gm_stage.id = f.stage"
    " RETURNING run_id, state, total - completed - failed - skipped - cancelled"
)
_STAGES = Sql(f"SELECT {columns(STAGE)} FROM gm_stage WHERE run_id {{in runs}} ORDER BY run_id, position")
_EDGES = Sql(
    "SELECT s.run_id, e.upstream_id, e.downstream_id FROM gm_edge e JOIN gm_stage s ON s.id = e.upstream_id"
    " WHERE s.run_id {in runs}"
)
_COUNTERS = Sql(
    "UPDATE gm_stage SET total = :total, completed = :completed, with_errors = :with_errors, failed = :failed,"
    " skipped = :skipped, cancelled = :cancelled WHERE id = :stage"
)
_CHORES = Sql("UPDATE gm_stage SET todo = :todo, pruning = :pruning, waiting_for = :waiting_for WHERE id = :stage")
_LEFT_OUT = Sql(
    f"SELECT count(*) FROM gm_job WHERE stage_id = :stage AND state = {State.SKIPPED:d}"
    f" AND error_class IN ('{chores.NOT_EMITTED}', '{chores.NOT_CHOSEN}')"
)
_ITS_JOB = Sql("SELECT id, state FROM gm_job WHERE stage_id = :stage {lock}")
_LAST_GOOD_STAGES = Sql(
    "SELECT g.name, coalesce(g.source_id, g.id) AS source, f.id IS NOT NULL AS there FROM gm_stage g"
    f" LEFT JOIN gm_stage f ON f.id = coalesce(g.source_id, g.id) WHERE g.run_id = {LAST_WHOLE_RUN % ':subject'}"
)
_IS_THERE = Sql("SELECT 1 FROM gm_stage WHERE id = :stage")
_BEGUN = Sql(
    f"UPDATE gm_run SET state = {State.IN_PROGRESS:d}, started_at = {{now}} WHERE id = :run AND state = {State.QUEUED:d}"
)
_TAKEN = Sql("UPDATE gm_stage SET source_id = :source WHERE id = :stage")
_ERROR = Sql("SELECT error FROM gm_job WHERE stage_id = :stage")
_STOP = Sql(
    "UPDATE gm_run SET stop = :stop, stop_by = :by, reason = :reason, error = :error WHERE id = :run AND stop IS NULL"
)
_ACTIVATE = Sql(f"UPDATE gm_run SET state = {State.QUEUED:d} WHERE id = :run")


class Change(NamedTuple):
    """A job that became terminal: an item of a stage, a part of a job, or neither."""

    stage_id: int | None
    state: int
    part_of: int | None = None


def lock_runs(tx: Tx, ids: Iterable[int | None]) -> dict[int, Any]:
    """Locks runs in the order of their ids (None: a job on its own). The lock of a run covers all its stages."""
    wanted = sorted({run for run in ids if run is not None})
    return {row.id: row for row in tx.all(_LOCK_RUNS, ids=wanted)} if wanted else {}


def tally(tx: Tx, changes: Mapping[Change, int]) -> None:
    """Counts jobs that became terminal, and lets every run whose stage is full move on. Runs are locked already."""
    counts: dict[int, Counter[int]] = {}
    ends: Counter[tuple[int | None, int]] = Counter({change[:2]: n for change, n in changes.items() if not change.part_of})
    if parts := {(change.part_of, change.state): n for change, n in changes.items() if change.part_of}:
        ends.update(parents.count(tx, parts))  # the last of them may end what they are parts of
    for (stage, state), number in ends.items():
        if stage is not None:
            counts.setdefault(stage, Counter())[state] = number
    if not counts:
        return
    rows = [
        (
            stage,
            c[State.COMPLETED] + c[State.COMPLETED_WITH_ERRORS],
            c[State.COMPLETED_WITH_ERRORS],
            c[State.FAILED],
            c[State.SKIPPED],
            c[State.CANCELLED],
        )
        for stage, c in sorted(counts.items())
    ]
    full = {run for run, state, left in tx.all(_COUNT, f=rows) if state == StageState.SEALED and left == 0}
    if full:
        advance(tx, full)


def over(tx: Tx, ended: Iterable[Sequence[Any]]) -> None:
    """What follows from jobs that ended without a worker: (stage, state, what it is a part of, job, task) of each."""
    rows = list(ended)
    tx.done.ended(NOBODY, (row[3] for row in rows))
    tally(tx, Counter(Change(*row[:3]) for row in rows))
    moment(tx, [Ended(*row[3:]) for row in rows])


def renew(tx: Tx, run: Any, items: Sequence[tuple[Any, str | None]]) -> None:
    """Queues items (their rows, their arguments now) of a locked run again. Their stages are open: nothing closes."""
    chores.renew(tx, run.epoch, run.priority, [(row.id, args) for row, args in items])
    flow = Flow.of(tx, run.id)
    for stage in {row.stage_id for row, _ in items}:
        flow.recount(flow.stages[stage], Counter(row.state for row, _ in items if row.stage_id == stage))


def begin(tx: Tx, run: int) -> None:
    """Opens the stages that wait for nothing, or only for items of an earlier run. Refuses if there is no such run."""
    flow = Flow.of(tx, run)
    if any(is_taken(stage) for stage in flow.stages.values()):
        flow.stand_on_last_good_run()
    for stage in flow.stages.values():
        if stage["waiting_for"] == 0:
            flow.open(stage)
        elif stage["todo"] is not None:
            flow.open(stage)
            flow.take_over(stage)
    flow.settle()


def advance(tx: Tx, runs: Iterable[int]) -> None:
    """Closes what is full, starts what waited for it, and ends each run after its last stage."""
    steps = Steps(tx)
    for flow in _read(tx, runs, steps):
        flow.settle()
    _write_and_activate(tx, steps)


def activate(tx: Tx, run: int) -> None:
    """A waiting run, whose subject has no active one, begins."""
    tx.run(_ACTIVATE, run=run)
    tx.notes.run(run, state=State.QUEUED.word)
    try:
        begin(tx, run)
    except Refused as refused:  # the earlier run that it was to stand on is no more
        stop(tx, run, State.FAILED, by="gristmill", error=str(refused))


def add_job(tx: Tx, run: int, stage: int) -> None:
    """The one job of a plain stage, whose row is gone."""
    flow = Flow.of(tx, run)
    flow.add_job(flow.stages[stage])


def resume(tx: Tx, run: int) -> None:
    """The same for a run that something else than a verb has changed: nothing is taken for granted but the rows' states."""
    Flow.of(tx, run).resume()


def stop(tx: Tx, run: int, target: State, *, by: str, reason: str | None = None, error: str | None = None) -> None:
    """Flags a run to end in `target`. Nothing of it starts any more; the sweep ends the jobs that it has."""
    Flow.of(tx, run).stop(target, by=by, reason=reason, error=error)


def _read(tx: Tx, runs: Iterable[int], steps: Steps | None = None) -> list[Flow]:
    """Locks these runs and reads their stages, all at once."""
    locked = lock_runs(tx, runs)
    flows = {number: Flow(tx, row._asdict(), steps) for number, row in locked.items()}
    for row in tx.all(_STAGES, runs=list(locked)):
        flows[row.run_id].stages[row.id] = row._asdict()
    for flow in flows.values():
        flow.after.update({stage: [] for stage in flow.stages})
    for run, upstream, downstream in tx.tuples(_EDGES, runs=list(locked)):
        flows[run].after[upstream].append(downstream)
    return list(flows.values())


def _write_and_activate(tx: Tx, steps: Steps) -> None:
    """What has ended may be what another run of its subject waited for."""
    for run in steps.write():
        activate(tx, run)


class Flow:
    """A locked run with its few stages in memory.

    Stages that open, close and wait, new jobs and the end go to the rows at once, or with those of other runs (`steps`).
    Everything else is written at once; so nothing newer is overwritten, since a step writes what is in memory by then.
    """

    def __init__(self, tx: Tx, run: dict[str, Any], steps: Steps | None = None) -> None:
        self.tx = tx
        self.run = run
        self.stages: dict[int, dict[str, Any]] = {}
        self.after: dict[int, list[int]] = {}
        self._steps = steps or Steps(tx)
        self._at_once = steps is None

    @classmethod
    def of(cls, tx: Tx, run: int) -> Flow:
        (flow,) = _read(tx, [run])
        return flow

    def _change(self, stage: dict[str, Any], **values: Any) -> None:
        self._steps.change(stage, **values)
        self._stepped()

    def _stepped(self) -> None:
        if self._at_once:
            steps, self._steps = self._steps, Steps(self.tx)
            _write_and_activate(self.tx, steps)

    def settle(self) -> None:
        while full := [s for s in self.stages.values() if s["state"] == StageState.SEALED and _left(s) == 0]:
            for stage in full:
                self._close(stage)
        if self.run["state"] not in TERMINAL and all(s["state"] == StageState.CLOSED for s in self.stages.values()):
            self._end()

    def open(self, stage: dict[str, Any]) -> None:
        """A plain stage gets its one job. An `each` stage gets its items from others, and those after it may too."""
        if stage["state"] != StageState.WAITING:
            return
        state = StageState.OPEN if stage["each"] else StageState.SEALED
        items = 0 if stage["each"] or stage["total"] else 1
        self._change(stage, opened=True, state=state, total=stage["total"] + items)
        if not stage["each"] and not items:
            self.run_again(stage)
        elif not stage["each"]:
            self.add_job(stage)
        for follower in self.followers(stage):
            if follower["each"]:
                self.open(follower)

    def add_job(self, stage: dict[str, Any]) -> None:
        self._steps.add_job(self.run, stage)
        self._stepped()

    def run_again(self, stage: dict[str, Any]) -> None:
        """The one job of a plain stage is there from before."""
        job = self.tx.one(_ITS_JOB, stage=stage["id"])
        chores.rerun(self.tx, self.run, [job.id])
        self.recount(stage, {job.state: 1})
        self.tx.ring(stage["queue_id"])

    def recount(
        self, stage: dict[str, Any], before: Mapping[int, int], after: Mapping[int, int] = MappingProxyType({})
    ) -> None:
        """Items that were in these states are in those now; if there are more of them, they are new."""
        moved: Counter[str] = Counter(total=max(0, sum(after.values()) - sum(before.values())))
        for states, sign in ((before, -1), (after, 1)):
            for state, number in states.items():
                if state in _COUNTED:
                    moved[_COUNTED[State(state)]] += sign * number
                if state == State.COMPLETED_WITH_ERRORS:
                    moved["with_errors"] += sign * number
        stage.update({name: stage[name] + number for name, number in moved.items()})
        self.tx.run(_COUNTERS, stage=stage["id"], **{name: stage[name] for name in _COUNTER_NAMES})

    # ---- a part of a pipeline

    def stand_on_last_good_run(self) -> None:
        """Stages that are not run stand for those of the last good run that was not ended early: results, and items."""
        before = {row.name: row for row in self.tx.all(_LAST_GOOD_STAGES, subject=self.run["subject_id"])}
        needed = {up for up, followers in self.after.items() for f in followers if not is_taken(self.stages[f])}
        for stage in self.stages.values():
            found = before.get(stage["name"])
            needs = stage["todo"] is not None or (is_taken(stage) and stage["id"] in needed)
            if needs and (found is None or not found.there):
                why = _why_not(found, before)
                raise Refused(f"stage {stage['name']!r} cannot be taken from an earlier run: {why}; start a whole run")
            if found is not None and is_taken(stage):
                self.tx.run(_TAKEN, stage=stage["id"], source=found.source)
            if found is not None and stage["todo"] is not None:
                todo = {**orjson.loads(stage["todo"]), "source": found.source}
                self.set_chores(stage, orjson.dumps(todo).decode(), stage["pruning"])

    def _own_stages(self) -> set[str]:
        return {stage["name"] for stage in self.stages.values() if not is_taken(stage)}

    def take_over(self, stage: dict[str, Any]) -> None:
        """The first of the items that it had in the earlier run."""
        keys = orjson.loads(stage["todo"])["keys"]
        self.move_on(stage)
        if keys and stage["todo"] is None and _left(stage) == 0:
            had = f"stage {stage['name']!r} had in the last good run"
            raise Refused(f"no item that {had} has a key like {' or '.join(map(repr, keys))}")

    def _take_batch(self, stage: dict[str, Any], todo: Mapping[str, Any]) -> chores.Batch:
        done = chores.take_over(self.tx, self.run, stage, todo, self._own_stages())
        if any(state in TERMINAL for state in done.after) and self.tx.run(_BEGUN, run=self.run["id"]):
            self.tx.notes.run(self.run["id"], state=State.IN_PROGRESS.word)
        return done

    # ---- what is done in batches before a stage may be sealed

    def go_on(self, stage: dict[str, Any]) -> bool:
        """The next batch of what is left to do for a stage, if it is time; says whether there was one."""
        if self.run["stop"] is not None:
            return False
        if stage["todo"] is not None:
            todo = orjson.loads(stage["todo"])
            if "select" in todo:
                done = chores.requeue(self.tx, self.run, stage, chores.Selection(*todo["select"]), todo["from"])
            elif any(before["todo"] is not None for before in self._before(stage)):
                return False  # what it takes over may have come from items that are not here yet
            else:
                done = self._take_batch(stage, todo)
            self.recount(stage, done.before, done.after)
            if "source" in todo and self.tx.value(_IS_THERE, stage=todo["source"]) is None:
                # Asked afterwards: items go after their stage. Without some of them the run must not seem to be whole.
                why = f"stage {stage['name']!r}: the run that its items are taken from was deleted; start a whole run"
                self.stop(State.FAILED, by="gristmill", error=why)
                return True
            left = todo.get("then") if done.following is None else {**todo, "from": done.following}
            self.set_chores(stage, None if left is None else orjson.dumps(left).decode(), stage["pruning"])
        elif stage["pruning"] is not None and stage["waiting_for"] == 1:
            done = chores.prune(self.tx, self.run, stage, stage["pruning"])
            self.recount(stage, done.before, done.after)
            self.set_chores(stage, None, done.following)
        else:
            return False
        return True

    def set_chores(self, stage: dict[str, Any], todo: str | None, pruning: str | None) -> None:
        """Each of the two that is done is one less to wait for."""
        left = stage["waiting_for"] - has_chores(stage) + (todo is not None) + (pruning is not None)
        self.tx.run(_CHORES, stage=stage["id"], todo=todo, pruning=pruning, waiting_for=left)
        stage.update(todo=todo, pruning=pruning, waiting_for=left)

    def move_on(self, stage: dict[str, Any]) -> None:
        """Something that a stage waited for is done: a batch of the rest is too, and perhaps that was all."""
        if self.go_on(stage) and stage["todo"] is None:
            self.go_on(stage)
        if stage["waiting_for"] == 0:
            self.start(stage)

    def followers(self, stage: dict[str, Any]) -> list[dict[str, Any]]:
        return [self.stages[number] for number in self.after[stage["id"]]]

    def _before(self, stage: dict[str, Any]) -> list[dict[str, Any]]:
        return [up for up in self.stages.values() if stage["id"] in self.after[up["id"]]]

    def _close(self, stage: dict[str, Any]) -> None:
        if stage["state"] == StageState.CLOSED:
            return  # stopping the run, a moment ago, closed it too
        need = Need(stage["need_count"], stage["need_share"])
        left_out = self._left_out(stage)
        succeeded, total = stage["completed"] + stage["skipped"] - left_out, stage["total"] - left_out
        met = need.met(succeeded, total)
        self._set_closed(stage, _outcome(stage, met, stopping=self.run["stop"] is not None))
        if self.run["stop"] is not None:
            return
        if not met:
            why = self._only_error(stage) or need.words(succeeded, total)
            self.stop(State.FAILED, by="gristmill", error=f"stage {stage['name']!r}: {why}")
            return
        for follower in self.followers(stage):
            self._change(follower, waiting_for=follower["waiting_for"] - 1)
            self.move_on(follower)

    def _left_out(self, stage: dict[str, Any]) -> int:
        """Items that are none any more, or were not chosen: `skipped`, but no success. Retries and part runs have such."""
        may_be = stage["skipped"] and (self.run["epoch"] > 1 or any(map(is_taken, self.stages.values())))
        return int(self.tx.value(_LEFT_OUT, stage=stage["id"])) if may_be else 0

    def _only_error(self, stage: dict[str, Any]) -> str | None:
        """What the one job of a stage said, which says more than that one of one failed; None: nothing, or many jobs."""
        said: str | None = self.tx.value(_ERROR, stage=stage["id"]) if stage["total"] == 1 else None
        return said

    def start(self, stage: dict[str, Any]) -> None:
        """Everything before it is closed: a plain stage opens, an `each` stage will get no more items."""
        self.open(stage)
        if stage["state"] == StageState.OPEN:
            self._seal(stage)

    def _seal(self, stage: dict[str, Any]) -> None:
        self._change(stage, state=StageState.SEALED)

    def _set_closed(self, stage: dict[str, Any], outcome: State) -> None:
        self._change(stage, closed=True, state=StageState.CLOSED, outcome=outcome)

    def stop(self, target: State, *, by: str, reason: str | None = None, error: str | None = None) -> None:
        if self.run["stop"] is not None:
            return
        self.tx.run(_STOP, run=self.run["id"], stop=int(target), by=by, reason=reason, error=error)
        self.tx.notes.run(self.run["id"], stops=target.word)
        self.run.update(stop=target, reason=reason, error=error)
        self._admit_no_more()
        self.settle()

    def _admit_no_more(self) -> None:
        for stage in self.stages.values():
            if stage["state"] == StageState.WAITING:
                self._set_closed(stage, State.CANCELLED)
            elif stage["state"] == StageState.OPEN:
                self._seal(stage)

    def resume(self) -> None:
        if self.run["stop"] is not None:
            self._admit_no_more()
        else:
            for stage in self.stages.values():
                self._wait_for(stage, self._before(stage))
        self.settle()

    def _wait_for(self, stage: dict[str, Any], upstreams: list[dict[str, Any]]) -> None:
        left = has_chores(stage) + sum(upstream["state"] != StageState.CLOSED for upstream in upstreams)
        self.wait_for(stage, left)
        self.move_on(stage)

    def wait_for(self, stage: dict[str, Any], left: int) -> None:
        if stage["waiting_for"] != left:
            self._change(stage, waiting_for=left)

    def _end(self) -> None:
        self._steps.end(self.run, self._final_state(), self.run["error"] or self._failed_items())
        self._stepped()

    def _final_state(self) -> State:
        target = State.COMPLETED if self.run["stop"] is None else State(self.run["stop"])
        # Cancelled items of a run that was told to end are no error; one that a person cancelled out of many is.
        told = self.run["stop"] is not None or self.run["reason"] is not None  # with a reason: before it was retried
        partly = any(s["failed"] or s["with_errors"] or (s["cancelled"] and not told) for s in self.stages.values())
        return State.COMPLETED_WITH_ERRORS if target is State.COMPLETED and partly else target

    def _failed_items(self) -> str | None:
        failed = [f"{s['failed']} of {s['total']} failed in {s['name']!r}" for s in self.stages.values() if s["failed"]]
        return ", ".join(failed) or None


_COUNTED: Mapping[State, str] = {
    State.COMPLETED: "completed",
    State.COMPLETED_WITH_ERRORS: "completed",
    State.FAILED: "failed",
    State.SKIPPED: "skipped",
    State.CANCELLED: "cancelled",
}
_COUNTER_NAMES = ("total", "completed", "with_errors", "failed", "skipped", "cancelled")


def is_taken(stage: Mapping[str, Any]) -> bool:
    """Is it not run at all, but stands for what an earlier run did?"""
    return bool(stage["state"] == StageState.CLOSED and stage["outcome"] == State.SKIPPED and stage["opened_at"] is None)


def _why_not(found: Any, before: Mapping[str, Any]) -> str:
    if found is not None:
        return "it is that of a run before, which was deleted"
    return "the last good run of this subject did not have it" if before else "no run of this subject ended well"


def has_chores(stage: Mapping[str, Any]) -> int:
    """How many kinds of things are left to do before it may be sealed."""
    return (stage["todo"] is not None) + (stage["pruning"] is not None)


def _left(stage: Mapping[str, Any]) -> int:
    left: int = stage["total"] - stage["completed"] - stage["failed"] - stage["skipped"] - stage["cancelled"]
    return left


def _outcome(stage: Mapping[str, Any], met: bool, stopping: bool) -> State:
    if stopping and (stage["cancelled"] or not stage["total"]):
        return State.CANCELLED
    if not met:
        return State.FAILED
    if stage["failed"] or stage["with_errors"] or stage["cancelled"]:
        return State.COMPLETED_WITH_ERRORS
    return State.SKIPPED if stage["total"] and stage["skipped"] == stage["total"] else State.COMPLETED
