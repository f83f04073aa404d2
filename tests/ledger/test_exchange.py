"""A worker's batch, and how part of it is kept for later."""

from __future__ import annotations

from gristmill.ledger.emit import Emission, Item
from gristmill.ledger.exchange import Batch
from gristmill.ledger.finish import Outcome, Verdict


def emission(job: int, number: int) -> Emission:
    return Emission(job, 1, 7, number, [Item("a", None)])


def end(job: int) -> Outcome:
    return Outcome(job, 1, 7, Verdict.COMPLETED)


def test_a_batch_that_is_not_split_is_itself() -> None:
    batch = Batch([emission(1, 1)], outcomes=[end(1)], ended_claims=[3])
    first, later = batch.split(1)
    assert first is batch
    assert not later


def test_a_producer_does_not_end_before_its_items_are_written() -> None:
    batch = Batch([emission(1, 1), emission(2, 1), emission(1, 2)], outcomes=[end(1), end(2), end(5)], ended_claims=[3, 4])
    batch.completed.rows.append((6, 1, None, 0))
    first, later = batch.split(2)
    assert first.emissions == [emission(1, 1), emission(2, 1)]
    assert [outcome.job for outcome in first.outcomes] == [2, 5]
    assert first.jobs() == [6, 2, 5]
    assert later.emissions == [emission(1, 2)]
    assert later.jobs() == [1]


def test_a_claim_is_remembered_while_any_end_of_its_jobs_may_be_unwritten() -> None:
    first, later = Batch([emission(1, 1)], outcomes=[end(1)], ended_claims=[3]).split(0)
    assert (first.ended_claims, later.ended_claims) == ([], [3])
    later.add(Batch([emission(2, 1)]))
    assert [e.job for e in later.emissions] == [1, 2]
