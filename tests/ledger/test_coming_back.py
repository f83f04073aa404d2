"""A worker that was declared lost, and lives: what it held is not to blame. (One that is gone cannot say so.)"""

from __future__ import annotations

import pytest

from gristmill.errors import NotYours
from gristmill.ledger import workers
from tests.ledger.play import Play, Player, solo


def lost(play: Play) -> Player:
    """A worker that took everything, and was not heard of again."""
    player = play.player(lease=30)
    player.take()
    play.clock.advance(31)
    play.ledger.do(workers.rescue, player.id)
    return player


def test_a_job_gets_its_loss_back_once(play: Play) -> None:
    job = play.mill.enqueue(solo)
    first = lost(play)
    second = lost(play)
    assert (play.mill.job(job.id).losses, len(play.mill.attempts(job.id))) == (2, 2)
    assert play.ledger.do(workers.come_back, first.id, []) == 1
    assert play.ledger.do(workers.come_back, first.id, []) == 0
    seen = play.mill.job(job.id)
    assert (seen.state, seen.attempt, seen.losses) == ("queued", 2, 1)
    assert [(kept.attempt, kept.outcome) for kept in play.mill.attempts(job.id)] == [(2, "lost")]
    assert play.ledger.do(workers.come_back, second.id, []) == 1
    assert play.mill.job(job.id).losses == 0


def test_a_database_that_is_often_away_fails_no_job(play: Play) -> None:
    job = play.mill.enqueue("stubborn")  # which may be lost once
    for _ in range(10):
        play.ledger.do(workers.come_back, lost(play).id, [])
    assert (play.mill.job(job.id).state, play.mill.job(job.id).attempt) == ("queued", 10)
    lost(play)
    lost(play)
    assert (play.mill.job(job.id).state, play.mill.job(job.id).error_class) == ("failed", "worker_lost")


def test_one_that_another_holds_by_now_gets_it_back_too(play: Play) -> None:
    job = play.mill.enqueue(solo)
    first, other = lost(play), play.player()
    taken = other.take_one()
    assert play.ledger.do(workers.come_back, first.id, []) == 1
    assert play.mill.job(job.id).losses == 0
    assert other.complete(taken) == []


def test_what_has_ended_is_left_as_it_is(play: Play) -> None:
    done, parked = play.mill.enqueue(solo), play.mill.enqueue("stubborn")
    lost(play)
    player = lost(play)
    other = play.player()
    (taken,) = other.take()
    other.complete(taken)
    before = [play.mill.job(job.id) for job in (done, parked)]
    assert [job.state for job in before] == ["completed", "failed"]
    assert play.ledger.do(workers.come_back, player.id, []) == 0
    assert [play.mill.job(job.id) for job in (done, parked)] == before


def test_one_whose_lease_is_over_but_whom_nobody_has_missed_gives_everything_back(play: Play) -> None:
    job = play.mill.enqueue(solo)
    player = play.player(lease=30)
    player.take()
    play.clock.advance(31)
    assert play.ledger.do(workers.come_back, player.id, []) == 1
    seen = play.mill.job(job.id)
    assert (seen.state, seen.losses) == ("queued", 0)
    assert play.ledger.do(workers.rescue, player.id) is None
    with pytest.raises(NotYours, match="lost"):
        player.heartbeat()


def test_what_had_begun_keeps_its_loss(play: Play) -> None:
    """It may be why the worker was not heard of: it may have eaten the machine."""
    begun, waited = play.mill.enqueue(solo), play.mill.enqueue(solo)
    assert play.ledger.do(workers.come_back, lost(play).id, {begun.id}) == 1
    assert [play.mill.job(job.id).losses for job in (begun, waited)] == [1, 0]


def test_one_that_has_failed_and_waits_for_its_parts_stays_so(play: Play) -> None:
    job = play.mill.enqueue("stubborn")
    lost(play)
    player = play.player(lease=30)
    taken = player.take_one()
    player.hand_over(taken, "a")
    play.clock.advance(31)
    play.ledger.do(workers.rescue, player.id)
    assert play.mill.job(job.id).state == "queued"  # and fails with the end of its part
    assert play.ledger.do(workers.come_back, player.id, []) == 0
    other = play.player()
    other.complete(other.take_one())
    ended = play.mill.job(job.id)
    assert (ended.state, ended.error_class, ended.fingerprint is None) == ("failed", "worker_lost", False)


def test_one_whose_code_is_not_accepted_any_more_changes_nothing(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    job = play.mill.enqueue(solo)
    player = lost(play)
    monkeypatch.setattr("gristmill.ledger.workers.REVISION", "0000")
    assert play.ledger.do(workers.come_back, player.id, []) == 0
    assert play.mill.job(job.id).losses == 1
