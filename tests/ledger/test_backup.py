"""Backup and restore: what comes back is what was there, into either database, whole or not at all; nobody writes late."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from gristmill import Limit, task
from gristmill.errors import DatabaseError, Invalid, NotFound, NotYours, Refused, SchemaMismatch
from gristmill.ledger import backup as backups
from gristmill.ledger import workers
from gristmill.ledger.emit import Item
from gristmill.ledger.exchange import Batch
from gristmill.ledger.finish import Verdict
from gristmill.ledger.own import lock_own
from gristmill.ledger.store import Ledger
from tests.ledger import invariants
from tests.ledger.conftest import Open
from tests.ledger.play import Play, Player, each, plain, plan, solo, step, stubborn
from tests.servers import ROOT
from tests.worker.helpers import eventually

SITE = plan("site", find=step(), page=each("find", need=0), total=step("page"))
CHANGED = {"gm_job", "gm_worker", "gm_claim", "gm_audit", "gm_ledger", "gm_attempt", "gm_event"}  # by the restore itself


def busy(play: Play) -> tuple[Player, Player]:
    """A ledger with something of everything, and two workers that hold some of it."""
    mill = play.mill
    mill.set_subject("site", "s", interval=60, labels={"tier": "gold", "grüß": 'a "b" \\N'})
    mill.start("site", "s", priority="high")
    first, second = play.player(), play.player()
    producer = first.take_one()
    assert first.emit(producer, "a", "b", "c", "d", "ä \\N") == {}
    first.complete(producer, result='{"text": "a\\\\N\\ttab"}')
    a, b = first.take(2)
    first.end(a, Verdict.PERMANENT, reason="not\ta \\. page", error_class="Permanent", traceback="x\n\\.\ny")
    first.end(b, digest="abc")
    second.take(1)
    mill.enqueue(solo, args={"n": 7}, unique="one", delay=60)
    mill.enqueue(stubborn)
    mill.pause("default", by="me")
    return first, second


def later(play: Play) -> None:
    """What happens after the backup, and is to be forgotten."""
    play.mill.resume("default", by="me")
    play.drain(verdicts={"page": Verdict.PERMANENT})
    play.mill.start("site", "t")
    play.mill.enqueue(solo)


def rows(ledger: Ledger) -> dict[str, Any]:
    """Everything but what a restore changes, as Python sees it on both databases."""
    return {name: found for name, found in invariants.snapshot(ledger).items() if name not in CHANGED}


_JOBS = (
    "SELECT id, run_id, stage_id, parent_id, run_at, created_at, finished_at, attempt, priority, errors, crashes, losses,"
    " key, unique_key, unique_name, args, result, error, fingerprint, CASE WHEN state = 1 THEN 0 ELSE state END AS state"
    " FROM gm_job ORDER BY id"
)


@pytest.fixture
def pg_url(owner_pg_url: str) -> str:
    """A restore is its owner's business."""
    return owner_pg_url


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ledger.backup"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.pg)])
def other(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Another database, empty."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/other.db"
    return str(request.getfixturevalue("empty_pg_url"))


def test_a_restore_brings_back_what_was_there_and_it_goes_on(opened: Open, file: Path) -> None:
    play = opened(SITE)
    busy(play)
    before, jobs = rows(play.ledger), play.rows(_JOBS)
    made = backups.backup(play.ledger, file)
    assert (made.subjects, made.runs, made.jobs, made.database) == (1, 1, 8, play.ledger.engine.dialect.name)
    assert file.stat().st_mode & 0o777 == 0o600
    later(play)
    assert rows(play.ledger) != before
    backups.restore(play.url, file, by="me", force=True)
    assert (rows(play.ledger), play.rows(_JOBS)) == (before, jobs)
    assert play.value("SELECT count(*) FROM gm_worker WHERE state = 0") == 0
    assert play.value("SELECT count(*) FROM gm_claim") == 0
    assert [tuple(row) for row in play.rows("SELECT who, verb, target FROM gm_audit ORDER BY id")][-1] == (
        "me", "restore", "backup ledger.backup",
    )  # fmt: skip
    play.mill.resume("default", by="me")
    play.drain()
    (run,) = play.mill.runs()
    assert (run.state, run.stage("page").completed, run.stage("page").failed) == ("completed_with_errors", 4, 1)


def test_a_backup_goes_into_either_database_and_work_goes_on_there(
    opened: Open, other: str, file: Path, tmp_path: Path
) -> None:
    play = opened(SITE)
    busy(play)
    before, jobs = rows(play.ledger), play.rows(_JOBS)
    backups.backup(play.ledger, file)
    backups.restore(other, file, by="me")
    there = Play(other, [SITE], play.clock)
    try:
        assert (rows(there.ledger), there.rows(_JOBS)) == (before, jobs)
        again = tmp_path / "again"
        backups.backup(there.ledger, again)  # and from there back again
        there.mill.resume("default", by="me")
        there.mill.start("site", "new")
        there.drain()
        assert [run.state for run in there.mill.runs()] == ["completed", "completed_with_errors"]
        invariants.check(there.ledger)
    finally:
        there.close()
    backups.restore(play.url, again, by="me", force=True)
    assert (rows(play.ledger), play.rows(_JOBS)) == (before, jobs)


# ---- nobody writes late


def writes(player: Player, job: Any) -> Iterator[Callable[[], object]]:
    yield player.heartbeat
    yield lambda: player.take()
    yield lambda: player.complete(job)
    yield lambda: player.emit(job, "late") if job.run_id else player.heartbeat()
    yield lambda: player.report(Batch(completed=plain(job)))
    yield lambda: player.ledger.do(workers.leave, player.id)
    yield lambda: player.ledger.do(workers.release_strays_of, player.id, set())


def test_workers_of_the_time_before_can_write_nothing(opened: Open, file: Path) -> None:
    play = opened(SITE)
    play.mill.enqueue(stubborn)
    play.mill.enqueue(solo)
    known = play.player()
    held = known.take_one()
    backups.backup(play.ledger, file)
    unknown = play.player()  # registered after the backup: the restored ledger never heard of it
    taken = unknown.take_one()
    backups.restore(play.url, file, by="me", force=True)
    fresh = [play.player() for _ in range(3)]
    jobs = fresh[0].take()
    assert {(job.id, job.attempt) for job in jobs} == {(held.id, 2), (taken.id, 1)}  # the number comes round again
    snapshot = invariants.snapshot(play.ledger)
    for player, job in ((known, held), (unknown, taken)):
        assert player.id < min(new.id for new in fresh)
        for write in writes(player, job):
            with pytest.raises(NotYours):
                write()
    assert not play.ledger.do(lock_own, unknown.id, taken.id, 1)
    assert invariants.snapshot(play.ledger) == snapshot
    assert play.ledger.do(lock_own, fresh[0].id, taken.id, 1)


def goes_on(done: list[int]) -> None:
    before = len(done)
    eventually(lambda: len(done) >= before + 5)


def test_a_restore_in_the_middle_of_everything(opened: Open, file: Path) -> None:
    """Three workers and applications go on as fast as they can; each write is of the time before, or of the time after."""
    play = opened(SITE)
    busy(play)
    play.mill.resume("default", by="me")
    backups.backup(play.ledger, file)
    over = threading.Event()
    done: list[int] = []

    def work(n: int) -> None:
        player = play.player()
        while not over.is_set():
            try:
                play.mill.start("site", f"{n}-{len(done)}")
                play.mill.enqueue_many(solo, [{}, {}])
                play.turn(player, {"find": ["a", "b"]}, {})
                done.append(n)
            except NotYours:
                player = play.player()
            except (DatabaseError, NotFound, KeyError, AssertionError):  # a name of what is no more; a claim that was lost
                pass

    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(work, n) for n in range(3)]
        for _ in range(3):
            goes_on(done)
            backups.restore(play.url, file, by="me", force=True)
        goes_on(done)
        over.set()
        assert [future.result() for future in futures] == [None] * 3
    invariants.check(play.ledger)
    for worker in play.mill.workers():
        play.ledger.do(workers.rescue, worker.id, True)
    play.drain_later(items={"find": ["a", "b"]})
    assert {run.state for run in play.mill.runs(limit=1000)} <= {"completed", "completed_with_errors"}


def test_restoring_again_and_again_never_gives_a_workers_number_twice(opened: Open, file: Path) -> None:
    play = opened()
    backups.backup(play.ledger, file)
    given = [play.player().id]
    for _ in range(3):
        backups.restore(play.url, file, by="me", force=True)
        given += [play.player().id, play.player().id]
    assert given == sorted(set(given))
    assert given[-1] > play.value("SELECT epoch FROM gm_ledger") > given[-3]


def test_names_that_came_after_the_backup_keep_their_numbers(opened: Open, file: Path) -> None:
    """An application that runs on knows them by number."""
    play = opened()
    play.mill.enqueue(stubborn)
    backups.backup(play.ledger, file)
    play.mill.set_queue("new", create=True)
    job = play.mill.enqueue(solo, queue="new")
    backups.restore(play.url, file, by="me", force=True)
    again = play.mill.enqueue(solo, queue="new")
    assert (again.task, again.queue) == (job.task, job.queue) == ("solo", "new")


@task(name="fetch", limit=Limit("host", per="host", at_once=1))
def fetch(ctx: Any, host: str) -> None:
    """A job with a key."""


@task(name="tenant", limit=Limit("tenant", at_once=1))
def of_tenant(ctx: Any) -> None:
    """A job of an application that comes later."""


CRAWL = plan("crawl", find=step(), page=each("find", limit=Limit("site", per="host", at_once=1)))
_LIMITS = (
    "SELECT l.name, l.key FROM gm_job j JOIN gm_limit l ON l.id = j.limit_id JOIN gm_task t ON t.id = j.task_id"
    " WHERE t.name <> 'tenant' ORDER BY j.id"
)


def test_limits_that_came_after_the_backup_keep_their_numbers(opened: Open, file: Path) -> None:
    """An application that runs on knows them by number, and so do the runs that it starts."""
    play = opened(fetch, CRAWL)
    play.mill.enqueue(stubborn)
    backups.backup(play.ledger, file)
    play.mill.enqueue(fetch, args={"host": "x"})
    play.mill.start("crawl", "s")
    backups.restore(play.url, file, by="me", force=True)
    opened(of_tenant).mill.enqueue(of_tenant)  # another application, with a limit that nobody has a number of yet
    play.mill.enqueue(fetch, args={"host": "x"})
    play.mill.enqueue(fetch, args={"host": "y"})
    run = play.mill.start("crawl", "s")
    play.drain(items={"find": [Item("a", '{"host": "z"}', None, {"page": "z"})]})
    assert [tuple(row) for row in play.rows(_LIMITS)] == [("host", "x"), ("host", "y"), ("site", "z")]
    assert play.run(run).state == "completed"


def test_what_was_set_of_a_queues_limit_after_the_backup_is_forgotten(opened: Open, file: Path) -> None:
    play = opened()
    play.mill.enqueue(solo)
    backups.backup(play.ledger, file)
    play.mill.set_queue("default", limits={"at_once": 1})
    backups.restore(play.url, file, by="me", force=True)
    assert {(limit.at_once, limit.per_second) for limit in play.mill.limits()} <= {(None, None)}
    assert [queue.at_once for queue in play.mill.queues() if queue.name == "default"] == [None]


def test_who_asks_with_the_number_of_a_limit_that_is_gone_is_told(opened: Open) -> None:
    """It is of another ledger than the one that was restored. Whoever emits such items stops, and takes nobody with it."""
    play = opened(fetch, CRAWL)
    play.mill.enqueue(fetch, args={"host": "x"})
    play.drain()
    play.mill.start("crawl", "s")
    with play.ledger.transaction() as connection:
        connection.execute(text("DELETE FROM gm_limit"))
    with pytest.raises(Refused, match=r"no limit number [0-9]+ in this ledger.*restart the applications"):
        play.mill.enqueue(fetch, args={"host": "y"})
    player = play.player()
    find = player.take_one()
    (reason,) = player.emit(find, Item("a", '{"host": "z"}', None, {"page": "z"})).values()
    assert "no limit number" in reason
    assert play.mill.jobs(stage="page") == []


def test_names_of_another_ledger_are_not_mixed_in(opened: Open, other: str, file: Path) -> None:
    play = opened()
    play.mill.enqueue(stubborn)
    backups.backup(play.ledger, file)
    backups.restore(other, file, by="me")
    there = Play(other, [plan("strange", first=step(queue="odd"))], play.clock)
    try:
        with there.ledger.transaction() as connection:
            connection.execute(text("UPDATE gm_task SET name = 'other'"))
        there.mill.start("strange", "s")
        backups.restore(other, file, by="me", force=True)
        assert [tuple(row) for row in there.rows("SELECT name FROM gm_task")] == [("stubborn",)]
    finally:
        there.close()


# ---- whole or not at all


def test_what_is_no_file_is_never_replaced(opened: Open, file: Path) -> None:
    play = opened()
    os.mkfifo(file)  # as little a file as /dev/null, which root could replace
    with pytest.raises(Refused, match="is there already, and is no file"):
        backups.backup(play.ledger, file, force=True)
    assert file.is_fifo()


def test_a_file_that_is_there_is_not_replaced_unless_told(opened: Open, file: Path) -> None:
    play = opened()
    file.write_text("mine")
    with pytest.raises(Refused, match="--force replaces it"):
        backups.backup(play.ledger, file)
    assert file.read_text() == "mine"
    backups.backup(play.ledger, file, force=True)
    assert backups.look(file).jobs == 0
    with pytest.raises(Refused, match="is there already"):
        backups.backup(play.ledger, file.parent, force=True)
    with pytest.raises(Invalid, match="there is no folder"):
        backups.backup(play.ledger, file.parent / "no" / "such")


def test_a_ledger_with_work_in_it_is_not_replaced_unless_told(opened: Open, file: Path) -> None:
    play = opened()
    backups.backup(play.ledger, file)
    play.mill.enqueue(solo)
    before = invariants.snapshot(play.ledger)
    with pytest.raises(Refused, match="--force"):
        backups.restore(play.url, file, by="me")
    assert invariants.snapshot(play.ledger) == before


def damaged(content: bytes) -> dict[str, bytes]:
    middle = len(content) // 2
    return {
        "empty": b"",
        "cut": content[:-1],
        "cut in the middle": content[:middle],
        # One byte may say how far back the same zeros are: then nothing is damaged.
        "some bytes": content[:middle]
        + bytes(byte ^ 255 for byte in content[middle : middle + 16])
        + content[middle + 16 :],
        "the checksum": content[:-5] + bytes([content[-5] ^ 1]) + content[-4:],
        "something behind": content + b"more",
        "text": b"no backup at all",
        "another gzip": gzip.compress(b"no database"),
    }


def test_a_damaged_file_is_refused_before_anything_is_changed(opened: Open, file: Path) -> None:
    play = opened(SITE)
    busy(play)
    backups.backup(play.ledger, file)
    before = invariants.snapshot(play.ledger)
    for what, content in damaged(file.read_bytes()).items():
        file.write_bytes(content)
        with pytest.raises(Invalid, match=r"is no backup|damaged"):
            backups.restore(play.url, file, by="me", force=True)
        assert invariants.snapshot(play.ledger) == before, what
    with pytest.raises(Invalid, match="cannot read"):
        backups.restore(play.url, file.parent / "nothing", by="me", force=True)


def test_a_restore_that_fails_at_the_last_moment_changes_nothing(
    opened: Open, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = opened(SITE)
    busy(play)
    backups.backup(play.ledger, file)
    later(play)
    before = invariants.snapshot(play.ledger)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(backups, "_set_workers" if play.ledger.is_sqlite else "_epoch", fail)
    with pytest.raises(OSError, match="full"):
        backups.restore(play.url, file, by="me", force=True)
    assert invariants.snapshot(play.ledger) == before


_KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from gristmill.ledger import backup
from gristmill.ledger.store import Ledger
copy = shutil.copyfileobj
def dies(source, target, length=0):
    target.write(source.read(1000))
    os.kill(os.getpid(), signal.SIGKILL)
shutil.copyfileobj = dies
if sys.argv[1] == "backup":
    backup.backup(Ledger(sys.argv[2]), Path(sys.argv[3]), force=True)
else:
    backup.restore(sys.argv[2], Path(sys.argv[3]), by="me", force=True)
"""


@pytest.mark.parametrize("verb", ["backup", "restore"])
def test_a_process_that_is_killed_leaves_no_half_file_and_no_half_ledger(opened: Open, file: Path, verb: str) -> None:
    play = opened()
    play.mill.enqueue(solo)
    backups.backup(play.ledger, file)
    before, ledger = file.read_bytes(), invariants.snapshot(play.ledger)
    done = subprocess.run([sys.executable, "-c", _KILLED, verb, play.url, file], cwd=ROOT)
    assert done.returncode == -9
    assert (file.read_bytes(), invariants.snapshot(play.ledger)) == (before, ledger)


def test_a_backup_of_newer_code_is_refused(opened: Open, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play = opened()
    monkeypatch.setattr(backups, "REVISION", "9999")
    monkeypatch.setattr(backups, "_check_revision", lambda ledger: None)
    backups.backup(play.ledger, file)
    monkeypatch.undo()
    with pytest.raises(SchemaMismatch, match="made at schema 9999"):
        backups.restore(play.url, file, by="me", force=True)


def test_a_database_that_has_moved_on_is_backed_up_by_newer_code_only(opened: Open, file: Path) -> None:
    play = opened()
    ours = play.value("SELECT version_num FROM gm_version")
    try:
        with play.ledger.transaction() as connection:
            connection.execute(text("UPDATE gm_version SET version_num = '9999'"))
        with pytest.raises(SchemaMismatch, match="newer code must do this"):
            backups.backup(play.ledger, file)
    finally:
        with play.ledger.transaction() as connection:
            connection.execute(text("UPDATE gm_version SET version_num = :ours"), {"ours": ours})


# ---- an application's own tables


def test_of_sqlite_an_applications_tables_come_along(sqlite_url: str, file: Path, tmp_path: Path) -> None:
    ledger = Ledger(sqlite_url)
    with ledger.transaction() as connection:
        connection.execute(text("CREATE TABLE note (n integer)"))
        connection.execute(text("INSERT INTO note VALUES (7)"))
    backups.backup(ledger, file)
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE note SET n = 8"))
    backups.restore(sqlite_url, file, by="me", force=True)
    with ledger.transaction() as connection:
        assert connection.execute(text("SELECT n FROM note")).scalar() == 7
        connection.execute(text("CREATE TABLE more (n integer)"))
    with pytest.raises(Refused, match="holds tables that the backup does not: more"):
        backups.restore(sqlite_url, file, by="me", force=True)
    ledger.close()


def test_on_postgresql_an_applications_tables_stay_as_they_are(pg_url: str, file: Path) -> None:
    ledger = Ledger(pg_url)
    try:
        with ledger.transaction() as connection:
            connection.execute(text("CREATE TABLE note (n integer)"))
            connection.execute(text("INSERT INTO note VALUES (7)"))
        backups.backup(ledger, file)
        backups.restore(pg_url, file, by="me", force=True)
        with ledger.transaction() as connection:
            assert connection.execute(text("SELECT n FROM note")).scalar() == 7
            connection.execute(text("DROP TABLE note"))
    finally:
        ledger.close()
