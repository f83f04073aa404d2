"""Acting on many jobs or runs at once, and on what is to go for good.

Each says how many became what. With `dry_run` it only says how many would; with `confirm` it is done only if it is about
so many now, and to no more (else `NotConfirmed`). What is wanted is recorded first and then done in batches: a process that
dies on the way leaves nothing half done, since any worker goes on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from gristmill import retention
from gristmill.binding import encode
from gristmill.clock import micros
from gristmill.errors import Invalid, NotConfirmed
from gristmill.mill.acting import Acting
from gristmill.mill.lazy import lazy
from gristmill.mill.values import arguments, checked_id, delay_of, moment, name_of, reason_of, states_of, text_of, who
from gristmill.model import Bulk, Job, Pruned, RetriedError
from gristmill.pipeline import Pipeline, Stage
from gristmill.priority import Priority
from gristmill.settings import worker_settings
from gristmill.states import State

if TYPE_CHECKING:
    from gristmill import housekeeping, pruner
    from gristmill.ledger import bulk, choose, read, signatures, stop
    from gristmill.ledger.store import Tx
else:
    housekeeping, pruner = lazy("gristmill", "housekeeping", "pruner")
    bulk, choose, read, signatures, stop = lazy("gristmill.ledger", "bulk", "choose", "read", "signatures", "stop")

_PARTLY_FAILED = (int(State.COMPLETED_WITH_ERRORS), int(State.FAILED))
_SINGULAR = ("run", "pipeline", "subject", "stage", "queue", "task", "error", "key")


class RunFilter(TypedDict, total=False):
    """Which runs: by number, or all for which everything holds that is given."""

    ids: Iterable[int] | None
    pipeline: str | None
    subject: str | None  #: a name, or a pattern of names with * and ?, in whatever case
    state: str | Iterable[str] | None  #: one, or several of which any will do
    stage: str | None  #: of runs: they are at it, or some of it failed
    error: str | None  #: the fingerprint of the error that it, or some of it, is failed by
    since: datetime | None  #: created then or later
    older: float | timedelta | None  #: created so many seconds ago, or earlier


class JobFilter(RunFilter, total=False):
    """Which jobs: the same, and more. `key` is a pattern with * and ?; of a job on its own, its unique key."""

    run: int | None
    queue: str | None
    task: str | None
    key: str | None
    part_of: int | None
    worker: int | None  #: who holds them
    archived: bool  #: only those; by default filters leave them out, as lists do. Those named by `ids` are meant anyway


class Many(Acting):
    def cancel_jobs(
        self,
        *,
        reason: str | None = None,
        by: str | None = None,
        dry_run: bool = False,
        confirm: int | None = None,
        **which: Unpack[JobFilter],
    ) -> Bulk:
        """Cancels queued jobs; those in progress are told to stop."""
        return self._many("job.cancel", self._choice(which), by, dry_run, confirm, reason)

    def retry_jobs(
        self, *, by: str | None = None, dry_run: bool = False, confirm: int | None = None, **which: Unpack[JobFilter]
    ) -> Bulk:
        """Queues ended jobs again, those that failed unless `state` says which; as `retry_job` does one.

        What cannot be queued again stays as it is, and is counted as `left`.
        """
        choice = self._choice(which)
        choice = replace(choice, states=choice.states or (int(State.FAILED),))
        return self._many("job.retry_many", choice, by, dry_run, confirm)

    def retry_error(
        self, fingerprint: str, *, by: str | None = None, dry_run: bool = False, confirm: int | None = None
    ) -> RetriedError:
        """Queues all jobs again that are failed now by this error, as `retry_jobs` does; says how many could not be.

        Where their stage is closed or their run has ended, that run is retried for them; for parts of a job that has
        ended, that job.
        """
        self._read(signatures.check_known, fingerprint)
        if dry_run:
            return self._rehearse_error(fingerprint, by)
        if confirm is not None:
            would = self._rehearse_error(fingerprint, by)
            if would.queued != confirm:
                raise NotConfirmed(would.queued, confirm)
            confirm = would.queued + would.refused
        done = self.retry_jobs(error=fingerprint, by=by, confirm=confirm)
        return RetriedError(fingerprint, done.counts.get("queued", 0), done.left, done.refusal)

    def run_jobs_now(
        self, *, by: str | None = None, dry_run: bool = False, confirm: int | None = None, **which: Unpack[JobFilter]
    ) -> Bulk:
        """Makes delayed and retrying jobs ready."""
        return self._many("job.run_now", self._choice(which), by, dry_run, confirm)

    def archive_jobs(
        self,
        *,
        undo: bool = False,
        by: str | None = None,
        dry_run: bool = False,
        confirm: int | None = None,
        **which: Unpack[JobFilter],
    ) -> Bulk:
        """Leaves ended jobs out of lists, and keeps them; `undo`: lists them again."""
        if undo:
            which["archived"] = True
        return self._many("job.unarchive" if undo else "job.archive", self._choice(which), by, dry_run, confirm)

    def delete_jobs(
        self, *, by: str | None = None, dry_run: bool = False, confirm: int | None = None, **which: Unpack[JobFilter]
    ) -> Bulk:
        """Deletes jobs on their own that have ended, with their attempts. Jobs of a run go with it (`delete_runs`)."""
        return self._many("job.delete", self._choice(which), by, dry_run, confirm)

    def cancel_runs(
        self,
        *,
        reason: str | None = None,
        by: str | None = None,
        dry_run: bool = False,
        confirm: int | None = None,
        **which: Unpack[RunFilter],
    ) -> Bulk:
        """Stops runs, as `cancel_run` does one."""
        return self._many("run.cancel", self._choice(which), by, dry_run, confirm, reason)

    def retry_runs(
        self, *, by: str | None = None, dry_run: bool = False, confirm: int | None = None, **which: Unpack[RunFilter]
    ) -> Bulk:
        """Queues what failed of ended runs again, as `retry_run` does for one: of those that failed or completed with
        errors, unless `state` says which. What a later run of the same subject came after stays as it is.
        """
        choice = self._choice(which)
        if choice.ids is None:
            choice = replace(choice, states=choice.states or _PARTLY_FAILED)
        return self._many("run.retry_many", choice, by, dry_run, confirm)

    def delete_runs(
        self, *, by: str | None = None, dry_run: bool = False, confirm: int | None = None, **which: Unpack[RunFilter]
    ) -> Bulk:
        """Deletes ended runs with all their jobs. What was done is still known, so that it is skipped as unchanged."""
        return self._many("run.delete", self._choice(which), by, dry_run, confirm)

    def purge_queue(
        self,
        queue: str,
        *,
        priority: Priority | str | None = None,
        reason: str | None = None,
        by: str | None = None,
        dry_run: bool = False,
        confirm: int | None = None,
    ) -> Bulk:
        """Cancels all that waits in a queue, or that of one priority; stages that it was the last of close. What is in
        progress goes on."""
        level = None if priority is None else int(Priority.of(priority))
        choice = self._choice({"queue": queue, "priority": level})
        return self._many("queue.purge", choice, by, dry_run, confirm, reason)

    def purge_subject(
        self,
        pipeline: Pipeline | str,
        subject: str,
        *,
        history: bool = False,
        reason: str | None = None,
        by: str | None = None,
        dry_run: bool = False,
        confirm: int | None = None,
    ) -> Bulk:
        """Stops a subject's active run and drops the one that waits. `history`: all its runs go, once they have ended.

        The subject stays, with its labels and interval, and so does what is known to be done (see `forget`).
        """
        choice = choose.Choice(pipeline=name_of(pipeline), subject=subject)
        how: dict[str, Any] = {"history": history, "by": by or who(), "reason": reason_of(reason), "confirm": confirm}
        purged = self._act(dry_run, bulk.purge_subject, choice, **how)
        counts = {"stopped": len(purged.runs), "cancelled": purged.jobs, **purged.future}
        if dry_run:
            return _bulk(counts)
        for run in purged.runs:
            housekeeping.sweep_run(self.ledger, run)
        if purged.order is None:
            return _bulk(counts)
        order = housekeeping.carry_out(self.ledger, purged.order)
        return _bulk({**counts, **order.done}, record=order.id, open=order.reached is not None)

    def edit_job(self, job: int, args: Mapping[str, Any], *, by: str | None = None, dry_run: bool = False) -> Job:
        """Changes the arguments of a job that waits. They are checked if this application knows the task.

        The key of its limit is then the one that these give, unless it was asked for with a `limit_key` of its own. Who
        does not know the task is refused where there is such a key.
        """
        found = self.job(job)
        checked = self._check_arguments(found, arguments(args))
        moves = self._moves(found, checked)
        self._act(dry_run, stop.edit_job, job, encode(checked, "the job's arguments"), moves, by=by or who())
        return self.job(job)

    def _moves(self, job: Job, args: Mapping[str, Any]) -> stop.Moves | None:
        """From which key of its limit to which a job goes with these arguments. None: nobody here can tell."""
        task = self.registry.tasks.get(job.task)
        if task is None or task.limit is None:
            return None
        run = None if job.run is None else self.run(job.run)
        more = () if run is None else (run.args, {"subject": run.subject})
        new = task.limit.key(args, *more)
        before = job.args or {}
        try:
            old = task.limit.key(self._check_arguments(job, before), *more)
        except Invalid:  # they were for another version of it
            return stop.Moves(before, None, self._limit_keys(task.limit, [new])[new])
        numbers = self._limit_keys(task.limit, [old, new])
        return stop.Moves(before, numbers[old], numbers[new])

    def prune(
        self, *, dry_run: bool = False, by: str | None = None, confirm: int | None = None, within: float = math.inf
    ) -> Pruned:
        """Removes what no retention keeps (`keep=`, setting `keep_days`), at most a fortieth of the time; says how much.

        `confirm`: only if it is about so many runs and jobs, and no more than these. `within`: in so many seconds.
        """
        pruner = self.pruner(by=by or who())
        if confirm is not None and not dry_run:
            would = pruner.run(dry_run=True)
            if would.runs + would.jobs != confirm:
                raise NotConfirmed(would.runs + would.jobs, confirm)
        return pruner.run(dry_run=dry_run, most=confirm, within=within)

    def pruner(self, *, by: str = "retention", **settings: Any) -> pruner.Pruner:
        """Retention as a ticker of a worker."""
        chosen = worker_settings(**settings)
        others = retention.for_days(chosen.keep_days)
        pipelines = {flow.name: flow.keep for flow in self.registry.pipelines.values() if flow.keep}
        tasks = {name: task.keep for name, task in self.registry.tasks.items() if task.keep}
        return pruner.Pruner(self.ledger, pipelines, tasks, others, by, micros(chosen.keep_audit_days * 86_400))

    def _many(
        self,
        verb: str,
        choice: choose.Choice,
        by: str | None,
        dry_run: bool,
        confirm: int | None,
        reason: str | None = None,
    ) -> Bulk:
        def look(tx: Tx) -> dict[str, int]:
            if choice.ids is not None:
                bulk.check_there(tx, verb, choice)
            return bulk.preview(tx, verb, choice)

        reason = reason_of(reason)
        counts = self._read(look)
        said: dict[str, Any] = {}
        if choice.ids is not None:
            left = len(choice.ids) - sum(n for word, n in counts.items() if word != bulk.JOBS_TOO)
            said = {"left": left, "refusal": self._refusal(verb, choice.ids) if left else None}
        if dry_run or (not counts and not confirm):
            return _bulk(counts, **said)
        number = self.ledger.do(bulk.begin, verb, choice, by=by or who(), reason=reason, confirm=confirm)
        order = housekeeping.carry_out(self.ledger, number)
        if refused := order.done.pop(bulk.LEFT, 0):
            why = next(iter(order.refusals), said.get("refusal"))  # none: a worker has gone on with it meanwhile
            said = {"left": said.get("left", 0) + refused, "refusal": why}
        return _bulk(order.done, record=order.id, **said)

    def _refusal(self, verb: str, ids: Sequence[int]) -> str:
        """Why some stay as they are; of a single job, what it is."""
        action = bulk.ACTIONS[verb]
        if action.runs or len(ids) > 1:
            return action.unless
        job = self.job(ids[0])
        return f"job {job.id} is {job.state}{' and archived' if job.archived_at else ''}; {action.unless}"

    def _choice(self, which: Mapping[str, Any]) -> choose.Choice:
        given = {name: value for name, value in which.items() if value is not None}
        if given.get("state") in ([], ()):
            raise Invalid("state is an empty list; name the states, or leave it out for all of them")
        if not given:
            raise Invalid("say which: ids=…, or at least one of the filters (state, queue, older, key, …)")
        for name in _SINGULAR:
            if name != "run":
                text_of(given.get(name), name)
        ids = given.pop("ids", None)
        older = given.pop("older", None)
        since = given.pop("since", None)
        if "run" in given:
            self.run(given["run"])  # one that is not there is a typing error
        given["states"] = states_of(given.pop("state", None))
        if ids is None:
            given.setdefault("archived", False)
        with self.ledger.reading() as tx:
            self._check_queue(tx, given.get("queue"))
            before = None if older is None else read.now(tx) - delay_of(older, "older")
        numbers = None if ids is None else tuple(sorted({checked_id(number, "job or run") for number in ids}))
        return choose.Choice(ids=numbers, before=before, since=None if since is None else moment(since, "since"), **given)

    def _check_arguments(self, job: Job, args: Mapping[str, Any]) -> Mapping[str, Any]:
        task = self.registry.tasks.get(job.task)
        if task is None:
            return args
        if not isinstance(task, Stage):
            return task.parameters.check(args)
        task.parameters.refuse_unknown(args)
        task.parameters.refuse_missing(args, self.run(job.run).args if job.run is not None else ())
        return task.parameters.check_named(args)


def _bulk(counts: Mapping[str, int], **more: Any) -> Bulk:
    return Bulk({word: number for word, number in counts.items() if number}, **more)
