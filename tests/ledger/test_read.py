"""The read models: what the command line, the API and the pages show is what the rows say."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gristmill import Pipeline, task
from gristmill.clock import to_datetime
from gristmill.errors import Invalid, NotFound
from gristmill.ledger import infos, read
from gristmill.ledger.finish import Verdict
from gristmill.model import to_json
from tests.ledger.conftest import Open
from tests.ledger.play import Play, each, plan, solo, step


@task(name="mail", queue="mail")
def mail(ctx: object) -> None: ...


def site() -> Pipeline:
    return plan("site", find=step(queue="find"), page=each("find", queue="pages"), total=step("page"))


def test_runs_are_listed_newest_first_with_their_stages(opened: Open) -> None:
    play = opened(site(), plan("other", one=step()))
    ids = [play.mill.start("site", subject).id for subject in "abc"]
    assert [run.id for run in play.mill.runs()] == ids[::-1]
    assert [run.id for run in play.mill.runs(limit=2)] == ids[:0:-1]
    assert [stage.name for stage in play.mill.runs()[0].stages] == ["find", "page", "total"]


def test_runs_are_filtered(opened: Open) -> None:
    play = opened(site(), plan("other", one=step()))
    first = play.mill.start("other", "a")
    play.drain()
    play.clock.advance(60)
    second, third = play.mill.start("site", "a"), play.mill.start("site", "b")

    def found(**where: object) -> list[int]:
        return [run.id for run in play.mill.runs(**where)]  # type: ignore[arg-type]

    now = to_datetime(play.clock.at)
    assert now is not None
    assert found(pipeline="site") == [third.id, second.id]
    assert found(subject="a") == [second.id, first.id]
    assert found(state="completed") == [first.id]
    assert found(since=now - timedelta(seconds=30)) == [third.id, second.id]
    assert found(pipeline="site", subject="b", state="queued") == [third.id]
    assert found(pipeline="nothing") == []
    with pytest.raises(Invalid, match="unknown state 'complete'; did you mean 'completed'"):
        found(state="complete")


def test_jobs_are_filtered(opened: Open) -> None:
    play = opened(site(), mail)
    run = play.mill.start("site", "s")
    play.drain(items={"find": ["a", "b"]}, verdicts={"page/b": Verdict.PERMANENT})
    letter = play.mill.enqueue(mail)

    def found(**where: object) -> list[str]:
        return [f"{job.stage or job.task}/{job.key or ''}" for job in play.mill.jobs(**where)]  # type: ignore[arg-type]

    assert found(run=run.id) == ["total/", "page/b", "page/a", "find/"]
    assert found(stage="page") == ["page/b", "page/a"]
    assert found(subject="s", state="failed") == ["page/b"]
    assert found(queue="mail") == found(task="mail") == ["mail/"]
    assert found(task="site.page") == ["page/b", "page/a"]
    assert found(limit=1) == ["mail/"]
    assert play.mill.job(letter.id).subject is None


def test_things_that_are_not_there_are_said_to_be_so(opened: Open) -> None:
    play = opened(site())
    run = play.mill.start("site", "s")
    for look in (lambda: play.mill.run(999_999), lambda: play.mill.job(999_999), lambda: play.mill.attempts(999_999)):
        with pytest.raises(NotFound, match="999999"):
            look()
    with pytest.raises(NotFound, match="did you mean 'page'"):
        list(play.mill.results(run.id, "pages"))
    with pytest.raises(NotFound, match="did you mean 'page'"):
        run.stage("pgae")
    with pytest.raises(Invalid, match="many items"):
        run.result("page")


def test_a_run_shows_what_its_plain_stages_returned(opened: Open) -> None:
    play = opened(site())
    run = play.mill.start("site", "s")
    player = play.player()
    player.complete(player.take_one(), result='{"found":0}')
    assert play.run(run).result("find") == {"found": 0}
    assert play.run(run).result("total") is None


def test_results_are_streamed_in_pages_in_the_order_of_keys(opened: Open) -> None:
    play = opened(site())
    run = play.mill.start("site", "s")
    player = play.player()
    keys = [f"k{n:03}" for n in range(25)]
    play.turn(player, {"find": keys[::-1]}, {})
    for job in player.take():
        player.complete(job, result=f'"{job.key}"')
    for page in (1, 7, 25, 100):
        assert list(read.results(play.mill._read, run.id, "page", page)) == [(key, key) for key in keys]


def test_keys_have_one_order_on_both_databases(opened: Open) -> None:
    play = opened(site())
    run = play.mill.start("site", "s")
    keys = ["z", "é", "日本", "a", "Z", "a/b", "a b", "\N{PAGE FACING UP}"]
    play.drain(items={"find": keys})
    wanted = sorted(keys, key=str.encode)
    assert [key for key, _ in read.results(play.mill._read, run.id, "page", page=2)] == wanted


def test_results_leave_out_what_did_not_complete(opened: Open) -> None:
    play = opened(site())
    run = play.mill.start("site", "s")
    verdicts = {"page/b": Verdict.PERMANENT, "page/c": Verdict.SKIPPED, "page/d": Verdict.WITH_ERRORS}
    play.drain(items={"find": list("abcd")}, verdicts=verdicts)
    assert [key for key, _ in play.mill.results(run.id, "page")] == ["a", "d"]


def test_queues_show_what_is_in_them(opened: Open) -> None:
    play = opened(mail)
    created = to_datetime(play.clock.at)
    play.mill.enqueue_many(mail, [{}] * 4)
    play.clock.advance(10)
    play.mill.enqueue(mail, delay=60)
    player = play.player(queues=["mail"])
    player.take(1)
    play.mill.set_queue("mail", weight=2.5)
    play.mill.pause("mail")
    (queue,) = (queue for queue in play.mill.queues() if queue.name == "mail")
    assert (queue.ready, queue.delayed, queue.in_progress, queue.workers) == (3, 1, 1, 1)
    assert (queue.weight, queue.paused, queue.oldest) == (2.5, True, created)


def test_workers_show_how_much_they_hold(play: Play) -> None:
    play.mill.enqueue_many(solo, [{}] * 3)
    busy, idle = play.player(), play.player()
    busy.take()
    assert [(worker.id, worker.holding) for worker in play.mill.workers()] == [(idle.id, 0), (busy.id, 3)]


def test_the_status_counts_runs_by_state(opened: Open) -> None:
    play = opened(plan("one", work=step()))
    play.mill.start("one", "a")
    play.drain()
    active = play.mill.start("one", "b")
    waiting = play.mill.start("one", "b", if_active="wait")
    status = play.mill.status()
    assert status.runs == {"completed": 1, "queued": 1, "waiting": 1}
    assert [run.id for run in status.active] == [waiting.id, active.id]
    assert play.mill.status(ended=False).runs == {"queued": 1, "waiting": 1}


def test_a_model_becomes_json(opened: Open) -> None:
    play = opened(site())
    run = to_json(play.mill.start("site", "s", priority="high"))
    assert {
        "id",
        "pipeline",
        "subject",
        "state",
        "priority",
        "epoch",
        "created_at",
        "finished_at",
        "error",
        "stages",
    } <= run.keys()
    assert run["created_at"] == "2023-11-14T22:13:20.000Z"
    assert {"name", "state", "total", "completed", "failed", "skipped", "cancelled"} <= run["stages"][0].keys()
    job = to_json(play.mill.jobs()[0])
    assert {"id", "run", "stage", "key", "task", "queue", "state", "attempt", "error"} <= job.keys()


def test_what_a_worker_must_know_is_in_the_rows(opened: Open) -> None:
    play = opened(site())
    run = play.mill.start("site", "s", priority="low")
    job = play.player().take_one()
    with play.ledger.reading() as tx:
        tasks = infos.tasks(tx, [job.task_id])
        runs = infos.runs(tx, [run.id])
        stages = infos.stages(tx, [job.stage_id or 0])
    assert tasks[job.task_id].name == "site.find"
    assert set(tasks[job.task_id].spec) >= {"timeout", "retries", "async"}
    assert (runs[run.id].pipeline, runs[run.id].subject, runs[run.id].priority) == ("site", "s", 2)
    assert (stages[job.stage_id or 0].name, stages[job.stage_id or 0].targets) == ("find", [("page", "site.page")])


def test_a_look_is_consistent_and_never_waits_for_writers(opened: Open) -> None:
    play = opened(site())
    run = play.mill.start("site", "s")
    with play.ledger.reading() as tx:
        before = read.run(tx, run.id)
        play.drain(items={"find": ["a"]})
        assert read.run(tx, run.id) == before
    assert play.run(run).state == "completed"
