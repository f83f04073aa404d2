"""Part of a run once more: the chosen items are queued again, what depends on them follows, and nothing else.

The same run goes on, in its next epoch. A stage that depends on a chosen item is reset: a plain one waits for its turn
again, and what a worker still does for it is not that worker's any more; an `each` stage keeps its items until their
producers have said, by giving them again or not, which still count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson
from sqlalchemy.exc import IntegrityError

from gristmill.errors import NotConfirmed, NotFound, Refused, did_you_mean, quoted
from gristmill.ledger import chores, flow
from gristmill.ledger.chores import Selection
from gristmill.ledger.columns import STAGE, columns
from gristmill.ledger.moment import Ended, moment
from gristmill.ledger.sql import Sql, numbers
from gristmill.ledger.stop import audit
from gristmill.ledger.store import Tx
from gristmill.states import ACTIVE_RUN, TERMINAL, StageState, State, sources

_RUN = Sql("SELECT id, subject_id, pipeline, state, epoch, stop FROM gm_run WHERE id = :run")
_STAGES = Sql(f"SELECT {columns(STAGE)} FROM gm_stage WHERE run_id = :run ORDER BY position")
_OTHER = Sql(f"SELECT id FROM gm_run WHERE subject_id = :subject AND id <> :run AND state IN ({numbers(ACTIVE_RUN)})")
_NEXT_EPOCH = Sql(
    f"UPDATE gm_run SET state = {State.IN_PROGRESS:d}, epoch = epoch + 1, started_at = coalesce(started_at, {{now}}),"
    " retried_at = CASE WHEN finished_at IS NULL THEN retried_at ELSE {now} END,"
    " finished_at = NULL, stop = NULL, stop_by = NULL, error = NULL WHERE id = :run"
)
_NO_REASON = Sql("UPDATE gm_run SET reason = NULL WHERE id = :run")
_SUBJECT = Sql("SELECT last_run_id, last_good_run_id FROM gm_subject WHERE id = :subject")
_RUN_BEFORE = (
    "SELECT id, state, finished_at FROM gm_run r WHERE subject_id = :subject AND id <> :run AND state IN (%s)"
    " AND EXISTS (SELECT 1 FROM gm_stage g WHERE g.run_id = r.id AND g.opened_at IS NOT NULL)"
    " ORDER BY finished_at DESC, id DESC LIMIT 1"
)
_ENDED_BEFORE = Sql(_RUN_BEFORE % numbers(TERMINAL))
_GOOD_BEFORE = Sql(_RUN_BEFORE % f"{State.COMPLETED:d}, {State.COMPLETED_WITH_ERRORS:d}")
_SET_LAST = Sql(
    "UPDATE gm_subject SET last_run_id = :number, last_state = :state, last_run_at = :finished WHERE id = :subject"
)
_SET_LAST_GOOD = Sql("UPDATE gm_subject SET last_good_run_id = :number, last_good_at = :finished WHERE id = :subject")
_RESET = Sql(
    "UPDATE gm_stage SET state = :state, outcome = NULL, closed_at = NULL, waiting_for = :waiting_for, todo = :todo,"
    " pruning = :pruning WHERE id = :stage"
)
_GONE = Sql(  # stages that stand for one of a run that was deleted
    "SELECT g.id, g.name FROM gm_stage g LEFT JOIN gm_stage f ON f.id = g.source_id"
    " WHERE g.run_id = :run AND g.source_id IS NOT NULL AND f.id IS NULL ORDER BY g.position"
)
_WITH_PARTS = Sql("SELECT id FROM gm_job WHERE stage_id = :stage AND parts_left > 0")
_SET_ASIDE = Sql(
    f"UPDATE gm_job SET state = {State.CANCELLED:d}, ready = NULL, run_at = NULL, worker_id = NULL, unique_key = NULL,"
    " cancel = {false}, finished_at = {now}, error = :why, error_class = NULL"
    f" WHERE stage_id = :stage AND state IN ({numbers(sources('set_aside'))})"
    " RETURNING id, task_id"
)


class Chosen(NamedTuple):
    """What a selection finds in a run, and the moment at which it did."""

    run: int
    epoch: int
    state: int
    items: Mapping[str, Mapping[int, int]]  # by stage, how many of each state
    selection: Selection
    stage: str | None = None  # only of this one

    @property
    def number(self) -> int:
        return sum(sum(counts.values()) for counts in self.items.values())


def choose(tx: Tx, run: int, selection: Selection, stage: str | None = None) -> Chosen:
    """Looks which items of a run would be queued again. Changes nothing."""
    row = tx.one(_RUN, run=run)
    if row is None:
        raise NotFound(f"there is no run {run}")
    stages = [stage._asdict() for stage in tx.all(_STAGES, run=run)]
    names = [s["name"] for s in stages]
    if stage is not None and stage not in names:
        raise NotFound(f"run {run} has no stage {quoted(stage)}{did_you_mean(stage, names)}")
    # What the end of a run cut off always comes with it: without that, the run could not be completed.
    cut_off = row.state in TERMINAL and row.stop in (State.FAILED, State.CANCELLED)
    chosen = Chosen(run, row.epoch, row.state, {}, selection._replace(cut_off=cut_off), stage)
    items = {s["name"]: _count(tx, row._asdict(), s, _of_stage(chosen, s["name"])) for s in stages}
    found = {name: counts for name, counts in items.items() if counts}
    if not found:
        raise Refused(f"run {run} has no items to retry: {_described(selection, stage)}")
    return chosen._replace(items=found)


def _of_stage(chosen: Chosen, name: str) -> Selection:
    """What is chosen of one stage: of others than the one named, only what was cut off."""
    mine = chosen.stage in (None, name)
    return chosen.selection if mine else Selection(states=(), cut_off=chosen.selection.cut_off)


def _count(tx: Tx, run: Mapping[str, Any], stage: Mapping[str, Any], selection: Selection) -> Counter[int]:
    """By the counters, where these say it; otherwise by looking at the items."""
    failed, cancelled = int(State.FAILED), int(State.CANCELLED)
    cut_off = stage["cancelled"] if selection.cut_off else 0
    if not selection.states:
        return +Counter({cancelled: cut_off})
    if selection[:4] == Selection((failed,))[:4]:
        return +Counter({failed: stage["failed"], cancelled: cut_off})
    return chores.count(tx, run, stage, selection)


def _described(selection: Selection, stage: str | None) -> str:
    failed = selection.states == (int(State.FAILED),)
    words = [
        "none failed" if failed else "none ended",
        f"in stage {stage!r}" if stage else "",
        f"with error {selection.error!r}" if selection.error else "",
        f"with a key like {selection.key!r}" if selection.key is not None else "",
        f"done with version {selection.version!r}" if selection.version else "",
    ]
    return " ".join(word for word in words if word)


def retry(tx: Tx, chosen: Chosen, *, by: str, confirm: int | None = None) -> list[str]:
    """Opens a run again for the chosen items; says which stages are run again after them, as a whole.

    `confirm`: only if these are so many.

    The first batch of items is queued here, the others by `carry_on`. Until then their stage cannot close.
    """
    row = flow.lock_runs(tx, [chosen.run]).get(chosen.run)
    if row is None:
        raise NotFound(f"there is no run {chosen.run}")
    if row.state == State.WAITING:
        raise Refused(f"run {row.id} has not begun: it waits behind another one")
    if row.stop is not None and row.state not in TERMINAL:
        raise Refused(f"run {row.id} is being stopped; retry it when that is done")
    if (row.epoch, row.state) != (chosen.epoch, chosen.state) or row.id in chores.pending(tx):
        raise Changed(f"run {row.id} has just moved on; try again", row.id)
    if confirm is not None and (count := choose(tx, row.id, chosen.selection, chosen.stage).number) != confirm:
        raise NotConfirmed(count, confirm)
    if row.state in TERMINAL:
        other = tx.value(_OTHER, subject=row.subject_id, run=row.id)
        if other is not None:
            raise Refused(f"run {row.id}: its subject has another active run, {other}; wait for that, or cancel it")
    try:
        tx.run(_NEXT_EPOCH, run=row.id)
    except IntegrityError:  # another one was started between the two statements
        raise Refused(f"run {row.id}: its subject has just got another active run; wait for that") from None
    tx.notes.run(row.id, state=State.IN_PROGRESS.word, epoch=row.epoch + 1)
    if row.state in TERMINAL:
        _forget_end(tx, row.subject_id, row.id)
    audit(
        tx,
        by,
        "run.retry",
        f"run {row.id}",
        epoch=row.epoch + 1,
        items={name: sum(counts.values()) for name, counts in chosen.items.items()},
        **{name: value for name, value in _asked(chosen).items() if value is not None},
    )
    return _Again(tx, chosen).reset()


def _asked(chosen: Chosen) -> dict[str, str | None]:
    """The conditions, for the record."""
    which = chosen.selection
    return {"stage": chosen.stage, "error": which.error, "key": which.key, "version": which.version}


class Changed(Refused):
    """The run is not as it was when the items were chosen: choose again, once it has no more to `carry_on`."""

    def __init__(self, said: str, run: int) -> None:
        super().__init__(said)
        self.run = run


def _forget_end(tx: Tx, subject: int, run: int) -> None:
    """A run that is active again is not the last that ended, nor the last good one."""
    row = tx.one(_SUBJECT, subject=subject)
    if row.last_run_id == run:
        before = tx.one(_ENDED_BEFORE, subject=subject, run=run) or (None, None, None)
        tx.run(_SET_LAST, subject=subject, number=before[0], state=before[1], finished=before[2])
    if row.last_good_run_id == run:
        before = tx.one(_GOOD_BEFORE, subject=subject, run=run) or (None, None, 0)
        tx.run(_SET_LAST_GOOD, subject=subject, number=before[0], finished=before[2])


class _Again:
    """A locked run whose chosen stages, and all that depend on them, are opened again."""

    def __init__(self, tx: Tx, chosen: Chosen) -> None:
        self.tx = tx
        self.flow = flow.Flow.of(tx, chosen.run)
        self.todo: dict[int, str] = {}  # what is chosen, by stage
        for stage in self.flow.stages.values():
            if stage["name"] in chosen.items:
                which = _of_stage(chosen, stage["name"])
                todo = {"select": tuple(which), "from": which.first}
                if stage["todo"] is not None:
                    todo["then"] = orjson.loads(stage["todo"])  # the end of the run had cut that off too
                self.todo[stage["id"]] = orjson.dumps(todo).decode()
        self.cut_off = chosen.selection.cut_off
        self.before: dict[int, list[int]] = {stage: [] for stage in self.flow.stages}
        for upstream, followers in self.flow.after.items():
            for follower in followers:
                self.before[follower].append(upstream)

    def reset(self) -> list[str]:
        affected: set[int] = set()
        behind: set[int] = set()
        stages = list(self.flow.stages.values())  # each after all that it depends on
        for stage in stages:
            if flow.is_taken(stage) or self._stays_out(stage, affected):
                continue
            depends = bool(affected.intersection(self.before[stage["id"]]))
            if depends or self._waits(stage):
                behind.add(stage["id"])
            if stage["id"] in self.todo or depends or (self.cut_off and _was_cut_off(stage)):
                affected.add(stage["id"])
                self._reset(stage, behind=stage["id"] in behind)
        self._refuse_if_gone(affected)
        for stage in stages:
            if stage["id"] in affected:
                self._wait(stage)
            else:
                if stage["state"] == StageState.CLOSED and flow.has_chores(stage):
                    self.flow.set_chores(stage, None, None)  # the run ended early, as it wanted to
                self.flow.wait_for(stage, self._open_before(stage) + flow.has_chores(stage))
        for stage in stages:
            if stage["id"] in affected:
                self._go(stage)
        if not any(stage["outcome"] == State.CANCELLED for stage in stages):  # else it still ends early, and why
            self.tx.run(_NO_REASON, run=self.flow.run["id"])
            self.flow.run["reason"] = None
        self.flow.settle()
        return [stage["name"] for stage in stages if stage["id"] in behind & affected]

    def _refuse_if_gone(self, affected: set[int]) -> None:
        """What stood on results that are there no more would be run again as if there had been none."""
        for row in self.tx.all(_GONE, run=self.flow.run["id"]):
            if affected.intersection(self.flow.after[row.id]):
                gone = f"stage {row.name!r} is that of an earlier run, which was deleted"
                raise Refused(f"run {self.flow.run['id']}: {gone}; start a whole run")

    def _waits(self, stage: dict[str, Any]) -> bool:
        """Is it a plain one, whose turn has not come yet?"""
        return not stage["each"] and self._open_before(stage) > 0

    def _stays_out(self, stage: dict[str, Any], affected: set[int]) -> bool:
        """Was it never opened because the run ended early, on purpose? It stays so while what comes before it does."""
        before = [self.flow.stages[up] for up in self.before[stage["id"]] if up not in affected]
        never = stage["opened_at"] is None and stage["outcome"] == State.CANCELLED and not self.cut_off
        return never and any(up["outcome"] == State.CANCELLED for up in before)

    def _reset(self, stage: dict[str, Any], behind: bool) -> None:
        """Its state, as if what comes before it had not closed yet."""
        opened = stage["opened_at"] is not None
        todo = self.todo.get(stage["id"], stage["todo"]) if stage["each"] and opened else None
        stale = stage["each"] and opened and (behind or _was_cut_off(stage))
        if not opened or (not stage["each"] and behind):
            state = StageState.WAITING
        else:
            state = StageState.OPEN if stage["each"] else StageState.SEALED
        stage.update(state=state, outcome=None, todo=todo, pruning="" if stale else stage["pruning"])

    def _set_aside(self, stage: dict[str, Any]) -> None:
        """Its one job waits for its turn again: whoever has it now has it no longer."""
        job = self.tx.value(_WITH_PARTS, stage=stage["id"])
        if job is not None:
            raise Refused(
                f"job {job} of stage {stage['name']!r} depends on what would be retried, and has parts that have not ended;"
                " wait for it, or cancel it"
            )
        why = "the run was retried: this waits for what it depends on"
        if ended := self.tx.tuples(_SET_ASIDE, stage=stage["id"], why=why):
            moment(self.tx, [Ended(*row) for row in ended])
            self.flow.recount(stage, {State.QUEUED: 1}, {State.CANCELLED: 1})

    def _wait(self, stage: dict[str, Any]) -> None:
        stage["waiting_for"] = self._open_before(stage) + (stage["todo"] is not None) + (stage["pruning"] is not None)
        values = {name: stage[name] for name in ("waiting_for", "todo", "pruning")}
        self.tx.run(_RESET, stage=stage["id"], state=int(stage["state"]), **values)
        self.tx.notes.stage(stage["run_id"], stage["name"], StageState(stage["state"]).word)

    def _open_before(self, stage: dict[str, Any]) -> int:
        return sum(self.flow.stages[up]["state"] != StageState.CLOSED for up in self.before[stage["id"]])

    def _go(self, stage: dict[str, Any]) -> None:
        if not stage["each"] and stage["opened_at"] is not None:
            if stage["id"] in self.todo:
                chores.forget(self.tx, self.flow.run, stage, [""])
            (self._set_aside if stage["state"] == StageState.WAITING else self.flow.run_again)(stage)
        if stage["state"] != StageState.WAITING:
            for follower in self.flow.followers(stage):
                if follower["each"]:
                    self.flow.open(follower)
        self.flow.move_on(stage)


def _was_cut_off(stage: Mapping[str, Any]) -> bool:
    """Did the end of the run keep it from being done?"""
    return bool(stage["outcome"] == State.CANCELLED or flow.has_chores(stage))


def carry_on(tx: Tx, run: int) -> bool:
    """The next batch of what a retry (or a part run) has left to do; says whether there was one."""
    row = flow.lock_runs(tx, [run]).get(run)
    if row is None or row.state not in ACTIVE_RUN or row.stop is not None:
        return False
    under_way = flow.Flow.of(tx, run)
    for stage in under_way.stages.values():
        if under_way.go_on(stage):
            if stage["waiting_for"] == 0:
                under_way.start(stage)
            under_way.settle()
            return True
    return False
