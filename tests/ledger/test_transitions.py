"""The table of transitions against reality: every verb is tried from every state, and what happens is what is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gristmill import Retries
from gristmill.errors import Refused
from gristmill.ledger import workers
from gristmill.ledger.claim import Claimed
from gristmill.ledger.finish import Verdict
from gristmill.states import JOB_TRANSITIONS, RUN_TRANSITIONS, State
from tests.ledger import invariants
from tests.ledger.conftest import Open
from tests.ledger.play import Play, Player, plan, remembered, solo, step

ONCE = Retries(0, losses=0)
JOB_STATES = [state for state in State if state is not State.WAITING]
ENDS = {
    State.COMPLETED: Verdict.COMPLETED,
    State.COMPLETED_WITH_ERRORS: Verdict.WITH_ERRORS,
    State.FAILED: Verdict.PERMANENT,
    State.CANCELLED: Verdict.CANCELLED,
    State.SKIPPED: Verdict.SKIPPED,
}


def job_in(play: Play, player: Player, state: State) -> Claimed:
    """A job in this state, as the worker that last had it (or would) remembers it."""
    number = play.mill.enqueue(solo, retries=ONCE).id
    job = remembered(number)
    if state is not State.QUEUED:
        job = player.take_one()
    if state in ENDS:
        player.end(job, ENDS[state])
    assert play.mill.job(number).state == state.word
    return job


def claim(play: Play, player: Player, job: Claimed) -> None:
    player.take()


def finish(verdict: Verdict) -> Callable[[Play, Player, Claimed], None]:
    def end(play: Play, player: Player, job: Claimed) -> None:
        player.end(job, verdict)

    return end


def rescue(play: Play, player: Player, job: Claimed) -> None:
    play.ledger.do(workers.rescue, player.id, gone=True)


def cancel(play: Play, player: Player, job: Claimed) -> None:
    play.mill.cancel_job(job.id)
    player.end(job, Verdict.CANCELLED)  # what its worker does once it hears of it


def requeue(play: Play, player: Player, job: Claimed) -> None:
    play.mill.retry_job(job.id)


VERBS = {
    ("claim", State.IN_PROGRESS): claim,
    ("finish", State.COMPLETED): finish(Verdict.COMPLETED),
    ("finish", State.COMPLETED_WITH_ERRORS): finish(Verdict.WITH_ERRORS),
    ("finish", State.SKIPPED): finish(Verdict.SKIPPED),
    ("finish", State.FAILED): finish(Verdict.ERROR),
    ("release", State.QUEUED): finish(Verdict.RELEASED),
    ("rescue", State.FAILED): rescue,
    ("cancel", State.CANCELLED): cancel,
    ("requeue", State.QUEUED): requeue,
}


@pytest.mark.parametrize(("verb", "target"), VERBS, ids=str)
def test_a_verb_moves_a_job_exactly_as_the_table_says(play: Play, verb: str, target: State) -> None:
    for source in JOB_STATES:
        try_from(play, verb, source, target)


def try_from(play: Play, verb: str, source: State, target: State) -> None:
    player = play.player()
    job = job_in(play, player, source)
    allowed = any((t.verb, t.source, t.target) == (verb, source, target) for t in JOB_TRANSITIONS)
    before = invariants.snapshot(play.ledger)["gm_job"]
    try:
        VERBS[verb, target](play, player, job)
    except Refused:
        assert not allowed
    if allowed:
        assert play.mill.job(job.id).state == target.word
    else:
        assert invariants.snapshot(play.ledger)["gm_job"] == before
    play.change("DELETE FROM gm_attempt")  # of its failures: none is left without its job
    play.change("DELETE FROM gm_job")


# ---- runs: whatever way a run takes, each step of it is in the table

RUN_STEPS = {(t.source, t.target) for t in RUN_TRANSITIONS}


def watched(play: Play) -> list[tuple[State | None, State]]:
    """Every change of a run's state that this database sees from now on."""
    seen: list[tuple[State | None, State]] = []
    known: dict[int, State] = {}

    def look() -> None:
        for row in play.rows("SELECT id, state, started_at FROM gm_run ORDER BY id"):
            before = known.get(row.id)
            if before is State.QUEUED and row.started_at is not None and row.state != State.IN_PROGRESS:
                seen.append((before, State.IN_PROGRESS))  # it began and went on in one transaction
                before = State.IN_PROGRESS
            if before != row.state:
                seen.append((before, State(row.state)))
                known[row.id] = State(row.state)

    do = play.ledger.do

    def watching(verb, /, *args, **kwargs):
        result = do(verb, *args, **kwargs)
        look()
        return result

    play.ledger.do = watching  # type: ignore[method-assign]
    return seen


def played_through(play: Play, verdict: Verdict) -> None:
    play.mill.start("chain", "s")
    play.mill.start("chain", "s", if_active="wait")
    play.drain(verdicts={"one": verdict})


def cancelled_before_it_began(play: Play) -> None:
    play.mill.cancel_run(play.mill.start("chain", "s").id)


def cancelled_while_it_waited(play: Play) -> None:
    play.mill.start("chain", "s")
    play.mill.cancel_run(play.mill.start("chain", "s", if_active="wait").id)


def cancelled_in_progress(play: Play) -> None:
    run = play.mill.start("chain", "s")
    player = play.player()
    player.complete(player.take_one())
    play.mill.cancel_run(run.id)


def its_only_job_cancelled_before_it_began(play: Play) -> None:
    play.mill.start("chain", "s")
    play.mill.cancel_job(play.mill.jobs(stage="one")[0].id)


def its_only_job_cancelled_though_none_is_needed(play: Play) -> None:
    play.mill.start("easy", "s")
    play.mill.cancel_job(play.mill.jobs(stage="only")[0].id)


def retried(play: Play) -> None:
    for verdict in (Verdict.COMPLETED, Verdict.PERMANENT, Verdict.WITH_ERRORS):
        run = play.mill.start("chain", "s")
        play.drain(verdicts={"two": verdict})
        play.retry(run, stage="two")
        play.mill.cancel_run(run.id)
        play.retry(run)
        play.drain()


WAYS = [
    retried,
    cancelled_before_it_began,
    cancelled_while_it_waited,
    cancelled_in_progress,
    its_only_job_cancelled_before_it_began,
    its_only_job_cancelled_though_none_is_needed,
    *(lambda play, v=verdict: played_through(play, v) for verdict in ENDS.values()),
]


@pytest.mark.parametrize(
    "way", WAYS, ids=[getattr(way, "__name__", "") for way in WAYS[:6]] + [v.value for v in ENDS.values()]
)
def test_every_change_of_a_runs_state_is_in_the_table(opened: Open, way: Callable[[Play], None]) -> None:
    play = opened(plan("chain", one=step(), two=step("one")), plan("easy", only=step(need=0)))
    seen = watched(play)
    way(play)
    assert seen
    assert set(seen) - RUN_STEPS == set()
