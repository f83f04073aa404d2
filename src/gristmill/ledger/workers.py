"""Workers: the lease is theirs, not their jobs'. A lost worker is lost for ever."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from types import MappingProxyType
from typing import NamedTuple

import orjson

from gristmill.errors import NotYours, SchemaMismatch
from gristmill.fingerprint import fingerprint
from gristmill.ledger.claim import PART_OF
from gristmill.ledger.columns import REVISION
from gristmill.ledger.finish import Outcome, Verdict, settle
from gristmill.ledger.flow import lock_runs
from gristmill.ledger.hold import hold
from gristmill.ledger.locks import end_locks
from gristmill.ledger.sql import Sql
from gristmill.ledger.store import Tx
from gristmill.states import State, WorkerState


class Registration(NamedTuple):
    """What a worker says about itself."""

    host: str
    pid: int
    born: str
    queues: Sequence[str]
    slots: int
    version: str
    labels: Sequence[str] = ()
    own_slots: Mapping[str, int] = MappingProxyType({})
    memory: int = 0  # MiB
    delivery: str = "database"


_REGISTER = Sql(
    "INSERT INTO gm_worker (host, pid, born, queues, slots, version, labels, own_slots, memory, delivery,"
    " state, registered_at, heartbeat_at, lease_until)"
    " SELECT :host, :pid, :born, :queues, :slots, :version, :labels, :own_slots, :memory, :delivery,"
    f" {WorkerState.ACTIVE:d}, {{now}}, {{now}}, {{now}} + :lease"
    " FROM gm_ledger WHERE oldest <= :revision RETURNING id"
)
_HEARTBEAT = Sql(
    "UPDATE gm_worker SET heartbeat_at = {now}, lease_until = {now} + :lease"
    f" WHERE id = :worker AND state = {WorkerState.ACTIVE:d}"
    " AND EXISTS (SELECT 1 FROM gm_ledger WHERE oldest <= :revision)"
)
_LEAVE = Sql(f"UPDATE gm_worker SET state = {WorkerState.STOPPED:d} WHERE id = :worker AND state = {WorkerState.ACTIVE:d}")
_LEAVE_CLAIMS = Sql("DELETE FROM gm_claim WHERE worker_id = :worker")
EXPIRED = Sql(f"SELECT id FROM gm_worker WHERE state = {WorkerState.ACTIVE:d} AND lease_until < {{now}} ORDER BY id")
_FORGET_LOCKS = Sql("DELETE FROM gm_lock")
_ALL_ACTIVE = Sql(f"SELECT id FROM gm_worker WHERE state = {WorkerState.ACTIVE:d} ORDER BY id")
_FIRST = Sql(f"SELECT min(id) FROM gm_worker WHERE state = {WorkerState.ACTIVE:d} AND lease_until >= {{now}}")
_ON_HOST = Sql(f"SELECT id, pid, born FROM gm_worker WHERE state = {WorkerState.ACTIVE:d} AND host = :host")
_LOCK_WORKER = Sql(
    f"SELECT id FROM gm_worker WHERE id = :worker AND state = {WorkerState.ACTIVE:d}"
    " AND (:gone OR lease_until < {now}) {exclusive}"
)
_LOSE = Sql(f"UPDATE gm_worker SET state = {WorkerState.LOST:d} WHERE id = :worker")
_STATE = Sql(
    "SELECT state FROM gm_worker WHERE id = :worker AND EXISTS (SELECT 1 FROM gm_ledger WHERE oldest <= :revision) {lock}"
)
_LOST_BY = Sql(  # by the index of errors: every loss has the same fingerprint, and none is older than the last sign of life
    "SELECT j.id, j.run_id FROM gm_attempt a JOIN gm_worker w ON w.id = a.worker_id JOIN gm_job j ON j.id = a.job_id"
    " WHERE w.id = :worker AND a.fingerprint = :mark AND a.ended_at >= w.heartbeat_at"
)
_LOCK_OPEN = Sql(
    f"SELECT id FROM gm_job WHERE id {{in ids}} AND losses > 0 AND state IN ({State.QUEUED:d}, {State.IN_PROGRESS:d})"
    " AND ends_as IS NULL ORDER BY id {lock}"
)
_NEVER_WAS = Sql(
    "DELETE FROM gm_attempt WHERE job_id {in ids} AND worker_id = :worker AND fingerprint = :mark RETURNING job_id"
)
_GIVE_BACK = Sql("UPDATE gm_job SET losses = losses - 1 WHERE id {in ids}")
_LOSS = fingerprint("worker_lost", None, None)
_CLAIMS = Sql("SELECT jobs FROM gm_claim WHERE worker_id = :worker")
_HELD = Sql(
    f"SELECT id, attempt, run_id, {PART_OF} AS part_of FROM gm_job"
    f" WHERE id {{in ids}} AND state = {State.IN_PROGRESS:d} AND worker_id = :worker"
)
_ASKED = Sql(
    "SELECT j.id FROM gm_job j LEFT JOIN gm_run r ON r.id = j.run_id LEFT JOIN gm_job p ON p.id = j.parent_id"
    " AND j.stage_id IS NULL WHERE j.id {in ids}"
    " AND ((j.worker_id = :worker AND (j.cancel OR r.stop IS NOT NULL OR p.ends_as IS NOT NULL))"
    " OR (coalesce(j.worker_id, 0) <> :worker AND r.epoch > 1 AND NOT j.state {in done}))"
)
_DONE = (int(State.COMPLETED), int(State.COMPLETED_WITH_ERRORS))


def register(tx: Tx, who: Registration, lease: int) -> int:
    """A new number for a worker, unless the database has moved on from the code that it runs."""
    texts = {"queues": list(who.queues), "labels": list(who.labels), "own_slots": dict(who.own_slots)}
    about = who._asdict() | {name: orjson.dumps(value).decode() for name, value in texts.items()}
    number: int | None = tx.value(_REGISTER, lease=lease, revision=REVISION, **about)
    if number is None:
        raise SchemaMismatch(f"the database does not take workers of schema {REVISION} any more; update Gristmill here")
    tx.notes.add("worker", id=number, state=WorkerState.ACTIVE.word, host=who.host)
    return number


def heartbeat(tx: Tx, worker: int, lease: int) -> None:
    """Extends the lease, unless the worker is lost or its code is not accepted any more."""
    if not tx.run(_HEARTBEAT, worker=worker, lease=lease, revision=REVISION):
        raise NotYours(f"worker {worker} was declared lost")


def asked_to_stop(tx: Tx, worker: int, held: Collection[int]) -> list[int]:
    """Which of the jobs that a worker holds somebody wants stopped, or has taken away from it by a retry of their run.

    One that is done has ended itself, in a transaction of its own, and may go on to its end.
    """
    return [row.id for row in tx.all(_ASKED, ids=list(held), worker=worker, done=_DONE)] if held else []


def leave(tx: Tx, worker: int) -> None:
    """The worker is gone by its own will, and holds nothing any more."""
    hold(tx, worker)
    release_strays(tx, worker)
    tx.run(_LEAVE, worker=worker)
    tx.notes.add("worker", id=worker, state=WorkerState.STOPPED.word)
    tx.run(_LEAVE_CLAIMS, worker=worker)
    end_locks(tx, worker)


def claims_of(tx: Tx, worker: int) -> list[int]:
    """The jobs of its claims: all that are in progress under its name, and some that have ended since."""
    return [number for row in tx.all(_CLAIMS, worker=worker) for number in orjson.loads(row.jobs)]


def _all_held(tx: Tx, worker: int, verdict: Verdict) -> list[Outcome]:
    """One end for all that is in progress under this worker's name."""
    ids = claims_of(tx, worker)
    rows = tx.all(_HELD, ids=ids, worker=worker) if ids else []
    return [Outcome(row.id, row.attempt, row.run_id, verdict, part_of=row.part_of) for row in rows]


def runs_of(tx: Tx, worker: int) -> set[int | None]:
    """The runs whose jobs it has in progress; None: of jobs on their own."""
    return {held.run for held in _all_held(tx, worker, Verdict.LOST)}


def release_strays(tx: Tx, worker: int, held: Set[int] = frozenset()) -> int:
    """Gives back what is in the worker's name but not in its hands: a claim whose commit got no answer."""
    strays = [outcome for outcome in _all_held(tx, worker, Verdict.RELEASED) if outcome.job not in held]
    settle(tx, worker, strays)
    return len(strays)


def release_strays_of(tx: Tx, worker: int, held: Set[int]) -> int:
    """The same, as a verb of its own."""
    hold(tx, worker)
    return release_strays(tx, worker, held)


def expired(tx: Tx) -> list[int]:
    """Workers whose lease is over."""
    return [row.id for row in tx.all(EXPIRED)]


def is_first(tx: Tx, worker: int) -> bool:
    """Whether no other that is there is older: so one does for all what only one has to do. When it goes, the next does."""
    return bool(tx.value(_FIRST) == worker)


def on_host(tx: Tx, host: str) -> list[tuple[int, int, str]]:
    """(id, pid, born) of the active workers that say they run on this host."""
    return [tuple(row) for row in tx.all(_ON_HOST, host=host)]


def lose_all(tx: Tx) -> None:
    """After a restore: the workers of the backup are lost, and what they held goes back unspent."""
    tx.run(_FORGET_LOCKS)
    for row in tx.all(_ALL_ACTIVE):
        release_strays(tx, row.id)
        tx.run(_LOSE, worker=row.id)
        tx.run(_LEAVE_CLAIMS, worker=row.id)


def come_back(tx: Tx, worker: int, begun: Collection[int]) -> int:
    """The process of a worker that lost its place lives. What it held and had not `begun` gets its loss back; says how many.

    So a database that is often away does not use up the budgets of jobs that only waited here. A job that had begun may be
    the reason: it may have kept the whole machine from its heartbeats.
    """
    state = tx.value(_STATE, worker=worker, revision=REVISION)
    if state is None:  # it is forgotten, or the database does not take changes of this code any more
        return 0
    if state == WorkerState.ACTIVE:  # its lease is over, but nobody has taken its jobs yet
        _lose(tx, worker)
        spared = release_strays(tx, worker)
        tx.run(_LEAVE_CLAIMS, worker=worker)
        return spared
    lost = {job: run for job, run in tx.tuples(_LOST_BY, worker=worker, mark=_LOSS) if job not in begun}
    lock_runs(tx, lost.values())
    still_open = [row.id for row in tx.all(_LOCK_OPEN, ids=list(lost))] if lost else []
    back = [row.job_id for row in tx.all(_NEVER_WAS, ids=still_open, worker=worker, mark=_LOSS)] if still_open else []
    if back:
        tx.run(_GIVE_BACK, ids=back)
    return len(back)


def _lose(tx: Tx, worker: int) -> None:
    end_locks(tx, worker)  # before others may have its jobs: what is left of it must not go on as if it held them
    tx.run(_LOSE, worker=worker)
    tx.notes.add("worker", id=worker, state=WorkerState.LOST.word)


def rescue(tx: Tx, worker: int, gone: bool = False) -> int | None:
    """Declares a worker lost and takes its jobs back; says how many, None: it was not for us to do.

    `gone`: its process is known to be dead, lease or not.
    """
    lost = take_back(tx, worker, gone)
    return None if lost is None else len(lost)


def take_back(tx: Tx, worker: int, gone: bool) -> list[Outcome] | None:
    """The same; says which attempts are lost."""
    if tx.one(_LOCK_WORKER, worker=worker, gone=gone) is None:
        return None  # it is back, or in the middle of a transaction, or someone else was faster
    _lose(tx, worker)
    lost = _all_held(tx, worker, Verdict.LOST)
    settle(tx, worker, lost)
    tx.run(_LEAVE_CLAIMS, worker=worker)
    return lost
