"""Jobs on their own: when they are ready, and what their unique key keeps out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Annotated, Any

import orjson
import psycopg
import pytest
from pydantic import AfterValidator

from gristmill import Limit, task
from gristmill.clock import FrozenClock, to_datetime
from gristmill.errors import Invalid
from gristmill.ledger import queues
from gristmill.ledger.finish import Verdict
from gristmill.model import Job
from tests.ledger.conftest import Open
from tests.ledger.play import Play, solo


def in_a_minute(clock: FrozenClock):
    now = to_datetime(clock.at)
    assert now is not None
    return now + timedelta(minutes=1)


def test_a_new_job_is_queued_and_ready(play: Play) -> None:
    job = play.mill.enqueue(solo, args={"n": 7})
    assert (job.state, job.args, job.attempt, job.run_at, job.created) == ("queued", {"n": 7}, 0, None, True)
    assert [taken.id for taken in play.player().take()] == [job.id]


def test_a_new_job_is_said_as_it_is_read(play: Play) -> None:
    for given in ({}, {"delay": 60}, {"at": in_a_minute(play.clock)}, {"priority": "high", "timeout": 5}, {"unique": "one"}):
        job = play.mill.enqueue(solo, args={"n": 7, "word": "é"}, **given)
        assert job == play.mill.job(job.id), given


def test_many_jobs_are_added_in_order(play: Play) -> None:
    ids = play.mill.enqueue_many(solo, ({"n": n} for n in range(20)))
    assert ids == sorted(ids)
    assert [job.id for job in play.player().take()] == ids


_ODD = ["\\", "\t\n\r", '"\\N"', "é\u2028", "\\.", "\x01", ""]  # a sign for COPY, JSON or an array, but here only text


@pytest.mark.parametrize("number", [0, 1, 49, 50, 51, 199, 200, 1049])
def test_however_many_each_has_its_own_arguments_and_stands_in_line_as_it_was_given(play: Play, number: int) -> None:
    given = [{"n": n, "word": _ODD[n % len(_ODD)]} for n in range(number)]
    before = play.mill.enqueue(solo).id
    ids = play.mill.enqueue_many(solo, given)
    after = play.mill.enqueue(solo).id
    taken = play.player().take(2000)
    assert [job.id for job in taken] == [before, *ids, after] == sorted({before, *ids, after})
    assert [orjson.loads(job.args or "") for job in taken[1:-1]] == given


def test_one_dict_that_is_filled_anew_for_each_is_each_time_another(play: Play) -> None:
    given: dict[str, int] = {}

    def filled() -> Iterator[dict[str, int]]:
        for n in range(300):
            given["n"] = n
            yield given

    play.mill.enqueue_many(solo, filled())
    assert [orjson.loads(job.args or "") for job in play.player().take(300)] == [{"n": n} for n in range(300)]


@pytest.mark.parametrize("limit", [None, Limit("site", at_once=300)], ids=["plain", "limited"])
def test_so_is_one_list_within_it(opened: Open, limit: Limit | None) -> None:
    @task(name="letter", limit=limit)
    def letter(ctx: Any, to: Any) -> None: ...

    play, to = opened(letter), [0]

    def filled() -> Iterator[dict[str, Any]]:
        for to[0] in range(300):
            yield {"to": to}

    play.mill.enqueue_many(letter, filled())
    assert [job.args for job in reversed(play.mill.jobs(limit=300))] == [{"to": [n]} for n in range(300)]


@pytest.mark.parametrize("bad", [{"n": "one"}, {"n": 2**70}, 7], ids=["type", "not JSON", "not arguments"])
@pytest.mark.parametrize("good", [1, 3000], ids=["few", "while the server copies those before"])
def test_of_many_jobs_with_one_bad_argument_none_is_added(play: Play, good: int, bad: Any) -> None:
    for given in ([*[{"n": 1}] * good, bad], iter([*[{"n": 1}] * good, bad])):
        with pytest.raises(Invalid):
            play.mill.enqueue_many(solo, given)
    assert play.mill.jobs() == []
    assert play.mill.enqueue_many(solo, [{"n": 1}] * good) == [job.id for job in play.player().take(good)]


class Checks:
    one: Callable[[int], int] = staticmethod(int)


@task(name="checked")
def checked(ctx: Any, n: Annotated[int, AfterValidator(lambda n: Checks.one(n))]) -> None:
    """A job whose argument has a check of its own."""


@pytest.mark.parametrize("error", [IndexError, StopIteration, psycopg.OperationalError, psycopg.errors.DeadlockDetected])
@pytest.mark.parametrize("number", [20, 3000], ids=["few", "while the server copies those before"])
@pytest.mark.parametrize("kind", [list, iter])
def test_whatever_a_validator_raises_is_said_once_and_no_job_is_added(
    opened: Open, monkeypatch: pytest.MonkeyPatch, error: type[Exception], number: int, kind: Callable[[Any], Any]
) -> None:
    asked: list[int] = []

    def refuse(n: int) -> int:
        asked.append(n)
        if n == number // 2:
            raise error("his own")
        return n

    monkeypatch.setattr(Checks, "one", refuse)
    play = opened(checked)
    with pytest.raises((error, RuntimeError), match=r"his own|StopIteration"):
        play.mill.enqueue_many(checked, kind([{"n": n} for n in range(number)]))
    assert asked == [*range(number // 2 + 1)]
    assert play.mill.jobs() == []


def test_few_jobs_are_checked_before_the_transaction_begins(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that waits for a validator may be ended by the server, and holds up others."""
    idle = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'"
    open_then: list[Any] = []

    def look(n: int) -> int:
        open_then.extend([] if play.ledger.is_sqlite else play.rows(idle))
        return n

    monkeypatch.setattr(Checks, "one", look)
    play = opened(checked)
    play.mill.enqueue_many(checked, [{"n": n} for n in range(3)])
    assert open_then == []


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
