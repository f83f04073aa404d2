"""Another copy of SQLite in the same process, as Python's own is beside ours.

When it closes a file, our locks on that are gone, and the next process to leave takes the file for unused and removes what
is beside it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from gristmill import Mill, Unavailable
from gristmill.ledger.sql import Sql
from gristmill.ledger.tx import Tx
from tests.apps import everyday
from tests.ledger.others import others_see

_ADD = "INSERT INTO gm_once (key, at, number) VALUES ('mine', 0, 0)"


@pytest.fixture
def mill(sqlite_url: str) -> Iterator[Mill]:
    with Mill.open(sqlite_url, everyday.add) as mill:
        yield mill


def lose_locks(mill: Mill) -> None:
    with closing(sqlite3.connect(mill.ledger.path)) as strange:
        strange.execute("SELECT count(*) FROM gm_job").fetchone()
    others_see(mill.ledger.absolute_url)


def test_what_is_added_afterwards_is_there_for_others(mill: Mill) -> None:
    mill.enqueue(everyday.add, args={"a": 0})
    lose_locks(mill)
    mill.enqueue(everyday.add, args={"a": 1})
    assert others_see(mill.ledger.absolute_url) == 2


def test_a_transaction_that_nobody_else_would_see_is_rolled_back(mill: Mill) -> None:
    def add(tx: Tx) -> None:
        tx.script(_ADD)
        lose_locks(mill)

    def guest() -> None:
        with mill.transaction() as connection:
            connection.exec_driver_sql(_ADD)
            lose_locks(mill)

    def verb() -> None:
        mill.ledger.do(add)

    for attempt in (verb, guest):
        with pytest.raises(Unavailable, match="unclear whether that holds"):
            attempt()
        assert mill.ledger.glance(lambda tx: tx.tuples(Sql("SELECT key FROM gm_once"))) == []
    mill.enqueue(everyday.add, args={"a": 1})
    assert others_see(mill.ledger.absolute_url) == 1


def test_a_commit_that_nobody_else_sees_is_no_success(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    def add(tx: Tx) -> None:
        tx.script(_ADD)
        commit = tx.commit

        def commit_elsewhere() -> None:
            lose_locks(mill)
            commit()

        monkeypatch.setattr(tx, "commit", commit_elsewhere)

    with pytest.raises(Unavailable, match="unclear whether that holds"):
        mill.ledger.do(add)
