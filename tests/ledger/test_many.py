"""Actions on many jobs and runs: chosen by number or by what they have in common, recorded first, done in batches."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gristmill import Invalid, NotFound, Pipeline, Refused, task
from gristmill.clock import SECOND
from gristmill.housekeeping import Housekeeping, carry_out
from gristmill.ledger import bulk, remove
from gristmill.ledger.choose import Choice
from gristmill.ledger.finish import Verdict
from tests.ledger import invariants
from tests.ledger.conftest import Open
from tests.ledger.play import Play, each, plan, solo, step, stubborn

SITE = plan("site", find=step(), page=each("find", queue="pages", need=0), total=step("page"))
ITEMS = {"find": ["a1", "a2", "b1"]}


def fanned_out(play: Play, subject: str = "s") -> int:
    """A run with three pages that wait."""
    run = play.mill.start("site", subject)
    play.turn(play.player(), ITEMS, {})
    return run.id


def look_after(play: Play) -> None:
    """What a worker does for all, once."""
    Housekeeping(play.ledger).tick(0.0, play.player().id, set, ())


def states(play: Play) -> list[str]:
    return sorted(job.state for job in play.mill.jobs(limit=1000, archived=None))


# ---- which


def test_a_choice_is_by_everything_that_is_given(opened: Open) -> None:
    play = opened(SITE)
    run = fanned_out(play)
    play.mill.enqueue(solo, unique="a9")
    for which, number in (
        ({"key": "a*"}, 3),
        ({"key": "a?", "stage": "page"}, 2),
        ({"key": "a*", "queue": "pages"}, 2),
        ({"key": "a9"}, 1),
        ({"key": "A*"}, 0),
        ({"key": "%"}, 0),
        ({"key": "a[12]"}, 0),
        ({"task": "solo"}, 1),
        ({"run": run, "state": "queued"}, 3),
        ({"subject": "s", "pipeline": "site"}, 3),
        ({"subject": "S*"}, 3),
        ({"subject": "S"}, 0),
        ({"since": datetime.fromtimestamp(play.clock.at / 1e6 - 60, UTC)}, 4),
        ({"since": datetime.fromtimestamp(play.clock.at / 1e6 + 60, UTC)}, 0),
        ({"worker": 1}, 0),
        ({"older": 60}, 0),
        ({"older": 0}, 4),
    ):
        would = play.mill.cancel_jobs(dry_run=True, **which)
        assert would.counts == ({"cancelled": number} if number else {}), which
    assert "cancelled" not in states(play)


def test_a_choice_by_error(opened: Open) -> None:
    play = opened(SITE)
    fanned_out(play)
    play.drain(verdicts={"page/a1": Verdict.PERMANENT})
    (failed,) = play.mill.jobs(state="failed")
    assert play.mill.archive_jobs(error=failed.fingerprint).counts == {"archived": 1}
    assert play.mill.archive_jobs(error="0" * 12).total == 0


def test_no_choice_is_not_everything(play: Play) -> None:
    play.mill.enqueue(solo)
    with pytest.raises(Invalid, match="empty list"):  # of a program whose list came out empty, not all of them
        play.mill.cancel_jobs(state=[])
    with pytest.raises(Invalid, match="say which"):
        play.mill.cancel_jobs()
    assert play.mill.delete_jobs(ids=[]).total == 0
    with pytest.raises(NotFound, match="unknown queue 'defualt'; did you mean 'default'"):
        play.mill.cancel_jobs(queue="defualt")
    with pytest.raises(NotFound, match="there is no run 7"):
        play.mill.cancel_jobs(run=7)
    with pytest.raises(NotFound, match="there is no job 99"):
        play.mill.run_jobs_now(ids=[99])
    with pytest.raises(Invalid, match="unknown state"):
        play.mill.cancel_jobs(state="queud")
    with pytest.raises(Invalid, match="queue must be text"):
        play.mill.cancel_jobs(queue=3)  # type: ignore[arg-type]


def test_numbers_that_no_database_can_hold_are_nobodys(play: Play) -> None:
    for number in (2**63, -1, 0, 10**30):
        for ask in (play.mill.job, play.mill.run, play.mill.attempts, play.mill.cancel_job, play.mill.retry_job):
            with pytest.raises(NotFound, match=f"there is no (job|run) {number}"):
                ask(number)
        with pytest.raises(NotFound):
            play.mill.delete_jobs(ids=[number])
    with pytest.raises(Invalid, match="by its number"):
        play.mill.job("7")  # type: ignore[arg-type]


def test_a_reason_that_one_database_cannot_hold_is_refused_by_both(play: Play) -> None:
    job = play.mill.enqueue(solo).id
    for refused in ("a\0b", 7):
        with pytest.raises(Invalid, match="reason"):
            play.mill.cancel_job(job, reason=refused)  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="reason"):
            play.mill.cancel_jobs(ids=[job], reason=refused)  # type: ignore[arg-type]
    assert play.mill.job(job).state == "queued"
    assert play.mill.audit() == []


# ---- cancelling and purging


def test_queued_jobs_end_and_those_in_progress_are_told(opened: Open) -> None:
    play = opened(SITE)
    run = fanned_out(play)
    (held,) = play.player().take(1)
    done = play.mill.cancel_jobs(run=run, reason="enough", by="me")
    assert done.counts == {"cancelled": 2, "told to stop": 1}
    assert [(job.state, job.error) for job in play.mill.jobs(state="cancelled")] == [("cancelled", "enough")] * 2
    assert play.value("SELECT cancel FROM gm_job WHERE id = :id", id=held.id)
    (entry,) = play.mill.audit(verb="job.cancel")
    assert (entry.who, entry.open, entry.done) == ("me", False, {"cancelled": 2, "told to stop": 1})
    assert entry.id == done.record


def test_a_purged_queue_closes_stages_as_it_should(opened: Open) -> None:
    play = opened(SITE)
    run, other = (play.mill.start("site", subject).id for subject in ("s", "t"))
    play.turn(play.player(), ITEMS, {})
    assert play.mill.purge_queue("pages", dry_run=True).counts == {"cancelled": 6}
    assert play.mill.purge_queue("pages", by="me").counts == {"cancelled": 6}
    assert {job.error_class for job in play.mill.jobs(state="cancelled")} == {"purged"}
    assert play.stage_states(run) == {"find": "closed", "page": "closed", "total": "sealed"}
    play.drain()
    assert [play.mill.run(number).state for number in (run, other)] == ["completed_with_errors"] * 2
    assert play.mill.purge_queue("pages").total == 0
    assert len(play.mill.audit(verb="queue.*")) == 1  # nothing to do, nothing to record
    with pytest.raises(NotFound, match="unknown queue"):
        play.mill.purge_queue("page")


def test_a_purge_does_not_chase_what_comes_later(opened: Open) -> None:
    """Cancelling the only page starts `total`, in the same queue: that came after the word."""
    play = opened(plan("one", find=step(queue="q", need=0), after=step("find", queue="q")))
    run = play.mill.start("one", "s").id
    assert play.mill.purge_queue("q").counts == {"cancelled": 1}
    assert play.stage_states(run) == {"find": "closed", "after": "sealed"}
    assert states(play) == ["cancelled", "queued"]


def test_a_unique_key_is_free_after_a_bulk_cancel(play: Play) -> None:
    job = play.mill.enqueue(solo, unique="k").id
    assert play.mill.cancel_jobs(key="k").total == 1
    again = play.mill.enqueue(solo, unique="k")
    assert again.created
    assert again.id != job


def test_runs_are_cancelled_by_filter(opened: Open) -> None:
    play = opened(SITE)
    runs = [play.mill.start("site", subject).id for subject in ("s", "t", "u")]
    play.mill.start("site", "s", if_active="wait")
    assert play.mill.cancel_runs(subject="s", dry_run=True).counts == {"stopped": 2}
    assert play.mill.cancel_runs(subject="s").counts == {"stopped": 2}
    assert play.mill.cancel_runs(pipeline="site", reason="all").counts == {"stopped": 2}
    assert {run.state for run in play.mill.runs()} == {"cancelled"}
    done = play.mill.cancel_runs(ids=runs[:2])
    assert (done.total, done.left) == (0, 2)
    assert "not ended" in str(done.refusal)


# ---- run now, archive, delete, edit


def test_delayed_and_retrying_jobs_run_now(play: Play) -> None:
    delayed = play.mill.enqueue(solo, delay=3600).id
    retrying = play.mill.enqueue(stubborn).id
    player = play.player()
    player.end(player.take_one(), Verdict.ERROR, reason="no")
    ready = play.mill.enqueue(solo).id
    done = play.mill.run_jobs_now(ids=[delayed, retrying, ready])
    assert (done.counts, done.left) == ({"ready": 2}, 1)
    assert "delayed" in str(done.refusal)
    assert sorted(job.id for job in player.take()) == [delayed, retrying, ready]


def test_archived_jobs_are_out_of_lists_and_kept(play: Play) -> None:
    one, two, three = play.mill.enqueue_many(solo, [{}] * 3)
    play.drain()
    waiting = play.mill.enqueue(solo).id
    done = play.mill.archive_jobs(ids=[one, two, waiting])
    assert (done.counts, done.left) == ({"archived": 2}, 1)
    assert [job.id for job in play.mill.jobs()] == [waiting, three]
    assert [job.id for job in play.mill.jobs(archived=True)] == [two, one]
    assert [job.id for job in play.mill.jobs(archived=None)] == [waiting, three, two, one]
    assert play.mill.job(one).archived_at is not None
    assert play.mill.archive_jobs(task="solo").counts == {"archived": 1}
    assert play.mill.archive_jobs(task="solo", undo=True, dry_run=True).counts == {"listed again": 3}
    assert play.mill.archive_jobs(ids=[one], undo=True).counts == {"listed again": 1}
    assert [job.id for job in play.mill.jobs()] == [waiting, one]


def test_filters_leave_archived_jobs_alone_as_lists_do(play: Play) -> None:
    one, two, three, _ = play.mill.enqueue_many(solo, [{}] * 4)
    play.drain()
    play.mill.archive_jobs(ids=[one, two, three])
    assert play.mill.delete_jobs(task="solo", state=["completed", "failed"]).counts == {"deleted": 1}
    assert [job.id for job in play.mill.jobs(archived=None)] == [three, two, one]
    assert play.mill.delete_jobs(ids=[one]).counts == {"deleted": 1}
    assert play.mill.delete_jobs(task="solo", archived=True).counts == {"deleted": 2}
    assert play.mill.audit(verb="job.delete")[0].target == "jobs: task solo, archived"


def test_a_retry_lists_a_job_again(play: Play) -> None:
    job = play.mill.enqueue(solo).id
    play.drain(verdicts={"-": Verdict.PERMANENT})
    play.mill.archive_jobs(ids=[job])
    assert play.mill.retry_job(job).archived_at is None


def test_ended_jobs_on_their_own_are_deleted_with_their_attempts(opened: Open) -> None:
    play = opened(SITE)
    fanned_out(play)
    play.mill.enqueue_many(solo, [{}] * 3)
    play.drain(verdicts={"-": Verdict.PERMANENT})
    waiting = play.mill.enqueue(solo).id
    own = [job.id for job in play.mill.jobs(task="solo", state="failed")]
    done = play.mill.delete_jobs(ids=[job.id for job in play.mill.jobs(limit=100)])
    assert (done.counts, done.left) == ({"deleted": 3}, 6)
    assert "on their own" in str(done.refusal)
    for number in own:
        with pytest.raises(NotFound):
            play.mill.job(number)
    assert play.value("SELECT count(*) FROM gm_attempt") == 0
    assert [job.id for job in play.mill.jobs(task="solo")] == [waiting]


def test_the_number_of_a_deleted_job_is_never_given_again(play: Play) -> None:
    """SQLite would give the highest number again."""
    first = play.mill.enqueue(solo).id
    play.drain()
    assert play.mill.delete_jobs(ids=[first]).counts == {"deleted": 1}
    for ask in (play.mill.job, play.mill.retry_job, play.mill.cancel_job):
        with pytest.raises((NotFound, Refused)):
            ask(first)
    assert play.mill.jobs(archived=None) == []
    assert play.mill.delete_jobs(task="solo").total == 0
    second = play.mill.enqueue(solo).id
    assert second > first
    look_after(play)  # what was hidden until then is gone now
    assert play.value("SELECT count(*) FROM gm_job") == 1
    assert play.value("SELECT count(*) FROM gm_removal") == 0


def test_the_arguments_of_a_job_that_waits_can_be_changed(play: Play) -> None:
    job = play.mill.enqueue(solo, args={"n": 1}, delay=60).id
    assert play.mill.edit_job(job, {"n": 2}, dry_run=True).args == {"n": 1}
    assert play.mill.edit_job(job, {"n": "3"}, by="me").args == {"n": 3}
    with pytest.raises(Invalid, match="takes no argument 'm'; there are: n"):
        play.mill.edit_job(job, {"m": 3})
    with pytest.raises(Invalid, match="argument 'n'"):
        play.mill.edit_job(job, {"n": "three"})
    (entry,) = play.mill.audit(verb="job.edit")
    assert (entry.who, entry.target) == ("me", f"job {job}")
    assert (entry.detail["before"], entry.detail["after"]) == ('{"n":1}', '{"n":3}')


def test_arguments_are_not_changed_under_a_worker_or_after_the_end(play: Play) -> None:
    play.mill.enqueue(solo)
    player = play.player()
    job = player.take_one()
    with pytest.raises(Refused, match="in progress and has its arguments already"):
        play.mill.edit_job(job.id, {"n": 2})
    player.complete(job)
    with pytest.raises(Refused, match="is completed already"):
        play.mill.edit_job(job.id, {"n": 2})


def edited() -> Pipeline:
    pipeline = Pipeline("edited")
    pipeline.stage(name="find")(lambda ctx, folder="": None)
    pipeline.stage(name="page", after="find", each=True)(lambda ctx, path: None)
    return pipeline


def test_an_item_is_edited_but_not_the_one_job_of_a_stage(opened: Open) -> None:
    from gristmill.ledger.emit import Item

    play = opened(edited())
    play.mill.start("edited", "s")
    (one,) = play.mill.jobs()
    with pytest.raises(Refused, match="no arguments of its own"):
        play.mill.edit_job(one.id, {"folder": "x"})
    player = play.player()
    find = player.take_one()
    player.emit(find, Item("a", '{"path": "x"}'))
    (page,) = play.mill.jobs(stage="page")
    assert play.mill.edit_job(page.id, {"path": "y"}).args == {"path": "y"}
    with pytest.raises(Invalid, match="needs argument 'path'"):
        play.mill.edit_job(page.id, {})


def test_a_task_that_is_not_known_here_is_edited_unchecked(opened: Open) -> None:
    @task(name="elsewhere")
    def elsewhere(ctx: Any, n: int) -> None: ...

    job = opened(elsewhere).mill.enqueue(elsewhere, args={"n": 1}).id
    assert opened().mill.edit_job(job, {"m": "x"}).args == {"m": "x"}


# ---- removing runs


def test_a_run_is_deleted_with_all_that_is_its(opened: Open) -> None:
    play = opened(SITE)
    old = fanned_out(play)
    play.drain(verdicts={"page/a1": Verdict.PERMANENT})
    new = fanned_out(play)
    done = play.mill.delete_runs(ids=[old, new])
    assert (done.counts, done.left) == ({"runs": 1, "jobs": 5}, 1)
    with pytest.raises(NotFound):
        play.mill.run(old)
    assert {job.run for job in play.mill.jobs()} == {new}
    for table in ("gm_run", "gm_attempt", "gm_removal"):
        assert play.value(f"SELECT count(*) FROM {table}") == (table == "gm_run"), table
    subject = play.mill.subject("site", "s")
    assert (subject.last_run, subject.last_good_run, subject.last_good_at) == (None, None, None)
    assert subject.active_run == new


def test_the_last_runs_of_a_subject_are_those_that_are_left(opened: Open) -> None:
    play = opened(plan("one", work=step()))
    ends = [Verdict.COMPLETED, Verdict.COMPLETED, Verdict.PERMANENT]
    runs = []
    for verdict in ends:
        runs.append(play.mill.start("one", "s").id)
        play.clock.advance(1)
        play.drain(verdicts={"work": verdict})
    play.mill.delete_runs(ids=runs[2:])
    subject = play.mill.subject("one", "s")
    assert (subject.last_run, subject.last_state, subject.last_good_run) == (runs[1], "completed", runs[1])
    play.mill.delete_runs(ids=runs[1:2])
    assert play.mill.subject("one", "s").last_good_run == runs[0]
    assert play.mill.start("one", "s").id == runs[2] + 1  # numbers are never given again


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if three jobs were many."""
    monkeypatch.setattr(remove, "BATCH", 2)
    monkeypatch.setattr(remove.remove_jobs, "__defaults__", (2,))


@pytest.mark.usefixtures("small_batches")
def test_a_large_run_goes_at_once_and_its_jobs_follow(opened: Open) -> None:
    play = opened(SITE)
    run = fanned_out(play)
    play.drain(verdicts={"page/a1": Verdict.PERMANENT})
    failed = play.mill.jobs(state="failed")[0].id
    assert play.ledger.do(remove.remove_run, run) == 5
    invariants.check(play.ledger)  # whoever dies here leaves nothing half done
    assert play.mill.jobs() == []
    assert play.mill.errors() == []
    assert play.rows("SELECT * FROM gristmill_jobs") == []
    with pytest.raises(NotFound):
        play.mill.retry_job(failed)
    look_after(play)
    left = 1 if play.ledger.is_sqlite else 0  # the one whose number SQLite would give again
    assert play.value("SELECT count(*) FROM gm_job") == left
    fanned_out(play, "t")
    look_after(play)
    assert play.value("SELECT count(*) FROM gm_removal") == 0
    assert play.value("SELECT count(*) FROM gm_job") == 4


def test_a_purged_subject_stops_and_keeps_its_history(opened: Open) -> None:
    play = opened(SITE)
    fanned_out(play)
    play.drain()
    fanned_out(play)
    waiting = play.mill.start("site", "s", if_active="wait").id
    expected = {"stopped": 2, "cancelled": 3}
    assert play.mill.purge_subject("site", "s", dry_run=True).counts == expected
    assert play.mill.run(waiting).state == "waiting"
    assert play.mill.purge_subject("site", "s", by="me").counts == expected
    assert [run.state for run in play.mill.runs()] == ["cancelled", "cancelled", "completed"]
    assert play.mill.purge_subject("site", "s").total == 0
    with pytest.raises(NotFound, match="site has no subject 'x'"):
        play.mill.purge_subject("site", "x")


def test_a_purge_counts_parts_too(opened: Open) -> None:
    play = opened(SITE)
    fanned_out(play)
    player = play.player()
    player.split(player.take_one(), "1", "2")
    expected = {"stopped": 1, "cancelled": 5}
    assert play.mill.purge_subject("site", "s", dry_run=True).counts == expected
    assert play.mill.purge_subject("site", "s").counts == expected
    assert play.value("SELECT count(*) FROM gm_job WHERE finished_at IS NULL") == 0


def test_a_purge_with_history_leaves_the_subject_as_if_it_had_never_run(opened: Open) -> None:
    play = opened(SITE)
    fanned_out(play, "other")
    fanned_out(play)
    play.drain()
    play.mill.set_subject("site", "s", labels={"tier": "gold"})
    fanned_out(play)
    would = play.mill.purge_subject("site", "s", history=True, dry_run=True)
    assert would.counts == {"stopped": 1, "cancelled": 3, "runs": 2, "jobs": 9}
    done = play.mill.purge_subject("site", "s", history=True)
    assert (done.counts, done.open) == (would.counts, False)
    subject = play.mill.subject("site", "s")
    assert (subject.last_run, subject.active_run, subject.labels) == (None, None, {"tier": "gold"})
    assert [run.subject for run in play.mill.runs()] == ["other"]
    with pytest.raises(NotFound, match="site 's' has no run, or none any more"):
        play.mill.why(pipeline="site", subject="s")
    assert play.mill.start("site", "s").created


def test_a_purge_waits_for_what_is_in_progress(opened: Open) -> None:
    """A worker of the same machine takes it up where the command left it."""
    play = opened(SITE)
    run = fanned_out(play)
    player = play.player()
    (held,) = player.take(1)
    done = play.mill.purge_subject("site", "s", history=True)
    assert done.open
    assert play.mill.audit(verb="subject.purge")[0].open
    later = play.mill.start("site", "s", if_active="wait").id
    player.end(held, Verdict.CANCELLED)
    play.clock.advance(6)
    look_after(play)
    assert [found.id for found in play.mill.runs()] == [later]  # what came after the purge is none of its business
    assert not play.mill.audit(verb="subject.purge")[0].open
    assert run not in {job.run for job in play.mill.jobs()}


# ---- parts


def split_up(play: Play) -> tuple[int, Any]:
    """A job on its own that waits for three parts, and the worker that split it."""
    player = play.player()
    job = play.mill.enqueue(solo).id
    player.split(player.take_one(), "a", "b", "c")
    return job, player


def test_a_bulk_cancel_takes_parts_along(play: Play) -> None:
    job, player = split_up(play)
    part = player.take_one()
    assert play.mill.cancel_jobs(ids=[job]).counts == {"cancelled": 1}
    assert play.mill.job(job).ends_as == "cancelled"
    assert sorted(found.state for found in play.mill.jobs(part_of=job)) == ["cancelled", "cancelled", "in_progress"]
    player.end(part, Verdict.CANCELLED)
    assert play.mill.job(job).state == "cancelled"


def test_a_deleted_job_takes_its_parts_along_and_they_do_not_go_alone(play: Play) -> None:
    job, _ = split_up(play)
    play.drain()
    parts = [found.id for found in play.mill.jobs(part_of=job)]
    assert play.mill.delete_jobs(ids=parts).left == 3
    assert play.mill.delete_jobs(ids=[job]).counts == {"deleted": 1}
    assert play.mill.jobs(archived=None) == []
    play.mill.enqueue(solo)
    look_after(play)
    assert play.value("SELECT count(*) FROM gm_job") == 1


def test_a_removed_run_takes_the_parts_of_its_items_along(opened: Open) -> None:
    play = opened(SITE)
    run = play.mill.start("site", "s").id
    player = play.player()
    play.turn(player, ITEMS, {})
    item = player.take_one()
    player.split(item, "a", "b")
    play.drain()
    assert play.mill.delete_runs(ids=[run]).counts["runs"] == 1
    play.mill.enqueue(solo)
    look_after(play)
    assert play.value("SELECT count(*) FROM gm_job") == 1
    assert play.value("SELECT count(*) FROM gm_removal") == 0


# ---- half-way


def test_what_a_killed_command_began_is_ended_by_a_worker(play: Play) -> None:
    play.mill.enqueue_many(solo, [{}] * 7)
    number = play.ledger.do(bulk.begin, "job.cancel", Choice(task="solo"), by="me")
    later = play.mill.enqueue(solo).id
    look_after(play)
    assert play.unfinished() == 8  # who began it may be at it still
    play.clock.advance(6)
    look_after(play)
    assert [job.id for job in play.mill.jobs(state="queued")] == [later]
    (entry,) = play.mill.audit()
    assert (entry.id, entry.open, entry.done) == (number, False, {"cancelled": 7, "told to stop": 0})


def test_two_that_carry_out_one_order_count_once(play: Play) -> None:
    play.mill.enqueue_many(solo, [{}] * 5)
    number = play.ledger.do(bulk.begin, "job.cancel", Choice(task="solo"), by="me")
    with play.ledger.reading() as tx:
        order = bulk.order(tx, number)
        stale = bulk.Portion(bulk.portion(tx, order).ids[:2], last=False)
    play.ledger.do(bulk.step, number, 0, stale)
    before = invariants.snapshot(play.ledger)
    play.ledger.do(bulk.step, number, 0, stale)  # another had the same idea at the same moment
    assert invariants.snapshot(play.ledger) == before
    assert carry_out(play.ledger, number).done == {"cancelled": 5, "told to stop": 0}


def test_a_large_action_goes_in_batches(play: Play) -> None:
    number = 3 * bulk.BATCH + 1
    play.mill.enqueue_many(solo, [{}] * number)
    assert play.mill.cancel_jobs(queue="default").counts == {"cancelled": number}
    play.clock.advance(1)
    assert play.mill.delete_jobs(state="cancelled").counts == {"deleted": number}
    assert play.mill.jobs(archived=None) == []


def test_a_job_that_a_worker_takes_meanwhile_is_told_to_stop(play: Play) -> None:
    """It was chosen while it was queued."""
    play.mill.enqueue(solo)
    number = play.ledger.do(bulk.begin, "queue.purge", Choice(queue="default"), by="me")
    with play.ledger.reading() as tx:
        chosen = bulk.portion(tx, bulk.order(tx, number))
    job = play.player().take_one()
    play.ledger.do(bulk.step, number, 0, chosen)
    assert play.mill.job(job.id).state == "in_progress"


def test_the_audit_is_filtered(play: Play) -> None:
    play.mill.enqueue(solo)
    play.mill.pause("default", by="anna@one")
    play.clock.advance(60)
    play.mill.resume("default", by="ben@two")
    assert [entry.verb for entry in play.mill.audit()] == ["queue.resume", "queue.pause"]
    assert [entry.who for entry in play.mill.audit(who="anna@*")] == ["anna@one"]
    assert [entry.who for entry in play.mill.audit(verb="*.resume", target="queue def*")] == ["ben@two"]
    first, second = (entry.at for entry in play.mill.audit())
    assert first is not None
    assert second is not None
    assert [entry.who for entry in play.mill.audit(since=first)] == ["ben@two"]
    assert len(play.mill.audit(limit=1)) == 1
    assert (first - second).total_seconds() * SECOND == 60 * SECOND


def test_an_action_that_a_restore_took_away_is_left_alone(opened: Open) -> None:
    play = opened(SITE)
    house = Housekeeping(play.ledger)
    house._taken_over = {4711}  # it had more to do, and then the ledger was replaced
    house.tick(0.0, play.player().id, set, ())
    assert house._taken_over == set()
    with pytest.raises(NotFound, match="action 4711"):
        carry_out(play.ledger, 4711)


def test_a_run_that_was_dropped_while_it_waited_is_no_subjects_last_one(opened: Open) -> None:
    play = opened(SITE)
    runs = []
    for _ in range(2):
        runs.append(play.mill.start("site", "s").id)
        dropped = play.mill.start("site", "s", if_active="wait")
        play.clock.at += SECOND
        play.drain() if len(runs) == 1 else play.mill.cancel_run(dropped.id)
        play.clock.at += SECOND
        play.drain()
    assert play.value("SELECT last_run_id FROM gm_subject") == runs[1]
    play.mill.delete_runs(ids=[runs[1]])
    assert play.value("SELECT last_run_id FROM gm_subject") == runs[1] - 1


def test_parts_of_a_run_that_is_being_removed_are_nobodys(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    play = opened(SITE)
    run = play.mill.start("site", "s").id
    player = play.player()
    job = player.take_one()
    player.split(job, "a", "b")
    play.drain()
    part = play.mill.jobs(part_of=job.id)[0].id
    monkeypatch.setattr(remove, "BATCH", 0)
    play.ledger.do(remove.remove_run, run)
    assert play.mill.jobs() == []
    for verb in (play.mill.job, play.mill.retry_job, lambda number: play.mill.archive_jobs(ids=[number])):
        with pytest.raises(NotFound, match=f"there is no job {part}"):
            verb(part)
    assert play.mill.reconcile(dry_run=True) == []


@pytest.mark.parametrize("text", ["\0", "\udcff"])
def test_text_that_no_database_can_hold_is_refused(opened: Open, text: str) -> None:
    play = opened(SITE)
    for what in ("key", "stage", "task", "error", "subject", "pipeline"):
        with pytest.raises(Invalid, match=what):
            play.mill.cancel_jobs(**{what: text})  # type: ignore[arg-type]
