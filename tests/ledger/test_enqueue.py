"""Jobs on their own: when they are ready, and what their unique key keeps out."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gristmill.clock import FrozenClock, to_datetime
from gristmill.errors import Invalid
from gristmill.ledger import queues
from gristmill.ledger.finish import Verdict
from gristmill.model import Job
from tests.ledger.play import Play, solo


def in_a_minute(clock: FrozenClock):
    now = to_datetime(clock.at)
    assert now is not None
    return now + timedelta(minutes=1)


def test_a_new_job_is_queued_and_ready(play: Play) -> None:
    job = play.mill.enqueue(solo, args={"n": 7})
    assert (job.state, job.args, job.attempt, job.run_at, job.created) == ("queued", {"n": 7}, 0, None, True)
    assert [taken.id for taken in play.player().take()] == [job.id]


def test_many_jobs_are_added_in_order(play: Play) -> None:
    ids = play.mill.enqueue_many(solo, ({"n": n} for n in range(20)))
    assert ids == sorted(ids)
    assert [job.id for job in play.player().take()] == ids


def test_of_many_jobs_with_one_bad_argument_none_is_added(play: Play) -> None:
    with pytest.raises(Invalid, match="'n'"):
        play.mill.enqueue_many(solo, [{"n": 1}, {"n": "one"}])
    assert play.mill.jobs() == []


def test_a_job_with_a_delay_is_not_ready_before(play: Play) -> None:
    job = play.mill.enqueue(solo, delay=60)
    assert job.run_at == in_a_minute(play.clock)
    assert play.player().take() == []
    play.clock.advance(59.999_999)
    assert play.ledger.do(queues.promote) == 0
    play.clock.advance(0.000_001)
    assert play.ledger.do(queues.promote) == 1
    assert [taken.id for taken in play.player().take()] == [job.id]


def test_a_job_for_a_moment_is_not_ready_before(play: Play) -> None:
    job = play.mill.enqueue(solo, at=in_a_minute(play.clock))
    assert job.run_at == in_a_minute(play.clock)
    assert play.player().take() == []
    play.clock.advance(60)
    assert play.ledger.do(queues.promote) == 1


def test_the_next_due_job_says_how_long_to_wait(play: Play) -> None:
    def due() -> int | None:
        with play.ledger.reading() as tx:
            return queues.next_due(tx)

    assert due() is None
    play.mill.enqueue(solo, delay=90)
    play.mill.enqueue(solo, delay=30)
    play.mill.enqueue(solo)
    assert due() == 30_000_000
    play.clock.advance(31)
    assert due() == -1_000_000
    play.ledger.do(queues.promote)
    assert due() == 59_000_000


def test_due_jobs_are_promoted_in_batches_the_oldest_first(play: Play) -> None:
    late, early = play.mill.enqueue(solo, delay=20), play.mill.enqueue(solo, delay=10)
    play.clock.advance(60)
    assert play.ledger.do(queues.promote, 1) == 1
    assert (play.mill.job(early.id).run_at, play.mill.job(late.id).run_at is None) == (None, False)
    assert [play.ledger.do(queues.promote, 1) for _ in range(2)] == [1, 0]


# ---- unique keys


def unique(play: Play, scope: str = "unfinished") -> Job:
    return play.mill.enqueue(solo, unique="mill", unique_scope=scope)


@pytest.mark.parametrize("scope", ["unfinished", "queued"])
def test_a_twin_of_a_queued_job_is_that_job(play: Play, scope: str) -> None:
    first, second = unique(play, scope), unique(play, scope)
    assert (first.created, second.created, second.id) == (True, False, first.id)
    assert len(play.mill.jobs()) == 1


def test_a_delayed_twin_counts_too(play: Play) -> None:
    first = play.mill.enqueue(solo, unique="mill", delay=60)
    assert unique(play).id == first.id


def test_among_queued_jobs_a_key_is_free_once_its_job_is_claimed(play: Play) -> None:
    first = unique(play, "queued")
    play.player().take()
    assert unique(play, "queued").id != first.id


def test_among_unfinished_jobs_a_key_is_taken_until_its_job_ends(play: Play) -> None:
    first = unique(play)
    player = play.player()
    job = player.take_one()
    assert unique(play).id == first.id
    player.end(job)
    assert unique(play).created


@pytest.mark.parametrize(
    ("verdict", "free"),
    [
        (Verdict.COMPLETED, True),
        (Verdict.WITH_ERRORS, True),
        (Verdict.SKIPPED, True),
        (Verdict.PERMANENT, True),
        (Verdict.CANCELLED, True),
        (Verdict.RELEASED, False),
        (Verdict.LATER, False),
    ],
)
def test_a_key_is_free_after_every_end_and_taken_after_every_return(play: Play, verdict: Verdict, free: bool) -> None:
    unique(play)
    player = play.player()
    player.end(player.take_one(), verdict)
    assert unique(play).created is free


def test_a_cancelled_job_gives_its_key_back(play: Play) -> None:
    play.mill.cancel_job(unique(play).id)
    assert unique(play).created


def test_other_keys_and_other_tasks_do_not_collide(play: Play) -> None:
    unique(play)
    assert play.mill.enqueue(solo, unique="other").created
    assert play.mill.enqueue("stubborn", unique="mill").created
    assert play.mill.enqueue(solo).created
