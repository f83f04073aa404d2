"""Cancelling and requeueing: one flag, a sweep in batches, the run terminal last; and all of it on record."""

from __future__ import annotations

import pytest

from gristmill import Pipeline
from gristmill.errors import NotFound, Refused
from gristmill.ledger import queues, stop, workers
from gristmill.ledger.finish import Verdict
from gristmill.model import Run
from tests.ledger import invariants
from tests.ledger.conftest import Open
from tests.ledger.play import Play, Player, each, plan, solo, step, stubborn

TEN = [f"{n:02}" for n in range(10)]


def site() -> Pipeline:
    return plan("site", find=step(), page=each("find", retries=1), total=step("page"))


def fanned_out(play: Play, player: Player) -> Run:
    """A run with ten queued pages, its producer done."""
    run = play.mill.start("site", "s")
    play.turn(player, {"find": TEN}, {})
    return run


def flag(play: Play, run: int) -> None:
    play.ledger.do(stop.cancel_run, run, by="me", reason="enough")


# ---- runs


def test_cancelling_flags_the_run_first_and_ends_it_last(opened: Open) -> None:
    play = opened(site())
    run = fanned_out(play, play.player())
    flag(play, run.id)
    stopping = play.run(run)
    assert (stopping.state, stopping.stopping) == ("in_progress", "enough")
    assert play.stage_states(run.id) == {"find": "closed", "page": "sealed", "total": "closed"}
    play.sweep()
    ended = play.run(run)
    assert (ended.state, ended.reason, ended.stopping) == ("cancelled", "enough", None)
    assert play.counters(run.id, "page") == (10, 0, 0, 0, 10)


def test_a_sweep_goes_in_batches_from_key_to_key(opened: Open) -> None:
    play = opened(site())
    run = fanned_out(play, play.player())
    flag(play, run.id)
    page = play.value("SELECT id FROM gm_stage WHERE name = 'page'")
    key: str | None = ""
    counts = []
    while key is not None:
        key = play.ledger.do(stop.sweep, run.id, page, key, 4)
        counts.append(play.counters(run.id, "page")[4])
        invariants.check(play.ledger)
    assert counts[-1] == 10
    assert all(before < after for before, after in zip([0, *counts], counts, strict=False))
    assert max(after - before for before, after in zip([0, *counts], counts, strict=False)) <= 5
    assert play.run(run).state == "cancelled"


def test_a_sweep_ends_delayed_jobs_too(opened: Open) -> None:
    play = opened(site())
    player = play.player()
    run = fanned_out(play, player)
    player.end(player.take_one(), Verdict.ERROR)
    assert play.mill.cancel_run(run.id).state == "cancelled"


def test_a_sweep_leaves_running_jobs_to_their_worker(opened: Open) -> None:
    play = opened(site())
    player = play.player()
    run = fanned_out(play, player)
    one, two, three = player.take(3)
    play.mill.cancel_run(run.id)
    assert play.counters(run.id, "page") == (10, 0, 0, 0, 7)
    with play.ledger.reading() as tx:
        assert sorted(workers.asked_to_stop(tx, player.id, [one.id, two.id, three.id])) == [one.id, two.id, three.id]
    player.end(one, Verdict.CANCELLED)
    player.complete(two)
    player.end(three, Verdict.ERROR)
    assert (play.run(run).state, play.counters(run.id, "page")) == ("cancelled", (10, 1, 0, 0, 9))


def test_sweeping_again_or_too_early_changes_nothing(opened: Open) -> None:
    play = opened(site())
    run = fanned_out(play, play.player())
    stages = [row.id for row in play.rows("SELECT id FROM gm_stage")]
    before = invariants.snapshot(play.ledger)
    assert [play.ledger.do(stop.sweep, run.id, stage) for stage in stages] == [None] * 3
    assert invariants.snapshot(play.ledger) == before
    play.mill.cancel_run(run.id)
    after = invariants.snapshot(play.ledger)
    assert [play.ledger.do(stop.sweep, run.id, stage) for stage in stages] == [None] * 3
    assert invariants.snapshot(play.ledger) == after


def test_a_run_that_did_not_begin_can_be_cancelled(opened: Open) -> None:
    play = opened(site())
    run = play.mill.start("site", "s")
    assert play.mill.cancel_run(run.id).state == "cancelled"


def test_cancelling_twice_is_fine_while_it_stops_and_refused_once_it_ended(opened: Open) -> None:
    play = opened(site())
    run = fanned_out(play, play.player())
    flag(play, run.id)
    before = invariants.snapshot(play.ledger)
    flag(play, run.id)
    assert invariants.snapshot(play.ledger) == before
    play.sweep()
    with pytest.raises(Refused, match="is cancelled already"):
        flag(play, run.id)


def test_cancelling_an_unknown_run_says_so(play: Play) -> None:
    with pytest.raises(NotFound, match="there is no run 999999"):
        play.mill.cancel_run(999_999)


def test_a_cancelled_run_starts_nothing_that_follows(opened: Open) -> None:
    play = opened(plan("chain", one=step(), two=step("one")))
    run = play.mill.start("chain", "s")
    player = play.player()
    job = player.take_one()
    play.mill.cancel_run(run.id)
    player.complete(job)
    assert (play.run(run).state, player.take()) == ("cancelled", [])


def test_a_failed_job_of_a_cancelled_run_is_not_tried_again(opened: Open) -> None:
    play = opened(plan("one", work=step(retries=5)))
    run = play.mill.start("one", "s")
    player = play.player()
    job = player.take_one()
    play.mill.cancel_run(run.id)
    player.end(job, Verdict.ERROR)
    assert (play.run(run).state, play.mill.job(job.id).state) == ("cancelled", "cancelled")


def test_a_claimed_job_of_a_stopped_run_that_is_released_is_cancelled(opened: Open) -> None:
    play = opened(plan("one", work=step()))
    run = play.mill.start("one", "s")
    player = play.player()
    job = player.take_one()
    play.mill.cancel_run(run.id)
    player.end(job, Verdict.RELEASED)
    assert play.run(run).state == "cancelled"


# ---- jobs


def test_a_queued_job_is_cancelled_at_once(play: Play) -> None:
    job = play.mill.enqueue(solo)
    cancelled = play.mill.cancel_job(job.id, reason="not needed", by="me")
    assert (cancelled.state, cancelled.error) == ("cancelled", "not needed")
    assert play.player().take() == []


def test_a_delayed_job_is_cancelled_at_once(play: Play) -> None:
    job = play.mill.cancel_job(play.mill.enqueue(solo, delay=60).id)
    play.clock.advance(60)
    assert (job.state, play.ledger.do(queues.promote)) == ("cancelled", 0)


def test_a_running_job_is_asked_to_stop_and_its_worker_ends_it(play: Play) -> None:
    number = play.mill.enqueue(solo).id
    player = play.player()
    job = player.take_one()
    assert play.mill.cancel_job(number).state == "in_progress"
    with play.ledger.reading() as tx:
        assert workers.asked_to_stop(tx, player.id, [number]) == [number]
    player.end(job, Verdict.CANCELLED)
    assert play.mill.job(number).state == "cancelled"


def test_a_running_job_that_was_asked_to_stop_is_cancelled_by_a_rescue(play: Play) -> None:
    number = play.mill.enqueue(stubborn).id
    player = play.player()
    player.take()
    play.mill.cancel_job(number)
    play.clock.advance(60)
    play.ledger.do(workers.rescue, player.id)
    assert play.mill.job(number).state == "cancelled"


@pytest.mark.parametrize("verdict", [Verdict.COMPLETED, Verdict.PERMANENT, Verdict.SKIPPED])
def test_an_ended_job_cannot_be_cancelled(play: Play, verdict: Verdict) -> None:
    number = play.mill.enqueue(solo).id
    play.drain(verdicts={"-": verdict})
    before = invariants.snapshot(play.ledger)
    with pytest.raises(Refused, match="already"):
        play.mill.cancel_job(number)
    assert invariants.snapshot(play.ledger) == before


def test_a_cancelled_item_counts_and_closes_its_stage(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find"), total=step("page")))
    run = play.mill.start("site", "s")
    player = play.player()
    play.turn(player, {"find": ["a", "b"]}, {})
    jobs = {job.key: job for job in play.mill.jobs(stage="page")}
    player.complete(*(job for job in player.take(1) if job.key == "a"))
    play.mill.cancel_job(jobs["b"].id)
    assert play.counters(run.id, "page") == (2, 1, 0, 0, 1)
    play.drain(player)
    assert (play.run(run).state, play.ran) == ("completed_with_errors", ["find", "total"])


def test_cancelling_the_only_job_of_a_run_ends_the_run(opened: Open) -> None:
    play = opened(plan("one", work=step(), after=step("work")))
    run = play.mill.start("one", "s")
    play.mill.cancel_job(play.mill.jobs(run=run.id)[0].id)
    assert play.run(run).state == "failed"


# ---- requeue


def test_an_ended_job_is_queued_again_with_a_fresh_budget(play: Play) -> None:
    number = play.mill.enqueue(stubborn, retries=0).id
    play.drain(verdicts={"-": Verdict.ERROR})
    again = play.mill.retry_job(number)
    assert (again.state, again.errors, again.attempt, again.finished_at) == ("queued", 0, 1, None)
    player = play.player()
    assert player.take_one().attempt == 2


@pytest.mark.parametrize(
    ("verdict", "allowed"),
    [
        (Verdict.PERMANENT, True),
        (Verdict.CANCELLED, True),
        (Verdict.SKIPPED, True),
        (Verdict.WITH_ERRORS, True),
        (Verdict.COMPLETED, False),
    ],
)
def test_all_but_completed_jobs_can_be_requeued(play: Play, verdict: Verdict, allowed: bool) -> None:
    number = play.mill.enqueue(solo).id
    play.drain(verdicts={"-": verdict})
    if allowed:
        assert play.mill.retry_job(number).state == "queued"
    else:
        with pytest.raises(Refused, match="nothing to retry"):
            play.mill.retry_job(number)


def test_a_requeued_job_is_unique_again(play: Play) -> None:
    number = play.mill.enqueue(solo, unique="k").id
    play.drain(verdicts={"-": Verdict.PERMANENT})
    play.mill.retry_job(number)
    assert play.mill.enqueue(solo, unique="k").id == number
    play.drain(verdicts={"-": Verdict.PERMANENT})
    play.mill.retry_job(number)  # and once more
    assert play.mill.enqueue(solo, unique="k").id == number


def test_a_job_is_not_requeued_beside_its_twin(play: Play) -> None:
    number = play.mill.enqueue(solo, unique="k").id
    play.drain(verdicts={"-": Verdict.PERMANENT})
    twin = play.mill.enqueue(solo, unique="k").id
    with pytest.raises(Refused, match=f"job {number} would run beside job {twin}"):
        play.mill.retry_job(number)
    assert play.mill.job(number).state == "failed"
    play.drain()
    play.mill.retry_job(number)
    assert play.mill.enqueue(solo, unique="k").id == number


def test_a_job_that_waits_for_its_retry_runs_now(play: Play) -> None:
    number = play.mill.enqueue(stubborn).id
    player = play.player()
    player.end(player.take_one(), Verdict.ERROR)
    assert player.take() == []
    job = play.mill.retry_job(number)
    assert (job.run_at, job.errors) == (None, 1)
    assert player.take_one().id == number


@pytest.mark.parametrize("claimed", [False, True])
def test_a_job_that_is_ready_or_running_cannot_be_requeued(play: Play, claimed: bool) -> None:
    number = play.mill.enqueue(solo).id
    if claimed:
        play.player().take()
    before = invariants.snapshot(play.ledger)
    with pytest.raises(Refused, match="nothing to retry"):
        play.mill.retry_job(number)
    assert invariants.snapshot(play.ledger) == before


@pytest.mark.parametrize("verdict", [Verdict.PERMANENT, Verdict.CANCELLED, Verdict.SKIPPED, Verdict.WITH_ERRORS])
def test_a_requeued_item_is_taken_out_of_the_counters(opened: Open, verdict: Verdict) -> None:
    play = opened(site())
    player = play.player()
    run = fanned_out(play, player)
    job = player.take_one()
    player.end(job, verdict)
    play.mill.retry_job(job.id)
    assert play.counters(run.id, "page") == (10, 0, 0, 0, 0)
    invariants.check(play.ledger)
    play.drain(player)
    assert (play.run(run).state, play.counters(run.id, "page")) == ("completed", (10, 10, 0, 0, 0))


def test_an_item_of_a_closed_stage_is_not_simply_requeued(opened: Open) -> None:
    play = opened(site())
    player = play.player()
    run = fanned_out(play, player)
    jobs = player.take()
    player.complete(*jobs[1:])
    player.end(jobs[0], Verdict.PERMANENT)
    assert play.stage_states(run.id)["page"] == "closed"
    with pytest.raises(stop.InClosedStage, match=f"'page', which is closed; retry its run: run retry {run.id}"):
        play.ledger.do(stop.requeue_job, jobs[0].id, by="me")


def test_an_item_of_a_run_that_is_being_stopped_cannot_be_requeued(opened: Open) -> None:
    play = opened(site())
    player = play.player()
    run = fanned_out(play, player)
    failed, held = player.take(2)
    player.end(failed, Verdict.PERMANENT)
    play.mill.cancel_run(run.id)
    with pytest.raises(Refused, match="being stopped"):
        play.mill.retry_job(failed.id)
    player.end(held, Verdict.CANCELLED)
    with pytest.raises(stop.InClosedStage):
        play.ledger.do(stop.requeue_job, failed.id, by="me")


def test_acting_on_unknown_jobs_says_so(play: Play) -> None:
    for act in (play.mill.cancel_job, play.mill.retry_job):
        with pytest.raises(NotFound, match="there is no job 999999"):
            act(999_999)


# ---- on record


def test_what_operators_do_is_recorded_with_who_and_when(opened: Open) -> None:
    play = opened(site())
    run = play.mill.start("site", "s")
    job = play.mill.enqueue(solo)
    play.clock.advance(5)
    play.mill.cancel_job(job.id, by="ann", reason="typo")
    play.mill.retry_job(job.id, by="bob")
    play.mill.pause("default", by="cy")
    play.mill.resume("default", by="cy")
    play.mill.set_queue("default", weight=3, by="dee")
    play.mill.cancel_run(run.id, by="eve", reason="enough")
    rows = [tuple(row) for row in play.rows("SELECT at, who, verb, target FROM gm_audit ORDER BY id")]
    assert rows == [
        (play.clock.at, who, verb, target)
        for who, verb, target in [
            ("ann", "job.cancel", f"job {job.id}"),
            ("bob", "job.retry", f"job {job.id}"),
            ("cy", "queue.pause", "queue default"),
            ("cy", "queue.resume", "queue default"),
            ("dee", "queue.set", "queue default"),
            ("eve", "run.cancel", f"run {run.id}"),
        ]
    ]


def test_a_refused_act_leaves_no_record(play: Play) -> None:
    number = play.mill.enqueue(solo).id
    play.drain()
    for act in (play.mill.cancel_job, play.mill.retry_job):
        with pytest.raises(Refused):
            act(number)
    assert play.value("SELECT count(*) FROM gm_audit") == 0
