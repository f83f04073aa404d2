"""What was done in each minute: every end is counted once, whoever dies when, and outlives its job."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import Invalid, NotFound
from gristmill.ledger import minutes, workers
from gristmill.ledger.finish import Verdict
from gristmill.ledger.own import finish_own, lock_own
from gristmill.rollup import BOUNDS, spread
from gristmill.watched import Interval
from tests.ledger import invariants
from tests.ledger.conftest import Open
from tests.ledger.crash import AFTER_COMMIT, Crasher, Order
from tests.ledger.play import Play, Player, each, end, plan, solo, step, stubborn
from tests.ledger.together import together

SITE = plan("site", find=step(), page=each("find", need=0), total=step("page"))


def done(play: Play, task: str = "solo") -> Interval:
    (found,) = [total.done for total in play.mill.totals() if total.task == task]
    return found


def ends(play: Play) -> Counter[str]:
    found: Counter[str] = Counter()
    for total in play.mill.totals():
        for word in ("completed", "completed_with_errors", "failed", "skipped", "cancelled"):
            found[word] += getattr(total.done, word)
    return +found


def bucket(seconds: float) -> int:
    return next((n for n, bound in enumerate(BOUNDS) if seconds <= bound), len(BOUNDS))


# ---- counting


def test_ends_are_counted_by_outcome_queue_and_task(play: Play) -> None:
    play.mill.set_queue("other", create=True)
    play.mill.enqueue_many(solo, [{}] * 5)
    play.mill.enqueue(solo, queue="other")
    player = play.player()
    jobs = player.take(5, queues=["default"])
    player.complete(*jobs[:2])
    player.finish(
        end(jobs[2], Verdict.PERMANENT), end(jobs[3], Verdict.SKIPPED, reason="x"), end(jobs[4], Verdict.WITH_ERRORS)
    )
    player.complete(player.take_one())
    found = {
        total.queue: (d.completed, d.failed, d.skipped, d.completed_with_errors)
        for total in play.mill.totals()
        for d in [total.done]
    }
    assert found == {"default": (2, 1, 1, 1), "other": (1, 0, 0, 0)}


def test_how_long_it_took_and_waited(play: Play) -> None:
    play.mill.enqueue(solo)
    play.clock.advance(7)
    player = play.player()
    job = player.take_one()
    play.clock.advance(2)
    player.end(job, ran=2_000_000)
    found = done(play)
    assert (found.ran, found.waited, found.waits) == (2.0, 7.0, 1)
    assert [n for n, count in enumerate(found.ran_in) if count] == [bucket(2)]
    assert [n for n, count in enumerate(found.waited_in) if count] == [bucket(7)]


def test_a_plain_completion_is_counted_like_any_other(play: Play) -> None:
    play.mill.enqueue_many(solo, [{}] * 3)
    play.clock.advance(7)
    player = play.player()
    player.complete(*player.take())
    found = done(play)
    assert (found.completed, found.waited, found.waits, found.waited_in[bucket(7)]) == (3, 21.0, 3, 3)


def test_an_attempt_that_is_tried_again_is_counted_as_such(play: Play) -> None:
    play.mill.enqueue(stubborn)
    player = play.player()
    player.end(player.take_one(), Verdict.ERROR, ran=300_000)
    assert (done(play, "stubborn").retried, done(play, "stubborn").ended) == (1, 0)
    play.clock.advance(60)
    play.drain_later()
    found = done(play, "stubborn")
    assert (found.retried, found.completed, found.waits) == (1, 1, 0)  # how long it waited is known of first attempts only
    assert sum(found.ran_in) == 2


def test_what_goes_back_unspent_is_not_counted(play: Play) -> None:
    play.mill.enqueue(solo)
    player = play.player()
    for verdict in (Verdict.RELEASED, Verdict.LATER, Verdict.UNSPENT):
        player.end(player.take_one(), verdict)
    assert play.mill.totals() == []


def test_a_late_worker_counts_nothing(play: Play) -> None:
    play.mill.enqueue_many(solo, [{}] * 2)
    late, other = play.player(), play.player()
    jobs = late.take()
    for job in jobs:
        late.end(job, Verdict.RELEASED)
    other.complete(*other.take())
    assert late.complete(*jobs) == [job.id for job in jobs]
    assert late.finish(*[end(job, Verdict.PERMANENT) for job in jobs])
    assert ends(play) == {"completed": 2}


def test_a_batch_of_which_some_are_late_counts_the_others(play: Play) -> None:
    play.mill.enqueue_many(solo, [{}] * 4)
    player = play.player()
    jobs = player.take()
    player.end(jobs[0], Verdict.RELEASED)
    assert player.complete(*jobs) == [jobs[0].id]
    assert ends(play) == {"completed": 3}


def test_every_way_to_end_is_counted(opened: Open) -> None:
    play = opened(SITE)
    run = play.mill.start("site", "s").id
    player = play.player()
    play.turn(player, {"find": list("abcde")}, {})
    lost = play.player(lease=1)
    lost.take(1)
    play.clock.advance(100)
    play.ledger.do(workers.rescue, lost.id)
    job = play.mill.enqueue(solo).id
    play.mill.cancel_job(job)
    play.mill.cancel_run(run)
    play.drain()
    rows = Counter(found.state for found in play.mill.jobs(limit=1000))
    assert ends(play) == rows
    assert sum(rows.values()) == 7


def test_a_job_that_ends_itself_has_a_row_of_its_own(play: Play) -> None:
    play.mill.enqueue_many(solo, [{}] * 2)
    player = play.player()
    first, second = player.take()
    with play.mill.transaction() as connection:
        assert play.ledger.join(connection, lock_own, player.id, first.id, first.attempt)
        play.ledger.join(connection, finish_own, player.id, end(first, ran=40_000))
        if not play.ledger.is_sqlite:
            player.complete(second)  # its worker does not wait for that transaction
    if play.ledger.is_sqlite:
        player.complete(second)
    assert done(play).completed == 2
    assert {row.worker_id for row in play.rows("SELECT worker_id FROM gm_minute")} == {-first.id, player.id}


def test_what_is_removed_stays_in_the_history(opened: Open) -> None:
    play = opened(SITE)
    run = play.mill.start("site", "s").id
    play.mill.enqueue_many(solo, [{}] * 3)
    play.drain(items={"find": ["a"]})
    before = play.mill.totals()
    assert ends(play) == {"completed": 6}
    play.mill.delete_runs(ids=[run])
    play.mill.delete_jobs(task="solo")
    assert play.mill.jobs() == []
    assert play.mill.totals() == before


def test_many_workers_at_once_count_each_end_once(play: Play) -> None:
    jobs = play.mill.enqueue_many(solo, [{}] * 300)

    def work(player: Player) -> None:
        while taken := player.take(7):
            player.complete(*taken[1:])
            player.finish(end(taken[0], Verdict.PERMANENT if taken[0].id % 2 else Verdict.COMPLETED))

    together(*[partial(work, play.player()) for _ in range(4)])
    work(play.player())
    assert done(play).ended == len(jobs)
    assert ends(play) == Counter(job.state for job in play.mill.jobs(limit=1000))


# ---- reading


def test_the_history_has_every_interval_also_empty_ones(play: Play) -> None:
    play.clock.at -= play.clock.at % 3_600_000_000
    player = play.player(lease=10**6)
    for number, wait in [(2, 60), (3, 180), (1, 0)]:
        play.mill.enqueue_many(solo, [{}] * number)
        player.complete(*player.take())
        play.clock.advance(wait)
    assert [interval.completed for interval in play.mill.history(since=240)] == [2, 3, 0, 0, 1]
    assert [interval.completed for interval in play.mill.history(since=240, step=120)] == [5, 0, 1]
    assert [interval.completed for interval in play.mill.history(since=play.clock.now - timedelta(minutes=1))] == [0, 1]
    assert [i.at for i in play.mill.history(since=60)] == [play.clock.now - timedelta(minutes=1), play.clock.now]


def test_the_history_of_a_queue_and_of_a_task(play: Play) -> None:
    play.mill.set_queue("other", create=True)
    play.mill.enqueue(solo, queue="other")
    play.mill.enqueue(stubborn)
    play.drain()

    def ended(**which: Any) -> int:
        return sum(interval.ended for interval in play.mill.history(**which))

    assert (ended(), ended(queue="other"), ended(task="stubborn"), ended(queue="other", task="stubborn")) == (2, 1, 1, 0)
    with pytest.raises(NotFound, match="did you mean 'other'"):
        play.mill.history(queue="othr")


@pytest.mark.parametrize(
    "how", [{"step": 0}, {"step": 90}, {"step": -60}, {"step": "x"}, {"since": -1}, {"since": 10**9, "step": 60}]
)
def test_nonsense_is_refused(play: Play, how: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        play.mill.history(**how)


def test_a_time_is_in_the_bucket_whose_bound_it_does_not_pass() -> None:
    assert spread([3_600_000_001, 0, 10_001, 10_000, 3_600_000_000]) == [2, 1, *[0] * 9, 1, 1]
    assert spread([]) == [0] * (len(BOUNDS) + 1)
    assert spread([20_000, 50_000]) == [0, 2, *[0] * 11]


@given(st.lists(st.one_of(st.integers(0, 2**40), st.sampled_from([round(bound * 1e6) for bound in BOUNDS]))))
def test_each_time_is_in_one_bucket(times: list[int]) -> None:
    each_alone = Counter(bucket(time / 1e6) for time in times)
    assert spread(times) == [each_alone[n] for n in range(len(BOUNDS) + 1)]


# ---- summing up


def lived(play: Play) -> None:
    """Three workers, three tasks' worth of work, over some hours."""
    for _ in range(3):
        for player in [play.player() for _ in range(3)]:
            play.mill.enqueue_many(solo, [{}] * 3)
            one, *others = player.take()
            player.complete(*others)
            player.end(one, Verdict.PERMANENT, ran=20_000)
        play.clock.advance(61 * 60)


def rows(play: Play) -> int:
    return int(play.value("SELECT count(*) FROM gm_minute"))


def test_sums_stay_the_same_while_rows_are_summed_up(play: Play) -> None:
    lived(play)
    before = play.mill.totals()
    counts = [rows(play)]
    for days in (0, 3, 500):
        play.clock.advance(days * 86_400)
        for level in range(len(minutes.LEVELS)):
            while play.ledger.do(minutes.tidy, level, 2):
                assert play.mill.totals() == before
        counts.append(rows(play))
    assert counts == [9, 3, 3, 1]
    lived(play)
    assert done(play).ended == 2 * before[0].done.ended


def test_what_was_counted_in_former_hours_is_read_once_an_hour_and_adds_up(play: Play) -> None:
    known: minutes.Settled | None = None
    for days in (0, 0, 0, 3, 500):
        lived(play)
        play.clock.advance(days * 86_400)
        for level in range(len(minutes.LEVELS)):
            while play.ledger.do(minutes.tidy, level, 2):
                with play.ledger.reading() as tx:
                    known = minutes.settled(tx, known)
                    assert minutes.totals(tx, known=known) == play.mill.totals()
        with play.ledger.reading() as tx:
            known = minutes.settled(tx, known)
            assert known is minutes.settled(tx, known)
            assert minutes.totals(tx, known=known) == play.mill.totals()
        play.clock.advance(3600)
        with play.ledger.reading() as tx:
            assert known is not minutes.settled(tx, known)
    assert sum(sums[0] for sums in known.sums.values()) > 0 if known else False
    play.mill.enqueue(solo)
    play.drain()
    with play.ledger.reading() as tx:
        assert minutes.totals(tx, known=known) == play.mill.totals()


def test_a_ledger_that_was_restored_is_counted_anew(play: Play) -> None:
    lived(play)
    with play.ledger.reading() as tx:
        known = minutes.settled(tx)
        before = known._replace(epoch=known.epoch - 1, sums={})
        assert known.sums
        assert minutes.settled(tx, before) == known


def test_charts_show_the_same_as_the_history(play: Play) -> None:
    play.mill.set_queue("other", create=True)
    lived(play)
    play.mill.enqueue(solo, queue="other")
    play.drain()
    for since, width in ((3600, 60), (86_400, 900), (7 * 86_400, 3600)):
        found = play.mill.ended(since=since, step=width)
        assert set(found) == {None, "other", *(["default"] if since > 3600 else [])}  # in the last hour, nothing of that
        for queue, shown in found.items():
            told = play.mill.history(queue=queue, since=since, step=width)
            assert [(one.at, one.ended, one.failed) for one in shown] == [(one.at, one.ended, one.failed) for one in told]
            assert sum(one.ended for one in shown) > 0


def test_the_newest_minutes_are_left_to_their_workers(play: Play) -> None:
    play.mill.enqueue(solo)
    play.drain()
    play.clock.advance(9 * 60)
    assert play.ledger.do(minutes.tidy, 0) == 0


def test_two_who_sum_up_at_once_count_nothing_twice(play: Play) -> None:
    for _ in range(5):
        lived(play)
    play.clock.advance(3 * 86_400)
    before = play.mill.totals()

    def sum_up() -> None:
        for level in (0, 1, 2) * 3:
            while play.ledger.do(minutes.tidy, level, 3):
                pass

    together(*[sum_up] * 4)
    sum_up()
    assert play.mill.totals() == before
    assert play.value("SELECT count(*) FROM gm_minute WHERE worker_id <> 0 OR minute % 60 <> 0") == 0


@pytest.mark.parametrize("level", [0, 1, 2])
def test_who_dies_while_summing_up_changes_nothing(play: Play, crasher: Crasher, level: int) -> None:
    lived(play)
    play.clock.advance(500 * 86_400)
    for before in range(level):
        assert play.ledger.do(minutes.tidy, before)
    totals, snapshot = play.mill.totals(), invariants.snapshot(play.ledger)
    at = 1

    def die(at: int) -> str:
        return crasher(Order(play.url, play.clock.at, "tidy_minutes", {"level": level}, at))

    while die(at) == "statement":
        assert invariants.snapshot(play.ledger) == snapshot
        at += 1
    assert at > 3
    assert die(AFTER_COMMIT) == "done"
    assert invariants.snapshot(play.ledger) != snapshot
    assert play.mill.totals() == totals
