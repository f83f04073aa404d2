"""Many failed jobs once more, as an action that is recorded first; and actions on many that were confirmed by a count."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from gristmill import Refused
from gristmill.errors import NotConfirmed
from gristmill.housekeeping import Housekeeping, carry_out
from gristmill.ledger import bulk
from gristmill.ledger.choose import Choice
from gristmill.ledger.finish import Verdict
from gristmill.model import Bulk
from gristmill.states import State
from tests.ledger import invariants
from tests.ledger.conftest import Open
from tests.ledger.play import Play, each, plan, solo, step
from tests.ledger.together import together

FAILED = Choice(states=(int(State.FAILED),))
SITE = plan("site", find=step(), page=each("find", need=0), sum=step("page"), other=each("find", need=0))
ITEMS = {"find": ["a1", "a2", "b1"]}


def failed(play: Play, count: int, **how: Any) -> list[int]:
    """Jobs on their own that failed."""
    numbers = [play.mill.enqueue(solo, **how).id for _ in range(count)]
    player = play.player()
    for job in player.take():
        player.end(job, Verdict.PERMANENT)
    return numbers


def failed_run(play: Play, subject: str = "s", **verdicts: Verdict) -> int:
    """A run that has ended, in which items of these stages failed."""
    run = play.mill.start("site", subject).id
    play.drain(items=ITEMS, verdicts=verdicts)
    assert play.mill.run(run).terminal
    return run


def states(play: Play) -> list[str]:
    return sorted(job.state for job in play.mill.jobs(limit=1000))


def test_failed_jobs_are_queued_again_and_it_is_recorded_first(play: Play) -> None:
    failed(play, 3)
    assert play.mill.retry_jobs(task="solo", dry_run=True).counts == {"queued": 3}
    assert states(play) == ["failed"] * 3
    done = play.mill.retry_jobs(task="solo", by="me")
    assert (done.counts, done.left) == ({"queued": 3}, 0)
    assert states(play) == ["queued"] * 3
    *each_one, first = play.mill.audit()
    assert (first.id, first.verb, first.who, first.done) == (done.record, "job.retry_many", "me", {"queued": 3, "left": 0})
    assert {entry.verb for entry in each_one} == {"job.retry"}


def test_a_retry_whose_process_died_is_ended_by_a_worker(play: Play) -> None:
    failed(play, 7)
    number = play.ledger.do(bulk.begin, "job.retry_many", FAILED, by="me")
    play.clock.advance(6)
    Housekeeping(play.ledger).tick(0.0, play.player().id, set, ())
    assert states(play) == ["queued"] * 7
    assert [(entry.open, entry.done["queued"]) for entry in play.mill.audit(verb="job.retry_many")] == [(False, 7)]
    before = invariants.snapshot(play.ledger)
    assert carry_out(play.ledger, number).settled
    assert invariants.snapshot(play.ledger) == before


def test_it_goes_on_after_each_step_at_which_its_process_may_die(opened: Open) -> None:
    """Items of a stage that is closed, of another, jobs on their own, and one with a unique key: a step each."""
    play = opened(SITE)
    run = failed_run(play, page=Verdict.PERMANENT, other=Verdict.PERMANENT)
    failed(play, 2)
    failed(play, 1, unique="one")
    number = play.ledger.do(bulk.begin, "job.retry_many", FAILED, by="me")
    for _ in range(100):  # each time another process, which does one step and dies
        order = carry_out(play.ledger, number, until=0.0)
        if order.settled:
            break
        with play.ledger.reading() as tx:
            chosen = bulk.portion(tx, order)
        assert order.reached is not None
        try:
            play.ledger.do(bulk.step, number, order.reached, chosen)
        except Refused:
            Housekeeping(play.ledger).tick(0.0, play.player().id, set, ())
    assert order.done == {"queued": 9, "left": 0}
    assert not play.mill.jobs(state="failed")
    play.drain(items=ITEMS)
    assert play.mill.run(run).state == "completed"
    assert {job.state for job in play.mill.jobs(task="solo")} == {"completed"}


def test_items_of_ended_runs_are_retried_with_their_runs(opened: Open) -> None:
    play = opened(SITE)
    runs = [failed_run(play, subject, page=Verdict.PERMANENT) for subject in ("s", "t")]
    assert play.mill.retry_jobs(stage="page").counts == {"queued": 6}
    assert [play.mill.run(run).state for run in runs] == ["in_progress"] * 2
    play.drain(items=ITEMS)
    assert [play.mill.run(run).state for run in runs] == ["completed"] * 2


def test_what_cannot_be_queued_again_is_left_with_the_reason_and_the_others_are(opened: Open) -> None:
    play = opened(SITE)
    failed_run(play, page=Verdict.PERMANENT)
    twin = failed(play, 1, unique="one")[0]
    failed(play, 2)
    later = play.mill.enqueue(solo, unique="one").id
    active = play.mill.start("site", "s").id
    done = play.mill.retry_jobs(state="failed")
    assert (done.counts, done.left) == ({"queued": 2}, 4)
    assert done.refusal is not None
    assert f"another active run, {active}" in done.refusal
    assert play.mill.job(twin).state == "failed"
    assert play.mill.job(later).state == "queued"
    assert play.mill.audit(verb="job.retry_many")[0].done == {"queued": 2, "left": 4}


def test_what_fails_once_more_meanwhile_is_not_tried_for_ever(play: Play) -> None:
    failed(play, 3)
    number = play.ledger.do(bulk.begin, "job.retry_many", FAILED, by="me")
    play.mill.retry_jobs(task="solo")
    play.clock.advance(1)
    player = play.player()
    for job in player.take():
        player.end(job, Verdict.PERMANENT)
    assert carry_out(play.ledger, number).done.get("queued", 0) == 0
    assert states(play) == ["failed"] * 3


# ---- confirmed


def acts(play: Play) -> dict[str, Callable[..., Bulk]]:
    return {
        "retry": partial(play.mill.retry_jobs, state="failed"),
        "archive": partial(play.mill.archive_jobs, state="failed"),
        "delete": partial(play.mill.delete_jobs, state="failed"),
        "cancel": partial(play.mill.cancel_jobs, state="queued"),
        "purge": partial(play.mill.purge_queue, "default"),
    }


@pytest.mark.parametrize("name", ["retry", "archive", "delete", "cancel", "purge"])
def test_what_comes_between_the_look_and_the_act_is_not_acted_upon(
    play: Play, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another connection, at the worst moment."""
    act, do = acts(play)[name], play.ledger.do

    def some(count: int) -> None:
        if name in ("cancel", "purge"):
            play.mill.enqueue_many(solo, [{}] * count)
        else:
            failed(play, count)

    def at_the_worst_moment(verb: Any, *args: Any, **how: Any) -> Any:
        if verb is bulk.begin:
            monkeypatch.undo()
            some(1)
        return do(verb, *args, **how)

    some(2)
    assert act(dry_run=True).total == 2
    monkeypatch.setattr(play.ledger, "do", at_the_worst_moment)
    with pytest.raises(NotConfirmed, match="this is about 3 now, and 2 was confirmed; look again") as refused:
        act(confirm=2)
    assert refused.value.count == 3
    assert play.mill.audit() == []
    assert act(confirm=3).total == 3


def test_no_more_are_acted_upon_than_were_confirmed(play: Play) -> None:
    """Some that were counted are gone, and others, with lower numbers than the last, are there: they were not seen."""
    numbers = failed(play, 3)
    play.mill.archive_jobs(ids=numbers[:1])
    number = play.ledger.do(bulk.begin, "job.retry_many", Choice(states=FAILED.states, archived=False), by="me", confirm=2)
    play.mill.archive_jobs(ids=numbers[:1], undo=True)
    assert carry_out(play.ledger, number).done["queued"] == 2
    assert len(play.mill.jobs(state="failed")) == 1


def test_a_confirm_of_what_is_not_there_any_more(play: Play) -> None:
    with pytest.raises(NotConfirmed, match="this is about 0 now, and 2 was confirmed"):
        play.mill.retry_jobs(state="failed", confirm=2)
    assert play.mill.retry_jobs(state="failed", confirm=0).total == 0
    assert play.mill.audit() == []


def test_a_run_is_retried_by_the_count_of_its_items(opened: Open) -> None:
    play = opened(SITE)
    run = failed_run(play, page=Verdict.PERMANENT)
    with pytest.raises(NotConfirmed, match="this is about 3 now"):
        play.mill.retry_run(run, confirm=2)
    assert play.mill.run(run).terminal
    assert play.mill.retry_run(run, confirm=3).queued == 3


def test_a_subject_is_purged_by_the_count_of_what_goes(opened: Open) -> None:
    play = opened(SITE)
    run = play.mill.start("site", "s").id
    would = play.mill.purge_subject("site", "s", history=True, dry_run=True)
    with pytest.raises(NotConfirmed):
        play.mill.purge_subject("site", "s", history=True, confirm=would.total + 1)
    assert play.mill.run(run).state == "queued"
    assert play.mill.purge_subject("site", "s", history=True, confirm=would.total).counts["stopped"] == 1


def test_while_others_add_jobs_never_more_are_purged_than_were_confirmed(play: Play) -> None:
    def add() -> None:
        for _ in range(40):
            play.mill.enqueue(solo)

    def purge() -> list[tuple[int, int]]:
        done = []
        for _ in range(40):
            would = play.mill.purge_queue("default", dry_run=True).total
            with contextlib.suppress(NotConfirmed):
                done.append((would, play.mill.purge_queue("default", confirm=would).total))
        return done

    play.mill.enqueue(solo)
    *_, done = together(add, add, purge)
    assert all(acted <= confirmed for confirmed, acted in done)
    ended = sum(acted for _, acted in done)
    assert ended == len(play.mill.jobs(limit=1000, state="cancelled"))


# ---- runs


def test_what_failed_of_many_runs_is_run_again_and_nothing_of_others(opened: Open) -> None:
    play = opened(SITE)
    first, second = (failed_run(play, subject, page=Verdict.PERMANENT) for subject in ("Mill", "oakmill"))
    good = failed_run(play, "good")
    assert play.mill.retry_runs(subject="*MILL*", dry_run=True).counts == {"retried": 2}
    with pytest.raises(NotConfirmed, match="about 2 now"):
        play.mill.retry_runs(subject="*mill*", confirm=3)
    done = play.mill.retry_runs(subject="*mill*", confirm=2, by="me")
    assert (done.counts, done.left) == ({"retried": 2}, 0)
    assert [play.mill.run(run).state for run in (first, second, good)] == ["in_progress", "in_progress", "completed"]
    *each_one, order = play.mill.audit()
    assert (order.id, order.verb, order.who, order.done) == (done.record, "run.retry_many", "me", {"retried": 2})
    assert {entry.verb for entry in each_one} == {"run.retry"}
    play.drain(items=ITEMS)
    assert [play.mill.run(run).state for run in (first, second)] == ["completed"] * 2
    assert play.mill.retry_runs(pipeline="site").counts == {}


def test_a_run_that_its_subject_had_another_one_after_is_not_retried_with_others(opened: Open) -> None:
    play = opened(SITE)
    old, new = (failed_run(play, "s", page=Verdict.PERMANENT) for _ in range(2))
    assert play.mill.retry_runs(error=play.mill.jobs(run=new, state="failed")[0].fingerprint).counts == {"retried": 1}
    assert [play.mill.run(run).epoch for run in (old, new)] == [1, 2]
    both = play.mill.retry_runs(ids=[old, new])
    assert (both.total, both.left) == (0, 2)
    assert "their subject's last" in str(both.refusal)


def test_a_run_that_was_cancelled_is_retried_with_others_only_if_that_is_said(opened: Open) -> None:
    play = opened(SITE)
    run = play.mill.start("site", "s").id
    play.turn(play.player(), ITEMS, {})
    player = play.player()
    player.end(player.take_one(), Verdict.PERMANENT, reason="no")
    play.mill.cancel_run(run)
    play.drain()
    assert play.mill.run(run).state == "cancelled"
    assert play.mill.retry_runs(pipeline="site").counts == {}
    assert play.mill.retry_runs(state="cancelled").counts == {"retried": 1}


def begun(play: Play) -> tuple[int, int, bulk.Portion]:
    """An action on all runs that is recorded, where it has come to, and what its first step is for."""
    number = play.ledger.do(bulk.begin, "run.retry_many", Choice(pipeline="site"), by="me")
    order = carry_out(play.ledger, number, until=0.0)
    assert order.reached is not None
    with play.ledger.reading() as tx:
        return number, order.reached, bulk.portion(tx, order)


def test_runs_are_retried_by_a_worker_if_the_process_that_began_it_dies(opened: Open) -> None:
    play = opened(SITE)
    runs = [failed_run(play, subject, page=Verdict.PERMANENT) for subject in ("s", "t", "u")]
    number, reached, chosen = begun(play)
    play.ledger.do(bulk.step, number, reached, chosen)
    assert [play.mill.run(run).terminal for run in runs] == [False, True, True]
    play.clock.advance(6)
    Housekeeping(play.ledger).tick(0.0, play.player().id, set, ())
    assert [play.mill.run(run).state for run in runs] == ["in_progress"] * 3
    [entry] = play.mill.audit(verb="run.retry_many")
    assert (entry.open, entry.done) == (False, {"retried": 3})
    play.drain(items=ITEMS)
    assert [play.mill.run(run).state for run in runs] == ["completed"] * 3


def test_a_run_that_goes_on_before_its_turn_is_left_and_the_others_are_retried(opened: Open) -> None:
    play = opened(SITE)
    first, second = (failed_run(play, subject, page=Verdict.PERMANENT) for subject in ("s", "t"))
    number, reached, chosen = begun(play)
    play.mill.retry_run(first)
    with pytest.raises(Refused, match="not over any more"):
        play.ledger.do(bulk.step, number, reached, chosen)
    assert carry_out(play.ledger, number).done["retried"] == 1
    assert [play.mill.run(run).epoch for run in (first, second)] == [2, 2]
