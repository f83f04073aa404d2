"""Named locks: one holder at a time, in the order in which they were asked for, gone with whoever held them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from gristmill import Invalid, LockLost, LockTimeout, Mill, Refused
from gristmill.clock import FrozenClock
from gristmill.execution.locking import Lock, Locks, Program
from gristmill.ledger import lock_sessions, locks, workers
from gristmill.ledger.locks import Who, key_of
from gristmill.model import Lock as Held
from tests import servers
from tests.ledger.play import Play
from tests.servers import ROOT
from tests.worker.helpers import eventually


class Party(Program):
    """A job, as far as locks know."""

    def __init__(self, job: int = 1, worker: int = 1) -> None:
        super().__init__()
        self.who = Who(job, 1, worker)
        self.asked = False
        self.waits: list[str] = []
        self.losses: list[LockLost] = []

    @property
    def told_to_stop(self) -> bool:  # type: ignore[override]
        return self.asked

    def lost(self, error: LockLost) -> None:
        self.losses.append(error)


Made = Callable[..., Lock]


def making(play: Play) -> Iterator[Made]:
    """Locks of one process, each on behalf of another job."""
    of_process = Locks(play.ledger, debug=True)

    def make(*key: str | int, job: int = 1, timeout: float | None = 30, worker: int = 1, party: Party | None = None) -> Lock:
        kind, item = key or ("edition", 42)
        return of_process.lock(kind, item, timeout, party or Party(job, worker))

    yield make
    of_process.close()


@pytest.fixture
def made(play: Play) -> Iterator[Made]:
    yield from making(play)


@pytest.fixture
def mill(database_url: str) -> Iterator[Mill]:
    """With a real clock, for processes of their own."""
    with Mill.open(database_url) as mill:
        yield mill


@pytest.fixture
def lite_play(sqlite_url: str, clock: FrozenClock) -> Iterator[Play]:
    yield from opened_play(sqlite_url, clock)


@pytest.fixture
def lite_made(lite_play: Play) -> Iterator[Made]:
    yield from making(lite_play)


@pytest.fixture
def pg_play(pg_url: str, clock: FrozenClock) -> Iterator[Play]:
    yield from opened_play(pg_url, clock)


@pytest.fixture
def pg_made(pg_play: Play) -> Iterator[Made]:
    yield from making(pg_play)


def opened_play(url: str, clock: FrozenClock) -> Iterator[Play]:
    play = Play(url, (), clock)
    yield play
    play.close()


def held(play: Play) -> list[Held]:
    return play.mill.locks()


class InThread(threading.Thread):
    """Holds a lock in a thread until told."""

    def __init__(self, lock: Lock) -> None:
        super().__init__(daemon=True)
        self.lock = lock
        self.got, self.go_on = threading.Event(), threading.Event()
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            with self.lock:
                self.got.set()
                self.go_on.wait(30)
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self.go_on.set()
        self.join(30)
        assert not self.is_alive()


# ---- names


def test_numbers_are_taken_as_they_are_and_text_is_hashed() -> None:
    assert key_of(1, 42)[:2] == (1, 42)
    assert key_of(2, -(2**31))[:2] == (2, -(2**31))
    kind, item, name = key_of("edition", "a/b")
    assert (-(2**31) <= kind < 0, -(2**31) <= item < 2**31, name) == (True, True, "edition/a/b")
    assert key_of("edition", 42).object == 42
    assert -(2**31) <= key_of("edition", 2**40).object < 2**31
    assert key_of("a", "b") != key_of("b", "a")


@pytest.mark.parametrize("key", [(-1, 1), (2**31, 1), (True, 1), (1.5, 1), ("", 1), ("x", ""), ("x" * 101, 1), (1, None)])
def test_what_cannot_name_a_lock_is_refused(key: Any) -> None:
    with pytest.raises(Invalid):
        key_of(*key)


# ---- one at a time


def test_a_lock_is_held_inside_the_block_and_by_nobody_after_it(play: Play, made: Made) -> None:
    with made(job=7) as lock:
        (found,) = held(play)
        assert (found.resource, found.kind, found.object, found.holder.job) == ("edition/42", *key_of("edition", 42)[:2], 7)
        assert (found.holder.since is not None, found.waiters) == (True, ())
        assert lock.token is not None
        lock.check()
        with play.mill.transaction() as connection:
            lock.check(connection)
    assert held(play) == []


def test_an_error_inside_gives_it_back(play: Play, made: Made) -> None:
    with pytest.raises(LookupError, match="mine"), made():
        raise LookupError("mine")
    assert held(play) == []


def test_who_comes_second_waits_and_is_seen_to(play: Play, made: Made) -> None:
    with made(job=1):
        second = InThread(made(job=2))
        found = eventually(lambda: [lock for lock in held(play) if lock.waiters])[0]
        assert (found.holder.job, [waiter.job for waiter in found.waiters]) == (1, [2])
        assert found.waiters[0].since is not None
        assert not second.got.is_set()
    assert second.got.wait(30)
    second.end()
    assert second.error is None


def test_those_who_wait_get_it_in_their_order(play: Play, made: Made) -> None:
    order: list[int] = []

    def work(job: int) -> None:
        with made(job=job):
            order.append(job)

    threads = []
    with made(job=1):
        for job in range(2, 7):
            threads.append(threading.Thread(target=work, args=(job,)))
            threads[-1].start()
            eventually(lambda: [len(lock.waiters) for lock in held(play)] == [len(threads)])
    for thread in threads:
        thread.join(30)
    assert order == [2, 3, 4, 5, 6]


def test_tokens_only_grow(made: Made) -> None:
    tokens: list[int] = []
    for _ in range(5):
        with made() as lock:
            assert lock.token is not None
            tokens.append(lock.token)
    assert tokens == sorted(set(tokens))


def test_another_resource_is_free(made: Made) -> None:
    with made("edition", 1):
        for other in (("edition", 2), ("project", 1), (1, 1)):
            thread = InThread(made(*other))
            assert thread.got.wait(30)
            thread.end()


def test_it_is_given_up_after_its_timeout(play: Play, made: Made) -> None:
    with made(job=1):
        other = InThread(made(job=2, timeout=0.2))
        other.join(30)
        assert isinstance(other.error, LockTimeout)
        assert isinstance(other.error, TimeoutError)
        assert "edition/42 was not free within 0.2 s" in str(other.error)
        eventually(lambda: [lock.waiters for lock in held(play)] == [()])


def test_one_that_is_cancelled_stops_waiting(play: Play, made: Made) -> None:
    party = Party(2)
    with made(job=1):
        other = InThread(made(party=party))
        eventually(lambda: [len(lock.waiters) for lock in held(play)] == [1])
        party.asked = True
        other.join(30)
        assert type(other.error).__name__ == "Stopped"
        eventually(lambda: [lock.waiters for lock in held(play)] == [()])


# ---- one after the other


def test_a_second_lock_while_one_is_held_is_refused_in_debug_mode(made: Made) -> None:
    with made("edition", 1):
        with pytest.raises(Refused, match="project/2 is asked for while edition/1 is held"):
            made("project", 2).__enter__()
        other = InThread(made("project", 2))  # another thread may, as another task may
        assert other.got.wait(30)
        other.end()
    with made("project", 2):
        pass


def test_outside_debug_mode_it_is_said(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    lenient = Locks(play.ledger)
    with lenient.lock("edition", 1, None, Party()), lenient.lock("project", 2, None, Party()):
        assert "project/2 is asked for while edition/1 is held" in caplog.text
        assert sorted(lock.resource for lock in held(play)) == ["edition/1", "project/2"]
        assert len(lenient.held_here()) == 2
    assert lenient.held_here() == []
    lenient.close()


def test_the_same_lock_again_is_refused_always(play: Play) -> None:
    lenient = Locks(play.ledger)
    with lenient.lock("edition", 1, None, Party()), pytest.raises(Refused, match="it would wait for itself"):
        lenient.lock("edition", 1, None, Party()).__enter__()
    lenient.close()


def test_a_lock_is_for_one_block(made: Made) -> None:
    lock = made()
    with lock:
        pass
    with pytest.raises(Invalid, match="was used before"):
        lock.__enter__()


@pytest.mark.parametrize("timeout", [-1, "soon"])
def test_a_strange_timeout_is_refused(made: Made, timeout: Any) -> None:
    with pytest.raises(Invalid, match="in seconds"):
        made(timeout=timeout)


# ---- tasks


def test_ten_tasks_hold_one_each(play: Play, made: Made) -> None:
    async def main() -> int:
        inside = asyncio.Barrier(10)

        async def one(number: int) -> None:
            async with made("edition", number):
                await inside.wait()

        await asyncio.gather(*(one(number) for number in range(10)))
        return len(held(play))

    assert asyncio.run(main()) == 0


def test_tasks_are_never_both_inside_though_they_commit_there(play: Play, made: Made) -> None:
    inside: list[int] = []
    most = []

    async def one(number: int) -> None:
        async with made(job=number):
            inside.append(number)
            most.append(len(inside))
            with play.mill.transaction():
                pass
            await asyncio.sleep(0.002)
            inside.remove(number)

    async def main() -> None:
        await asyncio.gather(*(one(number) for number in range(12)))

    asyncio.run(main())
    assert most == [1] * 12


def test_a_plain_with_in_a_task_is_refused(made: Made) -> None:
    async def main() -> None:
        with pytest.raises(Invalid, match="write `async with`"):
            made().__enter__()

    asyncio.run(main())


def test_a_second_lock_of_one_task_is_refused(made: Made) -> None:
    async def main() -> None:
        async with made("edition", 1):
            with pytest.raises(Refused):
                await made("project", 2).__aenter__()

    asyncio.run(main())


def test_a_task_that_is_cancelled_stops_waiting_and_leaves_no_trace(play: Play, made: Made) -> None:
    async def wait() -> None:
        async with made(job=2):
            raise AssertionError("it was held")

    async def main() -> None:
        async with made(job=1):
            task = asyncio.create_task(wait())
            while [len(lock.waiters) for lock in held(play)] != [1]:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    eventually(lambda: held(play) == [])


# ---- dead holders

_PROGRAM = """
import sys, time
from gristmill import Mill
with Mill.open(sys.argv[1]) as mill, mill.lock("edition", 42) as lock:
    print(lock.token, flush=True)
    time.sleep(60)
"""


def program(url: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _PROGRAM, url]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_what_a_killed_process_held_is_free(mill: Mill) -> None:
    with program(mill.ledger.absolute_url) as other:
        assert other.stdout is not None
        token = int(other.stdout.readline())
        (found,) = mill.locks()
        assert (found.holder.job, found.holder.pid) == (None, other.pid)
        waiting = InThread(mill.lock("edition", 42))
        eventually(lambda: [len(lock.waiters) for lock in mill.locks()] == [1])
        other.kill()
        assert waiting.got.wait(30)
        assert waiting.lock.token is not None
        assert waiting.lock.token > token
        waiting.end()


_FORKING = """
import os, signal, sys, time
from gristmill import Mill
with Mill.open(sys.argv[1]) as mill:
    with mill.lock("edition", 42) as lock:
        if leaves := os.fork():
            os.waitpid(leaves, 0)
            print(len(mill.locks()), flush=True)
            if stays := os.fork():
                print(stays, flush=True)
            signal.alarm(60)
            time.sleep(90)
        signal.alarm(20)
    os._exit(0)
"""


def test_what_a_holder_forked_neither_gives_its_lock_back_nor_keeps_it(mill: Mill) -> None:
    """One of the two leaves the block, the other outlives the holder."""
    command = [sys.executable, "-c", _FORKING, mill.ledger.absolute_url]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "1\n", "it is held no more"
        stays = int(holder.stdout.readline())
        try:
            waiting = InThread(mill.lock("edition", 42))
            eventually(lambda: [len(lock.waiters) for lock in mill.locks()] == [1])
            holder.kill()
            assert waiting.got.wait(30), "what it forked keeps it"
            waiting.end()
            assert psutil.pid_exists(stays)
        finally:
            os.kill(stays, signal.SIGKILL)


def test_a_process_killed_while_it_waits_is_passed_over(mill: Mill) -> None:
    with mill.lock("edition", 42):
        with program(mill.ledger.absolute_url) as other:
            eventually(lambda: [len(lock.waiters) for lock in mill.locks()] == [1])
            other.kill()
        last = InThread(mill.lock("edition", 42))
        eventually(lambda: any(waiter.pid == os.getpid() for lock in mill.locks() for waiter in lock.waiters))
    assert last.got.wait(30)
    last.end()


_FREEZING = """
import os, signal, sys, time
from gristmill import LockLost, Mill
from gristmill.ledger import locks
locks.HOLD_FOR = 1_000_000
with Mill.open(sys.argv[1]) as mill:
    lock = mill.lock("edition", 42)
    try:
        with lock:
            lock._session._renew_at = float("inf")  # frozen in a transaction, it would stop everybody
            print("held", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
            with mill.transaction() as connection:
                lock.check(connection)
            print("committed", flush=True)
    except LockLost:
        print("lost", flush=True)
"""


def test_a_holder_that_was_frozen_for_longer_than_its_lease_finds_out(sqlite_url: str) -> None:
    with Mill.open(sqlite_url) as mill:
        command = [sys.executable, "-c", _FREEZING, sqlite_url]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as frozen:
            assert frozen.stdout is not None
            assert frozen.stdout.readline() == "held\n"
            eventually(lambda: psutil.Process(frozen.pid).status() == psutil.STATUS_STOPPED)
            with mill.lock("edition", 42):  # not before the lease is over
                os.kill(frozen.pid, signal.SIGCONT)
                assert frozen.stdout.read() == "lost\n"


_COUNTING = """
import sys
from pathlib import Path
from gristmill import Mill
file = Path(sys.argv[2])
with Mill.open(sys.argv[1]) as mill:
    for _ in range(25):
        with mill.lock("counter", "a"):
            file.write_text(str(int(file.read_text()) + 1))
"""


def test_processes_are_never_both_inside(mill: Mill, tmp_path: Path) -> None:
    file = tmp_path / "counter"
    file.write_text("0")
    command = [sys.executable, "-c", _COUNTING, mill.ledger.absolute_url, str(file)]
    programs = [subprocess.Popen(command, cwd=ROOT) for _ in range(2)]
    assert [each.wait(60) for each in programs] == [0, 0]
    assert file.read_text() == "50"


def test_a_rescue_ends_what_a_lost_worker_held(play: Play, clock: FrozenClock, made: Made) -> None:
    player = play.player(lease=30)
    party = Party(5, player.id)
    holder = InThread(made(party=party))
    assert holder.got.wait(30)
    clock.advance(31)
    play.ledger.do(workers.rescue, player.id)
    eventually(lambda: held(play) == [])
    with made(job=6):
        holder.end()
        assert isinstance(holder.error, LockLost)
        assert [lock.holder.job for lock in held(play)] == [6]


def test_a_rescue_leaves_the_locks_of_others(play: Play, clock: FrozenClock, made: Made) -> None:
    player = play.player(lease=30)
    with made(worker=player.id + 10):
        clock.advance(31)
        play.ledger.do(workers.rescue, player.id)
        assert len(held(play)) == 1


# ---- lost locks


def cut(play: Play, clock: FrozenClock, *lost: Lock) -> None:
    """Ends the sessions of all locks, as an operator, a failover or a firewall may; on SQLite, their leases."""
    if not play.ledger.is_sqlite:
        return end_sessions(play)
    clock.advance(61)
    for lock in lost:
        lock._session._renew_at = 0.0  # type: ignore[attr-defined]  # as if a quarter of a minute had passed
    return None


def end_sessions(play: Play) -> None:
    with play.ledger.engine.connect() as connection:
        connection.exec_driver_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'gristmill lock %%'"
        )


def test_a_holder_that_lost_its_lock_finds_out(play: Play, clock: FrozenClock, made: Made) -> None:
    lock = made(job=1)
    lock.__enter__()
    cut(play, clock)
    other = InThread(made(job=2))
    assert other.got.wait(30)
    with pytest.raises(LockLost), play.mill.transaction() as connection:
        lock.check(connection)  # this transaction must not commit
    with pytest.raises(LockLost):
        lock.check()
    with pytest.raises(LockLost, match="edition/42 was lost while it was held"):
        lock.__exit__(None, None, None)
    assert [found.holder.job for found in held(play)] == [2]
    other.end()
    assert other.error is None


def test_a_holder_that_lost_its_lock_is_stopped(play: Play, clock: FrozenClock, made: Made) -> None:
    party = Party(1)
    lock = made(party=party)
    lock.__enter__()
    cut(play, clock)
    other = InThread(made(job=2))
    assert other.got.wait(30)
    cut(play, clock, lock)
    assert eventually(lambda: party.losses)
    with pytest.raises(LockLost):
        lock.__exit__(None, None, None)
    other.end()


def test_a_lock_that_is_just_given_back_does_not_look_lost(play: Play, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    party = Party()
    lock = made(party=party)
    lock.__enter__()
    leaving = threading.Thread(target=lock.__exit__, args=(None, None, None))
    look, begun = lock._session.still_held, threading.Event()

    def slowly() -> bool:
        """Its holder gives it back while it is looked at."""
        leaving.start()
        begun.set()
        leaving.join(0.3)
        if play.ledger.is_sqlite:
            lock._session._renew_at = 0.0  # type: ignore[attr-defined]
        return look()

    monkeypatch.setattr(lock._session, "still_held", slowly)
    assert begun.wait(30)
    leaving.join(30)
    assert (lock._lost, party.losses, held(play)) == (None, [], [])


def test_a_task_that_somebody_else_cancels_too_gives_its_lock_back(play: Play, made: Made) -> None:
    async def lose(inside: asyncio.Event) -> None:
        async with made(job=1) as lock:
            lock._lost = lock._loss()
            inside.set()
            lock._cancel()
            await asyncio.sleep(60)

    async def main() -> None:
        inside = asyncio.Event()
        task = asyncio.create_task(lose(inside))
        await inside.wait()
        task.cancel()
        with pytest.raises((asyncio.CancelledError, LockLost)):
            await task

    asyncio.run(main())
    eventually(lambda: held(play) == [])


def test_a_lease_that_is_over_is_as_good_as_new_while_nobody_took_the_lock(
    lite_play: Play, clock: FrozenClock, lite_made: Made
) -> None:
    party = Party(1)
    with lite_made(party=party) as lock:
        cut(lite_play, clock, lock)
        eventually(lambda: lite_play.value("SELECT lease_until FROM gm_lock") > clock())
        with lite_play.mill.transaction() as connection:
            lock.check(connection)
    assert party.losses == []


def test_a_task_is_cancelled_when_its_lock_is_lost(play: Play, clock: FrozenClock, made: Made) -> None:
    ended: list[str] = []

    async def main() -> None:
        async with made(job=1) as lock:
            cut(play, clock)
            other = InThread(made(job=2))
            assert other.got.wait(30)
            cut(play, clock, lock)
            other.end()
            try:
                await asyncio.sleep(60)
            finally:
                ended.append("here")

    with pytest.raises(LockLost):
        asyncio.run(main())
    assert ended == ["here"]


def test_a_task_that_leaves_just_then_is_told_too(play: Play, clock: FrozenClock, made: Made) -> None:
    async def lose() -> None:
        async with made(job=1) as lock:
            lock._lost = lock._loss()
            lock._cancel()

    async def main() -> str:
        with pytest.raises(LockLost):
            await lose()
        await asyncio.sleep(0)  # no cancellation comes after it
        return "well"

    assert asyncio.run(main()) == "well"


def test_one_whose_session_is_cut_while_it_waits_asks_again(pg_play: Play, pg_made: Made) -> None:
    with pg_play.ledger.engine.connect() as psql:
        psql.exec_driver_sql("SET application_name = 'psql'; SELECT pg_advisory_lock(1, 42)")
        waiting = InThread(pg_made(1, 42, job=2))
        eventually(lambda: [len(lock.waiters) for lock in held(pg_play)] == [1])
        (found,) = held(pg_play)
        assert (found.resource, found.holder.job, found.holder.program) == ("1/42", None, "psql")
        first = found.waiters[0].pid
        end_sessions(pg_play)
        eventually(lambda: [user.pid for user in held(pg_play)[0].waiters] not in ([], [first]))
        psql.exec_driver_sql("SELECT pg_advisory_unlock(1, 42)")
    assert waiting.got.wait(30)
    waiting.end()
    assert waiting.error is None


def test_one_that_waits_for_long_asks_anew_and_is_still_known_by_when_it_came(
    pg_play: Play, pg_made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement of one that waits has a snapshot, and that holds back vacuum."""
    monkeypatch.setattr(lock_sessions, "_SNAPSHOT_FOR", 0.1)
    with pg_made(job=1):
        waiting = InThread(pg_made(job=2))
        first = eventually(lambda: held(pg_play)[0].waiters)[0]
        second = eventually(lambda: [user for user in held(pg_play)[0].waiters if user.pid != first.pid])[0]
        assert (second.job, second.since) == (2, first.since)
    assert waiting.got.wait(30)
    waiting.end()
    assert waiting.error is None


def test_a_role_that_may_not_end_a_session_rescues_all_the_same(pg_play: Play, owner_pg_url: str) -> None:
    """It sees it, though: by whom, if it says so, and what."""
    player = pg_play.player(lease=0)
    with psycopg.connect(servers.libpq_url(owner_pg_url), autocommit=True) as owner:
        owner.execute(f"SET application_name = 'gristmill lock 8.1.{player.id} 1700000000 page/ 0 home'")
        owner.execute("SELECT pg_advisory_lock(-7, 2147483647)")
        assert pg_play.ledger.do(workers.rescue, player.id, True) == 0
        assert owner.execute("SELECT 1").fetchone() == (1,)
        (found,) = held(pg_play)
        assert (found.resource, found.kind, found.object) == ("page/ 0 home", -7, 2147483647)
        assert (found.holder.job, found.holder.worker, found.holder.host) == (
            8,
            player.id,
            pg_play.mill.workers(every=True)[0].host,
        )
        assert found.holder.since == datetime.fromtimestamp(1700000000, UTC)


@pytest.mark.parametrize("name", ["a 0 b", "naïve\0 \udcff %s", "x" * 500])
def test_any_text_names_a_lock(play: Play, made: Made, name: str) -> None:
    with made("page", name, job=7):
        (found,) = held(play)
        assert (found.holder.job, found.holder.since is not None) == (7, True)
        assert found.resource.startswith("page/")
    assert held(play) == []


def test_a_program_takes_locks_too(play: Play) -> None:
    with play.mill.lock("edition", 42) as lock:
        (found,) = held(play)
        assert (found.holder.job, found.holder.pid, found.holder.words.startswith("process")) == (None, os.getpid(), True)
        assert lock.token is not None


def test_a_worker_that_leaves_leaves_no_lock(lite_play: Play) -> None:
    player = lite_play.player()
    lite_play.ledger.do(locks.ask, key_of("edition", 1), Who(1, 1, player.id), 1, "x")
    lite_play.ledger.do(workers.leave, player.id)
    assert lite_play.value("SELECT count(*) FROM gm_lock") == 0
