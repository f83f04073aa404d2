"""The database goes away and comes back: nothing is lost, nothing is done twice, and no child outlives its lease."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql
from sqlalchemy.exc import DBAPIError

from gristmill import Mill
from gristmill.errors import Unavailable
from gristmill.execution.crew import Crew
from gristmill.housekeeping import Tickers
from gristmill.ledger.migrate import upgrade
from gristmill.ledger.store import Ledger
from tests import servers
from tests.apps import everyday
from tests.own_server import OwnServer, own_server
from tests.worker.cables import Cable, cable
from tests.worker.helpers import (
    all_end,
    assert_attempts_do_not_overlap,
    eventually,
    is_running,
    lines,
    pids_of,
    run_ends,
    slowness,
    worker_process,
    working,
)
from tests.worker.program import open_mill


@pytest.fixture
def pg_mill(pg_url: str) -> Iterator[Mill]:
    """The test's own way to the database, which nobody cuts."""
    with open_mill(pg_url, "everyday") as mill:
        yield mill


@pytest.fixture
def wire(pg_url: str) -> Iterator[tuple[Cable, str]]:
    with cable(pg_url) as ends:
        yield ends


# ---- connections break


def disconnect_all(url: str) -> None:
    servers.execute(
        servers.with_database(url, "postgres"),
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
        [servers.database_name(url)],
    )


def test_a_worker_whose_connections_are_ended_goes_on(pg_mill: Mill, pg_url: str, folder: Path, log: Path) -> None:
    """Again and again, in the middle of claiming and finishing."""
    count = 3000
    jobs = pg_mill.enqueue_many(everyday.write_down, [{"folder": folder, "name": str(n)} for n in range(count)])
    with worker_process(pg_url, "everyday", log=log, slots=2):
        for part in range(1, 8):
            eventually(lambda part=part: len(lines(folder / "done")) >= part * count // 10)  # type: ignore[misc]
            disconnect_all(pg_url)
        with open_mill(pg_url, "everyday") as mill:
            eventually(lambda: not mill.jobs(state="queued", limit=1) and not mill.jobs(state="in_progress", limit=1))
            states = {job.state for job in mill.jobs(limit=count)}
    assert states == {"completed"}
    assert sorted(lines(folder / "done"), key=int) == [str(n) for n in range(len(jobs))], "each ran exactly once"


def test_a_fan_out_survives_broken_connections(pg_url: str, folder: Path, log: Path) -> None:
    items = 4000 // slowness()
    with open_mill(pg_url, "flows") as mill:
        run = mill.start("wide", "books", args={"items": items, "folder": folder}).id
    with worker_process(pg_url, "flows", log=log, slots=2), open_mill(pg_url, "flows") as mill:
        for part in range(1, 5):
            with contextlib.suppress(Exception):  # the test's own connection is ended too
                eventually(lambda part=part: mill.run(run).stage("leaf").total >= part * items // 5)  # type: ignore[misc]
            disconnect_all(pg_url)
        with open_mill(pg_url, "flows") as calm:
            eventually(lambda: calm.run(run).terminal)
            ended = calm.run(run)
    assert (ended.state, ended.stage("leaf").total, ended.stage("leaf").completed) == ("completed", items, items)
    assert len(lines(folder / "closed")) == 1


def test_a_commit_whose_answer_is_lost_is_neither_lost_nor_repeated(
    pg_mill: Mill, wire: tuple[Cable, str], folder: Path, log: Path
) -> None:
    """Whether it claimed, finished or emitted: what became of it is found out."""
    line, url = wire
    count = 1500
    with open_mill(url, "flows") as flows:
        run = flows.start("wide", "books", args={"items": count, "folder": folder}).id
    pg_mill.enqueue_many(everyday.write_down, [{"folder": folder, "name": str(n)} for n in range(count)])
    with worker_process(url, "everyday", "flows", log=log, slots=2):
        for part in range(1, 9):
            eventually(lambda part=part: len(lines(folder / "done")) >= part * count // 10)  # type: ignore[misc]
            line.lose_next_commit()
            eventually(lambda: line.lost_it)
        ended = run_ends(pg_mill, run)
        eventually(lambda: not pg_mill.jobs(state="queued", limit=1) and not pg_mill.jobs(state="in_progress", limit=1))
    assert (ended.state, ended.stage("leaf").total, ended.stage("leaf").completed) == ("completed", count, count)
    assert sorted(lines(folder / "done"), key=int) == [str(n) for n in range(count)], "each ran exactly once"
    assert lines(folder / "closed") == [""]


def undo_next_claim(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """The next transaction that takes jobs ends with an error instead of its commit."""
    do: Any = Ledger.do
    errors = [error]

    def undoing(ledger: Ledger, verb: Any, *arguments: Any, **options: Any) -> Any:
        def undone(*inside: Any, **more: Any) -> Any:
            result = verb(*inside, **more)
            if errors and getattr(getattr(result, "taken", None), "jobs", None):
                raise errors.pop()
            return result

        return do(ledger, undone, *arguments, **options)

    monkeypatch.setattr(Ledger, "do", undoing)


class Deadlock(Exception):
    sqlstate = "40P01"


@pytest.mark.parametrize("error", [Unavailable("cut"), DBAPIError("", None, Deadlock())], ids=["cut", "deadlock"])
def test_a_run_has_begun_although_the_first_claim_of_its_job_was_undone(
    flows: Mill, folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    undo_next_claim(monkeypatch, error)
    run = flows.start("streaming", "s", args={"folder": folder})
    with working(flows, queues=["slow"], slots=1):
        eventually(lambda: flows.jobs(stage="drop"), "its first job runs, and has emitted something")
        eventually(lambda: flows.run(run.id).state == "in_progress", within=3)


def test_a_short_outage_costs_nothing(pg_mill: Mill, wire: tuple[Cable, str], folder: Path, log: Path) -> None:
    line, url = wire
    running = pg_mill.enqueue(everyday.hold, args={"folder": folder})
    with worker_process(url, "everyday", log=log, slots=1):
        eventually(lambda: lines(folder / "started"))
        line.cut()
        (folder / "go").touch()
        eventually(lambda: lines(folder / "ended"))
        waiting = pg_mill.enqueue(everyday.add, args={"a": 3})
        eventually(lambda: "trying again" in log.read_text(), "the worker has noticed")
        line.mend()
        done, other = all_end(pg_mill, running.id, waiting.id)
    assert (done.state, done.attempt, done.losses) == ("completed", 1, 0)
    assert (other.state, other.attempt) == ("completed", 1)
    assert len(lines(folder / "started")) == 1


def test_a_job_that_reads_from_a_ledger_that_is_away_waits_for_it(
    pg_mill: Mill, wire: tuple[Cable, str], folder: Path, log: Path
) -> None:
    """It is no error of the job, and costs none of those that it may have."""
    line, url = wire
    job = pg_mill.enqueue(everyday.look_when_told, args={"folder": folder}, retries=0)
    with worker_process(url, "everyday", log=log, slots=1):
        eventually(lambda: lines(folder / "started"))
        line.cut()
        (folder / "go").touch()
        eventually(lambda: lines(folder / "looking"))
        eventually(lambda: "trying again" in log.read_text(), "the worker has noticed")
        assert pg_mill.job(job.id).state == "in_progress"
        line.mend()
        (done,) = all_end(pg_mill, job.id)
    assert (done.state, done.attempt, done.errors) == ("completed", 1, 0)


@pytest.mark.parametrize("how", ["cut", "hold"])
def test_children_end_before_the_lease_when_the_outage_is_longer(
    pg_mill: Mill, wire: tuple[Cable, str], folder: Path, log: Path, how: str
) -> None:
    """Held is worse than cut: the worker itself hangs in a call that never returns."""
    line, url = wire
    job = pg_mill.enqueue(everyday.tick_until_told, args={"folder": folder})
    with worker_process(url, "everyday", log=log, slots=1, lease=1.5, poll=0.1) as cut_off:
        (pid,) = eventually(lambda: pids_of(folder / "started"))
        getattr(line, how)()
        with working(pg_mill, slots=1, poll=0.05):
            eventually(lambda: len(lines(folder / "started")) == 2, "another worker takes the job")
            assert not is_running(pid)
            (line.mend if how == "cut" else line.release)()
            eventually(lambda: len(pg_mill.workers()) == 2, "the one that was cut off is back")
            (folder / "go").touch()
            (done,) = all_end(pg_mill, job.id)
        assert cut_off.process.poll() is None
    assert_attempts_do_not_overlap(folder)
    assert (done.state, done.attempt, done.losses) == ("completed", 2, 1)


def test_a_worker_that_was_alone_goes_on_after_a_long_outage(
    pg_mill: Mill, wire: tuple[Cable, str], folder: Path, log: Path
) -> None:
    line, url = wire
    job = pg_mill.enqueue(everyday.hold, args={"folder": folder})
    with worker_process(url, "everyday", log=log, slots=1, lease=1.0, poll=0.1):
        (pid,) = eventually(lambda: pids_of(folder / "started"))
        line.cut()
        eventually(lambda: not is_running(pid), "its child ends with the lease")
        (folder / "go").touch()
        line.mend()
        (done,) = all_end(pg_mill, job.id)
    assert (done.state, done.attempt) == ("completed", 2)


def test_a_worker_that_is_stopped_during_an_outage_ends(
    pg_mill: Mill, wire: tuple[Cable, str], folder: Path, log: Path
) -> None:
    line, url = wire
    pg_mill.enqueue(everyday.hold, args={"folder": folder})
    with worker_process(url, "everyday", log=log, slots=1, grace=0.2) as worker:
        eventually(lambda: lines(folder / "started"))
        children = [child.pid for child in worker.children]
        line.cut()
        worker.process.terminate()
        assert worker.wait() == 0
        assert not any(map(is_running, children))


def test_a_worker_that_gathers_completions_when_the_database_goes_away_sleeps(
    lite: Mill, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any, **__: Any) -> Any:
        raise Unavailable("gone")

    monkeypatch.setattr(Crew, "flowing", True)
    jobs = lite.enqueue_many(everyday.add, [{"a": 1}])
    worker = lite.worker(slots=1)
    worker._start()
    try:
        while not worker.crew.batch:
            worker._wait(worker.tick(time.monotonic()))
        worker.appetite.look.clear()
        assert 0 < worker.tick(time.monotonic()) <= worker.crew.room.gather + 1e-9, "it waits for more to write"
        with monkeypatch.context() as outage:
            outage.setattr(worker.ledger, "do", gone)
            outage.setattr(worker.ledger, "reading", gone)
            worker._house_at = 0.0
            for tick in range(4):
                assert worker.tick(time.monotonic() + tick) > 0.05
    finally:
        worker._finish()
    assert lite.job(jobs[0]).state == "completed"


# ---- the server refuses


@contextlib.contextmanager
def read_only(url: str, _: str) -> Iterator[None]:
    """As a standby is, to which a failover has led."""
    admin, name = servers.with_database(url, "postgres"), sql.Identifier(servers.database_name(url))
    servers.execute(admin, sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(name))
    disconnect_all(url)
    yield
    servers.execute(admin, sql.SQL("ALTER DATABASE {} RESET default_transaction_read_only").format(name))
    disconnect_all(url)


@contextlib.contextmanager
def without_rights(url: str, role: str) -> Iterator[None]:
    for statement in ("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {}", "GRANT ALL ON ALL TABLES IN SCHEMA public TO {}"):
        servers.execute(url, sql.SQL(statement).format(sql.Identifier(role)))
        if statement.startswith("REVOKE"):
            yield


@contextlib.contextmanager
def without_login(url: str, role: str) -> Iterator[None]:
    for statement in ("ALTER ROLE {} NOLOGIN", "ALTER ROLE {} LOGIN"):
        servers.execute(url, sql.SQL(statement).format(sql.Identifier(role)))
        if "NO" in statement:
            disconnect_all(url)
            yield


REFUSALS = {
    "read-only transaction": read_only,
    "permission denied for table": without_rights,
    "is not permitted to log in": without_login,
}


@pytest.mark.parametrize("why", REFUSALS)
def test_a_worker_whom_the_database_refuses_says_why_and_goes_on_when_it_may_again(
    pg_url: str, folder: Path, log: Path, why: str
) -> None:
    with (
        servers.role(pg_url, "worker") as role,
        worker_process(servers.with_user(pg_url, role), "everyday", log=log, slots=1, lease=2.0, poll=0.1) as worker,
    ):
        with open_mill(pg_url, "everyday") as mill:
            running = mill.enqueue(everyday.hold, args={"folder": folder})
            (pid,) = eventually(lambda: pids_of(folder / "started"))
        with REFUSALS[why](pg_url, role):
            eventually(lambda: why in log.read_text(), "the worker says why")
            eventually(lambda: not is_running(pid), "its child ends with the lease")
        (folder / "go").touch()
        with open_mill(pg_url, "everyday") as mill:
            (done,) = all_end(mill, running.id)
        assert worker.process.poll() is None
    assert (done.state, done.attempt) == ("completed", 2)
    said = [line.partition(" ")[2] for line in lines(log) if why in line and "gristmill.worker" in line]
    assert len(said) == len(set(said)), "it says so once"


# ---- the server itself


@pytest.mark.pg
def test_a_server_that_crashes_under_load_loses_nothing(folder: Path, log: Path) -> None:
    with own_server() as server:
        crash_under_load(server, folder, log)


def crash_under_load(server: OwnServer, folder: Path, log: Path) -> None:
    upgrade(server.url)
    count = 3000
    with open_mill(server.url, "everyday") as mill:
        mill.enqueue_many(everyday.write_down, [{"folder": folder, "name": str(n)} for n in range(count)])
    with worker_process(server.url, "everyday", log=log, slots=2):
        eventually(lambda: len(lines(folder / "done")) >= count // 3)
        server.kill()
        server.start()
        with open_mill(server.url, "everyday") as mill:
            eventually(lambda: not mill.jobs(state="queued", limit=1) and not mill.jobs(state="in_progress", limit=1))
            jobs = mill.jobs(limit=count)
    assert {(job.state, job.losses) for job in jobs} == {("completed", 0)}
    assert sorted(lines(folder / "done"), key=int) == [str(n) for n in range(count)], "each ran exactly once"


# ---- SQLite: another program has the file

LOCK = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA busy_timeout = 20000")
db.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
db.execute("ROLLBACK")
"""


@contextlib.contextmanager
def locked(url: str) -> Iterator[None]:
    """Another program writes to the file, and takes its time."""
    with subprocess.Popen(
        [sys.executable, "-c", LOCK, url.removeprefix("sqlite:///")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == b"locked\n"
        try:
            yield
        finally:
            with contextlib.suppress(BrokenPipeError):
                other.stdin.write(b"\n")
                other.stdin.flush()


def test_a_file_that_another_program_locks_for_a_while_costs_nothing(lite: Mill, sqlite_url: str, folder: Path) -> None:
    running = lite.enqueue(everyday.hold, args={"folder": folder})
    waiting = lite.enqueue(everyday.add, args={"a": 3})
    with working(lite, slots=1):
        eventually(lambda: lines(folder / "started"))
        with locked(sqlite_url):
            (folder / "go").touch()
            eventually(lambda: lines(folder / "ended"))
            stuck = threading.Event()
            assert not stuck.wait(0.5)
            assert lite.job(running.id).state == "in_progress", "reading goes on meanwhile"
        done, other = all_end(lite, running.id, waiting.id)
    assert (done.state, done.attempt, done.losses) == ("completed", 1, 0)
    assert (other.result, other.attempt) == (3, 1)


def test_children_end_before_the_lease_when_the_file_is_locked_for_longer(
    lite: Mill, sqlite_url: str, folder: Path, log: Path
) -> None:
    job = lite.enqueue(everyday.tick_until_told, args={"folder": folder})
    with worker_process(sqlite_url, "everyday", log=log, slots=1, lease=1.5, poll=0.1):
        (pid,) = eventually(lambda: pids_of(folder / "started"))
        with locked(sqlite_url):
            eventually(lambda: not is_running(pid), "its child ends with the lease")
        (folder / "go").touch()
        (done,) = all_end(lite, job.id)
    assert (done.state, done.attempt) == ("completed", 2)
    assert_attempts_do_not_overlap(folder)


def deleted(file: Path, copy: Path) -> None:
    """And put back from a copy, later."""
    for name in (f"{file}", f"{file}-wal", f"{file}-shm"):
        Path(name).unlink(missing_ok=True)


def replaced_by_a_copy(file: Path, copy: Path) -> None:
    deleted(file, copy)
    copy.replace(file)


@pytest.mark.parametrize("lost", [replaced_by_a_copy, deleted])
def test_a_worker_notices_that_the_file_is_another_one(
    lite: Mill, sqlite_url: str, folder: Path, log: Path, lost: Callable[[Path, Path], None]
) -> None:
    """It would go on for ever with a file that nobody else sees."""
    file, copy = lite.ledger.path, folder / "copy"
    with lite.ledger.engine.connect() as connection:
        connection.exec_driver_sql("VACUUM INTO ?", (str(copy),))
    with worker_process(sqlite_url, "everyday", log=log, slots=1, lease=2.0, poll=0.1):
        eventually(lite.workers)
        lite.close()
        lost(file, copy)
        if not file.exists():
            eventually(lambda: "is not there any more" in log.read_text(), "the worker says so")
            assert not file.exists(), "it makes no new one"
            copy.replace(file)
        with open_mill(sqlite_url, "everyday") as mill:
            job = mill.enqueue(everyday.add, args={"a": 3})
            assert all_end(mill, job.id)[0].result == 3


def test_an_outage_is_told_once_by_what_ticks(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Exception | None] = [Unavailable("gone"), Unavailable("gone"), None, Unavailable("gone again")]

    def ticker(now: float) -> float:
        if (answer := answers.pop(0)) is not None:
            raise answer
        return 0.0

    tickers = Tickers([ticker])
    for now in (0.0, 2.0, 4.0, 6.0):
        tickers.tick(now)
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == ["gone", "gone again"]
