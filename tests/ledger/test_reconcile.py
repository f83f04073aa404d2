"""Reconcile: what it leaves alone, what it counts, that it is alone, and what it asks the application."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gristmill import Finding, Invalid, Pipeline, Retries, check
from gristmill.clock import FrozenClock
from gristmill.housekeeping import Housekeeping
from gristmill.ledger import adopt, repair
from gristmill.ledger.adopt import Adoption
from gristmill.ledger.emit import Item
from gristmill.ledger.finish import Verdict
from gristmill.ledger.store import Ledger
from gristmill.model import Repair
from gristmill.reconciler import tally
from tests.apps import probed
from tests.ledger import invariants
from tests.ledger.conftest import Open, empty
from tests.ledger.play import Play, each, plan, solo, step
from tests.ledger.test_moment import make
from tests.ledger.test_repair import half_done, site


def damage(play: Play) -> None:
    play.change("UPDATE gm_stage SET total = total + 1 WHERE name = 'page'")


def whats(found: list[Repair]) -> list[str]:
    return [repair.what for repair in found]


# ---- what was not looked for before


def test_a_run_that_waits_behind_nothing_begins(opened: Open) -> None:
    play = opened(plan("one", work=step()))
    first = play.mill.start("one", "s")
    second = play.mill.start("one", "s", if_active="wait")
    other = play.mill.start("one", "t")
    waits = play.mill.start("one", "t", if_active="wait")
    play.change(f"UPDATE gm_run SET state = 2, finished_at = 1 WHERE id = {first.id}")
    play.change(f"DELETE FROM gm_job WHERE run_id = {first.id}")
    play.change(f"DELETE FROM gm_stage WHERE run_id = {first.id}")
    would = play.mill.reconcile(dry_run=True)
    assert [(r.what, r.target) for r in would] == [("begin", f"run {second.id}")]
    assert play.mill.reconcile() == would
    assert (play.run(second).state, play.run(waits).state, play.run(other).state) == ("queued", "waiting", "queued")
    assert play.mill.reconcile() == []
    play.drain()
    assert play.run(second).state == "completed"


def test_a_run_started_meanwhile_keeps_the_waiting_one_waiting(opened: Open) -> None:
    play = opened(plan("one", work=step()))
    first = play.mill.start("one", "s")
    second = play.mill.start("one", "s", if_active="wait")
    assert play.ledger.do(repair.repair_stranded, second.id, True) == []  # it has an active one
    play.change(f"UPDATE gm_run SET state = 7 WHERE id = {second.id}")
    assert play.run(first).state == "queued"


@pytest.mark.parametrize("stage", ["find", "total"])
def test_the_lost_job_of_a_plain_stage_runs_again(opened: Open, stage: str) -> None:
    play = opened(site())
    run = play.mill.start("site", "s")
    player = play.player()
    if stage == "total":
        play.turn(player, {"find": ["a"]}, {})
        play.turn(player, {}, {})
    play.change("DELETE FROM gm_job WHERE stage_id = (SELECT id FROM gm_stage WHERE name = :stage)", stage=stage)
    would = play.mill.reconcile(dry_run=True)
    assert [(r.what, r.target) for r in would] == [("add job", f"run {run.id} stage {stage}")]
    assert play.mill.reconcile() == would
    assert play.run(run).state != "completed"  # nobody knows how it ended
    assert play.mill.reconcile() == []
    play.drain(items={"find": ["a"]})
    assert (play.run(run).state, play.ran[-1]) == ("completed", "total")


def test_the_lost_job_of_a_run_that_is_being_stopped_is_not_brought_back(opened: Open) -> None:
    play = opened(plan("one", work=step()))
    run = play.mill.start("one", "s")
    player = play.player()
    player.take()
    play.mill.cancel_run(run.id)
    play.change("DELETE FROM gm_job")
    play.change("DELETE FROM gm_claim")
    play.mill.reconcile()
    assert play.run(run).state == "cancelled"
    play.consistent = False  # a plain stage without its job


# ---- what it leaves alone


def test_what_has_changed_a_moment_ago_is_left_alone(opened: Open, clock: FrozenClock) -> None:
    play = opened(site())
    half_done(play, play.player(lease=1e6))
    damage(play)
    assert play.mill.reconcile(threshold=60) == []
    clock.advance(59)
    assert play.mill.reconcile(threshold=60) == []
    clock.advance(2)
    assert whats(play.mill.reconcile(threshold=60, dry_run=True)) == ["recount"]
    play.mill.start("site", "t")  # what others do is no change of this run
    assert whats(play.mill.reconcile(threshold=60)) == ["recount"]


def test_the_threshold_is_for_parts_too(play: Play) -> None:
    player = play.player(lease=1e6)
    play.mill.enqueue(solo)
    job = player.take_one()
    player.split(job, "1", "2")
    play.change("UPDATE gm_job SET parts = 3, parts_left = 3 WHERE id = :job", job=job.id)
    assert play.mill.reconcile(threshold=60) == []
    play.clock.advance(61)
    assert "recount" in whats(play.mill.reconcile(threshold=60))


def test_only_the_pipeline_and_subject_that_were_asked_for(opened: Open) -> None:
    play = opened(site(), plan("one", page=step()))
    runs = [play.mill.start("site", "s").id, play.mill.start("one", "s").id, play.mill.start("one", "t").id]
    play.change("UPDATE gm_stage SET total = 9 WHERE name IN ('find', 'page')")

    def hit(**which: str) -> list[int]:
        found = play.mill.reconcile(dry_run=True, **which)  # type: ignore[arg-type]
        return sorted({int(r.target.split()[1]) for r in found})

    assert hit() == runs
    assert hit(subject="s") == runs[:2]
    assert hit(pipeline="one") == runs[1:]
    assert hit(pipeline="one", subject="t") == runs[2:]
    assert hit(pipeline="two") == []
    play.mill.reconcile()


def lost_worker(play: Play) -> dict[str, int]:
    """One that held a job of each of these subjects, and of none; says which."""
    player = play.player(lease=30)
    for subject in ("s", "t"):
        play.mill.start("one", subject)
    play.mill.enqueue(solo)
    held = {job.id for job in player.take()}
    play.clock.advance(31)
    jobs = [play.mill.job(number) for number in held]
    return {str(job.subject): job.id for job in jobs}


@pytest.mark.parametrize("which", [{"subject": "s"}, {"pipeline": "one"}, {"subject": "s", "pipeline": "one"}, {}])
def test_a_lost_worker_is_rescued_whoever_asks(opened: Open, which: dict[str, str]) -> None:
    play = opened(plan("one", work=step()))
    lost = lost_worker(play)
    before = invariants.snapshot(play.ledger)
    would = play.mill.reconcile(dry_run=True, **which)  # type: ignore[arg-type]
    assert (whats(would), would[0].detail) == (["rescue"], "its lease is over")
    assert invariants.snapshot(play.ledger) == before
    assert play.mill.reconcile(**which) == would  # type: ignore[arg-type]
    assert {play.mill.job(number).state for number in lost.values()} == {"queued"}
    assert play.mill.reconcile() == []


def test_a_lost_worker_that_held_nothing_of_a_subject_is_rescued_and_not_named(opened: Open) -> None:
    play = opened(plan("one", work=step()))
    lost = lost_worker(play)
    assert play.mill.reconcile(subject="u", dry_run=True) == []
    assert {play.mill.job(number).state for number in lost.values()} == {"in_progress"}
    assert play.mill.reconcile(subject="u") == []
    assert {play.mill.job(number).state for number in lost.values()} == {"queued"}


def lose_its_worker(play: Play) -> None:
    play.player().take()
    play.change("UPDATE gm_worker SET state = 2")


def leave_the_line(play: Play) -> None:
    play.change("UPDATE gm_job SET ready = NULL")


def miscount_parts(play: Play) -> None:
    player = play.player(lease=1e6)
    for job in player.take():
        player.split(job, "a")
    play.change("UPDATE gm_job SET parts = 2, parts_left = 2 WHERE parts = 1")


def leave_parts_behind(play: Play) -> None:
    player = play.player(lease=1e6)
    for job in player.take():
        player.split(job, "a")
    play.change("UPDATE gm_job SET parent_id = -id WHERE parent_id IS NOT NULL")
    play.change("UPDATE gm_job SET parts = NULL, parts_left = NULL, parts_failed = NULL, ready = id WHERE parts = 1")


WRONG: dict[Callable[[Play], None], str] = {
    lose_its_worker: "release",
    leave_the_line: "line up",
    miscount_parts: "recount",
    leave_parts_behind: "end",
}


@pytest.mark.parametrize("damage", WRONG, ids=lambda damage: damage.__name__)
def test_jobs_of_one_subject_are_repaired_alone(opened: Open, damage: Callable[[Play], None]) -> None:
    play = opened(plan("one", work=step()))
    play.consistent = False
    runs = [play.mill.start("one", subject).id for subject in ("s", "t")]
    damage(play)
    would = play.mill.reconcile(subject="s", dry_run=True)
    assert (whats(would), play.mill.job(int(would[0].target.split()[1])).subject) == ([WRONG[damage]], "s")
    assert play.mill.reconcile(subject="s") == would
    assert play.mill.reconcile(subject="s") == []
    [rest] = [found for found in play.mill.reconcile() if found.what == WRONG[damage]]
    assert play.mill.job(int(rest.target.split()[1])).run == runs[1]


# ---- the third time


def test_a_subject_that_is_recovered_again_and_again_is_left_to_a_person(opened: Open, clock: FrozenClock) -> None:
    play = opened(site())
    run = half_done(play, play.player(lease=1e6))
    other = play.mill.start("site", "t")
    for _ in range(2):
        damage(play)
        assert set(whats(play.mill.reconcile(subject="s"))) == {"recount"}
        clock.advance(3600)
    assert play.run(run).state == "in_progress"
    damage(play)
    would = play.mill.reconcile(subject="s", dry_run=True)
    assert whats(would) == ["recount", "fail"]
    assert play.mill.reconcile(subject="s") == would
    found = play.run(run)
    assert found.stopping
    assert "recovered 2 times within a day, and wrong again (recount run" in (found.error or "")
    assert "start it again" in (found.error or "")
    play.change("UPDATE gm_worker SET lease_until = 0")
    play.mill.reconcile()
    assert play.run(run).state == "failed"
    recoveries = play.mill.recoveries(run=run.id)
    assert [(r.what, r.subject, r.items) for r in recoveries if r.what == "repair"] == [("repair", "s", 1)] * 3
    assert play.mill.recoveries(pipeline="site", subject="s") == recoveries
    assert len(play.mill.recoveries(pipeline="site", subject="t")) == 1  # the last pass looked at all
    assert not play.run(other).terminal


def test_a_day_later_it_is_forgotten(opened: Open, clock: FrozenClock) -> None:
    play = opened(site())
    run = half_done(play, play.player(lease=1e9))
    for _ in range(5):
        damage(play)
        assert whats(play.mill.reconcile()) == ["recount"]
        clock.advance(13 * 3600)  # never more than two within a day
    assert play.run(run).state == "in_progress"


def loses_its_worker(play: Play) -> None:
    play.player(lease=30).take()
    play.clock.advance(31)


def test_a_rescue_is_written_down_for_each_run_that_the_worker_held(opened: Open) -> None:
    play = opened(plan("one", work=step(retries=Retries(losses=9))), site())
    lost = lost_worker(play)
    other = play.mill.start("site", "v")
    assert whats(play.mill.reconcile(subject="s")) == ["rescue"]
    for subject in ("s", "t"):  # also for whom nobody has asked
        [noted] = play.mill.recoveries(pipeline="one", subject=subject)
        assert (noted.what, noted.items, noted.subject) == ("rescue", 1, subject)
        assert [found.target for found in noted.found] == [f"job {lost[subject]}"]
        assert noted.found[0].detail.endswith(": its lease is over")
    assert play.mill.recoveries(run=other.id) == []
    play.mill.reconcile()  # nobody is lost any more
    assert len(play.mill.recoveries(pipeline="one", subject="s")) == 1


def test_a_look_and_workers_that_rescue_each_other_write_nothing_down(opened: Open) -> None:
    play = opened(plan("one", work=step()))
    run = play.mill.start("one", "s")
    loses_its_worker(play)
    assert whats(play.mill.reconcile(dry_run=True)) == ["rescue"]
    [worker] = play.mill.workers()
    Housekeeping(play.ledger).tick(0.0, play.player().id, set, ())
    assert worker.id not in [left.id for left in play.mill.workers()]
    assert play.mill.reconcile() == []
    assert play.mill.recoveries(run=run.id) == []


def test_two_workers_lost_at_once_are_one_recovery(opened: Open) -> None:
    play = opened(site())
    run = play.mill.start("site", "s")
    play.turn(play.player(lease=1e6), {"find": list("abc")}, {})
    for _ in range(2):
        play.player(lease=30).take(1)
    play.clock.advance(31)
    assert whats(play.mill.reconcile()) == ["rescue", "rescue"]
    assert [(noted.what, noted.items) for noted in play.mill.recoveries(run=run.id)] == [("rescue", 2)]


def test_lost_workers_do_not_fail_a_run_that_is_mended_later(opened: Open) -> None:
    play = opened(plan("one", work=step(retries=Retries(losses=9))))
    run = play.mill.start("one", "s")
    for _ in range(3):
        loses_its_worker(play)
        assert whats(play.mill.reconcile()) == ["rescue"]
    play.change("UPDATE gm_stage SET total = total + 1")
    assert whats(play.mill.reconcile()) == ["recount"]
    assert not play.run(run).stopping
    assert [noted.what for noted in play.mill.recoveries(run=run.id)] == ["repair", *["rescue"] * 3]


# ---- alone


HOLD = "from gristmill.ledger.store import Ledger\nimport sys, time\nwith Ledger(sys.argv[1]).sole('reconcile') as mine:\n"
HOLD += "    print(mine, flush=True)\n    time.sleep(60)"


def test_a_second_reconciler_steps_aside_until_the_first_one_is_gone(opened: Open) -> None:
    play = opened(site())
    half_done(play, play.player())
    damage(play)
    command = [sys.executable, "-c", HOLD, play.ledger.absolute_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        assert play.mill.reconciler().run() is None
        assert play.mill.reconcile() == []
        assert whats(play.mill.reconcile(dry_run=True)) == ["recount"]  # to look does no harm
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    for _ in range(100):  # PostgreSQL notices within a moment
        found = play.mill.reconciler().run()
        if found is not None:
            break
    assert whats(found or []) == ["recount"]
    with play.ledger.sole("reconcile") as mine:
        assert mine  # it was given back


def test_the_loop_goes_on_until_it_is_told(opened: Open) -> None:
    play = opened(site())
    half_done(play, play.player(lease=1e6))
    damage(play)
    stop = threading.Event()
    loop = threading.Thread(target=play.mill.reconciler().loop, args=(stop, 0.01))
    loop.start()
    while invariants.broken(play.ledger):
        stop.wait(0.01)
    stop.set()
    loop.join(10)
    assert not loop.is_alive()


# ---- adopting


def adoptable(play: Play, *, tried: bool = False) -> tuple[int, dict[str, Adoption]]:
    """A run with three queued pages."""
    run = play.mill.start("site", "s")
    player = play.player()
    play.turn(player, {"find": list("abc")}, {})
    if tried:
        for job in player.take():
            player.end(job, Verdict.RELEASED)
    rows = play.rows("SELECT id, attempt, key FROM gm_job WHERE state = 0")
    return run.id, {row.key: Adoption(row.id, row.attempt, run.id, '"there"') for row in rows}


def test_an_adopted_item_is_completed_marked_and_recorded(opened: Open) -> None:
    play = opened(site())
    run, found = adoptable(play)
    done = play.ledger.do(adopt.adopt, [found["a"], found["b"]], by="me", target="run 1 stage page")
    assert done == [found["a"].job, found["b"].job]
    job = play.mill.job(found["a"].job)
    assert (job.state, job.result, job.attempt) == ("completed", "there", 1)
    [attempt] = play.mill.attempts(job.id)
    assert (attempt.outcome, attempt.error) == ("adopted", "its output was there: adopted by me")
    assert play.value("SELECT count(*) FROM gm_audit WHERE verb = 'job.adopt'") == 1
    assert play.counters(run, "page") == (3, 2, 0, 0, 0)
    play.drain()
    assert play.ran == ["find", "page/c", "total"]


def test_the_last_one_adopted_closes_the_stage(opened: Open) -> None:
    play = opened(site())
    run, found = adoptable(play, tried=True)
    assert len(play.ledger.do(adopt.adopt, list(found.values()), by="me", target="x")) == 3
    assert play.stage_states(run)["total"] == "sealed"


def test_what_somebody_has_by_now_is_not_adopted(opened: Open) -> None:
    play = opened(site())
    run, found = adoptable(play)
    player = play.player()
    held = play.labelled(player.take(1))["page/a"]
    assert play.ledger.do(adopt.adopt, [found["a"]], by="me", target="x") == []
    player.end(held, Verdict.RELEASED)  # queued again, but another attempt than the probe was asked about
    assert play.ledger.do(adopt.adopt, [found["a"]], by="me", target="x") == []
    play.mill.cancel_run(run)
    assert play.ledger.do(adopt.adopt, [found["b"]], by="me", target="x") == []
    assert play.value("SELECT count(*) FROM gm_audit WHERE verb = 'job.adopt'") == 0


def test_what_an_adopted_item_gives_to_others_goes_with_it(opened: Open) -> None:
    play = opened(plan("chain", find=step(), page=each("find"), word=each("page")))
    run = play.mill.start("chain", "s")
    play.turn(play.player(), {"find": ["a", "b"]}, {})
    rows = play.rows("SELECT id, attempt, key FROM gm_job WHERE state = 0 ORDER BY key")
    good = Adoption(rows[0].id, 0, run.id, "7", [Item("", '{"n": 7}', "word")])
    bad = Adoption(rows[1].id, 0, run.id, "7", [Item("x" * 3000, None, "word")])  # too long a path
    assert play.ledger.do(adopt.adopt, [good, bad], by="me", target="x") == [good.job]
    assert play.rows("SELECT key, args FROM gm_job WHERE parent_id = :job", job=good.job) == [("a", '{"n": 7}')]
    assert play.mill.job(bad.job).state == "queued"
    play.drain()
    assert play.run(run).state == "completed"


# ---- asking the application


Shelf = Callable[..., Play]


@pytest.fixture
def scanning(opened: Open, tmp_path: Path) -> Shelf:
    """A run of the application with these pages queued; what `done` names has its output there."""

    def begin(*pages: str, done: tuple[str, ...] = ()) -> Play:
        play = opened(probed.scans, probed.draw, probed.wishes)
        play.mill.start("scans", "s", args={"folder": str(tmp_path), "pages": list(pages)})
        play.turn(play.player(lease=1e6), {"find": list(pages)}, {})
        for page in pages:
            play.change(f"UPDATE gm_job SET args = '{{\"page\": \"{page}\"}}' WHERE key = '{page}'")
        for page in done:
            (tmp_path / page).write_text("42")
        return play

    return begin


def test_work_that_was_done_is_adopted(scanning: Shelf) -> None:
    play = scanning("a", "b", done=("a",))
    before = invariants.snapshot(play.ledger)
    [would] = play.mill.reconcile(dry_run=True)
    assert (would.what, would.detail) == ("adopt", "queued → completed, result 42")
    [run] = play.mill.runs()
    assert would.target.endswith(f"run {run.id} stage ocr key a")
    assert invariants.snapshot(play.ledger) == before
    assert play.mill.reconcile() == [would]
    assert play.rows("SELECT key, args FROM gm_job WHERE state = 0 ORDER BY id") == [
        ("b", '{"page": "b"}'),
        ("a", '{"length":42}'),  # what comes after it got its result
    ]
    [recovery] = play.mill.recoveries(run=run.id)
    assert (recovery.what, recovery.items, recovery.found) == ("adopt", 1, (would,))
    play.drain()
    assert play.run(run).state == "completed"


def test_a_plain_stage_has_a_probe_too_and_true_is_no_result(scanning: Shelf, tmp_path: Path) -> None:
    play = scanning()
    assert play.mill.reconcile() == []
    (tmp_path / "s.public").touch()
    assert [(r.what, r.detail) for r in play.mill.reconcile()] == [("adopt", "queued → completed")]
    [run] = play.mill.runs()
    assert (run.state, play.run(run).results) == ("completed", {})


def test_a_probe_that_dies_hangs_or_raises_harms_nobody(scanning: Shelf) -> None:
    play = scanning("broken", "hang", "kill", "late", done=("late",))
    reconciler = play.mill.reconciler()
    reconciler.patience = 3.0
    found = {r.target.split()[-1]: (r.what, r.detail) for r in reconciler.run() or []}
    assert found == {
        "broken": ("probe failed", "OSError: the disk is away"),
        "hang": ("probe failed", "no answer within 3 s"),
        "kill": ("probe failed", "the process that was asked died (SIGKILL)"),
        "late": ("adopt", "queued → completed, result 42"),
    }


def test_the_loop_asks_once_about_what_was_tried_before(scanning: Shelf) -> None:
    play = scanning("a", "b", done=("a", "b"))
    player = play.player()
    player.end(play.labelled(player.take(1))["ocr/a"], Verdict.RELEASED)
    reconciler = play.mill.reconciler()
    reconciler.scope = reconciler.scope._replace(tried=1)
    assert [r.target.split()[-1] for r in reconciler.run(once=True) or []] == ["a"]
    assert [r.target.split()[-1] for r in play.mill.reconcile()] == ["b"]


def test_checks_are_listed_and_mended_by_verbs(scanning: Shelf, clock: FrozenClock) -> None:
    play = scanning()
    make(play, "wish", "subject text, verb text")
    try:
        play.change("INSERT INTO wish VALUES ('a', 'enqueue'), ('b', 'start'), ('c', 'look'), ('d', 'retry')")
        would = [(r.what, r.target, r.detail) for r in play.mill.reconcile(dry_run=True)]
        assert would == [
            ("enqueue", "a", "wishes: not drawn"),
            ("start", "scans b", "wishes: never scanned"),
            ("look into", "scans c", "wishes: look at it"),
            ("retry_job", "scans d", "wishes: no such job"),
        ]
        assert play.mill.jobs(task="draw") == []
        for _ in range(3):  # at the first of them subject b is not there yet: it is made, not recovered
            clock.advance(60)
            found = play.mill.reconcile()
            assert [(r.what, r.target, r.detail) for r in found if r.what != "not mended"] == would
            assert [r.detail for r in found if r.what == "not mended"] == ["there is no job 12345"]
            assert tally(found) == (2, 2)  # enqueue and start; look into, and the job that is not there
        [drawn] = play.mill.jobs(task="draw")  # asked for again and again, one job
        assert drawn.args == {"subject": "a"}
        assert [run.subject for run in play.mill.runs()] == ["b", "s"]
        clock.advance(60)
        [third] = [r for r in play.mill.reconcile(subject="b") if r.what == "fail"]
        assert third.left
        assert third.detail == "recovered too often within a day: left to a person"
        assert [run.state for run in play.mill.runs(subject="b")] == ["failed"]
        play.change("INSERT INTO wish VALUES ('e', 'fall')")
        assert ("check failed", "wishes", "RuntimeError: the check is broken") in [
            (r.what, r.target, r.detail) for r in play.mill.reconcile(dry_run=True)
        ]
    finally:
        empty(play.ledger, "DROP TABLE wish")


def test_what_cannot_be_a_probe_a_check_or_a_finding_is_refused() -> None:
    flow = Pipeline("flow")

    @flow.stage
    def give(ctx):
        yield "a"

    @flow.stage(after=give, each=True)
    def take(ctx): ...

    async def later(ctx): ...

    with pytest.raises(Invalid, match="yields items, which no probe could know"):
        give.probe(lambda ctx: True)
    with pytest.raises(Invalid, match="a probe wants a plain function"):
        take.probe(later)
    take.probe(lambda ctx: True)
    with pytest.raises(Invalid, match="has a probe already"):
        take.probe(lambda ctx: True)
    with pytest.raises(Invalid, match="a check is a plain function"):
        check(later)
    with pytest.raises(Invalid, match=r"cannot be mended by 'begin'.*by start, enqueue"):
        Finding("x", verb="begin")
    with pytest.raises(Invalid, match="without a verb takes no argument 'job'"):
        Finding("x", job=7)


def test_the_lock_is_one_per_database(tmp_path: Path) -> None:
    one, two = Ledger(f"sqlite:///{tmp_path}/a.db"), Ledger(f"sqlite:///{tmp_path}/b.db")
    with one.sole("reconcile") as mine, two.sole("reconcile") as theirs, one.sole("reconcile") as again:
        assert (mine, theirs, again) == (True, True, False)
