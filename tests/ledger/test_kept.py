"""The connection that a ledger keeps between two verbs: it is whole, outside of any transaction, and nobody else's."""

from __future__ import annotations

from threading import Barrier
from typing import Any

import pytest

from gristmill.errors import DatabaseError
from gristmill.ledger.sql import Sql
from gristmill.ledger.tx import Tx
from tests.ledger.play import Play
from tests.ledger.together import together

_NOWHERE = Sql("SELECT 1 FROM nowhere")


def driver(tx: Tx) -> Any:
    return tx.connection.connection.driver_connection


def in_transaction(tx: Tx) -> bool:
    link = driver(tx)
    return bool(link.in_transaction if tx.dialect == "sqlite" else link.pgconn.transaction_status)


def looks(play: Play) -> tuple[Any, bool]:
    return play.ledger.glance(lambda tx: (driver(tx), in_transaction(tx)))


def test_the_next_verb_has_the_same_one_outside_of_any_transaction(play: Play) -> None:
    kept, inside = looks(play)
    assert not inside
    assert play.ledger.do(lambda tx: (driver(tx), in_transaction(tx))) == (kept, True)
    with play.ledger.reading() as tx:
        assert (driver(tx), in_transaction(tx)) == (kept, True)
    assert looks(play) == (kept, False)


@pytest.mark.parametrize("how", ["do", "glance", "reading"])
def test_what_went_wrong_leaves_no_transaction_behind(play: Play, how: str) -> None:
    def fail(tx: Tx) -> None:
        tx.run(Sql("INSERT INTO gm_once (key, at, number) VALUES ('half', 0, 0)")) if how == "do" else None
        tx.value(_NOWHERE)

    def reading() -> None:
        with play.ledger.reading() as tx:
            fail(tx)

    with pytest.raises(DatabaseError):
        reading() if how == "reading" else getattr(play.ledger, how)(fail)
    assert looks(play)[1] is False
    assert play.rows("SELECT key FROM gm_once") == []


def test_two_at_once_have_one_each(play: Play) -> None:
    both = Barrier(2)

    def look(tx: Tx) -> int:
        both.wait(30)
        return id(driver(tx))

    assert len(set(together(*[lambda: play.ledger.glance(look)] * 2))) == 2
    assert looks(play)[1] is False


def test_whoever_asks_the_pool_has_it_with_transactions(play: Play) -> None:
    kept, _ = looks(play)
    with play.ledger.transaction() as connection:
        assert connection.connection.driver_connection is kept
        connection.exec_driver_sql("INSERT INTO gm_once (key, at, number) VALUES ('half', 0, 0)")
        connection.rollback()
        if play.ledger.is_sqlite:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
    assert play.rows("SELECT key FROM gm_once") == []


def test_one_that_was_closed_with_all_of_the_pool_is_not_used_again(play: Play) -> None:
    kept, _ = looks(play)
    play.ledger.engine.dispose()
    assert looks(play)[0] is not kept
    play.ledger.close()
    assert looks(play)[0] is not kept


def test_a_plan_is_made_once(play: Play) -> None:
    """SQLite would plan anew for each LIMIT that is given as it is."""
    assert "LIMIT :most + 0" in Sql("SELECT 1 LIMIT :most").compiled("sqlite").sql
    assert "LIMIT %(most)s" in Sql("SELECT 1 LIMIT :most").compiled("postgresql").sql
    assert play.ledger.glance(lambda tx: tx.tuples(Sql("SELECT name FROM gm_queue LIMIT :most"), most=0)) == []
