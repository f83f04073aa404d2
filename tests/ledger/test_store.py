"""How a verb becomes exactly one transaction: lost answers, deadlocks, turns on SQLite, and whose clock decides."""

from __future__ import annotations

import contextlib
import select
import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier, Event, Thread
from typing import Any

import pytest

from gristmill import Mill
from gristmill.clock import FrozenClock
from gristmill.errors import GristmillError, Invalid, Unavailable
from gristmill.ledger import commits, migrate, names, posting, start, workers
from gristmill.ledger.exchange import Batch, exchange
from gristmill.ledger.sql import Sql
from gristmill.ledger.start import IfActive, NewJob
from gristmill.ledger.store import Ledger, Tx
from tests.ledger import invariants
from tests.ledger.conftest import Open
from tests.ledger.play import Play, Player, plain, plan, solo, step
from tests.ledger.together import together
from tests.worker.cables import Cable, cable

_TOUCH = Sql("UPDATE gm_queue SET weight = weight + 1 WHERE name = :name")


def test_a_verb_that_fails_has_changed_nothing(opened: Open) -> None:
    play = opened(plan("one", work=step()))
    play.mill.start("one", "s")
    before = invariants.snapshot(play.ledger)

    def start_and_fail(tx: Tx) -> None:
        start.start(tx, "one", "t", "{}", 1, play.mill._plan(play.mill.registry.pipeline("one")), IfActive.JOIN)
        raise GristmillError("on second thoughts")

    with pytest.raises(GristmillError, match="on second thoughts"):
        play.ledger.do(start_and_fail)
    assert invariants.snapshot(play.ledger) == before


# ---- whose clock


def test_without_a_clock_of_the_tests_the_databases_decides(database_url: str) -> None:
    with Mill.open(database_url, solo) as mill:
        before = datetime.now(UTC) - timedelta(seconds=5)
        job = mill.enqueue(solo, delay=3600)
        assert job.created_at is not None
        assert job.run_at is not None
        assert before < job.created_at < before + timedelta(minutes=5)
        assert job.run_at - job.created_at == timedelta(hours=1)


def test_with_a_clock_of_the_tests_nothing_else_decides(play: Play) -> None:
    play.mill.enqueue(solo, delay=1)
    player = play.player()
    player.complete(*player.take())
    play.mill.pause("default")
    latest = datetime.fromtimestamp(play.clock.at / 1e6, UTC).year
    for table, rows in invariants.snapshot(play.ledger).items():
        moments = [value for row in rows for value in row if isinstance(value, int) and value > 10**15]
        assert all(datetime.fromtimestamp(moment / 1e6, UTC).year == latest for moment in moments), table


# ---- PostgreSQL: a COMMIT whose answer was lost


@pytest.fixture
def wire(pg_url: str) -> Iterator[tuple[Cable, str]]:
    with cable(pg_url) as line:
        yield line


@pytest.fixture
def far(wire: tuple[Cable, str], clock: FrozenClock) -> Iterator[Play]:
    """A play at the other end of a cable."""
    play = Play(wire[1], [plan("one", work=step())], clock)
    yield play
    invariants.check(play.ledger)
    play.close()


def test_a_commit_whose_answer_was_lost_is_looked_up_and_holds(wire: tuple[Cable, str], far: Play) -> None:
    far.mill.start("one", "first")  # tasks and queues are there from now on
    wire[0].lose_next_commit()
    run = far.mill.start("one", "s", if_active="refuse")
    assert wire[0].lost_it
    assert (run.created, run.state) == (True, "queued")
    assert len(far.mill.runs(subject="s")) == 1


def test_a_job_whose_answer_was_lost_is_looked_up_and_is_there_once(pg_url: str) -> None:
    with cable(pg_url) as (line, url), Mill.open(url, solo) as mill:
        for n in range(8):  # the server knows the statement by its name after some
            mill.enqueue(solo, args={"n": -1})
            line.lose_next_commit(b"INSERT INTO gm_job")
            job = mill.enqueue(solo, args={"n": n})
            assert line.lost_it
            assert (job.args, job.created, job.state, job.task) == ({"n": n}, True, "queued", "solo")
        assert sorted((job.args or {})["n"] for job in mill.jobs(limit=100)) == [-1] * 8 + list(range(8))


def test_a_job_that_did_not_reach_the_database_is_not_there_and_that_is_said(wire: tuple[Cable, str], far: Play) -> None:
    far.mill.enqueue(solo)
    before = invariants.snapshot(far.ledger)

    def cut_on_the_way(tx: Tx, made: commits.Mark) -> None:
        wire[0].cut()
        wire[0].mend()
        posting.post(tx, made, start.NewJob(1, 1, 0, 1, "{}"), "gristmill", "1")

    with pytest.raises(Unavailable):
        far.ledger.at_once(cut_on_the_way)
    assert invariants.snapshot(far.ledger) == before


@pytest.mark.parametrize("how", ["enqueue", "start", "jobs", "job"])
def test_a_connection_that_the_server_has_ended_is_not_used_again(
    far: Play, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A server that was restarted, or ends what is idle for long: nothing was sent, so nobody has to be told."""
    job = far.mill.enqueue(solo)
    with far.ledger.reading() as tx:
        link: Any = tx.connection.connection.driver_connection
    other = Ledger(far.ledger.absolute_url)
    other.glance(lambda tx: tx.value(Sql("SELECT pg_terminate_backend(:number, 10000)"), number=link.info.backend_pid))
    other.close()
    select.select([link.fileno()], [], [])  # it has come to that
    monkeypatch.setattr(far.ledger, "insist", lambda *asked: pytest.fail("there was nothing to find out"))
    given: dict[str, tuple[Any, ...]] = {"enqueue": (solo,), "start": ("one", "s"), "jobs": (), "job": (job.id,)}
    getattr(far.mill, how)(*given[how])
    assert len(far.mill.jobs()) == 1 + (how in ("enqueue", "start"))


def test_what_is_committed_is_acknowledged_though_the_database_is_away_right_after(
    wire: tuple[Cable, str], far: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or whoever asked would ask again, for something that is there."""
    far.mill.start("one", "first")
    far.mill.enqueue(solo)
    monkeypatch.setattr(far.mill.delivery, "after_commit", lambda queues: wire[0].cut())
    assert far.mill.start("one", "s").created
    with pytest.raises(Unavailable):
        far.mill.runs()
    wire[0].mend()
    far.ledger.engine.dispose()
    assert far.mill.enqueue(solo, unique="one").created
    wire[0].mend()
    far.ledger.engine.dispose()


def test_a_connection_that_breaks_before_the_commit_has_changed_nothing(wire: tuple[Cable, str], far: Play) -> None:
    far.mill.start("one", "first")
    before = invariants.snapshot(far.ledger)

    def start_and_break(tx: Tx) -> None:
        start.start(tx, "one", "s", "{}", 1, far.mill._plan(far.mill.registry.pipeline("one")), IfActive.JOIN)
        wire[0].cut()
        wire[0].mend()

    with pytest.raises(Unavailable):
        far.ledger.do(start_and_break)
    far.ledger.engine.dispose()
    assert invariants.snapshot(far.ledger) == before


def test_a_workers_batch_whose_answer_was_lost_can_be_sent_again(wire: tuple[Cable, str], far: Play) -> None:
    run = far.mill.start("one", "s")
    player = far.player()
    job = player.take_one()
    batch = Batch(completed=plain(job, result='"r"'))
    wire[0].lose_next_commit()
    with pytest.raises(Unavailable):
        far.ledger.do(exchange, player.id, batch)
    assert (far.run(run).state, far.run(run).result("work")) == ("completed", "r")
    after = invariants.snapshot(far.ledger)
    assert player.report(batch) == [job.id]
    assert invariants.snapshot(far.ledger) == after


def test_a_claim_whose_answer_was_lost_is_given_back(wire: tuple[Cable, str], far: Play) -> None:
    from gristmill.ledger.claim import Lane, Want

    number = far.mill.enqueue(solo).id
    player = far.player()
    want = Want(0, 1, (Lane(far.queue_ids()["default"], 0),))
    wire[0].lose_next_commit()
    with pytest.raises(Unavailable):
        far.ledger.do(exchange, player.id, Batch(), [want], {0: 1})
    assert far.mill.job(number).state == "in_progress"
    assert far.ledger.do(workers.release_strays_of, player.id, held=set()) == 1
    assert far.mill.job(number).state == "queued"


# ---- PostgreSQL: deadlocks


def test_a_deadlock_is_retried_and_nobody_hears_of_it(pg_url: str) -> None:
    ledger = Ledger(pg_url)
    ledger.do(names.add_queues, ["a", "b"])
    both_have_one = Barrier(2)
    met: list[str] = []

    def touch(tx: Tx, first: str, second: str) -> None:
        tx.run(_TOUCH, name=first)
        if first not in met:  # only the first time: the victim comes again alone
            met.append(first)
            both_have_one.wait(30)
        tx.run(_TOUCH, name=second)

    together(lambda: ledger.do(touch, "a", "b"), lambda: ledger.do(touch, "b", "a"))
    with ledger.reading() as tx:
        assert {row[0] for row in tx.all(Sql("SELECT weight FROM gm_queue"))} == {3.0}
    ledger.close()


# ---- SQLite: turns


def test_a_writer_among_busy_others_gets_its_turn(sqlite_url: str) -> None:
    """Without the turnstile one writer was seen to commit 11,593 times before another got a turn."""
    ledger = Ledger(sqlite_url)
    ids = ledger.do(names.add_queues, ["a"])
    tasks = ledger.do(names.add_tasks, [("t", "{}")])
    job = NewJob(tasks["t", "{}"], ids["a"], 0, 1, "{}")
    written, enough = [0], Event()

    def others() -> None:
        while not enough.is_set():
            ledger.do(counting(lambda tx: start.enqueue_many(tx, job, ["{}"]), written))

    crowd = [Thread(target=others) for _ in range(3)]
    for thread in crowd:
        thread.start()
    waited = [ledger.do(others_since, written, written[0]) for _ in range(30)]
    enough.set()
    for thread in crowd:
        thread.join()
    ledger.close()
    assert sorted(waited)[len(waited) // 2] <= 12
    assert max(waited) <= 200


def others_since(tx: Tx, written: list[int], asked: int) -> int:
    """How many others wrote between the asking for a turn and the turn."""
    return written[0] - asked


def counting(verb: Callable[[Tx], Any], written: list[int]) -> Callable[[Tx], Any]:
    def count(tx: Tx) -> Any:
        written[0] += 1  # under SQLite's own lock: there is one writer at a time
        return verb(tx)

    return count


def test_a_look_never_waits_for_a_writer(play: Play) -> None:
    play.mill.enqueue(solo)
    player: Player = play.player()
    writing, seen = Event(), Event()

    def write_slowly(tx: Tx) -> None:
        start.enqueue_many(tx, NewJob(*play.mill._how(solo, None, None, None), 1, ""), ["{}"])
        writing.set()
        assert seen.wait(30)

    thread = Thread(target=play.ledger.do, args=(write_slowly,))
    thread.start()
    assert writing.wait(30)
    assert len(play.mill.jobs()) == 1
    seen.set()
    thread.join()
    assert len(player.take()) == 2


def test_a_file_that_keeps_its_text_otherwise_is_refused(tmp_path: Path) -> None:
    """SQLite would read bytes of ours as text of that kind."""
    with contextlib.closing(sqlite3.connect(tmp_path / "wide.db")) as made:
        made.execute("PRAGMA encoding = 'UTF-16'")
        made.execute("CREATE TABLE other (n)")
    with pytest.raises(Invalid, match="keeps its text as UTF-16le, and Gristmill needs UTF-8: let it make a new file"):
        migrate.upgrade(f"sqlite:///{tmp_path / 'wide.db'}")
