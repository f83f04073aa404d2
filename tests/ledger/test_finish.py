"""The end of an attempt: every verdict, every budget, and the fence that keeps late workers out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest

from gristmill import Retries
from gristmill.errors import NotYours
from gristmill.ledger import finish, queues, workers
from gristmill.ledger.claim import Claimed, Origin
from gristmill.ledger.exchange import Batch
from gristmill.ledger.finish import Completed, Verdict, report_progress
from gristmill.ledger.sql import _Compiled
from gristmill.states import State
from tests.ledger import invariants
from tests.ledger.conftest import Open
from tests.ledger.play import Play, Player, each, end, plain, plan, solo, step, stubborn

ONCE = Retries(0, crashes=0, losses=0)

# verdict, state of a job that has no budget, class that is stored
ENDS = [
    (Verdict.COMPLETED, "completed", None),
    (Verdict.WITH_ERRORS, "completed_with_errors", None),
    (Verdict.SKIPPED, "skipped", None),
    (Verdict.END_RUN, "completed", None),
    (Verdict.PERMANENT, "failed", "Boom"),
    (Verdict.ERROR, "failed", "Boom"),
    (Verdict.TIMEOUT, "failed", "timeout"),
    (Verdict.CRASH, "failed", "crash"),
    (Verdict.MEMORY, "failed", "memory"),
    (Verdict.LOST, "failed", "worker_lost"),
    (Verdict.CANCELLED, "cancelled", None),
]


@pytest.mark.parametrize(("verdict", "state", "kind"), ENDS)
def test_every_verdict_ends_a_job_that_has_no_budget(play: Play, verdict: Verdict, state: str, kind: str | None) -> None:
    number = play.mill.enqueue(solo, retries=ONCE).id
    player = play.player()
    job = player.take_one()
    play.clock.advance(2)
    details = {"error_class": "Boom"} if verdict in (Verdict.PERMANENT, Verdict.ERROR) else {}
    assert player.end(job, verdict, reason="why", ran=1_500_000, **details) == []
    ended = play.mill.job(number)
    assert (ended.state, ended.error_class, ended.worker) == (state, kind, None)
    assert ended.finished_at is not None
    assert ended.started_at == ended.finished_at - timedelta(seconds=1.5)
    assert ended.error == (None if state == "completed" else "why")


@pytest.mark.parametrize("verdict", [Verdict.LATER, Verdict.UNSPENT, Verdict.RELEASED])
def test_a_returned_job_has_spent_nothing(play: Play, verdict: Verdict) -> None:
    number = play.mill.enqueue(solo).id
    player = play.player()
    player.end(player.take_one(), verdict)
    job = play.mill.job(number)
    assert (job.state, job.errors, job.crashes, job.timeouts, job.losses, job.worker) == ("queued", 0, 0, 0, 0, None)
    assert player.take_one().attempt == 2


def test_later_waits_as_long_as_it_says(play: Play) -> None:
    number = play.mill.enqueue(solo).id
    player = play.player()
    for _ in range(5):
        player.end(player.take_one(), Verdict.LATER, delay=90.0)
        assert player.take() == []
        play.clock.advance(90)
        player.heartbeat()
        assert play.ledger.do(queues.promote) == 1
    assert play.mill.job(number).attempt == 5


def test_a_result_is_kept(play: Play) -> None:
    player = play.player()
    first, second = (play.mill.enqueue(solo).id for _ in range(2))
    jobs = {job.id: job for job in player.take()}
    player.end(jobs[first], result='{"a":[1,2]}')
    player.complete(jobs[second], result='"text"')
    assert [play.mill.job(number).result for number in (first, second)] == [{"a": [1, 2]}, "text"]


def test_a_failed_attempt_is_kept_with_all_that_explains_it(play: Play) -> None:
    number = play.mill.enqueue(stubborn).id
    player = play.player()
    details = {"reason": "no", "error_class": "Boom", "traceback": "Traceback …", "log": "a line", "ran": 5}
    player.end(player.take_one(), Verdict.ERROR, **details)
    (attempt,) = play.mill.attempts(number)
    assert (attempt.attempt, attempt.outcome, attempt.error_class, attempt.error) == (1, "error", "Boom", "no")
    assert (attempt.traceback, attempt.log, attempt.worker) == ("Traceback …", "a line", player.id)


def test_attempts_are_listed_newest_first_and_successes_are_not_kept(play: Play) -> None:
    number = play.mill.enqueue(stubborn).id
    for verdict in (Verdict.ERROR, Verdict.ERROR, Verdict.COMPLETED):
        play.drain(verdicts={"-": verdict})
        play.clock.advance(60)
        play.ledger.do(queues.promote)
    assert [attempt.attempt for attempt in play.mill.attempts(number)] == [2, 1]


@pytest.mark.parametrize("short", [False, True])
def test_a_job_that_completed_after_a_retry_shows_no_error(play: Play, short: bool) -> None:
    number = play.mill.enqueue(stubborn).id
    player = play.player()
    player.end(player.take_one(), Verdict.ERROR, reason="no", error_class="Boom")
    play.clock.advance(10)
    play.ledger.do(queues.promote)
    job = player.take_one()
    player.complete(job) if short else player.end(job)
    ended = play.mill.job(number)
    assert (ended.state, ended.error, ended.error_class) == ("completed", None, None)
    assert len(play.mill.attempts(number)) == 1


# ---- budgets


def fail(play: Play, verdict: Verdict, times: int) -> list[str]:
    """The states of the one job after each of so many failures."""
    states = []
    for _ in range(times):
        play.ledger.do(queues.promote)
        player = play.player()
        jobs = player.take()
        if jobs:
            player.end(jobs[0], verdict)
        play.clock.advance(100)
        states.append(play.mill.jobs()[0].state)
    return states


@pytest.mark.parametrize(
    ("verdict", "retries", "counter"),
    [
        (Verdict.ERROR, 3, "errors"),
        (Verdict.TIMEOUT, 1, "timeouts"),
        (Verdict.CRASH, 2, "crashes"),
        (Verdict.MEMORY, 2, "crashes"),
        (Verdict.LOST, 1, "losses"),
    ],
)
def test_each_way_to_fail_has_a_budget_of_its_own(play: Play, verdict: Verdict, retries: int, counter: str) -> None:
    number = play.mill.enqueue(stubborn).id
    assert fail(play, verdict, retries + 1) == ["queued"] * retries + ["failed"]
    job = play.mill.job(number)
    spent = {name: getattr(job, name) for name in ("errors", "crashes", "timeouts", "losses")}
    assert spent == {**dict.fromkeys(spent, 0), counter: retries + 1}
    assert job.attempt == retries + 1


def test_one_budget_does_not_pay_for_another(play: Play) -> None:
    play.mill.enqueue(stubborn)
    for verdict in (
        Verdict.ERROR,
        Verdict.CRASH,
        Verdict.TIMEOUT,
        Verdict.LOST,
        Verdict.CRASH,
        Verdict.ERROR,
        Verdict.ERROR,
    ):
        assert fail(play, verdict, 1) == ["queued"]
    assert fail(play, Verdict.ERROR, 1) == ["failed"]


def test_delays_follow_the_policy_and_the_last_one_repeats(play: Play) -> None:
    number = play.mill.enqueue(stubborn).id
    for seconds in (10, 20, 20):
        player = play.player()
        player.end(player.take_one(), Verdict.ERROR)
        job = play.mill.job(number)
        assert job.run_at is not None
        assert job.run_at.timestamp() == play.clock.at / 1_000_000 + seconds
        play.clock.advance(seconds)
        assert play.ledger.do(queues.promote) == 1


def test_a_lost_job_goes_back_at_once(play: Play) -> None:
    number = play.mill.enqueue(stubborn).id
    player = play.player()
    player.end(player.take_one(), Verdict.LOST)
    assert (play.mill.job(number).run_at, len(player.take())) == (None, 1)


def test_a_policy_given_with_the_job_wins(play: Play) -> None:
    play.mill.enqueue(stubborn, retries=0)
    assert fail(play, Verdict.ERROR, 1) == ["failed"]


def test_an_error_type_may_have_a_policy_of_its_own(play: Play) -> None:
    policy = Retries(5, by_error={ValueError: Retries(0)})
    number = play.mill.enqueue(solo, retries=policy).id
    player = play.player()
    player.end(player.take_one(), Verdict.ERROR, error_types=("KeyError", "LookupError", "Exception"))
    assert play.mill.job(number).state == "queued"
    play.clock.advance(10)
    play.ledger.do(queues.promote)
    player.end(player.take_one(), Verdict.ERROR, error_types=("UnicodeError", "ValueError", "Exception"))
    assert play.mill.job(number).state == "failed"


def test_a_suspect_of_a_crash_runs_alone_next_time(play: Play) -> None:
    play.mill.enqueue(solo)
    player = play.player()
    job = player.take_one()
    assert not job.kind.alone
    player.end(job, Verdict.RELEASED, alone=True)
    assert player.take_one().kind.alone


def test_unspent_returns_are_counted(play: Play) -> None:
    number = play.mill.enqueue(solo).id
    player = play.player()
    player.end(player.take_one(), Verdict.UNSPENT, reason="disk full")
    job = play.mill.job(number)
    assert (job.returns, job.error) == (1, "disk full")


def test_a_job_may_be_returned_any_number_of_times(play: Play) -> None:
    """A disk that is full for a week, looked at every second."""
    number = play.mill.enqueue(solo).id
    play.change("UPDATE gm_job SET returns = 32767")
    player = play.player()
    assert player.end(player.take_one(), Verdict.UNSPENT, reason="disk full") == []
    assert play.mill.job(number).state == "queued"


# ---- the fence

Late = Callable[[Play, Player, Claimed], tuple[Player, Claimed]]


def an_older_attempt(play: Play, player: Player, job: Claimed) -> tuple[Player, Claimed]:
    player.end(job, Verdict.RELEASED)
    player.take()
    return player, job


def an_attempt_that_was_never_claimed(play: Play, player: Player, job: Claimed) -> tuple[Player, Claimed]:
    return player, job._replace(attempt=2)


def another_worker(play: Play, player: Player, job: Claimed) -> tuple[Player, Claimed]:
    return play.player(), job


def the_same_outcome_twice(play: Play, player: Player, job: Claimed) -> tuple[Player, Claimed]:
    player.end(job, Verdict.SKIPPED)
    return player, job


def a_job_that_went_back(play: Play, player: Player, job: Claimed) -> tuple[Player, Claimed]:
    player.end(job, Verdict.RELEASED)
    return player, job


def a_job_that_is_not_there(play: Play, player: Player, job: Claimed) -> tuple[Player, Claimed]:
    return player, job._replace(id=4711)


LATE = [
    an_older_attempt,
    an_attempt_that_was_never_claimed,
    another_worker,
    the_same_outcome_twice,
    a_job_that_went_back,
    a_job_that_is_not_there,
]


@pytest.mark.parametrize("late", LATE, ids=lambda late: late.__name__)
def test_a_late_outcome_is_refused_and_changes_nothing(opened: Open, late: Late) -> None:
    play = opened(plan("site", find=step(), page=each("find"), total=step("page")))
    play.mill.start("site", "s")
    player = play.player()
    play.turn(player, {"find": ["a", "b"]}, {})
    sender, job = late(play, player, player.take_one())
    before = invariants.snapshot(play.ledger)
    for verdict in Verdict:
        assert sender.end(job, verdict, reason="late", result='"late"', delay=5.0) == [job.id]
    assert sender.complete(job, result='"late"') == [job.id]
    assert invariants.snapshot(play.ledger) == before


def test_the_outcome_of_a_lost_worker_is_refused_and_changes_nothing(play: Play) -> None:
    play.mill.enqueue(stubborn)
    player = play.player()
    job = player.take_one()
    play.clock.advance(60)
    assert play.ledger.do(workers.rescue, player.id) == 1
    before = invariants.snapshot(play.ledger)
    for outcome in (end(job), end(job, Verdict.ERROR)):
        with pytest.raises(NotYours):
            player.finish(outcome)
    with pytest.raises(NotYours):
        player.complete(job)
    assert invariants.snapshot(play.ledger) == before


def test_one_late_outcome_does_not_take_the_rest_of_the_batch_with_it(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find")))
    run = play.mill.start("site", "s")
    player = play.player()
    play.turn(player, {"find": list("abcd")}, {})
    jobs = play.labelled(player.take())
    player.end(jobs["page/b"], Verdict.RELEASED)
    batch = Batch(
        completed=plain(jobs["page/a"], jobs["page/b"]),
        outcomes=[end(jobs["page/c"], Verdict.SKIPPED), end(jobs["page/d"], Verdict.ERROR)],
    )
    assert player.report(batch) == [jobs["page/b"].id]
    assert play.counters(run.id, "page") == (4, 1, 1, 1, 0)


Rows = list[tuple[int, int, str | None, int]]


def some_with_results(rows: Rows) -> Rows:
    return [(job, attempt, f'"{job}"' if job % 3 else None, ran) for job, attempt, _, ran in rows]


def backwards(rows: Rows) -> Rows:
    return rows[::-1]


def with_gaps(rows: Rows) -> Rows:
    return [row for n, row in enumerate(rows) if n % 7 not in (0, 1, 5)]


def some_that_ran_for_a_year(rows: Rows) -> Rows:
    return [(job, attempt, result, ran + 366 * 86400 * 10**6 * (job % 2)) for job, attempt, result, ran in rows]


@pytest.mark.parametrize("shape", [list, some_with_results, backwards, with_gaps, some_that_ran_for_a_year])
def test_many_plain_completions_end_each_job_as_it_was(play: Play, shape: Callable[[Rows], Rows]) -> None:
    """SQLite writes those that stand side by side together."""
    play.mill.enqueue_many(solo, [{}] * 40)
    player = play.player()
    for job in player.take()[10:20:2]:
        player.end(job, Verdict.RELEASED)  # so that some are at their second attempt
    player.take()
    told = play.rows("SELECT id, attempt FROM gm_job ORDER BY id")
    rows = shape([(job, attempt, None, job * 1000 + 7) for job, attempt in told])
    assert player.report(Batch(completed=Completed(list(rows), [Origin(None, None)] * len(rows)))) == []
    ended = play.rows(f"SELECT id, attempt, result, finished_at - started_at FROM gm_job WHERE state = {State.COMPLETED:d}")
    assert sorted(map(tuple, ended)) == sorted(rows)
    held = play.rows(f"SELECT id FROM gm_job WHERE state = {State.IN_PROGRESS:d} AND worker_id = {player.id}")
    assert {job for (job,) in held} == {job for job, _ in told} - {row[0] for row in rows}


@pytest.mark.parametrize("nth", [0, 20, 39])
def test_one_late_completion_among_many_side_by_side_is_the_only_one_refused(play: Play, nth: int) -> None:
    play.mill.enqueue_many(solo, [{}] * 40)
    player = play.player()
    jobs = player.take()
    player.end(jobs[nth], Verdict.RELEASED)
    assert player.report(Batch(completed=plain(*jobs))) == [jobs[nth].id]
    states = play.rows("SELECT state FROM gm_job ORDER BY id")
    assert [state for (state,) in states] == [State.QUEUED if n == nth else State.COMPLETED for n in range(40)]


def test_many_side_by_side_that_are_told_of_twice_change_nothing_the_second_time(play: Play) -> None:
    """As when the answer to the commit was lost."""
    play.mill.enqueue_many(solo, [{}] * 40)
    player = play.player()
    jobs = player.take()
    assert player.report(Batch(completed=plain(*jobs))) == []
    before = invariants.snapshot(play.ledger)
    assert player.report(Batch(completed=plain(*jobs))) == [job.id for job in jobs]
    assert invariants.snapshot(play.ledger) == before


def test_a_worker_past_its_lease_but_not_yet_lost_may_still_write(play: Play) -> None:
    number = play.mill.enqueue(solo).id
    player = play.player(lease=30)
    job = player.take_one()
    play.clock.advance(31)
    assert player.end(job) == []
    assert play.mill.job(number).state == "completed"


# ---- progress


def test_progress_is_written_while_a_job_runs_and_fenced(play: Play) -> None:
    number = play.mill.enqueue(solo).id
    player = play.player()
    job = player.take_one()
    play.ledger.do(report_progress, player.id, [(job.id, job.attempt, '{"done":3}')])
    assert play.mill.job(number).progress == {"done": 3}
    for worker, attempt in ((player.id, 2), (play.player().id, 1)):
        play.ledger.do(report_progress, worker, [(job.id, attempt, '{"done":99}')])
        assert play.mill.job(number).progress == {"done": 3}
    player.end(job, progress='{"done":4}')
    play.ledger.do(report_progress, player.id, [(job.id, job.attempt, '{"done":99}')])
    assert play.mill.job(number).progress == {"done": 4}


# ---- results that are too large for one statement


@pytest.mark.parametrize("spelled_out", [False, True])
def test_no_statement_carries_more_results_than_a_database_takes(
    play: Play, monkeypatch: pytest.MonkeyPatch, spelled_out: bool
) -> None:
    """PostgreSQL hangs up at 1 GiB, which looks like an outage: a worker would try the same for ever."""
    sizes: list[int] = []
    parameters = _Compiled.parameters

    def measured(compiled: _Compiled, given: Mapping[str, Any]) -> dict[str, Any]:
        values = parameters(compiled, given)
        sizes.append(max((len(value) for value in values.values() if isinstance(value, str)), default=0))
        return values

    monkeypatch.setattr(finish, "_PORTION", 1000, raising=False)
    play.mill.enqueue_many(solo, [{}] * 20)
    player = play.player()
    jobs = player.take()
    batch = Batch(completed=plain(*jobs, result='"' + "x" * 300 + '"'))
    batch.completed.rows[7] = (*batch.completed.rows[7][:2], '"' + "y" * 1500 + '"', 0)
    monkeypatch.setattr(_Compiled, "parameters", measured)
    assert player.report(batch.spelled_out() if spelled_out else batch) == []
    assert max(sizes) < 2000
    assert [len(str(play.mill.job(job.id).result)) for job in jobs] == [300] * 7 + [1500] + [300] * 12


# ---- asked to stop

NOT_AGAIN = (Verdict.PERMANENT, Verdict.UNCHANGED, *(e[0] for e in ENDS[:4]))


@pytest.mark.parametrize("verdict", [v for v in Verdict if v not in NOT_AGAIN])
def test_a_job_that_was_asked_to_stop_is_not_tried_again(play: Play, verdict: Verdict) -> None:
    number = play.mill.enqueue(stubborn).id
    player = play.player()
    job = player.take_one()
    play.mill.cancel_job(number)
    player.end(job, verdict)
    assert play.mill.job(number).state == "cancelled"


def test_a_job_that_was_asked_to_stop_but_was_done_is_done(play: Play) -> None:
    number = play.mill.enqueue(stubborn).id
    player = play.player()
    job = player.take_one()
    play.mill.cancel_job(number)
    player.complete(job)
    assert play.mill.job(number).state == "completed"


def test_states_are_stored_as_the_numbers_of_the_table(play: Play) -> None:
    play.mill.enqueue(solo)
    assert play.value("SELECT state FROM gm_job") == State.QUEUED
    play.player().take()
    assert play.value("SELECT state FROM gm_job") == State.IN_PROGRESS
