"""PostgreSQL: what became of a transaction whose COMMIT got no answer."""

from __future__ import annotations

from threading import Thread

import psycopg
import pytest

from gristmill import Mill
from gristmill.errors import Unavailable
from gristmill.ledger import commits
from gristmill.ledger.migrate import upgrade
from gristmill.ledger.sql import Sql
from gristmill.ledger.store import Ledger, Tx
from tests import servers
from tests.ledger.play import solo
from tests.own_server import OwnServer, own_server

pytestmark = pytest.mark.pg

_TOUCH = Sql("UPDATE gm_queue SET weight = 77")
_NUMBER = Sql("SELECT pg_current_xact_id()::text")
_WEIGHT = Sql("SELECT weight FROM gm_queue")


def test_a_transaction_that_a_crash_undid_is_not_taken_for_the_next_one_with_its_number() -> None:
    with own_server() as server:
        url = servers.create_database(server.url)
        upgrade(url)
        with Mill.open(url, solo) as mill:
            mill.enqueue(solo)
        assert any(crash_before_commit(server, url) for _ in range(10)), "its number was never given again"


def crash_before_commit(server: OwnServer, url: str) -> bool:
    """Was the number of the transaction given again?"""
    ledger = Ledger(url)
    again = []

    def touch_and_crash(tx: Tx) -> None:
        tx.run(_TOUCH)
        number = int(tx.value(_NUMBER))
        server.kill()
        server.start()
        again.append(has_committed(url, number))

    with pytest.raises(Unavailable):
        ledger.do(touch_and_crash)
    with ledger.reading() as tx:
        assert tx.value(_WEIGHT) != 77
    ledger.close()
    return again[0]


def has_committed(url: str, number: int) -> bool:
    """Others commit until a transaction with this number has, unless one was there already, undone."""
    with psycopg.connect(servers.libpq_url(url), autocommit=True) as other:
        while next(iter(other.execute("SELECT pg_current_xact_id()::text::bigint")))[0] < number:
            pass
        return bool(next(iter(other.execute("SELECT pg_xact_status(%s::text::xid8) = 'committed'", [number])))[0])


@pytest.fixture
def ledger(pg_url: str) -> Ledger:
    with Mill.open(pg_url, solo) as mill:
        mill.enqueue(solo)
    return Ledger(pg_url)


def test_a_commit_that_arrives_after_it_was_given_up_changes_nothing(ledger: Ledger) -> None:
    def touch(tx: Tx) -> None:
        tx.run(_TOUCH)
        made = tx.connection.info["gristmill_mark"] = commits.Mark("somebody", 4)
        late = commits.Mark(made.connection, made.number + 2)  # the number that this transaction will have
        for _ in range(2):  # an answer that is lost is asked for again
            assert not ledger.glance(commits.is_committed, late)

    with pytest.raises(Exception, match="null value"):
        ledger.do(touch)
    with ledger.reading() as tx:
        assert tx.value(_WEIGHT) != 77
    ledger.close()


def test_who_asks_waits_for_a_commit_that_is_under_way(ledger: Ledger) -> None:
    said: list[bool] = []
    with ledger.engine.connect() as connection:
        tx = Tx(connection, None)
        tx.run(_TOUCH)
        made = commits.mark(tx)
        tx.script(tx._at_commit)  # the mark is made, and the COMMIT is on its way
        asker = Thread(target=lambda: said.append(ledger.glance(commits.is_committed, made)))
        asker.start()
        asker.join(0.3)
        assert not said
        tx._at_commit = ""
        tx.commit()
        asker.join(20)
    assert said == [True]
    assert ledger.glance(commits.is_committed, made), "and says so again"
    ledger.close()


def test_rows_of_connections_that_are_long_gone_go(ledger: Ledger) -> None:
    with psycopg.connect(servers.libpq_url(ledger.absolute_url), autocommit=True) as other:
        other.execute("UPDATE gm_commit SET at = at - 90000000000")
        before = next(iter(other.execute("SELECT count(*) FROM gm_commit")))[0]
        ledger.do(commits.forget)
        after = next(iter(other.execute("SELECT count(*) FROM gm_commit")))[0]
    assert (before, after) == (2, 1), "the old ones went, of a mark and its job; that of this connection came"
    ledger.close()
