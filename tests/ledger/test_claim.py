"""Claiming: who gets which job, in which order, and who gets none."""

from __future__ import annotations

import pytest

from gristmill import Retries, task
from gristmill.clock import micros
from gristmill.errors import NotFound, NotYours
from gristmill.ledger import read, workers
from gristmill.ledger.claim import Lane, Want, claim, find_floor
from gristmill.ledger.finish import Verdict, finish
from gristmill.states import State
from tests.ledger.conftest import Open
from tests.ledger.play import Play, each, end, plan, solo, step


@task(name="mail", queue="mail")
def mail(ctx: object) -> None: ...


@task(name="soft", queue="mail")
async def soft(ctx: object) -> None: ...


def ids_of(jobs) -> list[int]:
    return [job.id for job in jobs]


def test_a_claim_takes_high_then_normal_then_low_each_in_order(play: Play) -> None:
    order = ["low", "normal", "high", "normal", "low", "high"]
    made = [(play.mill.enqueue(solo, priority=word).id, word) for word in order]
    wanted = [number for word in ("high", "normal", "low") for number, w in made if w == word]
    player = play.player()
    assert [player.take_one().id for _ in order] == wanted


def test_one_claim_of_many_hands_them_out_in_the_order_of_the_line(play: Play) -> None:
    """A child runs what it is given in that order: an urgent job must not come after others of its batch."""
    order = ["low", "normal", "high", "normal", "low", "high"]
    made = [(play.mill.enqueue(solo, priority=word).id, word) for word in order]
    wanted = [number for word in ("high", "normal", "low") for number, w in made if w == word]
    any_priority = Lane(play.queue_ids()["default"], 0)
    assert ids_of(play.ledger.do(claim, play.player().id, [Want(0, 9, (any_priority,))], {0: 9}).jobs) == wanted


def test_a_claim_takes_nobody_that_stands_between_those_it_looked_at(opened: Open) -> None:
    """SQLite takes jobs whose numbers follow one another together."""
    play = opened(mail)
    made = [play.mill.enqueue(mail if n in (5, 8) else solo).id for n in range(12)]
    taken = play.player().take(9, queues=["default"])
    assert ids_of(taken) == [job for n, job in enumerate(made[:11]) if n not in (5, 8)]
    waiting = play.rows(f"SELECT id FROM gm_job WHERE state = {State.QUEUED:d} ORDER BY id")
    assert [job for (job,) in waiting] == [made[5], made[8], made[11]]


def test_first_in_first_out_within_a_lane(play: Play) -> None:
    made = [play.mill.enqueue(solo).id for _ in range(5)]
    assert [play.player().take_one().id for _ in made] == made


def test_a_claimed_job_is_in_progress_and_its_attempt_has_grown(play: Play) -> None:
    job = play.mill.enqueue(solo)
    player = play.player()
    for number in (1, 2, 3):
        taken = player.take_one()
        assert (taken.id, taken.attempt) == (job.id, number)
        held = play.mill.job(job.id)
        assert (held.state, held.attempt, held.worker) == ("in_progress", number, player.id)
        player.end(taken, Verdict.RELEASED)


def test_a_claim_carries_the_payload_as_it_was_stored(play: Play) -> None:
    play.mill.enqueue(solo, args={"n": 3})
    taken = play.player().take_one()
    assert (taken.args, taken.run_id, taken.stage_id, taken.key) == ('{"n":3}', None, None, None)


def test_a_worker_gets_only_the_queues_that_it_asks_for(opened: Open) -> None:
    play = opened(mail)
    play.mill.enqueue(solo)
    letter = play.mill.enqueue(mail)
    assert ids_of(play.player().take(queues=["mail"])) == [letter.id]


def test_async_jobs_are_in_a_pool_of_their_own(opened: Open) -> None:
    play = opened(mail, soft)
    hard, easy = play.mill.enqueue(mail), play.mill.enqueue(soft)
    queue = play.queue_ids()["mail"]
    for pool, job in ((1, easy), (0, hard)):
        taken = play.ledger.do(claim, play.player().id, [Want(pool, 10, (Lane(queue, pool, 1),))], {pool: 10})
        assert ids_of(taken.jobs) == [job.id]


def test_a_claim_takes_no_more_than_there_is_room_for(play: Play) -> None:
    made = play.mill.enqueue_many(solo, [{}] * 10)
    lane = Lane(play.queue_ids()["default"], 0, 1)
    wants = [Want(0, 2, (lane,)), Want(0, 10, (lane,))]
    taken = play.ledger.do(claim, play.player().id, wants, {0: 5})
    assert sorted(ids_of(taken.jobs)) == made[:5]
    assert taken.empty == []


def test_a_claim_says_which_lanes_had_no_more(play: Play) -> None:
    play.mill.enqueue(solo)
    high, normal = (Lane(play.queue_ids()["default"], 0, p) for p in (0, 1))
    taken = play.ledger.do(claim, play.player().id, [Want(0, 1, (high, normal))], {0: 1})
    assert (len(taken.jobs), taken.empty) == (1, [high])
    again = play.ledger.do(claim, play.player().id, [Want(0, 1, (high, normal))], {0: 1})
    assert (again.claim, again.jobs, again.empty) == (None, [], [high, normal])


def test_a_paused_queue_gives_nothing_until_it_is_resumed(opened: Open) -> None:
    play = opened(mail)
    letter, other = play.mill.enqueue(mail), play.mill.enqueue(solo)
    play.mill.pause("mail")
    assert ids_of(play.player().take()) == [other.id]
    play.mill.resume("mail")
    assert ids_of(play.player().take()) == [letter.id]


def test_a_pause_is_in_the_database_not_in_a_process(opened: Open) -> None:
    opened(mail).mill.enqueue(mail)
    opened(mail).mill.pause("mail")
    assert [queue.paused for queue in opened().mill.queues() if queue.name == "mail"] == [True]
    assert opened().player().take(queues=["mail"]) == []


def test_pausing_an_unknown_queue_is_refused_with_a_hint(play: Play) -> None:
    play.mill.enqueue(solo)
    with pytest.raises(NotFound, match="did you mean 'default'"):
        play.mill.pause("defualt")


def test_a_delayed_job_is_not_in_any_lane(play: Play) -> None:
    play.mill.enqueue(solo, delay=1)
    play.clock.advance(3600)
    assert play.player().take() == []


def test_a_worker_whose_lease_is_over_takes_nothing_more(play: Play) -> None:
    job = play.mill.enqueue(solo)
    player = play.player(lease=30)
    play.clock.advance(30)
    with pytest.raises(NotYours, match="lease"):
        player.take()
    assert play.mill.job(job.id).attempt == 0


def test_a_heartbeat_makes_the_lease_longer(play: Play) -> None:
    job = play.mill.enqueue(solo)
    player = play.player(lease=30)
    play.clock.advance(29)
    player.heartbeat(30)
    play.clock.advance(29)
    assert ids_of(player.take()) == [job.id]


def test_a_lost_worker_takes_nothing_ever_again(play: Play) -> None:
    player = play.player(lease=30)
    play.clock.advance(31)
    play.ledger.do(workers.rescue, player.id)
    play.mill.enqueue(solo)
    with pytest.raises(NotYours, match="lost"):
        player.take()
    with pytest.raises(NotYours, match="lost"):
        player.heartbeat()
    with pytest.raises(NotYours, match="lost"):
        player.finish()


def test_a_worker_that_left_takes_nothing_more(play: Play) -> None:
    player = play.player()
    play.ledger.do(workers.leave, player.id)
    play.mill.enqueue(solo)
    with pytest.raises(NotYours):
        player.take()


def test_no_worker_takes_anything_under_a_number_that_was_never_given(play: Play) -> None:
    play.mill.enqueue(solo)
    with pytest.raises(NotYours):
        play.ledger.do(claim, 4711, [], {})


def test_the_floor_is_just_below_the_first_ready_job(play: Play) -> None:
    lane = Lane(play.queue_ids().get("default", 1), 0, 1)
    with play.ledger.reading() as tx:
        assert find_floor(tx, lane._replace(floor=5)) == 5
    play.mill.enqueue_many(solo, [{}] * 3)
    lane = Lane(play.queue_ids()["default"], 0, 1)
    play.player().take(1)
    with play.ledger.reading() as tx:
        known = find_floor(tx, lane)
    assert len(play.ledger.do(claim, play.player().id, [Want(0, 9, (lane._replace(floor=known),))], {0: 9}).jobs) == 2


def test_a_returned_job_goes_to_the_end_of_its_line(play: Play) -> None:
    first, second = play.mill.enqueue(solo), play.mill.enqueue(solo)
    player = play.player()
    taken = player.take_one()
    play.clock.advance(1)
    player.end(taken, Verdict.RELEASED)
    assert [player.take_one().id for _ in range(2)] == [second.id, first.id]


def test_a_runs_priority_is_its_jobs_priority_through_all_stages(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find"), total=step("page")))
    run = play.mill.start("site", "s", priority="high")
    play.drain(items={"find": ["a", "b"]})
    assert {job.priority for job in play.mill.jobs(run=run.id)} == {"high"}


def test_a_retried_job_takes_the_priority_that_its_run_was_raised_to_meanwhile(opened: Open) -> None:
    play = opened(plan("site", work=step(retries=Retries(3, delays=[0]))))
    run = play.mill.start("site", "s", priority="low")
    player = play.player()
    job = player.take_one()
    play.mill.start("site", "s", priority="high")
    player.end(job, Verdict.ERROR)
    assert {job.priority for job in play.mill.jobs(run=run.id)} == {"high"}


def test_claims_are_remembered_until_all_of_their_jobs_are_done(play: Play) -> None:
    play.mill.enqueue_many(solo, [{}] * 2)
    player = play.player()
    lane = Lane(play.queue_ids()["default"], 0, 1)
    taken = play.ledger.do(claim, player.id, [Want(0, 2, (lane,))], {0: 2})
    assert taken.claim is not None
    with play.ledger.reading() as tx:
        assert sorted(read.claimed_ids(tx)) == sorted(ids_of(taken.jobs))
    play.ledger.do(finish, player.id, [end(job) for job in taken.jobs], ended_claims=[taken.claim])
    assert play.value("SELECT count(*) FROM gm_claim") == 0


def test_a_lease_of_another_length_is_kept_as_given(play: Play) -> None:
    player = play.player(lease=5)
    (worker,) = play.mill.workers()
    assert worker.lease_until is not None
    assert worker.registered_at is not None
    assert (worker.id, micros((worker.lease_until - worker.registered_at).total_seconds())) == (player.id, micros(5))
