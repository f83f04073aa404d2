"""A claim in one statement: it takes what a claim takes, and nothing for a worker that is lost."""

from __future__ import annotations

from typing import Any

import pytest

from gristmill import Limit, task
from gristmill.bookkeeping import write
from gristmill.errors import NotYours
from gristmill.ledger import workers
from gristmill.ledger.claim import Lane, Taken, Want, claim
from gristmill.ledger.exchange import Batch
from gristmill.ledger.finish import Verdict
from gristmill.ledger.grab import grab, lines_of
from gristmill.rollup import UNKNOWN
from tests.ledger.conftest import Open
from tests.ledger.play import Play, solo
from tests.ledger.together import together


@pytest.fixture
def database_url(pg_url: str) -> str:
    """Only PostgreSQL has round trips to spare."""
    return pg_url


def grabbed(play: Play, worker: int, most: int = 9) -> Taken:
    return play.ledger.glance(grab, worker, {Lane(play.queue_ids()["default"], 0): most})


def test_it_takes_what_a_claim_takes_in_the_same_order(play: Play) -> None:
    order = ["low", "normal", "high", "normal", "low", "high"] * 2
    for n, word in enumerate(order):
        play.mill.enqueue(solo, priority=word, args={"n": n})
    player = play.player()
    lane = Lane(play.queue_ids()["default"], 0)
    usual = play.ledger.do(claim, player.id, [Want(0, 12, (lane,))], {0: 12})
    for job in usual.jobs:
        player.end(job, Verdict.RELEASED)
    taken = grabbed(play, player.id, 12)
    assert [job.id for job in taken.jobs] == [job.id for job in usual.jobs]
    assert {job.attempt for job in taken.jobs} == {2}
    assert [job[2:5] for job in taken.jobs] == [job[2:5] for job in usual.jobs]
    assert ({job.waited for job in usual.jobs}, {job.waited for job in taken.jobs}) == ({0}, {UNKNOWN})
    assert (taken.kinds, taken.empty) == (usual.kinds, [])
    assert taken.claim is not None
    held = play.mill.job(taken.jobs[0].id)
    assert (held.state, held.worker) == ("in_progress", player.id)
    assert grabbed(play, player.id).empty == [lane]


def test_nothing_there_is_an_empty_claim_that_nobody_remembers(play: Play) -> None:
    play.mill.enqueue(solo, delay=60)
    taken = grabbed(play, play.player().id)
    assert (taken.claim, taken.jobs, len(taken.empty)) == (None, [], 1)
    assert play.rows("SELECT id FROM gm_claim") == []


def test_paused_or_limited_queues_give_nothing(play: Play) -> None:
    play.mill.enqueue(solo)
    player = play.player()
    play.mill.pause("default")
    assert grabbed(play, player.id).jobs == []
    play.mill.resume("default")
    play.mill.set_queue("default", limits={"at_once": 1})
    assert grabbed(play, player.id).jobs == []


def test_a_lost_worker_gets_nothing_and_is_told(play: Play) -> None:
    job = play.mill.enqueue(solo)
    player = play.player()
    play.clock.advance(3600)
    with pytest.raises(NotYours, match="lease"):
        grabbed(play, player.id)
    play.ledger.do(workers.rescue, player.id)
    with pytest.raises(NotYours, match="lost"):
        grabbed(play, player.id)
    assert play.mill.job(job.id).state == "queued"


def test_what_a_lost_worker_grabbed_comes_back(play: Play) -> None:
    jobs = {play.mill.enqueue(solo).id for _ in range(3)}
    lost, other = play.player(), play.player()
    assert {job.id for job in grabbed(play, lost.id).jobs} == jobs
    play.clock.advance(3600)
    other.heartbeat()
    play.ledger.do(workers.rescue, lost.id)
    assert {job.id: job.attempt for job in grabbed(play, other.id).jobs} == dict.fromkeys(jobs, 2)
    assert play.value("SELECT sum(losses) FROM gm_job") == 3


def test_a_grab_whose_answer_is_lost_is_given_back_as_a_stray(play: Play) -> None:
    """The statement has committed, and the worker knows nothing of it: what it holds is all but that."""
    jobs = [play.mill.enqueue(solo).id for _ in range(4)]
    player = play.player()
    known = grabbed(play, player.id, 2).jobs
    grabbed(play, player.id, 2)
    assert play.ledger.do(workers.release_strays_of, player.id, {job.id for job in known}) == 2
    assert [play.mill.job(job).state for job in jobs] == ["in_progress"] * 2 + ["queued"] * 2


def test_a_key_among_queued_jobs_is_free_once_its_job_is_taken(play: Play) -> None:
    first = play.mill.enqueue(solo, unique="one", unique_scope="queued")
    assert [job.id for job in grabbed(play, play.player().id).jobs] == [first.id]
    assert play.mill.enqueue(solo, unique="one", unique_scope="queued").id != first.id


def test_no_job_is_taken_twice(play: Play) -> None:
    jobs = {play.mill.enqueue(solo).id for _ in range(60)}
    players = [play.player() for _ in range(6)]
    taken = together(*[lambda player=player: [grabbed(play, player.id, 3) for _ in range(20)] for player in players])
    ids = [job.id for some in taken for one in some for job in one.jobs]
    assert len(ids) == len(set(ids))
    assert set(ids) == jobs, "what one skipped since it was locked, another took"


def test_only_one_line_of_each_place_and_without_a_limit_is_grabbed() -> None:
    lane, other = Lane(1, 0), Lane(1, 1)
    assert lines_of([Want(0, 2, (lane,)), Want(0, 4, (lane,))], {0: 4}) == {lane: 4}
    assert lines_of([Want(0, 2, (lane,)), Want(1, 1, (other,)), Want(1, 9, (other,))], {0: 3, 1: 5}) == {lane: 2, other: 5}
    assert lines_of([], {}) is None
    assert lines_of([Want(0, 2, (lane,)), Want(0, 2, (Lane(2, 0),))], {0: 2}) is None
    assert lines_of([Want(0, 2, (lane._replace(limit_id=3),))], {0: 2}) is None
    assert lines_of([Want(0, 2, (lane,)), Want(1, 2, (other._replace(limit_id=3),))], {0: 2, 1: 2}) is None
    assert lines_of([Want(0, 2, (lane._replace(jobs=(7,)),))], {0: 2}) is None
    assert lines_of([Want(-n, 2, (Lane(n, 0),)) for n in range(5)], {-n: 2 for n in range(5)}) is None


@task(name="other_kind")
async def other_kind(ctx: Any) -> None:
    """A job for an event loop: another line of the same queue."""


def test_two_lines_are_grabbed_together_each_as_many_as_there_is_room_for(opened: Open) -> None:
    play = opened(solo, other_kind)
    plain = [play.mill.enqueue(solo).id for _ in range(2)]
    loops = [play.mill.enqueue(other_kind, priority=word).id for word in ("low", "high")]
    player = play.player()
    queue = play.queue_ids()["default"]
    one, two = Lane(queue, 0), Lane(queue, 1)
    usual = play.ledger.do(claim, player.id, [Want(0, 2, (one,)), Want(1, 9, (two,))], {0: 2, 1: 9})
    for job in usual.jobs:
        player.end(job, Verdict.RELEASED)
    taken = play.ledger.glance(grab, player.id, {one: 2, two: 9})
    assert [job.id for job in taken.jobs] == [*plain, *reversed(loops)]
    assert [(job.id, job.kind) for job in taken.jobs] == [(job.id, job.kind) for job in usual.jobs]
    assert (taken.kinds, taken.empty) == (usual.kinds, usual.empty) == (usual.kinds, [two])
    assert play.value("SELECT count(*) FROM gm_claim WHERE id = " + str(taken.claim)) == 1
    late = play.mill.enqueue(solo).id
    again = play.ledger.glance(grab, player.id, {one: 2, two: 9})
    assert ([job.id for job in again.jobs], again.empty) == ([late], [one, two])


@task(name="paced", limit=Limit("pace", per_second=100))
def paced(ctx: Any) -> None:
    """A job with a rate."""


def test_what_a_rate_lets_go_on_later_is_said_as_an_exchange_says_it(opened: Open) -> None:
    play = opened(paced)
    play.mill.enqueue_many(paced, [{}] * 60)
    wants, room = [Want(0, 20, (Lane(play.queue_ids()["default"], 0),))], {0: 20}
    got = write(play.ledger, play.player().id, Batch(), wants, room)
    assert got.taken is not None
    assert got.taken.jobs
    assert got.due is not None
