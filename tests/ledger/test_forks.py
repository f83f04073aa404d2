"""A process that was forked with an open mill, as web servers do that load an application before they fork."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gristmill import Invalid, LockTimeout, Mill
from gristmill.ledger.sql import Sql
from gristmill.ledger.store import Ledger
from tests.apps import everyday
from tests.ledger.others import others_see
from tests.servers import ROOT

MANY = 40


@pytest.fixture
def mill(database_url: str) -> Iterator[Mill]:
    with Mill.open(database_url, everyday.add) as mill:
        yield mill


@pytest.fixture
def sqlite_mill(sqlite_url: str) -> Iterator[Mill]:
    with Mill.open(sqlite_url, everyday.add) as mill:
        yield mill


def forked(work: Callable[[], None]) -> int:
    """Its exit code, and its end is that of any process: what it has is tidied up."""
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def session(mill: Mill) -> int:
    """The server's number of the connection that verbs have."""
    with mill.ledger.reading() as tx:
        return 0 if mill.ledger.is_sqlite else int(tx.value(Sql("SELECT pg_backend_pid()")))


def test_both_go_on_each_by_connections_of_its_own(mill: Mill) -> None:
    mill.enqueue(everyday.add, args={"a": 0})
    mine = session(mill)

    def work() -> None:
        assert mine == 0 or session(mill) != mine
        mill.enqueue(everyday.add, args={"a": 1})
        mill.close()

    assert forked(work) == 0
    assert session(mill) == mine, "it was ended from there"
    mill.enqueue(everyday.add, args={"a": 2})
    assert [job.args for job in mill.jobs()] == [{"a": 2}, {"a": 1}, {"a": 0}]


def test_they_do_not_hear_each_others_answers(mill: Mill) -> None:
    with mill.ledger.engine.connect():  # there are two
        mill.enqueue(everyday.add, args={"a": 0})

    def add() -> None:
        for n in range(MANY):
            assert mill.job(mill.enqueue(everyday.add, args={"a": n}).id).args == {"a": n}

    children = []
    for _ in range(3):
        if pid := os.fork():
            children.append(pid)
            continue
        code = 1
        try:
            add()
            code = 0
        finally:
            os._exit(code)
    add()
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0, 0]
    assert len(mill.jobs(limit=1000)) == 1 + 4 * MANY


_LEAVES = """
import os, sys
from gristmill import Mill
from gristmill.ledger.store import Ledger
from gristmill.ledger.sql import Sql
mill = Mill.open(sys.argv[1])
mill.queues()
if pid := os.fork():
    assert os.waitpid(pid, 0)[1] == 0
    mill.queues()
    mill.close()
else:
    sys.exit(0)
"""


def test_one_that_uses_nothing_and_ends_disturbs_nobody(mill: Mill) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LEAVES, mill.ledger.absolute_url], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def take_turn(ledger: Ledger) -> None:
    """As a process would that has nothing to do with the others."""
    with Path(f"{ledger.path}-turn").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_turn_ends_with_who_had_it_though_what_that_forked_lives_on(sqlite_mill: Mill) -> None:
    ledger = sqlite_mill.ledger
    theirs, mine = os.pipe()
    outlives, ends = os.pipe()  # the last to live is told to end by our end of it
    holder = os.fork()
    if not holder:
        os.close(ends)
        with ledger._kept.lent() as connection, ledger._turn(connection):
            if not os.fork():
                os.write(mine, b".")
                os.read(outlives, 1)
                os._exit(0)
            signal.pause()
    os.close(outlives)
    assert os.read(theirs, 1) == b"."
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    take_turn(ledger)
    os.close(ends)


def test_a_copy_that_ends_its_turn_does_not_end_its_parents(sqlite_mill: Mill) -> None:
    ledger = sqlite_mill.ledger
    with ledger._kept.lent() as connection, ledger._turn(connection):
        assert forked(connection.info["turnstile"].__exit__) == 0
        with pytest.raises(BlockingIOError):
            take_turn(ledger)


def test_what_a_fork_adds_after_its_parent_is_gone_is_there(mill: Mill) -> None:
    url = mill.ledger.absolute_url
    mill.close()
    told, tells = os.pipe()
    go_on, goes_on = os.pipe()  # what is left of this test ends with our end of it
    if not (parent := os.fork()):
        os.close(goes_on)
        opened = Mill.open(url, everyday.add)
        opened.enqueue(everyday.add, args={"a": 0})
        if os.fork():
            os._exit(0)
        for number in (1, 2):
            opened.enqueue(everyday.add, args={"a": number})
            os.write(tells, b".")
            os.read(go_on, 1)
        os._exit(0)
    os.waitpid(parent, 0)
    with os.fdopen(goes_on, "wb", buffering=0) as turn:
        assert os.read(told, 1) == b"."
        assert others_see(url) == 2
        turn.write(b".")
        assert os.read(told, 1) == b"."
        assert others_see(url) == 3


def test_one_that_is_forked_within_a_transaction_is_refused_on_sqlite(sqlite_mill: Mill) -> None:
    def add() -> None:
        with pytest.raises(Invalid, match=r"was forked while sqlite://.* was in use"):
            sqlite_mill.enqueue(everyday.add, args={"a": 1})

    with sqlite_mill.transaction() as connection:
        sqlite_mill.enqueue(everyday.add, args={"a": 0}, connection=connection)
        assert forked(add) == 0
    assert others_see(sqlite_mill.ledger.absolute_url) == 1


def test_what_only_one_may_do_is_not_kept_by_a_fork(sqlite_mill: Mill) -> None:
    ledger = sqlite_mill.ledger
    told, tells = os.pipe()
    outlives, ends = os.pipe()
    with os.fdopen(ends, "wb"):
        with ledger.sole("nothing") as mine:
            assert mine
            if not os.fork():
                os.close(ends)
                os.write(tells, b".")
                os.read(outlives, 1)
                os._exit(0)
            assert os.read(told, 1) == b"."
        with ledger.sole("nothing") as mine:
            assert mine


def test_a_fork_can_take_locks_and_keep_them(mill: Mill) -> None:
    async def enter() -> None:
        async with mill.lock("door", "front"):
            pass

    asyncio.run(enter())  # by threads that no fork has

    def hold() -> None:
        asyncio.run(asyncio.wait_for(enter(), 10))
        with mill.lock("door", "front"):
            assert "gristmill-locks" in {thread.name for thread in threading.enumerate()}, "nobody would renew its lease"

    assert forked(hold) == 0


_HOLDS = """
import os, sys
from gristmill import Mill
mill = Mill.open(sys.argv[1])
with mill.lock("door", "front"):
    pass
if os.fork():
    os._exit(0)
with mill.lock("door", "front"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_of_a_fork_does_not_end_with_its_parent(mill: Mill) -> None:
    command = [sys.executable, "-c", _HOLDS, mill.ledger.absolute_url]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "held\n"
        assert parent.wait(30) == 0
        with pytest.raises(LockTimeout), mill.lock("door", "front", timeout=0.2):
            pytest.fail("two have it")
