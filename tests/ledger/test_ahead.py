"""Rung before it is written, on SQLite: a worker wakes up meanwhile, and what it looks at is there when it looks."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Event

import pytest

from gristmill.housekeeping import Housekeeping
from gristmill.ledger import posting
from gristmill.ledger.claim import Lane, Want, claim, find_head
from gristmill.ledger.start import NewJob
from gristmill.ledger.tx import Tx
from tests.ledger.conftest import Open
from tests.ledger.play import Play, solo

Writing = Callable[[Callable[[], object]], object]  # what a look says that begins while a job is being written


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """Only here do those who look wait for those who write."""
    return sqlite_url


def new_job(play: Play) -> NewJob:
    return NewJob(*play.mill._how(solo, None, None, None), 1, "{}")


@pytest.fixture
def worker(opened: Open) -> Play:
    return opened(solo)


@pytest.fixture
def during(worker: Play, opened: Open) -> Iterator[Writing]:
    client = opened(solo)
    new = new_job(client)
    bell = client.mill.delivery.bell()
    goes_on = Event()

    def add(tx: Tx) -> posting.Posted:
        said = posting.add_ready(tx, new)
        assert goes_on.wait(30)
        return said

    with closing(bell), ThreadPoolExecutor(2) as pool:

        def during(look: Callable[[], object]) -> object:
            written = pool.submit(client.ledger.foretold, new.queue_id, add)
            assert select.select([bell], [], [], 30)[0] == [bell], "it rings before it is committed"
            looks = pool.submit(look)
            with pytest.raises(TimeoutError):
                looks.result(0.2)
            goes_on.set()
            assert written.result(30).id
            assert bell.heard().queues == {new.queue_id}
            assert select.select([bell], [], [], 0.2)[0] == [], "and not once more"
            return looks.result(30)

        yield during
        goes_on.set()


def test_a_claim_takes_what_was_being_written(worker: Play, during: Writing) -> None:
    player = worker.player()
    lane = Lane(new_job(worker).queue_id, 0)
    taken = during(lambda: len(worker.ledger.do(claim, player.id, [Want(0, 1, (lane,))], {0: 1}).jobs))
    assert taken == 1


def test_a_look_for_whether_a_child_is_worth_while_sees_it(worker: Play, during: Writing) -> None:
    house = Housekeeping(worker.ledger)
    assert during(lambda: house.waiting([new_job(worker).queue_id], [0])) == 1


def test_a_look_at_who_is_first_sees_it(worker: Play, during: Writing) -> None:
    lane = Lane(new_job(worker).queue_id, 0)

    def first() -> object:
        with worker.ledger.reading_in_turn() as tx:
            return find_head(tx, lane)

    assert during(first) is not None


def test_what_was_rung_for_and_not_written_is_only_looked_for(worker: Play) -> None:
    new = new_job(worker)

    def break_off(tx: Tx) -> None:
        posting.add_ready(tx, new)
        raise ZeroDivisionError

    with closing(worker.mill.delivery.bell()) as bell:
        with pytest.raises(ZeroDivisionError):
            worker.ledger.foretold(new.queue_id, break_off)
        assert bell.heard().queues == {new.queue_id}
    assert worker.player().take() == []


def test_a_delayed_job_is_told_of_when_it_is_there(worker: Play) -> None:
    """Who hears of one looks when it is due, and does not wait for a turn to write."""
    new_job(worker)
    with closing(worker.mill.delivery.bell()) as bell:
        assert not posting.is_ready(NewJob(1, 1, 0, 1, "{}", delay=1))
        worker.mill.enqueue(solo, delay=60)
        assert bell.heard().queues == {-1}
