"""How starts are shared among queues: exact by weight, no credit for idleness, nobody starves."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.appetite import Appetite
from gristmill.execution.room import Room
from gristmill.fairness import Shares
from gristmill.ledger.claim import Lane, Taken
from gristmill.ledger.queues import QueueRow
from gristmill.ledger.store import Ledger
from gristmill.settings import WorkerSettings
from tests.ledger.play import remembered

Weights = dict[int, float]


def served(shares: Shares, weights: Weights, starts: int, batch: int = 1) -> list[int]:
    """So many starts, in batches, as a worker books them: all that it was told to take, it took."""
    turns: list[int] = []
    while len(turns) < starts:
        chosen = list(shares.sequence(weights, min(batch, starts - len(turns))))
        shares.charge(weights, Counter(chosen))
        turns += chosen
    return turns


def within_three_points(turns: list[int], weights: Weights) -> bool:
    counts, total = Counter(turns), sum(weights.values())
    return all(abs(counts[q] / len(turns) - w / total) <= 0.03 for q, w in weights.items())


@pytest.mark.parametrize("batch", [1, 7, 100, 1000])
@pytest.mark.parametrize(
    "weights",
    [
        {1: 1.0},
        {1: 1.0, 2: 1.0},
        {1: 3.0, 2: 1.0},
        {1: 10.0, 2: 1.0, 3: 0.5},
        {1: 0.2, 2: 0.3, 3: 0.5},
        {n: float(n) for n in range(1, 9)},
        {1: 100.0, 2: 1.0},
    ],
    ids=str,
)
def test_shares_are_within_three_points_over_a_thousand_starts(weights: Weights, batch: int) -> None:
    assert within_three_points(served(Shares(), weights, 1000, batch), weights)


@settings(max_examples=25)
@given(st.dictionaries(st.integers(1, 20), st.floats(0.1, 100), min_size=1, max_size=8), st.integers(1, 50))
def test_any_weights_are_served_within_three_points(weights: Weights, batch: int) -> None:
    assert within_three_points(served(Shares(), weights, 1000, batch), weights)


def test_shares_are_even_within_short_windows_too() -> None:
    turns = served(Shares(), {1: 2.0, 2: 1.0}, 300)
    assert all(Counter(turns[at : at + 3]) == {1: 2, 2: 1} for at in range(0, 300, 3))


def test_a_queue_that_was_idle_gets_no_credit_for_it() -> None:
    shares = Shares()
    served(shares, {1: 1.0}, 500)
    turns = served(shares, {1: 1.0, 2: 1.0}, 20)
    assert Counter(turns) == {1: 10, 2: 10}


def test_a_queue_that_a_worker_looked_at_in_vain_gets_no_credit_either() -> None:
    """A worker serves two queues, one of them dry for long: when it fills, it does not take the worker over."""
    appetite = Appetite(cast(Ledger, None), cast(Room, None), WorkerSettings(), ())
    appetite.see([QueueRow(1, "busy", 1.0, False), QueueRow(2, "dry", 1.0, False)])
    job = remembered(1, queue_id=1)
    for _ in range(500):
        appetite.took(Taken(1, [job], {job.kind}, [Lane(2, 0)]), {0: 1})
    assert Counter(served(appetite._shares, {1: 1.0, 2: 1.0}, 20)) == {1: 10, 2: 10}


def test_what_was_taken_beyond_a_share_starts_after_the_shares() -> None:
    """A claim took all that there was: far more of the light queues than their share of it, since the heavy one ran dry."""
    weights = {1: 6.0, 2: 3.0, 3: 1.0}
    appetite = Appetite(cast(Ledger, None), cast(Room, None), WorkerSettings(), ())
    appetite.see([QueueRow(queue, f"q{queue}", weight, False) for queue, weight in weights.items()])
    jobs = [remembered(n, queue_id=queue) for n, queue in enumerate([1] * 705 + [2] * 552 + [3] * 394)]
    turns = [job.kind.queue_id for job in appetite.in_turn(jobs, {job.kind for job in jobs})]
    assert all(within_three_points(turns[:starts], weights) for starts in (100, 500, 1000, 1175))
    assert Counter(turns) == {1: 705, 2: 552, 3: 394}


def test_a_queue_that_was_served_alone_pays_nothing_for_it() -> None:
    shares = Shares()
    served(shares, {1: 1.0, 2: 1.0}, 10)
    served(shares, {2: 1.0}, 500)
    assert Counter(served(shares, {1: 1.0, 2: 1.0}, 20)) == {1: 10, 2: 10}


@given(st.lists(st.sampled_from([1, 2, 3]), max_size=200))
def test_queues_that_come_and_go_never_leave_a_busy_one_waiting_long(comers: list[int]) -> None:
    """Queue 9 always has work; another comes for one start at a time. With equal weights each second start is its own."""
    shares = Shares()
    since = 0
    for comer in comers:
        (turn,) = served(shares, {9: 1.0, comer: 1.0}, 1)
        since = 0 if turn == 9 else since + 1
        assert since <= 3


def test_a_light_queue_does_not_starve_beside_a_heavy_one() -> None:
    turns = served(Shares(), {1: 1000.0, 2: 1.0}, 3000)
    waits = [at for at, queue in enumerate(turns) if queue == 2]
    assert len(waits) >= 2
    assert all(after - before <= 1010 for before, after in itertools.pairwise(waits))


def test_what_did_not_really_start_is_not_charged() -> None:
    shares, weights = Shares(), {1: 1.0, 2: 1.0}
    list(shares.sequence(weights, 100))
    shares.charge(weights, {})
    assert list(shares.sequence(weights, 4)) == list(Shares().sequence(weights, 4))


def test_what_came_back_unstarted_is_not_charged() -> None:
    shares, weights = Shares(), {1: 1.0, 2: 1.0}
    shares.charge(weights, {1: 10, 2: 10})
    shares.refund(weights, {1: 4})
    assert list(shares.sequence(weights, 6)) == [1, 1, 1, 1, 1, 2]


@pytest.mark.parametrize("idle", [2, 3])
def test_a_job_that_came_back_brings_no_credit_for_idleness(idle: int) -> None:
    """It waited in a child for a tenth of a second, in which another queue had thousands of starts."""
    shares, weights = Shares(), {1: 1.0, 2: 1.0, 3: 1.0}
    shares.charge(weights, {1: 1, 2: 1, 3: 1})
    shares.charge({1: 1.0}, {1: 5000})
    shares.refund(weights, {2: 1})
    assert Counter(served(shares, {1: 1.0, idle: 1.0}, 20))[1] >= 9


def test_no_queues_no_turns() -> None:
    assert list(Shares().sequence({}, 5)) == []
    Shares().charge({}, {})
