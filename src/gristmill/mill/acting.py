"""Acting on what is there: stop it, do it again, pause it, set it.

With `dry_run` each is refused as it would be, changes nothing, and says what there is now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from gristmill.binding import check_key
from gristmill.errors import Invalid, NotFound, Refused, did_you_mean, quoted
from gristmill.limit import check_numbers
from gristmill.mill.lazy import lazy
from gristmill.mill.reading import Reading
from gristmill.mill.values import checked_id, delay_of, labels_of, name_of, reason_of, text_of, who
from gristmill.model import Job, LimitState, RetriedError, RetriedRun, Run, Subject
from gristmill.pipeline import Pipeline, check_name
from gristmill.states import State

if TYPE_CHECKING:
    from gristmill import housekeeping
    from gristmill.ledger import again, bulk, chores, limiting, names, queues, signatures, stop, subjects
else:
    (housekeeping,) = lazy("gristmill", "housekeeping")
    again, bulk, chores, names, queues = lazy("gristmill.ledger", "again", "bulk", "chores", "names", "queues")
    (limiting,) = lazy("gristmill.ledger", "limiting")
    signatures, stop, subjects = lazy("gristmill.ledger", "signatures", "stop", "subjects")


class Acting(Reading):
    def cancel_run(self, run: int, *, reason: str | None = None, by: str | None = None, dry_run: bool = False) -> Run:
        """Stops a run: nothing of it starts any more, what runs is told to stop, what waits ends `cancelled`."""
        self._act(dry_run, stop.cancel_run, checked_id(run, "run"), by=by or who(), reason=reason_of(reason))
        if not dry_run:
            housekeeping.sweep_run(self.ledger, run)
        return self.run(run)

    def cancel_job(self, job: int, *, reason: str | None = None, by: str | None = None, dry_run: bool = False) -> Job:
        """Cancels a queued job; one in progress is stopped by its worker within a few seconds. Its parts go with it."""
        self._act(dry_run, stop.cancel_job, checked_id(job, "job"), by=by or who(), reason=reason_of(reason))
        if not dry_run:
            housekeeping.sweep_parts(self.ledger, job)
        return self.job(job)

    def retry_job(self, job: int, *, by: str | None = None, dry_run: bool = False) -> Job:
        """Queues an ended job again with a fresh budget; one that waits for its retry runs now.

        If its stage is closed or its run has ended, that run is retried for it (see `retry_run`).
        """
        try:
            self._act(dry_run, stop.requeue_job, checked_id(job, "job"), by=by or who())
        except stop.InClosedStage as closed:
            which = chores.Selection(key=closed.key, exact=True)
            self._retry_run(closed.run, which, closed.stage, by=by or who(), dry_run=dry_run)
        return self.job(job)

    def retry_run(
        self,
        run: int,
        *,
        failed: bool = False,
        stage: str | None = None,
        error: str | None = None,
        key: str | None = None,
        version: str | None = None,
        by: str | None = None,
        dry_run: bool = False,
        confirm: int | None = None,
    ) -> RetriedRun:
        """Queues items of a run again, ended or not; then what depends on them runs again, and nothing else.

        Without conditions: the items that failed. Otherwise those that meet every condition, whatever became of them:
        `failed`, of one `stage`, with this `error` (its fingerprint), with a `key` like this (`*` and `?`), done with this
        `version` (what `ctx.skip_unchanged` was told). `confirm`: only if these are so many, else `NotConfirmed`.
        """
        checked_id(run, "run")
        for what, text in {"stage": stage, "error": error, "key": key, "version": version}.items():
            text_of(text, what)
        if key == "":
            raise Invalid("key is a pattern with * and ?, like '2024-*'; it must not be empty")
        only_failed = failed or error is not None or (stage, key, version) == (None, None, None)
        states = (int(State.FAILED),) if only_failed else chores.Selection().states
        selection = chores.Selection(states, error, key, version)
        try:
            return self._retry_run(run, selection, stage, by=by or who(), dry_run=dry_run, confirm=confirm)
        except Refused:
            if selection == chores.Selection((int(State.FAILED),)) and stage is None:
                self._refuse_if_partly(run)
            raise

    def _refuse_if_partly(self, run: int) -> None:
        """No item failed, but there may be some that completed with errors: says how these run again."""
        partly = self.jobs(run=run, state=State.COMPLETED_WITH_ERRORS.word, parts=False, limit=1)
        if partly and not any(stage.failed for stage in self.run(run).stages):
            name = partly[0].stage
            said = f"none failed, but some of stage {name!r} completed with errors; --stage {name} runs that stage again"
            raise Refused(f"run {run} has no items to retry: {said}")

    def _retry_run(
        self,
        run: int,
        selection: chores.Selection,
        stage: str | None,
        *,
        by: str,
        dry_run: bool,
        confirm: int | None = None,
    ) -> RetriedRun:
        for _ in range(10):
            if not dry_run:
                housekeeping.carry_on(self.ledger, run)  # what an earlier retry has left, if its process died
            chosen = self._read(again.choose, run, selection, stage)
            try:
                after = self._act(dry_run, again.retry, chosen, by=by, confirm=confirm)
            except again.Changed:
                continue
            if not dry_run:
                housekeeping.carry_on(self.ledger, run)
            items = {name: {State(s).word: n for s, n in counts.items()} for name, counts in chosen.items.items()}
            return RetriedRun(run, chosen.epoch + 1, items, tuple(after))
        raise Refused(f"run {run} moves on too fast to choose items of it; try again")

    def forget(
        self,
        pipeline: Pipeline | str,
        subject: str,
        stage: str | None = None,
        *,
        by: str | None = None,
        dry_run: bool = False,
        confirm: int | None = None,
    ) -> int:
        """Forgets what was done before, so that the next run of a subject skips nothing as unchanged; says of how many
        items. `confirm`: only if it is so many."""
        flow = self.registry.pipeline(name_of(pipeline))
        if stage is not None and stage not in flow.stages:
            raise Invalid(f"pipeline {flow.name!r} has no stage {stage!r}{did_you_mean(stage, flow.stages)}")
        return self._act(dry_run, stop.forget_done, flow.name, subject, stage, by=by or who(), confirm=confirm)

    def _rehearse_error(self, fingerprint: str, by: str | None) -> RetriedError:
        """What a retry of an error would do: rehearsed, since what cannot be queued again is only known by trying."""
        found = self._rehearse_requeue(partial(signatures.failed_jobs, fingerprint=fingerprint), by)
        queued, refusals = found.queued, found.refusals
        again: list[tuple[Callable[..., object], int]]
        again = [
            (partial(self.retry_run, run, error=fingerprint), jobs) for run, jobs in Counter(found.closed.values()).items()
        ]
        again += [(partial(self.retry_job, job), number) for job, number in Counter(found.parts.values()).items()]
        for retry, jobs in again:
            try:
                retry(by=by, dry_run=True)
                queued += jobs
            except (Refused, NotFound) as refused:
                refusals += [str(refused)] * jobs
        return RetriedError(fingerprint, queued, len(refusals), refusals[0] if refusals else None)

    def _rehearse_requeue(self, look: Callable[..., list[signatures.Batch]], by: str | None) -> signatures.Requeued:
        """What would become of all that `look` finds, batch by batch; what could not be simply queued is said."""
        queued, refusals, after, closed, parts = 0, list[str](), 0, dict[int, int](), dict[int, int]()
        while batches := self._read(look, after=after, most=bulk.BATCH):
            for batch in batches:
                done = self._act(True, signatures.requeue, batch, by=by or who())
                queued += done.queued
                refusals += done.refusals
                closed |= done.closed
                parts |= done.parts
            after = max(job for batch in batches for job in batch.jobs)
        return signatures.Requeued(queued, refusals, closed, parts)

    def ignore_error(self, fingerprint: str, *, undo: bool = False, by: str | None = None) -> None:
        """Leaves an error out of `errors`, until `undo`; its jobs stay as they are."""
        self.ledger.do(signatures.set_ignored, fingerprint, not undo, by=by or who())

    def pause(self, queue: str, *, by: str | None = None) -> None:
        """Nothing of this queue starts until it is resumed; survives restarts."""
        self.ledger.do(queues.set_paused, queue, True, by=by or who())

    def resume(self, queue: str, *, by: str | None = None) -> None:
        self.ledger.do(queues.set_paused, queue, False, by=by or who())

    def set_queue(
        self,
        queue: str,
        *,
        weight: float | None = None,
        limits: Mapping[str, Any] | None = None,
        create: bool = False,
        by: str | None = None,
    ) -> None:
        """Changes a queue's weight; `create`: makes a queue that no task names.

        `limits`: `at_once` and `per_second` over all workers; None for no such limit; what is not given stays.
        """
        if create:
            self._queue_ids = self.ledger.do(names.add_queues, [check_name(queue, "queue")])
        if weight is not None:
            if not 0 < weight <= 1e6:
                raise Invalid(f"a queue's weight is a number above 0, not {quoted(weight)}")
            self.ledger.do(queues.set_weight, queue, weight, by=by or who())
        if limits:
            if unknown := limits.keys() - {"at_once", "per_second"}:
                raise Invalid(f"a queue's limits are at_once and per_second, not {', '.join(sorted(map(repr, unknown)))}")
            self.ledger.do(limiting.limit_queue, queue, check_numbers(limits, f"queue {queue!r}"), by=by or who())

    def set_limit(
        self, name: str, key: str = "", *, numbers: Mapping[str, Any] | None = None, by: str | None = None
    ) -> LimitState:
        """Sets numbers of a limit, or of one key of it: `at_once`, `per_second`, `breaker`, `cooldown`; None for no such
        limit; what is not given stays. Without any: as the application declares it."""
        checked = None if numbers is None else check_numbers(numbers, f"limit {name!r}")
        self.ledger.do(limiting.set_limit, name, key and check_key(key), checked, by=by or who())
        return self.limits(name, key)[0]

    def close_circuit(self, name: str, key: str, *, by: str | None = None) -> None:
        """Lets the jobs of a key go on that were held back after failures, before its time."""
        self.ledger.do(limiting.close_circuit, name, key, by=by or who())

    def set_subject(
        self,
        pipeline: Pipeline | str,
        name: str,
        *,
        interval: float | timedelta | None = None,
        labels: Mapping[str, str | None] | None = None,
        by: str | None = None,
    ) -> Subject:
        """Sets a subject's own interval (0: none) and some of its labels (None: away with it); others stay.

        Makes the subject if it was not there and the pipeline is this application's.
        """
        flow = name_of(pipeline)
        check_key(name, "subject")
        if flow not in self.registry.pipelines and self.registry.pipelines:
            self.registry.pipeline(flow)  # says what is meant
        gap = None if interval is None else delay_of(interval, "interval")
        self.ledger.do(
            subjects.set_subject, flow, name, gap, labels_of(labels), create=flow in self.registry.pipelines, by=by or who()
        )
        return self.subject(flow, name)
