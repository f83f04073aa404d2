"""`why`: for everything that can hold up a run, a job or a subject, the one reason, and the command that mends it."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from gristmill import Pipeline, task
from gristmill.clock import to_datetime
from gristmill.errors import Invalid, NotFound
from gristmill.execution.locking import Locks, Program
from gristmill.identity import born, host
from gristmill.ledger.finish import Verdict
from gristmill.ledger.locks import Who
from gristmill.model import Reason, Why
from tests.ledger.conftest import Open
from tests.ledger.play import Play, each, plan, solo, step, stubborn
from tests.worker.helpers import eventually


@task(name="mail", queue="mail")
def mail(ctx: object) -> None: ...


def site() -> Pipeline:
    return plan("site", find=step(queue="find"), page=each("find", queue="pages"), total=step("page", queue="find"))


def short(why: Why) -> tuple[Reason, tuple[str, ...]]:
    return why.reason, why.command


@pytest.fixture
def pages(opened: Open) -> Play:
    """Run 1 has found five pages, all ready; a worker is alive that has nothing in its hands."""
    play = opened(site())
    play.mill.start("site", "s")
    player = play.player()
    finding = player.take_one()
    player.emit(finding, *"abcde")
    player.end(finding)
    return play


def run_of(play: Play) -> int:
    return play.mill.runs()[0].id


# ---- a job


def test_a_job_in_a_queue_that_nobody_serves(opened: Open) -> None:
    play = opened(mail)
    job = play.mill.enqueue(mail).id
    why = play.mill.why(job=job)
    assert short(why) == (Reason.NO_WORKER, ("up",))
    assert why.sentence == f"job {job} (mail) is in queue 'mail', which no running worker serves"
    play.player(queues=["default"])
    assert short(play.mill.why(job=job)) == (Reason.NO_WORKER, ("work", "-q", "mail"))
    play.player(queues=["mail", "default"])
    assert play.mill.why(job=job).reason is Reason.IN_LINE


def test_a_worker_whose_lease_is_over_serves_nobody(play: Play) -> None:
    job = play.mill.enqueue(solo).id
    play.player(lease=30)
    play.clock.advance(31)
    assert play.mill.why(job=job).reason is Reason.NO_WORKER


def test_a_job_in_a_paused_queue(play: Play) -> None:
    job = play.mill.enqueue(solo, delay=60).id
    play.mill.pause("default")
    why = play.mill.why(job=job)
    assert short(why) == (Reason.QUEUE_PAUSED, ("queue", "resume", "default"))
    assert why.sentence == f"job {job} (solo) is in queue 'default', which is paused"


def test_a_job_that_waits_for_its_retry(play: Play) -> None:
    job = play.mill.enqueue(stubborn).id
    player = play.player()
    player.end(player.take_one(), Verdict.ERROR, reason="OSError: no route\nto host", error_class="OSError")
    why = play.mill.why(job=job)
    assert short(why) == (Reason.DELAYED, ("job", "retry", str(job)))
    assert why.at == to_datetime(play.clock.at + 10_000_000)
    assert why.sentence == f"job {job} (stubborn) is not to run before 2023-11-14 22:13:30 UTC, after: OSError: no route"
    play.mill.retry_job(job)  # as the command says
    assert play.mill.why(job=job).reason is Reason.IN_LINE


def test_a_delay_is_the_reason_also_where_nobody_works(play: Play) -> None:
    delayed = play.mill.enqueue(solo, delay=60).id
    why = play.mill.why(job=delayed)
    assert (short(why), why.at) == ((Reason.DELAYED, ("up",)), to_datetime(play.clock.at + 60_000_000))
    assert why.sentence == (
        f"job {delayed} (solo) is not to run before 2023-11-14 22:14:20 UTC;"
        " and then it needs a worker: none that is running serves queue 'default'"
    )
    retrying = play.mill.enqueue(stubborn).id
    player = play.player(lease=5)
    player.end(player.take_one(), Verdict.ERROR, reason="OSError: no route")
    play.clock.advance(6)
    assert "before 2023-11-14 22:13:30 UTC, after: OSError: no route; and" in play.mill.why(job=retrying).sentence
    play.clock.advance(60)
    assert short(play.mill.why(job=delayed)) == (Reason.NO_WORKER, ("up",))


def test_a_job_that_is_due_is_as_good_as_in_line(play: Play) -> None:
    job = play.mill.enqueue(solo, delay=5).id
    play.mill.enqueue(solo)
    play.player()
    assert play.mill.why(job=job).reason is Reason.DELAYED
    play.clock.advance(5)
    assert play.mill.why(job=job).sentence == f"job {job} (solo) waits behind 1 ready job of queue 'default'"


def test_a_job_behind_others(opened: Open) -> None:
    play = opened(mail)
    play.player()
    first, *_, last = play.mill.enqueue_many(solo, [{}] * 1200)
    play.mill.enqueue(mail)  # another queue
    play.mill.enqueue_many(solo, [{}] * 3, priority="low")
    play.clock.advance(1)
    play.mill.enqueue_many(solo, [{}] * 2, priority="high")
    why = play.mill.why(job=last)
    assert short(why) == (Reason.IN_LINE, ())
    assert why.sentence == f"job {last} (solo) waits behind 1,201 ready jobs of queue 'default'"
    assert play.mill.why(job=first).sentence.endswith("behind 2 ready jobs of queue 'default'")
    next_one = play.mill.jobs(queue="default", limit=2)[1].id
    assert play.mill.why(job=next_one).sentence == (
        f"job {next_one} (solo) is the next of queue 'default', as soon as a worker has room"
    )


def test_a_job_that_waits_for_a_lock(play: Play) -> None:
    first, second = play.mill.enqueue_many(solo, [{}] * 2)
    player = play.player()
    player.take()
    of_process = Locks(play.ledger)
    with of_process.lock("page", "home", 30, LockParty(first, player.id)):
        waiting = threading.Thread(target=take_and_leave, args=(of_process, LockParty(second, player.id)))
        waiting.start()
        why = eventually(lambda: (found := play.mill.why(job=second)).reason is Reason.LOCKED and found)
        assert why.command == ("why", "job", str(first))
        assert (
            f"job {second} (solo) on worker {player.id} on elsewhere waits for the lock page/home since 20" in why.sentence
        )
        assert f" UTC: locked by job {first} (worker {player.id} on " in why.sentence
        assert play.mill.why(job=first).reason is Reason.IN_PROGRESS
        play.mill.cancel_job(second)
        assert play.mill.why(job=second).reason is Reason.STOPPING
    waiting.join(30)
    of_process.close()


class LockParty(Program):
    def __init__(self, job: int, worker: int) -> None:
        self.who = Who(job, 1, worker)


def take_and_leave(locks: Locks, party: LockParty) -> None:
    with locks.lock("page", "home", 30, party):
        pass


def test_a_job_in_progress(play: Play) -> None:
    job = play.mill.enqueue(solo).id
    player = play.player()
    since = to_datetime(play.clock.at)
    player.take_one()
    play.clock.advance(5)
    play.mill.pause("default")  # which does not matter to what runs
    why = play.mill.why(job=job)
    assert (short(why), why.at) == ((Reason.IN_PROGRESS, ()), since)
    assert why.sentence == (
        f"job {job} (solo) is in progress: worker {player.id} on elsewhere has it since 2023-11-14 22:13:20 UTC"
    )


def test_a_job_of_a_worker_that_fell_silent(play: Play) -> None:
    job = play.mill.enqueue(solo).id
    player = play.player(lease=30)
    player.take_one()
    play.clock.advance(31)
    why = play.mill.why(job=job)
    assert short(why) == (Reason.WORKER_SILENT, ("reconcile",))
    assert why.sentence.endswith(f"worker {player.id} on elsewhere, which was last heard of at 2023-11-14 22:13:20 UTC")
    play.mill.reconcile()  # as the command says
    assert play.mill.why(job=job).reason is Reason.NO_WORKER


def test_a_worker_on_this_machine_whose_process_is_gone_is_silent_at_once(play: Play) -> None:
    job = play.mill.enqueue(solo).id
    play.player().take_one()
    before = f"{str(born(os.getpid())).rpartition(':')[0]}:long ago"
    play.change("UPDATE gm_worker SET host = :host, pid = :pid, born = :born", host=host(), pid=os.getpid(), born=before)
    assert play.mill.why(job=job).reason is Reason.WORKER_SILENT


def test_a_job_that_was_told_to_stop(play: Play) -> None:
    job = play.mill.enqueue(solo).id
    play.player().take_one()
    play.mill.cancel_job(job)
    assert short(play.mill.why(job=job)) == (Reason.STOPPING, ())


@pytest.mark.parametrize(
    ("verdict", "state", "again"),
    [(Verdict.COMPLETED, "completed", False), (Verdict.PERMANENT, "failed", True), (Verdict.SKIPPED, "skipped", False)],
)
def test_a_job_that_ended(play: Play, verdict: Verdict, state: str, again: bool) -> None:
    job = play.mill.enqueue(solo).id
    player = play.player()
    player.end(player.take_one(), verdict, reason="so it was")
    why = play.mill.why(job=job)
    assert short(why) == (Reason.FINISHED, ("job", "retry", str(job)) if again else ())
    said = "" if verdict is Verdict.COMPLETED else ": so it was"
    assert why.sentence == f"job {job} (solo) ended {state} at 2023-11-14 22:13:20 UTC{said}"


def test_a_failed_item_of_an_ended_run_can_be_retried(pages: Play) -> None:
    pages.drain(verdicts={"page/a": Verdict.PERMANENT})
    (job,) = pages.mill.jobs(state="failed")
    assert short(pages.mill.why(job=job.id)) == (Reason.FINISHED, ("job", "retry", str(job.id)))


def test_a_queued_job_of_a_run_that_is_being_stopped(pages: Play) -> None:
    pages.change("UPDATE gm_run SET stop = 5")  # as between the flag and the sweep
    job = pages.mill.jobs(state="queued")[0].id
    assert pages.mill.why(job=job).reason is Reason.STOPPING
    assert pages.mill.why(run=run_of(pages)).reason is Reason.STOPPING
    pages.change("UPDATE gm_run SET stop = NULL")


# ---- a run


def test_a_run_that_nobody_works_on(opened: Open) -> None:
    play = opened(site())
    run = play.mill.start("site", "s").id
    (job,) = play.mill.jobs()
    why = play.mill.why(run=run)
    assert (why.target, *short(why)) == (f"run {run}", Reason.NO_WORKER, ("up",))
    assert why.sentence == f"job {job.id} (site.find) is in queue 'find', which no running worker serves"


def test_a_run_whose_queue_is_paused(pages: Play) -> None:
    pages.mill.pause("pages")
    why = pages.mill.why(run=run_of(pages))
    assert short(why) == (Reason.QUEUE_PAUSED, ("queue", "resume", "pages"))
    assert why.sentence.startswith("5 of 5 items of stage 'page' are left: job ")
    assert why.sentence.endswith("('a') is in queue 'pages', which is paused")


def test_a_run_whose_items_stand_behind_others(pages: Play) -> None:
    assert pages.mill.why(run=run_of(pages)).sentence.endswith(
        "('a') is the next of queue 'pages', as soon as a worker has room"
    )


def test_a_run_whose_next_stage_waits_for_items(pages: Play) -> None:
    player = pages.player()
    taken = player.take(4)
    for page in taken[:2]:
        player.end(page)
    pages.mill.pause("pages")  # nothing is wrong as long as something moves
    why = pages.mill.why(run=run_of(pages))
    assert short(why) == (Reason.STAGE_WAITS, ())
    assert why.sentence == (
        "stage 'total' waits for 3 of 5 items of 'page': 2 in progress, the oldest is"
        f" job {taken[2].id} ('c'), since 2023-11-14 22:13:20 UTC"
    )


def test_items_that_are_still_being_found_are_so_far(opened: Open) -> None:
    play = opened(site())
    run = play.mill.start("site", "s").id
    player = play.player()
    finding = player.take_one()
    assert play.mill.why(run=run).reason is Reason.IN_PROGRESS
    player.emit(finding, "a", "b")
    why = play.mill.why(run=run)
    assert why.reason is Reason.STAGE_WAITS
    assert "waits for 2 of 2 items so far of 'page': 1 in progress" in why.sentence


def test_a_stage_may_wait_for_several(opened: Open) -> None:
    flow = plan("two", find=step(), page=each("find"), image=each("find"), total=step("page", "image"))
    play = opened(flow)
    run = play.mill.start("two", "s").id
    player = play.player()
    finding = player.take_one()
    player.emit(finding, "a", "b", "c")
    player.end(finding)
    player.end(player.take(6)[0])
    assert "stage 'total' waits for 5 of 6 items of 'page' and 'image': 5 in" in play.mill.why(run=run).sentence


def test_a_run_in_its_last_stage_is_just_in_progress(opened: Open) -> None:
    play = opened(plan("one", work=step()))
    run = play.mill.start("one", "s").id
    play.player().take_one()
    assert short(play.mill.why(run=run)) == (Reason.IN_PROGRESS, ())


def test_a_run_whose_last_items_wait_for_their_retry(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find", retries=3), total=step("page")))
    run = play.mill.start("site", "s").id
    play.drain(items={"find": ["a", "b"]}, verdicts={"page/b": Verdict.ERROR})
    job = play.mill.jobs(state="queued")[0]
    if job.run_at is None:
        pytest.fail("a retry without delay would not show anything")
    why = play.mill.why(run=run)
    assert (*short(why), why.at) == (Reason.DELAYED, ("job", "retry", str(job.id)), job.run_at)
    assert why.sentence.startswith("1 of 2 items of stage 'page' are left: job ")


def test_what_needs_a_person_comes_before_what_passes_by_itself(opened: Open) -> None:
    flow = plan("two", one=step(queue="first", retries=1), other=step(queue="second"))
    play = opened(flow)
    run = play.mill.start("two", "s").id
    player = play.player()
    (job,) = player.take(1, queues=["first"])
    player.end(job, Verdict.LATER, delay=60.0)
    play.mill.pause("second")
    assert play.mill.why(run=run).reason is Reason.QUEUE_PAUSED
    play.mill.resume("second")
    assert play.mill.why(run=run).reason is Reason.IN_LINE
    player.end(player.take_one())
    assert play.mill.why(run=run).reason is Reason.DELAYED


def test_a_run_whose_worker_fell_silent(pages: Play) -> None:
    player = pages.player(lease=30)
    player.take()
    assert pages.mill.why(run=run_of(pages)).reason is Reason.STAGE_WAITS
    pages.clock.advance(31)
    why = pages.mill.why(run=run_of(pages))
    assert short(why) == (Reason.WORKER_SILENT, ("reconcile",))
    assert f"held by worker {player.id}" in why.sentence


def test_a_run_behind_another(opened: Open) -> None:
    play = opened(site())
    active = play.mill.start("site", "s").id
    waiting = play.mill.start("site", "s", if_active="wait").id
    why = play.mill.why(run=waiting)
    assert short(why) == (Reason.BEHIND_RUN, ("why", "run", str(active)))
    assert why.sentence == f"run {waiting} waits behind run {active} of the same subject 's'"


def test_a_run_that_is_being_stopped(pages: Play) -> None:
    player = pages.player(lease=300)
    player.take(1)
    run = run_of(pages)
    pages.mill.cancel_run(run, reason="a mistake")
    why = pages.mill.why(run=run)
    assert short(why) == (Reason.STOPPING, ())
    assert why.sentence == f"run {run} is being stopped, because: a mistake; 1 job of it not ended yet"
    pages.clock.advance(301)
    assert short(pages.mill.why(run=run)) == (Reason.WORKER_SILENT, ("reconcile",))


@pytest.mark.parametrize(
    ("verdicts", "state", "said", "command"),
    [
        ({}, "completed", "", ()),
        ({"page/a": Verdict.PERMANENT}, "completed_with_errors", ": 1 of 5 failed in 'page'", ("run", "retry")),
        ({"total": Verdict.WITH_ERRORS}, "completed_with_errors", "", ("run", "retry", "--stage", "total")),
        ({"total": Verdict.PERMANENT}, "failed", ": stage 'total': ", ("run", "retry")),
    ],
)
def test_a_run_that_ended(pages: Play, verdicts: Any, state: str, said: str, command: tuple[str, ...]) -> None:
    pages.drain(verdicts=verdicts)
    why = pages.mill.why(run=run_of(pages))
    assert short(why) == (Reason.FINISHED, (*command[:2], str(run_of(pages)), *command[2:]) if command else ())
    assert short(pages.mill.why(pipeline="site", subject="s")) == short(why)
    assert f"ended {state} at 2023-11-14 22:13:20 UTC{said}" in why.sentence


def test_a_run_that_nothing_moves_on(pages: Play) -> None:
    pages.consistent = False
    pages.change("DELETE FROM gm_job WHERE state = 0")
    assert short(pages.mill.why(run=run_of(pages))) == (Reason.INCONSISTENT, ("reconcile",))


# ---- a subject


def test_a_subject_is_where_its_active_run_is(pages: Play) -> None:
    pages.mill.start("site", "s", if_active="wait")
    pages.mill.pause("pages")
    why = pages.mill.why(pipeline="site", subject="s")
    assert (why.target, why.reason) == ("subject s", Reason.QUEUE_PAUSED)


def test_a_subject_without_an_active_run_is_where_its_last_one_ended(pages: Play) -> None:
    run = run_of(pages)
    pages.drain()
    why = pages.mill.why(pipeline="site", subject="s")
    assert why.reason is Reason.FINISHED
    assert why.sentence.startswith(f"run {run} ended completed")


# ---- asking wrongly


def test_what_is_not_there_is_not_found(pages: Play) -> None:
    mill = pages.mill
    with pytest.raises(NotFound, match="there is no run 99"):
        mill.why(run=99)
    with pytest.raises(NotFound, match="there is no job 9999"):
        mill.why(job=9999)
    with pytest.raises(NotFound, match="pipeline 'site' has no subject 't'; there are: s"):
        mill.why(pipeline="site", subject="t")
    with pytest.raises(NotFound, match="no run of a pipeline 'sitte' was ever started; did you mean 'site'"):
        mill.why(pipeline="sitte", subject="s")


@pytest.mark.parametrize("asked", [{}, {"run": 1, "job": 1}, {"subject": "s"}, {"run": 1, "pipeline": "site"}])
def test_one_thing_is_asked_at_a_time(play: Play, asked: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="a run, or a job, or a pipeline and a subject"):
        play.mill.why(**asked)


# ---- a job that waits for its parts


def test_a_job_waits_for_so_many_of_its_parts(opened: Open) -> None:
    play = opened(site())
    player = play.player()
    number = play.mill.enqueue(solo).id
    player.split(player.take_one(), "a", "b", "c")
    why = play.mill.why(job=number)
    part = play.mill.jobs(part_of=number)[-1].id
    named = f"job {part} ('a' of job {number})"
    next_one = f"{named} is the next of queue 'default', as soon as a worker has room"
    assert (why.reason, why.target) == (Reason.IN_LINE, f"job {number}")
    assert why.sentence == f"job {number} (solo) waits for 3 of 3 parts: {next_one}"
    play.mill.pause("default")
    assert short(play.mill.why(job=number)) == (Reason.QUEUE_PAUSED, ("queue", "resume", "default"))
    play.mill.resume("default")
    held = player.take_one()
    since = to_datetime(play.clock.at)
    why = play.mill.why(job=number)
    assert short(why) == (Reason.PARTS, ())
    assert why.sentence == (
        f"job {number} (solo) waits for 3 of 3 parts: 1 in progress, the oldest is {named},"
        f" since {since:%Y-%m-%d %H:%M:%S} UTC"
    )
    player.complete(held, *player.take())
    assert play.mill.why(job=number).reason is Reason.IN_LINE


def test_a_job_that_ends_with_its_last_part_is_stopping(opened: Open) -> None:
    play = opened(site())
    player = play.player()
    number = play.mill.enqueue(solo).id
    player.split(player.take_one(), "a", "b")
    part = player.take_one()
    play.mill.cancel_job(number)
    why = play.mill.why(job=number)
    assert (why.reason, why.sentence) == (
        Reason.STOPPING,
        f"job {number} (solo) will be cancelled as soon as 1 of 2 parts have stopped",
    )
    assert play.mill.why(job=part.id).reason is Reason.STOPPING
    player.end(part, Verdict.PERMANENT, reason="no")
    assert short(play.mill.why(job=part.id)) == (Reason.FINISHED, ())


def test_a_run_whose_item_waits_for_parts_has_their_reason(pages: Play) -> None:
    player = pages.player()
    *others, item = player.take()
    player.complete(*others)
    player.split(item, "x", "y")
    why = pages.mill.why(run=run_of(pages))
    assert why.reason is Reason.IN_LINE
    assert f"job {item.id} ('{item.key}') waits for 2 of 2 parts" in why.sentence
    assert "1 of 5 items of stage 'page' are left" in why.sentence
    pages.mill.pause("default")
    assert short(pages.mill.why(run=run_of(pages))) == (Reason.QUEUE_PAUSED, ("queue", "resume", "default"))
    pages.mill.resume("default")
    player.take_one()
    assert pages.mill.why(run=run_of(pages)).reason is Reason.STAGE_WAITS
