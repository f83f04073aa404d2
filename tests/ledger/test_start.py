"""Starting runs: one active run per subject, one that waits behind it, and what the others get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gristmill import Limit, Pipeline, task
from gristmill.errors import Invalid, NotConfirmed, Refused
from gristmill.ledger.finish import Verdict
from tests.ledger import invariants
from tests.ledger.conftest import Open
from tests.ledger.play import Play, each, plan, solo, step


def site() -> Pipeline:
    return plan("site", find=step(), page=each("find"), total=step("page"))


def states(play: Play) -> dict[int, str]:
    return {run.id: run.state for run in play.mill.runs()}


def test_a_run_starts_queued_with_its_first_stages_open(opened: Open) -> None:
    play = opened(site())
    run = play.mill.start("site", "s", args={}, priority="low")
    assert (run.state, run.priority, run.epoch, run.created, run.terminal) == ("queued", "low", 1, True, False)
    assert play.stage_states(run.id) == {"find": "sealed", "page": "open", "total": "waiting"}
    assert [job.stage for job in play.mill.jobs(run=run.id)] == ["find"]


def test_the_plan_is_rows_and_a_newer_pipeline_does_not_change_a_run(opened: Open) -> None:
    old = opened(plan("site", one=step(), two=step("one")))
    run = old.mill.start("site", "s")
    new = opened(plan("site", one=step(), three=step("one"), four=step("three")))
    new.drain()
    assert new.ran == ["one", "two"]
    assert new.mill.run(run.id).state == "completed"


def test_subjects_and_pipelines_do_not_get_in_each_others_way(opened: Open) -> None:
    play = opened(site(), plan("other", one=step()))
    runs = [play.mill.start(pipeline, subject) for pipeline in ("site", "other") for subject in ("s", "t")]
    assert all(run.created for run in runs)
    play.drain()
    assert set(states(play).values()) == {"completed"}


# ---- join


def test_join_answers_with_the_active_run(opened: Open) -> None:
    play = opened(site())
    first = play.mill.start("site", "s")
    second = play.mill.start("site", "s", if_active="join")
    assert (second.id, second.created) == (first.id, False)


def test_join_raises_the_priority_of_the_run_and_of_its_queued_jobs(opened: Open) -> None:
    play = opened(site())
    run = play.mill.start("site", "s", priority="low")
    player = play.player()
    find = player.take_one()
    player.emit(find, "a", "b")
    assert play.mill.start("site", "s", priority="high").priority == "high"
    player.emit(find, "c")
    assert {job.priority for job in play.mill.jobs(run=run.id, state="queued")} == {"high"}


def test_join_never_lowers_a_priority(opened: Open) -> None:
    play = opened(site())
    run = play.mill.start("site", "s", priority="high")
    assert play.mill.start("site", "s", priority="low").priority == "high"
    assert {job.priority for job in play.mill.jobs(run=run.id)} == {"high"}


def test_after_the_end_there_is_nothing_to_join(opened: Open) -> None:
    play = opened(site())
    first = play.mill.start("site", "s")
    play.drain()
    second = play.mill.start("site", "s")
    assert second.created
    assert second.id > first.id


# ---- wait


def test_wait_makes_one_follow_up_that_starts_when_the_run_ends(opened: Open) -> None:
    play = opened(plan("one", work=step()))
    first = play.mill.start("one", "s")
    second = play.mill.start("one", "s", if_active="wait")
    assert (second.state, second.created, play.mill.jobs(run=second.id)) == ("waiting", True, [])
    player = play.player()
    player.complete(player.take_one())
    assert states(play) == {first.id: "completed", second.id: "queued"}
    assert [job.run_id for job in player.take()] == [second.id]


@pytest.mark.parametrize("verdict", [Verdict.COMPLETED, Verdict.PERMANENT, Verdict.END_RUN, Verdict.SKIPPED])
def test_a_follow_up_starts_however_the_run_ends(opened: Open, verdict: Verdict) -> None:
    play = opened(plan("one", work=step()))
    play.mill.start("one", "s")
    second = play.mill.start("one", "s", if_active="wait")
    player = play.player()
    player.end(player.take_one(), verdict)
    assert play.run(second).state == "queued"


def test_a_follow_up_starts_when_the_run_is_cancelled(opened: Open) -> None:
    play = opened(plan("one", work=step()))
    first = play.mill.start("one", "s")
    second = play.mill.start("one", "s", if_active="wait")
    play.mill.cancel_run(first.id)
    assert states(play) == {first.id: "cancelled", second.id: "queued"}


def test_asked_to_wait_again_the_newest_arguments_and_the_highest_priority_count(opened: Open) -> None:
    pipeline = Pipeline("args")

    @pipeline.stage
    def work(ctx: object, n: int = 0) -> None: ...

    play = opened(pipeline)
    play.mill.start("args", "s")
    waiting = play.mill.start("args", "s", args={"n": 1}, if_active="wait", priority="high")
    again = play.mill.start("args", "s", args={"n": 2}, if_active="wait", priority="low")
    assert (again.id, again.created, again.args, again.priority) == (waiting.id, False, {"n": 2}, "high")
    play.drain()
    assert [job.priority for job in play.mill.jobs(run=waiting.id)] == ["high"]


_PLANNED = (
    "SELECT g.name, l.key, g.pool > 1 AS needs FROM gm_stage g LEFT JOIN gm_limit l ON l.id = g.limit_id"
    " WHERE g.run_id = {} ORDER BY g.position"
)


def test_asked_to_wait_again_the_keys_of_limits_and_the_needs_are_the_newest_too(opened: Open) -> None:
    pipeline = Pipeline("args")

    @pipeline.stage(limit=Limit("host", per="host", at_once=1))
    def work(ctx: object, host: str) -> None: ...

    play = opened(pipeline)
    play.mill.start("args", "s", args={"host": "x"})
    waiting = play.mill.start("args", "s", args={"host": "old"}, if_active="wait")
    again = play.mill.start("args", "s", args={"host": "new"}, if_active="wait", needs=["gpu"])
    assert (again.id, again.args) == (waiting.id, {"host": "new"})
    assert [tuple(row) for row in play.rows(_PLANNED.format(waiting.id))] == [("work", "new", True)]
    play.mill.start("args", "s", args={"host": "new"}, if_active="wait")
    assert [tuple(row) for row in play.rows(_PLANNED.format(waiting.id))] == [("work", "new", False)]
    play.drain()
    assert play.run(waiting).state == "completed"


def test_asked_to_wait_again_by_newer_code_its_edges_count(opened: Open) -> None:
    """The same stages in another order: those who asked before have no job yet that would be of the old one."""
    old = opened(plan("two", a=step(), b=step("a")))
    old.mill.start("two", "s")
    waiting = old.mill.start("two", "s", if_active="wait")
    new = opened(plan("two", a=step(), b=step()))
    new.mill.start("two", "s", if_active="wait")
    old.drain()
    assert new.run(waiting).state == "completed"
    edges = "SELECT count(*) FROM gm_edge e JOIN gm_stage g ON g.id = e.upstream_id WHERE g.run_id = {}"
    assert new.value(edges.format(waiting.id)) == 0


def test_follow_ups_start_one_after_the_other(opened: Open) -> None:
    play = opened(plan("one", work=step()))
    runs = [play.mill.start("one", "s")]
    for _ in range(3):
        runs.append(play.mill.start("one", "s", if_active="wait"))
        player = play.player()
        player.complete(player.take_one())
    assert [play.run(run).state for run in runs] == ["completed"] * 3 + ["queued"]


def test_a_waiting_run_can_be_cancelled(opened: Open) -> None:
    play = opened(plan("one", work=step()))
    first = play.mill.start("one", "s")
    second = play.mill.start("one", "s", if_active="wait")
    assert play.mill.cancel_run(second.id).state == "cancelled"
    play.drain()
    assert states(play) == {first.id: "completed", second.id: "cancelled"}
    assert play.ran == ["work"]


# ---- refuse


def test_refuse_is_an_error_and_changes_nothing(opened: Open) -> None:
    play = opened(site())
    first = play.mill.start("site", "s")
    before = invariants.snapshot(play.ledger)
    with pytest.raises(Refused, match=f"has an active run already: {first.id}"):
        play.mill.start("site", "s", if_active="refuse")
    assert invariants.snapshot(play.ledger) == before


def test_refuse_starts_a_run_where_none_is_active(opened: Open) -> None:
    play = opened(plan("one", work=step()))
    play.mill.start("one", "s", if_active="refuse")
    play.drain()
    assert play.mill.start("one", "s", if_active="refuse").created


# ---- a run that is being stopped


@pytest.mark.parametrize("if_active", ["join", "wait"])
def test_nobody_joins_a_run_that_is_being_stopped(opened: Open, if_active: str) -> None:
    play = opened(plan("one", work=step()))
    first = play.mill.start("one", "s")
    player = play.player()
    job = player.take_one()
    play.mill.cancel_run(first.id)
    second = play.mill.start("one", "s", if_active=if_active)
    assert (second.state, second.id != first.id) == ("waiting", True)
    player.end(job, Verdict.CANCELLED)
    assert states(play) == {first.id: "cancelled", second.id: "queued"}


def test_a_run_that_is_being_stopped_still_refuses(opened: Open) -> None:
    play = opened(plan("one", work=step()))
    first = play.mill.start("one", "s")
    play.player().take()
    play.mill.cancel_run(first.id)
    with pytest.raises(Refused):
        play.mill.start("one", "s", if_active="refuse")


# ---- bad input changes nothing


DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]

BAD_INPUT: list[tuple[Callable[[Any], Any], str]] = [
    (lambda mill: mill.start("sight", "s"), "unknown pipeline 'sight'; did you mean 'site'"),
    (lambda mill: mill.start("site", ""), "subject must not be empty"),
    (lambda mill: mill.start("site", "s" * 501), "the limit is 500"),
    (lambda mill: mill.start("site", "a\nb"), "cannot be printed"),
    (lambda mill: mill.start("site", 7), "subject must be text"),
    (lambda mill: mill.start("site", "s", args={"x": 1}), "takes no argument 'x'"),
    (lambda mill: mill.start("site", "s", args=[1]), "args must be a dict"),
    (lambda mill: mill.start("site", "s", priority="hihg"), "unknown priority 'hihg'; did you mean 'high'"),
    (lambda mill: mill.start("site", "s", if_active="jion"), "unknown if_active 'jion'; did you mean 'join'"),
    (lambda mill: mill.enqueue("sollo"), "unknown task 'sollo'; did you mean 'solo'"),
    (lambda mill: mill.enqueue("find"), "unknown task 'find'; there are: solo, stubborn$"),  # those that can be enqueued
    (
        lambda mill: mill.enqueue(task(name="forgotten")(lambda ctx: None)),
        "opened without task 'forgotten'; give it to Mill.open",
    ),
    (lambda mill: mill.start(Pipeline("flow"), "s"), "opened without pipeline 'flow'; give it to Mill.open"),
    (lambda mill: mill.enqueue("site.find"), "is a stage"),
    (lambda mill: mill.enqueue(len), "<built-in function len> is not a task; put @task above the function"),
    (lambda mill: mill.start(solo, "s"), "<task 'solo'> is not a pipeline"),
    (lambda mill: mill.enqueue("solo", queue="defualt"), "unknown queue 'defualt'; did you mean 'default'"),
    (lambda mill: mill.enqueue("solo", args={"m": 1}), "takes no argument 'm'"),
    (lambda mill: mill.enqueue("solo", args={"n": "x"}), "argument 'n'"),
    (lambda mill: mill.enqueue("solo", delay=-1), "delay must be"),
    (lambda mill: mill.enqueue("solo", delay=float("nan")), "delay must be"),
    (lambda mill: mill.enqueue("solo", at="tomorrow"), "at must be a datetime with a time zone"),
    (lambda mill: mill.enqueue("solo", unique=""), "unique key must not be empty"),
    (lambda mill: mill.enqueue("solo", unique="k", unique_scope="all"), "unknown unique_scope"),
    (lambda mill: mill.enqueue("solo", timeout=0), "timeout must be"),
    (lambda mill: mill.enqueue("solo", retries=-1), "Retries"),
    (lambda mill: mill.set_queue("default", weight=0), "weight"),
    # what ./run chaos R25 found
    (lambda mill: mill.start("site", DEEP), "subject must be text, not list: a list that is too large to be shown"),
    (lambda mill: mill.start("site", "s", priority=10**5000), "unknown priority a int that is too large to be shown"),
    (lambda mill: mill.enqueue("solo", delay=DEEP), "delay must be a number of seconds, not a list"),
    (lambda mill: mill.enqueue("solo", at="x" * 10**6), "at must be a datetime with a time zone, not 'xxx"),
    (lambda mill: mill.enqueue("solo", queue=["default"]), "a queue is given by its name, not by \\['default'\\]"),
    (lambda mill: mill.enqueue("solo", queue="\ud800"), "holds a character that no database can|unknown queue"),
    (lambda mill: mill.enqueue("solo", unique="k", unique_scope=["all"]), "unknown unique_scope \\['all'\\]"),
    (lambda mill: mill.enqueue("solo", timeout="x" * 10**6), "timeout must be"),
    (lambda mill: mill.enqueue("solo", retries="many"), "retries must be a number or Retries"),
    (lambda mill: mill.enqueue("solo", needs=0.5), "labels are words, as gpu or region=eu, not 0.5"),
    (lambda mill: mill.subject("site", "\ud800"), "holds a character that no database can"),
]


def test_bad_input_is_one_clear_line_and_nothing_half_done(opened: Open) -> None:
    play = opened(site())
    for call, message in BAD_INPUT:
        with pytest.raises(Invalid, match=message) as caught:
            call(play.mill)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 1000
    rows = invariants.snapshot(play.ledger)
    assert {table for table in rows if rows[table]} <= {
        "gm_ledger",
        "gm_queue",
        "gm_ringer",
        "gm_task",
    }  # names, made on first use; no work


def test_many_subjects_are_started_in_batches_and_an_interrupted_one_goes_on(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gristmill.mill.scheduling._TOGETHER", 2)
    monkeypatch.setattr("gristmill.mill.scheduling._PAGE", 2)
    play = opened(site())
    for n in range(5):
        play.mill.set_subject("site", f"s{n}")
    play.mill.start_subjects(pipeline="site", dry_run=True)
    kept, done = play.mill.ledger.do, list[int]()

    def dies(verb: Any, *args: Any, **options: Any) -> Any:
        if done:
            raise ConnectionError("the process ended here")
        done.append(1)
        return kept(verb, *args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(play.mill.ledger, "do", dies)
        with pytest.raises(ConnectionError):
            play.mill.start_subjects(pipeline="site", confirm=5)
    assert len(play.mill.runs()) == 2
    with pytest.raises(NotConfirmed):
        play.mill.start_subjects(pipeline="site", confirm=5)
    assert play.mill.start_subjects(pipeline="site", confirm=3).counts == {"queued": 3}
    again = play.mill.start_subjects(pipeline="site")
    assert (again.counts, again.left, again.refusal) == ({}, 5, "only subjects without a run under way are started")
    assert sorted(run.subject for run in play.mill.runs()) == [f"s{n}" for n in range(5)]
    with pytest.raises(Invalid, match="say which"):
        play.mill.start_subjects()


def test_who_is_overtaken_starts_no_second_run_and_says_so(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    play = opened(site())
    for name in ("a", "b"):
        play.mill.set_subject("site", name)
    kept = play.mill._wanted

    def meanwhile(found: Any, args: Any) -> Any:
        play.mill.start("site", "a")
        return kept(found, args)

    monkeypatch.setattr(play.mill, "_wanted", meanwhile)
    done = play.mill.start_subjects(pipeline="site", confirm=2)
    assert (done.counts, done.left, done.refusal) == ({"queued": 1}, 1, "only subjects without a run under way are started")
    assert sorted(run.subject for run in play.mill.runs()) == ["a", "b"]
