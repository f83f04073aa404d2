"""Reading: one look at the ledger each, consistent in itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gristmill.clock import from_datetime, moment_of
from gristmill.errors import Invalid
from gristmill.mill.base import Base
from gristmill.mill.lazy import lazy
from gristmill.mill.values import checked_id, delay_of, filters, label_of, name_of, state_of, states_of
from gristmill.model import (
    Attempt,
    AuditEntry,
    Backup,
    Diagnosis,
    ErrorDetail,
    Job,
    LimitState,
    Lock,
    Queue,
    Run,
    Signature,
    Status,
    Subject,
    Why,
    Worker,
)
from gristmill.pipeline import Pipeline

if TYPE_CHECKING:
    from gristmill.delivery import health as delivery_health
    from gristmill.ledger import (
        backup,
        choose,
        health,
        limiting,
        listing,
        locks,
        measure,
        minutes,
        outbox,
        read,
        signatures,
        sql,
        subjects,
        why,
    )
    from gristmill.ledger.store import Tx
    from gristmill.metrics import Family
else:
    (delivery_health,) = lazy("gristmill.delivery", "health")
    limiting, measure, minutes, outbox = lazy("gristmill.ledger", "limiting", "measure", "minutes", "outbox")
    backup, choose, health, listing, locks, read, signatures, sql, subjects, why = lazy(
        "gristmill.ledger", "backup", "choose", "health", "listing", "locks", "read", "signatures", "sql", "subjects", "why"
    )


class Reading(Base):
    _settled: minutes.Settled | None = None  # what was counted in former hours, once somebody has asked for metrics

    def run(self, run: int) -> Run:
        with self.ledger.reading() as tx:
            return read.run(tx, checked_id(run, "run"))

    def stage_order(self, run: int) -> dict[str, tuple[str, ...]]:
        """After which stages each stage of a run comes; those that begin it are left out."""
        return self._read(read.order, checked_id(run, "run"))

    def runs(
        self,
        *,
        pipeline: str | None = None,
        subject: str | None = None,
        state: str | Iterable[str] | None = None,
        stage: str | None = None,
        error: str | None = None,
        since: datetime | None = None,
        limit: int = 50,
        after: int | None = None,
    ) -> list[Run]:
        """Runs, newest first; `after` the number of the last of one page comes the next.

        `subject`: a name, or a pattern of names with * and ?, in whatever case; `state`: one, or several of which any will
        do; `stage`: those that are at it, or some of it failed; `error`: some of it is failed by this one."""
        wanted = choose.Choice(
            pipeline=pipeline,
            subject=subject,
            states=states_of(state),
            stage=stage,
            error=error,
            since=None if since is None else from_datetime(since),
        )
        page = filters(("r.id < :after", after))
        with self.ledger.reading() as tx:
            return read.runs(tx, {**choose.runs_where(wanted), **page}, limit)

    def stuck(self, *, limit: int = 50) -> list[Run]:
        """Active runs, newest first, that have no job left which could move them on: `reconcile` mends them."""
        with self.ledger.reading() as tx:
            tx.by_key()  # or PostgreSQL reads all stages that there are, for those of some runs
            found = [row.id for row in measure.stuck_runs(tx)]
            return read.runs(tx, {"r.id {in ids}": {"ids": found}}, limit) if found else []

    def job(self, job: int) -> Job:
        return self.ledger.glance(read.job, checked_id(job, "job"))

    def backend_job_id(self, job: int) -> str | None:
        """What RQ or Arq call a job; None: it was not published there."""
        return self.ledger.glance(outbox.backend_job_id, checked_id(job, "job"))

    def jobs(
        self,
        *,
        run: int | None = None,
        pipeline: str | None = None,
        stage: str | None = None,
        subject: str | None = None,
        state: str | Iterable[str] | None = None,
        queue: str | None = None,
        task: str | None = None,
        part_of: int | None = None,
        error: str | None = None,
        key: str | None = None,
        worker: int | None = None,
        since: datetime | None = None,
        archived: bool | None = False,
        parts: bool = True,
        limit: int = 50,
        after: int | None = None,
    ) -> list[Job]:
        """Jobs, newest first; `after` the number of the last of one page comes the next.

        Those of a `run` or a `subject` are items and their parts (unless `parts` is False), those of a `stage` only items.

        `state`: one, or several of which any will do; `part_of`: parts of this job; `error`: failed by this one; `key`: a
        pattern with * and ?, as `subject` may be; `worker`: which holds them; `archived`: None for all.
        """
        wanted = choose.Choice(
            run=run,
            pipeline=pipeline,
            stage=stage,
            subject=subject,
            states=states_of(state),
            queue=queue,
            task=task,
            part_of=part_of,
            error=error,
            key=key,
            worker=worker,
            since=None if since is None else from_datetime(since),
            archived=archived,
        )
        with self.ledger.reading() as tx:
            self._check_queue(tx, queue)
            return listing.jobs(tx, wanted, limit, parts, after)

    def attempts(self, job: int) -> list[Attempt]:
        """The attempts of a job that did not succeed, newest first, with traceback and captured log."""
        with self.ledger.reading() as tx:
            read.job(tx, checked_id(job, "job"))
            return read.attempts(tx, job)

    def results(self, run: Run | int, stage: str, *, after: str | None = None) -> Iterator[tuple[str, Any]]:
        """(key, result) of the items of a stage that completed, by key; streamed. `after`: only those behind this key."""
        number = run.id if isinstance(run, Run) else checked_id(run, "run")
        return read.results(self._read, number, stage, after=after)

    def errors(
        self,
        *,
        queue: str | None = None,
        stage: str | None = None,
        pipeline: str | None = None,
        since: datetime | None = None,
        every: bool = False,
        limit: int = 50,
        after: str | None = None,
    ) -> list[Signature]:
        """Errors by fingerprint, what fails the most jobs now first; `every`: also those that are ignored. `after`: the
        `place` of the last one of the page before."""
        where = filters(
            ("j.queue_id = (SELECT id FROM gm_queue WHERE name = :queue)", queue),
            ("g.name = :stage", stage),
            ("r.pipeline = :pipeline", pipeline),
            ("a.ended_at >= :since", None if since is None else from_datetime(since)),
        )
        with self.ledger.reading() as tx:
            self._check_queue(tx, queue)
            chosen = where if every else {**where, **signatures.UNLESS_IGNORED}
            return signatures.signatures(tx, chosen, limit, None if after is None else Signature.rank_of(after))

    def error(self, fingerprint: str) -> ErrorDetail:
        """One error: an example with traceback and log, the stages, subjects and jobs that it happens to."""
        return self._read(signatures.detail, fingerprint)

    def subject(self, pipeline: Pipeline | str, name: str) -> Subject:
        with self.ledger.reading() as tx:
            return subjects.subject(tx, name_of(pipeline), name)

    def subjects(
        self,
        *,
        ids: Sequence[int] | None = None,
        pipeline: Pipeline | str | None = None,
        name: str | None = None,
        label: str | Iterable[str] = (),
        stale_for: float | timedelta | None = None,
        state: str | None = None,
        limit: int = 50,
        after: Subject | int | None = None,
    ) -> list[Subject]:
        """Subjects, in the order in which they came; `after` the last of one page comes the next.

        `name`: whole, or a pattern with * and ?, in whatever case. `label`: `key=value` or `key`, one or several.
        `stale_for`: without a good run for so many seconds, or ever.
        `state`: of the active run or of the last one that ended.
        """
        wanted = [label] if isinstance(label, str) else label
        with self.ledger.reading() as tx:
            return subjects.subjects(
                tx,
                ids=None if ids is None else [checked_id(number, "subject") for number in ids],
                pipeline=None if pipeline is None else name_of(pipeline),
                name=name,
                labels=[label_of(text) for text in wanted],
                stale_for=None if stale_for is None else delay_of(stale_for, "stale_for"),
                state=state_of(state),
                after=after.id if isinstance(after, Subject) else after,
                most=limit,
            )

    def queues(self) -> list[Queue]:
        with self.ledger.reading() as tx:
            return read.queues(tx)

    def limits(self, name: str | None = None, key: str | None = None, *, most: int = 1000) -> list[LimitState]:
        """Limits, and of each the keys that are in use, that were set, or whose circuit is open."""
        return self._read(limiting.all_limits, name, key, most)

    def open_circuits(self) -> list[LimitState]:
        """Of the limits, those keys that are left alone for a while after failures."""
        return self._read(limiting.open_circuits)

    def workers(self, *, every: bool = False) -> list[Worker]:
        """Active workers, newest first; `every`: also those that stopped or were lost."""
        with self.ledger.reading() as tx:
            return read.workers(tx, every)

    def locks(self) -> list[Lock]:
        """The locks that are held, with those who wait for them."""
        return self._read(locks.held_locks)

    def why(
        self, *, run: int | None = None, job: int | None = None, pipeline: str | None = None, subject: str | None = None
    ) -> Why:
        """The one reason that a run, a job, or a subject of a pipeline is not moving, and the command that mends it."""
        given = {"run": run, "job": job, "pipeline": pipeline, "subject": subject}
        match {name: value for name, value in given.items() if value is not None}:
            case {"run": int(number), **rest} if not rest:
                return self._read(why.run, checked_id(number, "run"))
            case {"job": int(number), **rest} if not rest:
                return self._read(why.job, checked_id(number, "job"))
            case {"pipeline": str(flow), "subject": str(name), **rest} if not rest:
                return self._read(why.subject, flow, name)
        raise Invalid("why takes a run, or a job, or a pipeline and a subject of it")

    def doctor(self) -> list[Diagnosis]:
        """What is well with the database and this machine and what is not, each with what mends it."""
        return health.examine(self.ledger) + delivery_health.examine_delivery(self.delivery.name, self.redis_url)

    def backup(self, file: str | Path, *, force: bool = False) -> Backup:
        """Writes the ledger into a file while everything goes on; `force` replaces one that is there."""
        return backup.backup(self.ledger, Path(file), force=force)

    def status(self, *, ended: bool = True) -> Status:
        """The overall picture. `ended`: with how many runs have ended, which takes longer the more there are."""
        with self.ledger.reading() as tx:
            active = read.runs(tx, {read.UNFINISHED: {}}, 50)
            queues, workers = read.queues_and_workers(tx)
            return Status(read.run_counts(tx, ended), tuple(active), tuple(queues), tuple(workers), moment_of(read.now(tx)))

    def metrics(self) -> list[Family]:
        """What `/metrics` says, read from the database: `gristmill.metrics.exposition` makes Prometheus's text of it."""

        def look(tx: Tx) -> list[Family]:
            self._settled = minutes.settled(tx, self._settled)
            found: list[Family] = measure.measure(tx, self._settled)
            return found

        return self._read(look)

    def audit(
        self,
        *,
        who: str | None = None,
        verb: str | None = None,
        target: str | None = None,
        since: datetime | None = None,
        limit: int = 50,
        after: int | None = None,
    ) -> list[AuditEntry]:
        """What people did, the newest first; `after` the number of the last of one page comes the next.

        `who`, `verb` and `target` are patterns with * and ?."""

        def look(tx: Tx) -> list[AuditEntry]:
            patterns = {"who": who, "verb": verb, "target": target}
            where = filters(*((f"a.{n} {{glob}} :{n}", p and sql.glob(p, tx.dialect)) for n, p in patterns.items()))
            where |= filters(("a.at >= :since", None if since is None else from_datetime(since)))
            where |= filters(("a.id < :after", after))
            return read.audit(tx, where, limit)

        return self._read(look)
