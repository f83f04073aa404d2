"""Races, with real threads and real connections: whatever the order, each thing happens exactly once."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from contextlib import suppress
from functools import partial

import pytest

from gristmill import Retries
from gristmill.errors import NotYours, Refused
from gristmill.housekeeping import carry_on
from gristmill.ledger import again, chores, queues, stop, workers
from gristmill.ledger.claim import Claimed
from gristmill.ledger.finish import Verdict
from gristmill.ledger.start import IfActive, PlannedStage, start
from gristmill.ledger.store import Tx
from gristmill.model import Run
from gristmill.pruner import Pruner
from gristmill.retention import Rule
from gristmill.states import TERMINAL
from tests.ledger import invariants
from tests.ledger.conftest import Open
from tests.ledger.play import Play, Player, each, end, plan, solo, step
from tests.ledger.together import outcomes, split, times, together

pytestmark = pytest.mark.slow  # of ./run chaos


def states(play: Play) -> Counter[str]:
    return Counter(run.state for run in play.mill.runs(limit=10_000))


# ---- starting


def test_a_hundred_joins_at_once_are_one_run(opened: Open) -> None:
    play = opened(plan("one", work=step()))
    runs = times(100, lambda: play.mill.start("one", "s", if_active="join"))
    assert (len({run.id for run in runs}), sum(run.created for run in runs)) == (1, 1)
    assert states(play) == {"queued": 1}


def test_a_hundred_waits_at_once_are_one_active_and_one_waiting_run(opened: Open) -> None:
    play = opened(plan("one", work=step()))
    runs = times(100, lambda: play.mill.start("one", "s", if_active="wait"))
    assert (len({run.id for run in runs}), sum(run.created for run in runs)) == (2, 2)
    assert states(play) == {"queued": 1, "waiting": 1}


def test_of_a_hundred_refusing_starts_at_once_one_gets_through(opened: Open) -> None:
    play = opened(plan("one", work=step()))
    started: Counter[object] = Counter()
    for outcome in outcomes(*[lambda: play.mill.start("one", "s", if_active="refuse")] * 100):
        try:
            started[outcome().created] += 1
        except Refused:
            started["refused"] += 1
    assert started == {True: 1, "refused": 99}
    assert states(play) == {"queued": 1}


def test_starts_while_runs_end_never_make_two_active_and_lose_no_follow_up(opened: Open) -> None:
    play = opened(plan("one", work=step()))
    first = play.mill.start("one", "s")

    def start_some() -> list[Run]:
        return [play.mill.start("one", "s", if_active="wait") for _ in range(15)]

    def end_some() -> None:
        player = play.player()
        for _ in range(40):
            player.complete(*player.take())

    started = together(start_some, start_some, end_some, end_some)
    play.drain()
    ids = {run.id for runs in started[:2] for run in runs} | {first.id}
    assert states(play) == {"completed": len(ids)}


def test_a_unique_key_lets_one_of_many_through(play: Play) -> None:
    jobs = times(40, lambda: play.mill.enqueue(solo, unique="k"))
    assert (len({job.id for job in jobs}), sum(job.created for job in jobs)) == (1, 1)


# ---- claiming


def test_five_hundred_jobs_are_claimed_once_each_by_eight_workers(play: Play) -> None:
    wanted = play.mill.enqueue_many(solo, [{}] * 500)

    def work(player: Player) -> list[int]:
        mine: list[int] = []
        while jobs := player.take(7):
            mine += [job.id for job in jobs]
            assert {job.attempt for job in jobs} == {1}
        return mine

    taken = together(*[partial(work, play.player()) for _ in range(8)])
    left = play.player().take()  # what others held locked when each looked last
    claimed = [number for mine in taken for number in mine] + [job.id for job in left]
    assert sorted(claimed) == wanted


def test_due_jobs_are_promoted_once_each_by_several(play: Play) -> None:
    for n in range(60):
        play.mill.enqueue(solo, delay=n)
    play.clock.advance(60)

    def promote() -> int:
        return sum(iter(lambda: play.ledger.do(queues.promote, 5), 0))

    promoted = sum(times(4, promote)) + promote()
    assert promoted == 60
    assert len(play.player().take()) == 60


# ---- finishing


@pytest.mark.parametrize("last", [Verdict.COMPLETED, Verdict.PERMANENT, Verdict.SKIPPED])
def test_branches_of_a_join_that_close_at_the_same_moment_start_it_once(opened: Open, last: Verdict) -> None:
    branches = {name: step(need=0) for name in "abcd"}
    play = opened(plan("join", **branches, join=step(*branches)))
    players = [play.player() for _ in branches]
    for n in range(8):
        run = play.mill.start("join", f"s{n}")
        jobs = [player.take_one() for player in players]
        together(*[partial(p.end, job, last) for p, job in zip(players, jobs, strict=True)])
        assert play.counters(run.id, "join")[0] == 1
        play.drain(players[0])
    assert play.ran == ["join"] * 8


def test_items_of_one_stage_that_end_at_the_same_moment_close_it_once(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find"), total=step("page")))
    run = play.mill.start("site", "s")
    players = [play.player() for _ in range(8)]
    play.turn(players[0], {"find": [f"{n:03}" for n in range(200)]}, {})
    held = [player.take(25) for player in players]

    def finish(player: Player, n: int) -> None:
        for job in held[n]:
            player.complete(job)

    together(*[partial(finish, player, n) for n, player in enumerate(players)])
    assert play.counters(run.id, "page") == (200, 200, 0, 0, 0)
    play.drain()
    assert Counter(play.ran)["total"] == 1


def test_five_hundred_runs_that_end_at_once_in_any_order_all_end_and_start_their_follow_ups(opened: Open) -> None:
    """Without one lock order this was 24 deadlocks (DESIGN.md, decision 4)."""
    play = opened(plan("one", work=step()))
    play.ledger.do(start_many, play.mill._plan(play.mill.registry.pipeline("one")), range(500), range(0, 500, 10))

    def work(player: Player, seed: int) -> None:
        shuffle = random.Random(seed).shuffle
        while jobs := player.take(60):
            shuffle(jobs)
            assert player.complete(*jobs) == []

    together(*[partial(work, play.player(), seed) for seed in range(6)])
    play.drain()
    assert play.value("SELECT count(*) FROM gm_run WHERE state = 2") == play.value("SELECT count(*) FROM gm_run") == 550
    assert play.value("SELECT count(*) FROM gm_job WHERE state = 2") == play.value("SELECT count(*) FROM gm_job") == 550


def start_many(tx: Tx, planned: list[PlannedStage], subjects: range, again: range) -> None:
    """Runs of all subjects, and follow-ups of some, in one transaction: 550 calls of `mill.start` would take seconds."""
    for subject in [*subjects, *again]:
        start(tx, "one", f"s{subject}", "{}", 1, planned, IfActive.WAIT)


# ---- one against another


def finish_in_parts(player: Player, jobs: list[Claimed]) -> int:
    """Says how many ends were written before the worker was told that it is lost."""
    written = 0
    with suppress(NotYours):
        for batch in split(jobs, 5):
            assert player.complete(*batch) == []
            written += len(batch)
    return written


def test_a_rescue_against_the_end_of_the_same_jobs(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find", retries=Retries(0, losses=5)), total=step("page")))
    for n in range(6):
        run = play.mill.start("site", f"s{n}")
        player = play.player(lease=30)
        play.turn(player, {"find": [f"{k:02}" for k in range(20)]}, {})
        jobs = player.take()
        play.clock.advance(31)

        rescue = partial(play.ledger.do, workers.rescue, player.id)
        written, rescued = together(partial(finish_in_parts, player, jobs), rescue)
        rescued = (rescued or 0) + (rescue() or 0)  # the first one may have met the worker in the middle of a transaction
        assert written + rescued == 20
        assert play.counters(run.id, "page")[1] == written
        play.drain()
    assert states(play) == {"completed": 6}
    assert Counter(play.ran)["total"] == 6


def test_two_rescues_of_one_worker_take_its_jobs_back_once(play: Play) -> None:
    play.mill.enqueue_many(solo, [{}] * 50)
    player = play.player(lease=30)
    player.take()
    play.clock.advance(31)
    rescued = times(4, lambda: play.ledger.do(workers.rescue, player.id))
    assert [jobs for jobs in rescued if jobs is not None] == [50]
    assert play.value("SELECT max(losses) FROM gm_job") == 1


def test_a_cancel_against_the_end_of_the_same_run(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find"), total=step("page")))
    ends = Counter[str]()
    for n in range(10):
        run = play.mill.start("site", f"s{n}")
        player = play.player()
        play.turn(player, {"find": ["a", "b", "c"]}, {})
        jobs = player.take()

        def cancel(run: Run = run) -> None:
            with contextlib.suppress(Refused):
                play.mill.cancel_run(run.id)

        together(partial(player.complete, *jobs), cancel)
        invariants.check(play.ledger)
        play.drain(player)
        ends[play.run(run).state] += 1
    assert set(ends) <= {"completed", "cancelled"}


def test_a_cancel_against_a_claim_of_the_same_job(play: Play) -> None:
    player = play.player()
    for _ in range(20):
        number = play.mill.enqueue(solo).id
        _, taken = together(partial(play.mill.cancel_job, number), player.take)
        if taken:
            with play.ledger.reading() as tx:
                assert workers.asked_to_stop(tx, player.id, [number]) == [number]
            player.end(taken[0], Verdict.CANCELLED)
        assert play.mill.job(number).state == "cancelled"


def emit_in_parts(player: Player, job: Claimed) -> int:
    """Says how many batches of five were taken."""
    return sum(not player.emit(job, *[f"{batch}-{k}" for k in range(5)]) for batch in range(10))


def test_items_against_the_sweep_of_the_same_run(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find"), total=step("page")))
    for n in range(6):
        run = play.mill.start("site", f"s{n}")
        player = play.player()
        find = player.take_one()

        batches, _ = together(partial(emit_in_parts, player, find), partial(play.mill.cancel_run, run.id))
        play.sweep()
        assert play.counters(run.id, "page") == (5 * batches, 0, 0, 0, 5 * batches)
        player.end(find, Verdict.CANCELLED)
        assert play.run(run).state == "cancelled"


def test_a_requeue_against_the_end_of_the_last_other_item(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find"), total=step("page")))
    for n in range(10):
        run = play.mill.start("site", f"s{n}")
        player = play.player()
        play.turn(player, {"find": ["a", "b"]}, {})
        jobs = play.labelled(player.take())
        player.end(jobs["page/a"], Verdict.PERMANENT)

        def requeue(number: int = jobs["page/a"].id) -> bool:
            try:
                play.mill.retry_job(number)
            except Refused:
                return False
            return True

        again, _ = together(requeue, partial(player.complete, jobs["page/b"]))
        invariants.check(play.ledger)
        play.drain(player)
        assert play.run(run).state == ("completed" if again else "completed_with_errors")


def test_a_cancel_of_a_job_against_its_retry_is_not_forgotten(opened: Open) -> None:
    """Either it was cancelled, or its worker is still asked to: a cancel that was accepted never just vanishes."""
    play = opened()
    for _ in range(20):
        number = play.mill.enqueue(solo, retries=Retries(5, delays=[0])).id
        player = play.player()
        job = player.take_one()
        together(partial(play.mill.cancel_job, number), partial(player.end, job, Verdict.ERROR))
        assert play.mill.job(number).state == "cancelled"


def test_sweeps_by_several_workers_end_a_run_once(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find")))
    run = play.mill.start("site", "s")
    follow_up = play.mill.start("site", "s", if_active="wait")
    play.turn(play.player(), {"find": [f"{n:03}" for n in range(100)]}, {})
    play.ledger.do(stop.cancel_run, run.id, by="me")
    page = play.value("SELECT id FROM gm_stage WHERE name = 'page' AND run_id = :run", run=run.id)

    def sweep() -> None:
        key: str | None = ""
        while key is not None:
            key = play.ledger.do(stop.sweep, run.id, page, key, 10)

    times(4, sweep)
    assert play.run(run).state == "cancelled"
    assert play.run(follow_up).state == "queued"


def test_outcomes_of_one_batch_may_belong_to_many_runs_in_any_order(opened: Open) -> None:
    play = opened(plan("one", work=step()))
    for n in range(30):
        play.mill.start("one", f"s{n}")
    players = [play.player() for _ in range(3)]
    held = [player.take(10) for player in players]
    for jobs in held:
        random.Random(1).shuffle(jobs)
    together(*[partial(p.finish, *map(end, jobs)) for p, jobs in zip(players, held, strict=True)])
    assert states(play) == {"completed": 30}


# ---- many at once


def test_a_purge_against_workers_and_another_purge(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find", need=0), total=step("page")))
    for n in range(2):
        runs = [play.mill.start("site", f"{n}-{k}").id for k in range(3)]
        one, other = play.player(), play.player()
        play.turn(one, {"find": [f"{k:02}" for k in range(20)]}, {})

        def work(player: Player) -> int:
            done = 0
            while jobs := player.take(7):
                assert player.complete(*jobs) == []
                done += len(jobs)
            return done

        purge = partial(play.mill.purge_queue, "default")
        *done, first, second = together(partial(work, one), partial(work, other), purge, purge)
        invariants.check(play.ledger)
        play.drain()
        assert all(play.mill.run(run).terminal for run in runs)
        cancelled = sum(play.mill.run(run).stage("page").cancelled for run in runs)
        assert cancelled <= first.total + second.total
        assert sum(done) >= 60 - cancelled


def test_deletions_of_the_same_jobs_and_runs_count_each_once(opened: Open) -> None:
    play = opened(plan("one", work=step()))
    for _ in range(2):
        for subject in "abc":
            play.mill.start("one", subject)
        play.mill.enqueue_many(solo, [{}] * 20)
        play.drain()
        runs = times(3, lambda: play.mill.delete_runs(state="completed"))
        jobs = times(3, lambda: play.mill.delete_jobs(task="solo"))
        assert sum(done.counts.get("runs", 0) for done in runs) == 3
        assert sum(done.counts.get("deleted", 0) for done in jobs) == 20
        assert (play.mill.jobs(archived=None), play.mill.runs()) == ([], [])
        invariants.check(play.ledger)


def test_retention_against_starts_and_ends_of_the_same_subjects(opened: Open) -> None:
    play = opened(plan("one", work=step()))
    keep = [Rule(tuple(sorted(map(int, TERMINAL))), None, 0)]

    def work() -> None:
        for _ in range(3):
            play.mill.start("one", "s", if_active="wait")
            play.drain()

    def prune() -> None:
        pruner = Pruner(play.ledger, {}, {}, keep)
        for _ in range(3):
            while pruner.tick(0.0) < 3600:
                pass

    together(work, work, prune, prune)
    invariants.check(play.ledger)
    play.drain()
    prune()
    last = play.mill.subject("one", "s").last_run
    assert last is not None
    assert [run.id for run in play.mill.runs()] == [last]


# ---- retrying


def failed_run(play: Play, subject: str) -> Run:
    run = play.mill.start("site", subject)
    play.drain(items={"find": ["a", "b", "c"]}, verdicts={"page/b": Verdict.PERMANENT})
    return play.run(run)


def test_of_many_retries_at_once_one_queues_the_items(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find"), total=step("page")))
    run = failed_run(play, "s")
    play.ran.clear()
    done = 0
    for outcome in outcomes(*[lambda: play.retry(run)] * 10):
        with suppress(Refused):
            done += outcome().queued
    assert (done, play.run(run).epoch) == (1, 2)
    play.drain()
    assert play.ran == ["page/b", "total"]


def test_a_retry_against_a_start_leaves_one_active_run(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find"), total=step("page")))
    for n in range(10):
        run = failed_run(play, f"s{n}")
        start_another = partial(play.mill.start, "site", f"s{n}", if_active="refuse")
        refused = 0
        for outcome in outcomes(partial[object](play.retry, run), start_another):
            try:
                outcome()
            except Refused:
                refused += 1
        assert refused == 1
        invariants.check(play.ledger)
        play.drain(items={"find": ["a"]})
        assert states(play)["in_progress"] + states(play)["queued"] == 0


def test_a_retry_against_the_end_of_what_depends_on_it(opened: Open) -> None:
    """Either the total was done and is done once more, or its end came too late."""
    play = opened(plan("site", find=step(), page=each("find"), total=step("page")))
    for n in range(10):
        run = play.mill.start("site", f"s{n}")
        player = play.player()
        play.turn(player, {"find": ["a", "b"]}, {})
        play.turn(player, {}, {"page/b": Verdict.PERMANENT})
        total = player.take_one()
        play.ran.clear()
        _, late = together(partial(play.retry, run), partial(player.end, total))
        assert late in ([], [total.id])
        invariants.check(play.ledger)
        play.drain(player)
        assert play.ran == ["page/b", "total"]
        assert (play.run(run).state, play.mill.job(total.id).attempt) == ("completed", 2)


def test_a_retry_against_the_claim_of_what_depends_on_it(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find"), total=step("page")))
    for n in range(10):
        run = play.mill.start("site", f"s{n}")
        player, other = play.player(), play.player()
        play.turn(player, {"find": ["a", "b"]}, {})
        play.turn(player, {}, {"page/b": Verdict.PERMANENT})
        _, taken = together(partial(play.retry, run), partial(other.take, 1))
        invariants.check(play.ledger)
        late = [job for job in taken if play.label(job) == "total"]
        assert other.finish(*(end(job) for job in taken)) == [job.id for job in late]
        play.drain(player)
        assert play.run(run).state == "completed"


def test_many_go_on_with_one_retry_at_once(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chores, "requeue", partial(chores.requeue, most=3))
    play = opened(plan("site", find=step(), page=each("find"), total=step("page")))
    keys = [f"{n:03}" for n in range(60)]
    run = play.mill.start("site", "s")
    play.drain(items={"find": keys})
    with play.ledger.reading() as tx:
        chosen = again.choose(tx, run.id, chores.Selection(), "page")
    play.ledger.do(again.retry, chosen, by="me")
    play.ran.clear()
    times(6, lambda: carry_on(play.ledger, run.id))
    invariants.check(play.ledger)
    play.drain()
    assert sorted(play.ran) == [*(f"page/{key}" for key in keys), "total"]
