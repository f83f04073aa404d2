"""Parts that meet: two verbs on PostgreSQL at every place of each other, and many workers at once on both databases.

Without the ledger's second try after a deadlock: the order of locks alone has to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from gristmill.clock import FrozenClock
from gristmill.ledger import parts, start, stop, store, workers
from gristmill.ledger.claim import Claimed
from gristmill.ledger.exchange import Batch, exchange
from gristmill.ledger.finish import Verdict, finish
from gristmill.ledger.start import IfActive
from tests.ledger import invariants
from tests.ledger.conftest import Open, empty
from tests.ledger.play import Play, Player, each, end, plain, plan, solo, step
from tests.ledger.test_interleavings import EMPTY_BUT_NAMES, Call, Meeting, Scenario, call, meet
from tests.ledger.together import split, together

pytestmark = pytest.mark.slow  # of ./run chaos

SITE = plan("site", find=step(), page=each("find", need=0), total=step("page"))


def handed_over(play: Play, player: Player, *keys: str, wait: bool = True) -> Claimed:
    play.mill.enqueue(solo)
    job = player.take_one()
    (player.split if wait else player.hand_over)(job, *keys)
    return job


def called_once(play: Play, job: Claimed) -> Callable[[], None]:
    def check() -> None:
        assert [found.id for found in play.player().take()] == [job.id]

    return check


def the_last_two_parts(play: Play, subject: str) -> Meeting:
    one, other = play.player(), play.player()
    job = handed_over(play, one, "a", "b")
    left, right = one.take_one(), other.take_one()
    return Meeting(call(finish, one.id, [end(left)]), call(finish, other.id, [end(right)]), called_once(play, job))


def the_last_part_and_the_wait_for_it(play: Play, subject: str) -> Meeting:
    one, other = play.player(), play.player()
    job = handed_over(play, one, "a", wait=False)
    part = other.take_one()
    waits = call(finish, one.id, [end(job, Verdict.WAITING)])
    return Meeting(waits, call(exchange, other.id, Batch(completed=plain(part))), called_once(play, job))


def the_last_part_and_the_end_of_its_job(play: Play, subject: str) -> Meeting:
    """It did not wait for its part, and nobody else holds its row."""
    one, other = play.player(), play.player()
    job = handed_over(play, one, "a", wait=False)
    part = other.take_one()

    def check() -> None:
        assert play.mill.job(job.id).state == "completed_with_errors"

    ends = call(finish, one.id, [end(job, Verdict.WITH_ERRORS)])
    return Meeting(ends, call(exchange, other.id, Batch(completed=plain(part))), check)


def two_jobs_that_wait_for_each_others_workers(play: Play, subject: str) -> Meeting:
    one, other = play.player(), play.player()
    play.mill.enqueue_many(solo, [{}] * 2)
    first, second = one.take_one(), other.take_one()
    one.hand_over(first, "a")
    mine = other.take_one()
    other.hand_over(second, "b")
    yours = one.take_one()

    def check() -> None:
        assert sorted(found.id for found in play.player().take()) == [first.id, second.id]

    return Meeting(
        call(finish, one.id, [end(first, Verdict.WAITING), end(yours)]),
        call(finish, other.id, [end(mine), end(second, Verdict.WAITING)]),
        check,
    )


def ended(play: Play, job: Claimed, *states: str) -> Callable[[], None]:
    def check() -> None:
        play.drain()
        assert play.mill.job(job.id).state in states
        assert play.unfinished() == 0

    return check


def the_last_part_and_a_cancel_of_its_job(play: Play, subject: str) -> Meeting:
    player = play.player()
    job = handed_over(play, player, "a")
    part = player.take_one()
    cancel = call(stop.cancel_job, job.id, by="me")
    return Meeting(call(finish, player.id, [end(part)]), cancel, ended(play, job, "cancelled"))


def the_last_part_and_a_cancel_of_it(play: Play, subject: str) -> Meeting:
    player = play.player()
    job = handed_over(play, player, "a", "b")
    part = player.take_one()
    other = play.mill.jobs(part_of=job.id, state="queued")[0].id
    cancel = call(stop.cancel_job, other, by="me")
    return Meeting(call(finish, player.id, [end(part)]), cancel, called_once(play, job))


def a_sweep_and_the_last_running_part(play: Play, subject: str) -> Meeting:
    player = play.player()
    job = handed_over(play, player, "a", "b")
    part = player.take_one()
    play.ledger.do(stop.cancel_job, job.id, by="me")
    end_part = call(finish, player.id, [end(part, Verdict.ERROR, reason="no")])
    return Meeting(call(parts.sweep, job.id), end_part, ended(play, job, "cancelled"))


def a_retry_of_a_part_and_the_last_other(play: Play, subject: str) -> Meeting:
    player = play.player()
    job = handed_over(play, player, "a", "b")
    bad, other = player.take()
    player.end(bad, Verdict.PERMANENT, reason="no")
    retry = call(stop.requeue_job, bad.id, by="me")
    return Meeting(retry, call(finish, player.id, [end(other)]), ended(play, job, "completed"))


def more_parts(job: Claimed, player: Player, *keys: str, args: str | None = None) -> Call:
    return call(parts.hand_over, player.id, job.id, job.attempt, player.part_kind(), [(key, args) for key in keys])


def more_parts_and_the_end_of_those_there(play: Play, subject: str) -> Meeting:
    one, other = play.player(), play.player()
    job = handed_over(play, one, "a", wait=False)
    part = other.take_one()

    def check() -> None:
        one.end(job, Verdict.WAITING)
        ended(play, job, "completed")()

    return Meeting(more_parts(job, one, "b", "c"), call(finish, other.id, [end(part)]), check)


def other_arguments_and_the_end_of_the_part(play: Play, subject: str) -> Meeting:
    one, other = play.player(), play.player()
    job = handed_over(play, one, "a", wait=False)
    part = other.take_one()
    one.end(job, Verdict.RELEASED)
    again = one.take_one()

    def check() -> None:
        one.end(again, Verdict.WAITING)
        ended(play, job, "completed")()

    return Meeting(more_parts(again, one, "a", args="1"), call(finish, other.id, [end(part)]), check)


def parts_and_the_rescue_of_their_worker(play: Play, subject: str) -> Meeting:
    player = play.player()
    job = handed_over(play, player, "a", wait=False)

    def check() -> None:
        play.ledger.do(workers.rescue, player.id, gone=True)  # who is in the middle of a transaction is not lost yet
        ended(play, job, "completed")()

    return Meeting(more_parts(job, player, "b"), call(workers.rescue, player.id, gone=True), check)


def waiting_item(play: Play, player: Player, subject: str, wait: bool = True) -> tuple[int, Claimed]:
    run = play.mill.start("site", subject).id
    play.turn(player, {"find": ["doc"]}, {})
    item = player.take_one()
    (player.split if wait else player.hand_over)(item, "a", "b")
    return run, item


def over(play: Play, run: int, *states: str) -> Callable[[], None]:
    def check() -> None:
        play.drain()
        assert play.mill.run(run).state in states
        assert play.unfinished() == 0

    return check


def the_last_part_and_a_cancel_of_the_run(play: Play, subject: str) -> Meeting:
    player = play.player()
    run, _ = waiting_item(play, player, subject)
    ends = [end(part) for part in player.take()]
    cancel = call(stop.cancel_run, run, by="me")
    return Meeting(call(finish, player.id, ends), cancel, over(play, run, "cancelled"))


def parts_and_a_cancel_of_the_run(play: Play, subject: str) -> Meeting:
    player = play.player()
    run, item = waiting_item(play, player, subject, wait=False)

    def check() -> None:
        player.end(item, Verdict.WAITING)
        over(play, run, "cancelled")()

    return Meeting(more_parts(item, player, "c"), call(stop.cancel_run, run, by="me"), check)


def parts_and_a_raise_of_the_run(play: Play, subject: str) -> Meeting:
    player = play.player()
    run, item = waiting_item(play, player, subject, wait=False)

    def raise_all(tx: store.Tx) -> None:
        start.start(tx, "site", subject, "{}", 0, (), IfActive.JOIN)
        while start.raise_jobs(tx, run):
            pass

    def check() -> None:
        assert {part.priority for part in play.mill.jobs(part_of=item.id)} == {"high"}
        player.end(item, Verdict.WAITING)
        over(play, run, "completed")()

    return Meeting(more_parts(item, player, "c"), call(raise_all), check)


SCENARIOS: list[Scenario] = [
    the_last_two_parts,
    the_last_part_and_the_wait_for_it,
    the_last_part_and_the_end_of_its_job,
    two_jobs_that_wait_for_each_others_workers,
    the_last_part_and_a_cancel_of_its_job,
    the_last_part_and_a_cancel_of_it,
    a_sweep_and_the_last_running_part,
    a_retry_of_a_part_and_the_last_other,
    more_parts_and_the_end_of_those_there,
    other_arguments_and_the_end_of_the_part,
    parts_and_the_rescue_of_their_worker,
    the_last_part_and_a_cancel_of_the_run,
    parts_and_a_cancel_of_the_run,
    parts_and_a_raise_of_the_run,
]


@pytest.fixture
def play(pg_url: str, clock: FrozenClock) -> Iterator[Play]:
    play = Play(pg_url, [SITE], clock)
    yield play
    play.close()


@pytest.mark.parametrize("turned", [False, True], ids=["", "turned"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_whatever_meets_it_ends_well(play: Play, monkeypatch: pytest.MonkeyPatch, scenario: Scenario, turned: bool) -> None:
    monkeypatch.setattr(store, "_DEADLOCK", ())
    stopped, at = True, 0
    while stopped:  # until the verb has no such statement: then all places were tried
        at += 1
        meeting = scenario(play, f"s{at}")
        first, second = (meeting.other, meeting.one) if turned else (meeting.one, meeting.other)
        stopped = meet(play, first, second, at)
        invariants.check(play.ledger)
        meeting.check()
        empty(play.ledger, EMPTY_BUT_NAMES)


# ---- many at once


def test_each_of_many_jobs_is_called_once_however_many_workers_end_its_parts(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_DEADLOCK", ())
    play = opened()
    player = play.player()
    play.mill.enqueue_many(solo, [{}] * 20)
    jobs = player.take()
    for job in jobs:
        player.split(job, *(f"{n}" for n in range(8)))
    players = [play.player() for _ in range(8)]
    hands = [(one, one.take(20)) for one in players]

    def end_all(one: Player, held: list[Claimed]) -> None:
        for some in split(held, 7):
            if some:
                assert one.complete(*some) == []

    together(*(partial(end_all, one, held) for one, held in hands))
    called = Counter(job.id for job in player.take())
    assert called == {job.id: 1 for job in jobs}
