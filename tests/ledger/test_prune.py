"""Retention: what no rule keeps goes, a little at a time; a subject's last runs stay, and so does what was done."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gristmill import Retention, task
from gristmill.errors import DatabaseError, NotConfirmed, NotYours
from gristmill.ledger import bulk, prune, remove, workers
from gristmill.ledger.choose import Choice
from gristmill.ledger.finish import Verdict
from gristmill.model import Pruned
from gristmill.pipeline import Pipeline
from gristmill.pruner import Pruner
from gristmill.retention import rules
from tests.ledger.conftest import Open, empty
from tests.ledger.play import Play, each, nothing, plan, solo, step

DAY = 86_400
GOOD, BAD = Verdict.COMPLETED, Verdict.PERMANENT


@pytest.fixture(autouse=True)
def never_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gristmill.pruner._REST", 0)


def kept(keep: Any, name: str = "kept") -> Pipeline:
    pipeline = Pipeline(name, keep=keep)
    pipeline.stage(name="work")(nothing)
    return pipeline


def daily(play: Play, *verdicts: Verdict, subject: str = "s", pipeline: str = "kept") -> list[int]:
    """A run a day, each ended so."""
    runs = []
    for verdict in verdicts:
        runs.append(play.mill.start(pipeline, subject).id)
        play.drain(verdicts={"work": verdict})
        play.clock.advance(DAY)
    return runs


def sweep(pruner: Pruner) -> None:
    """Ticks until the next one is an hour away."""
    while pruner.tick(0.0) < 3600:
        pass


def left(play: Play) -> list[int]:
    return sorted(run.id for run in play.mill.runs(limit=1000))


def test_as_much_goes_as_was_confirmed_and_no_more(opened: Open) -> None:
    play = opened(kept(Retention(age=2.5 * DAY)))
    runs = daily(play, GOOD, GOOD, GOOD, GOOD, GOOD)
    assert play.mill.prune(dry_run=True) == Pruned(3, 3)
    with pytest.raises(NotConfirmed) as refused:
        play.mill.prune(confirm=4)
    assert (refused.value.count, left(play)) == (6, runs)
    assert play.mill.pruner().run(most=5) == Pruned(2, 2), "more were due by then than somebody had agreed to"
    assert left(play) == runs[2:]
    assert play.mill.prune(confirm=2) == Pruned(1, 1)


def test_jobs_on_their_own_go_up_to_what_was_confirmed(opened: Open) -> None:
    play = opened(mail := a_task(Retention(age=DAY)))
    for _ in range(4):
        play.mill.enqueue(mail)
    play.drain()
    play.clock.advance(2 * DAY)
    assert play.mill.pruner().run(most=3) == Pruned(0, 3)
    assert play.mill.prune(confirm=1) == Pruned(0, 1)


def test_who_has_no_time_leaves_the_rest_and_says_so(opened: Open) -> None:
    play = opened(kept(Retention(age=2.5 * DAY)))
    runs = daily(play, GOOD, GOOD, GOOD, GOOD)
    assert play.mill.prune(within=0.0) == Pruned(0, 0, open=True)
    assert left(play) == runs
    assert play.mill.prune(within=60.0) == Pruned(2, 2)


def test_runs_go_by_age(opened: Open) -> None:
    play = opened(kept(Retention(age=2.5 * DAY)))
    runs = daily(play, *[GOOD] * 5)
    assert play.mill.prune(dry_run=True) == Pruned(3, 3)
    assert left(play) == runs
    assert play.mill.prune(by="me") == Pruned(3, 3)
    assert left(play) == runs[3:]
    assert {job.run for job in play.mill.jobs()} == set(runs[3:])
    (entry,) = play.mill.audit()
    assert (entry.who, entry.verb, entry.done) == ("me", "prune", {"runs": 3, "jobs": 3})
    assert play.mill.prune() == Pruned(0, 0)
    assert len(play.mill.audit()) == 1


def test_runs_go_by_number_for_each_subject(opened: Open) -> None:
    play = opened(kept(Retention(count=2)))
    ones, twos = daily(play, *[GOOD] * 4), daily(play, GOOD, subject="t")
    assert play.mill.prune() == Pruned(2, 2)
    assert left(play) == [*ones[2:], *twos]


def test_the_last_run_and_the_last_good_run_of_a_subject_stay(opened: Open) -> None:
    play = opened(kept(Retention(age=0, count=0)))
    runs = daily(play, GOOD, GOOD, BAD, BAD)
    assert play.mill.prune() == Pruned(2, 2)
    assert left(play) == [runs[1], runs[3]]
    subject = play.mill.subject("kept", "s")
    assert (subject.last_good_run, subject.last_run) == (runs[1], runs[3])


def test_a_run_stays_while_a_later_one_has_stages_from_it(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find"), total=step("page")))
    play.mill.registry.pipelines["site"].keep = rules(Retention(count=0), "site")
    whole = play.mill.start("site", "s").id
    play.drain(items={"find": ["a"]})
    part = play.mill.start("site", "s", from_stage="total").id
    play.drain()
    assert play.mill.prune() == Pruned(0, 0)
    assert left(play) == [whole, part]
    play.mill.delete_runs(ids=[part])
    play.mill.start("site", "s")
    play.drain(items={"find": ["a"]})
    assert play.mill.prune() == Pruned(1, 3)


def test_the_last_run_that_did_not_end_early_stays(opened: Open) -> None:
    """The newest ones may only have found that there was nothing to do."""
    play = opened(plan("site", find=step(), total=step("find")))
    play.mill.registry.pipelines["site"].keep = rules(Retention(count=0), "site")
    runs = []
    for verdict in (GOOD, GOOD, Verdict.END_RUN, Verdict.END_RUN):
        runs.append(play.mill.start("site", "s").id)
        play.drain(verdicts={"find": verdict})
    assert play.mill.prune().runs == 2
    assert left(play) == [runs[1], runs[3]]


def test_states_have_rules_of_their_own(opened: Open) -> None:
    play = opened(kept([Retention(state="failed", age=10 * DAY), Retention(age=1 * DAY)]))
    runs = daily(play, BAD, GOOD, BAD, GOOD, GOOD)
    play.mill.prune()
    assert left(play) == [runs[0], runs[2], runs[4]]


def test_what_has_not_ended_stays(opened: Open) -> None:
    play = opened(kept(Retention(count=0)))
    (done,) = daily(play, GOOD)
    active = play.mill.start("kept", "s").id
    waiting = play.mill.start("kept", "s", if_active="wait").id
    play.clock.advance(100 * DAY)
    assert play.mill.prune() == Pruned(0, 0)
    assert left(play) == [done, active, waiting]


def test_nothing_goes_by_itself(opened: Open) -> None:
    play = opened(kept(None))
    runs = daily(play, GOOD, GOOD)
    play.mill.enqueue(solo)
    play.drain()
    play.clock.advance(1000 * DAY)
    assert play.mill.prune() == Pruned(0, 0)
    assert left(play) == runs


def test_a_setting_is_for_all_that_says_nothing(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for what this application does not know (any more)."""
    opened(kept(None, "gone")).mill.start("gone", "s")
    play = opened(kept(Retention(age=100 * DAY)))
    play.drain()
    own = daily(play, GOOD, GOOD)
    old = opened(kept(None, "gone"))
    daily(old, GOOD, GOOD, pipeline="gone")
    job = play.mill.enqueue(solo).id
    play.drain()
    play.clock.advance(30 * DAY)
    play.mill.enqueue(solo)
    monkeypatch.setenv("GRISTMILL_KEEP_DAYS", "7")
    assert play.mill.prune() == Pruned(2, 3)
    assert [run.pipeline for run in play.mill.runs()].count("gone") == 1
    assert set(own) <= set(left(play))
    assert job not in {found.id for found in play.mill.jobs()}


def a_task(keep: Any) -> Any:
    return task(name="mail", keep=keep)(nothing)


def test_jobs_on_their_own_go_by_age_and_state(opened: Open) -> None:
    mail = a_task([Retention(age=DAY), Retention(state="failed", age=3.5 * DAY)])
    play = opened(mail)
    ids = []
    for verdict in (BAD, GOOD, BAD, GOOD, GOOD):
        ids.append(play.mill.enqueue(mail).id)
        play.drain(verdicts={"-": verdict})
        play.clock.advance(DAY)
    other = play.mill.enqueue(solo).id
    play.drain()
    waiting = play.mill.enqueue(mail, delay=1000 * DAY).id
    play.clock.advance(1)
    assert play.mill.prune(dry_run=True) == Pruned(0, 4)
    assert play.mill.prune() == Pruned(0, 4)
    assert sorted(job.id for job in play.mill.jobs()) == [ids[2], other, waiting]
    assert play.value("SELECT count(*) FROM gm_attempt") == 1


def test_jobs_on_their_own_go_by_number(opened: Open) -> None:
    mail = a_task([Retention(count=2), Retention(state="failed", count=1)])
    play = opened(mail)
    ids = [play.mill.enqueue(mail, timeout=1 + n % 2).id for n in range(6)]  # asked for in two ways, yet one task
    player = play.player()
    for job in player.take():
        player.end(job, BAD if job.id in ids[:2] else GOOD)
    assert play.mill.prune() == Pruned(0, 3)
    assert sorted(job.id for job in play.mill.jobs()) == [ids[1], *ids[4:]]


def test_a_former_name_is_the_same_task(opened: Open) -> None:
    old = task(name="old")(nothing)
    play = opened(old)
    play.mill.enqueue(old)
    play.drain()
    play.clock.advance(DAY)
    new = opened(task(name="new", formerly=["old"], keep=Retention(age=1))(nothing))
    new.mill.enqueue("new")
    assert new.mill.prune() == Pruned(0, 1)


def test_items_of_kept_runs_are_not_jobs_on_their_own(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    play = opened(kept(Retention(age=100 * DAY)))
    daily(play, GOOD, GOOD)
    monkeypatch.setenv("GRISTMILL_KEEP_DAYS", "0.5")
    assert play.mill.prune() == Pruned(0, 0)
    assert len(play.mill.jobs()) == 2


def test_what_was_done_outlives_its_run(opened: Open) -> None:
    play = opened(kept(Retention(count=0)))
    play.mill.start("kept", "s")
    player = play.player()
    player.end(player.take_one(), digest="abc")
    daily(play, GOOD, GOOD)
    assert play.mill.prune() == Pruned(2, 2)
    assert play.value("SELECT count(*) FROM gm_done") == 1


def test_a_tick_is_one_short_step_and_rests_much_longer(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    mail = a_task(Retention(age=0))
    play = opened(mail)
    play.mill.enqueue_many(mail, [{}] * 5)
    play.drain()
    play.mill.enqueue(mail)
    monkeypatch.setattr(remove, "BATCH", 2)
    monkeypatch.setattr("gristmill.pruner._REST", 19)
    removed = []
    pruner = play.mill.pruner()
    ticks = iter(range(1000))
    monkeypatch.setattr("gristmill.pruner.time.monotonic", lambda: float(next(ticks)))  # each step takes a second
    while (rest := pruner.tick(0.0)) == (38.0 if play.ledger.is_sqlite else 19.0):
        removed.append(play.value("SELECT count(*) FROM gm_job"))
    assert rest == 3600.0
    assert all(before - after <= 2 for before, after in itertools.pairwise(removed))
    assert play.value("SELECT count(*) FROM gm_job") == 1
    assert pruner.record[1:] == (0, 5)
    (entry,) = play.mill.audit()
    assert (entry.who, entry.done) == ("retention", {"runs": 0, "jobs": 5})


def test_after_an_error_the_next_tick_begins_anew(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    play = opened(kept(Retention(count=0)))
    daily(play, GOOD, GOOD, GOOD)
    pruner = play.mill.pruner()

    def fail(*_: Any, **__: Any) -> Any:
        raise DatabaseError("away")

    with monkeypatch.context() as patch:
        patch.setattr(prune, "old_runs", fail)
        with pytest.raises(DatabaseError):
            sweep(pruner)
    sweep(pruner)
    assert len(left(play)) == 1


def test_two_pruners_remove_everything_once(opened: Open) -> None:
    play = opened(kept(Retention(count=1)))
    daily(play, *[GOOD] * 6)
    one, other = play.mill.pruner(), play.mill.pruner()
    rests = [0.0, 0.0]
    while min(rests) < 3600:
        rests = [pruner.tick(0.0) if rest < 3600 else rest for pruner, rest in zip((one, other), rests, strict=True)]
    assert one.record.runs + other.record.runs == 5
    assert len(left(play)) == 1


def test_a_run_that_is_retried_meanwhile_stays(opened: Open) -> None:
    """It was found while it had ended."""
    play = opened(kept(None))
    (run,) = daily(play, GOOD)
    active = play.mill.start("kept", "s").id
    nothing_yet = prune.Record()
    assert play.ledger.do(prune.prune_run, active, nothing_yet, by="me") == nothing_yet
    assert play.ledger.do(prune.prune_run, run, nothing_yet, by="me") == nothing_yet  # the last good one, by now
    assert play.ledger.do(prune.prune_run, 10**9, nothing_yet, by="me") == nothing_yet
    assert left(play) == [run, active]


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gristmill.pruner._PAGE", 3)
    monkeypatch.setattr("gristmill.pruner._RUNS", 2)


@pytest.mark.usefixtures("small_pages")
def test_looks_go_on_where_the_last_one_ended(opened: Open) -> None:
    mail = a_task(Retention(age=DAY))
    play = opened(kept(Retention(count=1)), mail)
    daily(play, *[GOOD] * 6)
    ids = play.mill.enqueue_many(mail, [{}] * 10)
    play.drain()
    play.clock.advance(DAY)
    young = play.mill.enqueue_many(mail, [{}] * 4)
    play.drain()
    assert play.mill.prune(dry_run=True) == play.mill.prune() == Pruned(5, 15)
    assert [job.id for job in reversed(play.mill.jobs(task="mail"))] == young
    assert ids


def test_a_walk_ends_where_everything_is_younger(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    mail = a_task(Retention(age=DAY))
    play = opened(mail)
    play.mill.enqueue_many(mail, [{}] * 9)
    monkeypatch.setattr("gristmill.pruner._PAGE", 3)
    looks: list[int] = []
    look = prune.old_jobs

    def watched(tx: Any, limits: Any, after: int, most: int) -> prune.Page:
        looks.append(after)
        return look(tx, limits, after, most)

    monkeypatch.setattr(prune, "old_jobs", watched)
    assert Pruner(play.ledger, {}, {"mail": mail.keep}).run() == Pruned(0, 0)
    assert looks == [0]


def test_workers_that_ended_long_ago_are_forgotten(play: Play) -> None:
    gone, lost, alive = (play.player() for _ in range(3))
    play.ledger.do(workers.leave, gone.id)
    play.clock.advance(31)
    play.ledger.do(workers.rescue, lost.id)
    alive.heartbeat(lease=40 * DAY)
    play.clock.advance(29 * DAY)
    assert play.mill.prune() == Pruned(0, 0)
    play.clock.advance(2 * DAY)
    assert play.mill.prune(dry_run=True) == play.mill.prune() == Pruned(0, 0, workers=2)
    assert [worker.id for worker in play.mill.workers(every=True)] == [alive.id]
    with pytest.raises(NotYours):
        lost.heartbeat()
    assert play.player().id > alive.id


@contextmanager
def may_delete(play: Play, table: str) -> Iterator[None]:
    """The audit is not for workers to delete from: whoever does it needs more."""
    if play.ledger.is_sqlite:
        yield
        return
    with pytest.raises(DatabaseError, match=f"permission denied for table {table}"):
        play.mill.pruner(keep_audit_days=365).run()
    role = play.value("SELECT current_user")
    empty(play.ledger, f'GRANT DELETE ON {table} TO "{role}"')
    try:
        yield
    finally:
        empty(play.ledger, f'REVOKE DELETE ON {table} FROM "{role}"')


def test_the_audit_is_kept_for_ever_unless_somebody_says_how_long(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remove, "BATCH", 3)
    play.mill.set_queue("default", create=True)
    for _ in range(4):
        play.mill.pause("default")
        play.mill.resume("default")
    number = play.ledger.do(bulk.begin, "job.cancel", Choice(task="solo"), by="me")  # and nobody has done it yet
    play.clock.advance(400 * DAY)
    play.mill.pause("default")
    before = play.value("SELECT count(*) FROM gm_audit")
    assert play.mill.prune() == Pruned(0, 0)
    pruner = play.mill.pruner(keep_audit_days=365)
    assert pruner.run(dry_run=True) == Pruned(0, 0, audit=before - 2)
    with may_delete(play, "gm_audit"):
        sweep(pruner)
    assert pruner.entries == before - 2
    newest = play.mill.audit()
    assert [(entry.id == number, entry.verb) for entry in newest] == [(False, "queue.pause"), (True, "job.cancel")]
    assert play.value("SELECT count(*) FROM gm_order") == 1
    play.clock.advance(400 * DAY)
    sweep(pruner)
    assert [entry.id for entry in play.mill.audit()] == [newest[0].id, number]  # the newest stays: so does its number
