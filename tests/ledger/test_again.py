"""Part of a run once more: what was chosen, what depends on it, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gristmill.clock import to_datetime
from gristmill.errors import Invalid, NotFound, Refused
from gristmill.ledger import again, chores, workers
from gristmill.ledger.chores import Batch
from gristmill.ledger.claim import Claimed
from gristmill.ledger.emit import Item
from gristmill.ledger.finish import Verdict
from gristmill.ledger.queues import promote
from gristmill.model import Run
from tests.ledger import invariants
from tests.ledger.conftest import Open
from tests.ledger.play import Play, Player, each, end, gate, plan, step

SITE = plan("site", find=step(), page=each("find"), total=step("page"), publish=step("total"))
DEEP = plan("deep", find=step(), page=each("find"), line=each("page", need=0), total=step("line", need=0))
ABC = {"find": ["a", "b", "c"]}
BAD = Verdict.PERMANENT


def ended(play: Play, *, failed: str = "page/b") -> Run:
    """A run that went through with one failure."""
    run = play.mill.start("site", "s")
    play.drain(items=ABC, verdicts={failed: BAD})
    play.ran.clear()
    return run


def test_only_what_failed_runs_again_and_what_depends_on_it(opened: Open) -> None:
    play = opened(SITE)
    run = ended(play)
    assert play.run(run).state == "completed_with_errors"

    said = play.retry(run)
    assert (said.epoch, said.items, said.after, said.queued) == (2, {"page": {"failed": 1}}, ("total", "publish"), 1)
    assert play.run(run).state == "in_progress"
    assert play.stage_states(run.id) == {"find": "closed", "page": "sealed", "total": "waiting", "publish": "waiting"}
    invariants.check(play.ledger)

    play.drain()
    assert play.ran == ["page/b", "total", "publish"]
    over = play.run(run)
    assert (over.state, over.epoch, over.error) == ("completed", 2, None)
    assert play.counters(run.id, "page") == (3, 3, 0, 0, 0)
    assert play.counters(run.id, "total") == (1, 1, 0, 0, 0)


def test_what_fails_again_can_be_retried_again(opened: Open) -> None:
    play = opened(SITE)
    run = ended(play)
    for epoch in (2, 3):
        assert play.retry(run).epoch == epoch
        play.drain(verdicts={"page/b": BAD})
        assert play.run(run).state == "completed_with_errors"
    play.retry(run)
    play.drain()
    assert (play.run(run).state, play.run(run).epoch) == ("completed", 4)


def test_a_run_that_failed_goes_on_where_it_stopped(opened: Open) -> None:
    """What its end had cut off comes with it: the other branch, and stages that were never opened."""
    play = opened(plan("two", a=step(), b=step(), after_a=step("a"), after_b=step("b"), end=step("after_a", "after_b")))
    run = play.mill.start("two", "s")
    player = play.player()
    jobs = play.labelled(player.take())
    player.end(jobs["a"], BAD)
    player.end(jobs["b"])  # it was done, but what comes after it was not started any more
    assert play.run(run).state == "failed"
    said = play.retry(run)
    assert said.items == {"a": {"failed": 1}}
    play.drain(player)
    assert sorted(play.ran) == ["a", "after_a", "after_b", "end"]
    assert play.run(run).state == "completed"


def test_a_run_that_was_cancelled_goes_on(opened: Open) -> None:
    play = opened(SITE)
    run = play.mill.start("site", "s")
    player = play.player()
    play.turn(player, ABC, {})
    player.complete(player.take_one())
    play.mill.cancel_run(run.id)
    assert play.run(run).state == "cancelled"
    assert play.retry(run).items == {"page": {"cancelled": 2}}
    play.drain(player)
    assert sorted(play.ran) == ["find", "page/b", "page/c", "publish", "total"]
    assert play.run(run).state == "completed"


def test_a_waiting_run_that_was_cancelled_has_nothing_to_retry(opened: Open) -> None:
    play = opened(SITE)
    play.mill.start("site", "s")
    waiting = play.mill.start("site", "s", if_active="wait")
    with pytest.raises(Refused, match="no items to retry"):
        play.retry(waiting)
    play.mill.cancel_run(waiting.id)
    with pytest.raises(Refused, match="no items to retry"):
        play.retry(waiting)


# ---- choosing


def test_the_failed_ones_of_one_stage(opened: Open) -> None:
    play = opened(DEEP)
    run = play.mill.start("deep", "s")
    play.drain(items={**ABC, "page": ["x"]}, verdicts={"page/a": BAD, "line/b/x": BAD})
    play.ran.clear()
    assert play.retry(run, stage="line", failed=True).items == {"line": {"failed": 1}}
    play.drain()
    assert play.ran == ["line/b/x", "total"]


def test_a_whole_stage(opened: Open) -> None:
    play = opened(SITE)
    run = ended(play)
    assert play.retry(run, stage="page").items == {"page": {"completed": 2, "failed": 1}}
    play.drain()
    assert sorted(play.ran) == ["page/a", "page/b", "page/c", "publish", "total"]


def test_keys_by_glob(opened: Open) -> None:
    play = opened(SITE)
    run = play.mill.start("site", "s")
    play.drain(items={"find": ["2024-01", "2024-02", "2025-01", "x[1]"]})
    for glob, keys in {"2024-*": ["2024-01", "2024-02"], "*-01": ["2024-01", "2025-01"], "x[1]": ["x[1]"]}.items():
        play.ran.clear()
        play.retry(run, key=glob)
        play.drain()
        assert sorted(play.ran)[: len(keys)] == [f"page/{key}" for key in keys]
    with pytest.raises(Refused, match="with a key like 'y"):
        play.retry(run, key="y*")


def test_a_job_is_retried_by_its_own_key_which_is_no_pattern(opened: Open) -> None:
    play = opened(SITE)
    keys = ["a*", "ab", "a?", "[a]", "a"]
    play.mill.start("site", "s")
    play.drain(items={"find": keys}, verdicts={f"page/{key}": Verdict.PERMANENT for key in keys})
    for job in play.mill.jobs(state="failed"):
        play.ran.clear()
        play.mill.retry_job(job.id)
        play.drain(verdicts={f"page/{key}": Verdict.PERMANENT for key in keys})
        assert [name for name in play.ran if name.startswith("page/")] == [f"page/{job.key}"]


def test_the_time_between_an_end_and_a_retry_is_nobodys_work(opened: Open) -> None:
    play = opened(SITE)
    run = ended(play)
    first = play.run(run)
    assert (first.retried_at, first.began_at) == (None, first.started_at)
    play.clock.advance(86_400)
    play.retry(run)
    again = play.run(run)
    assert again.retried_at == again.began_at == to_datetime(play.clock.at)
    play.clock.advance(5)
    play.retry(run, stage="find")  # while it is under way, which is no new beginning
    play.drain(items=ABC)
    assert (play.run(run).epoch, play.run(run).began_at) == (3, again.retried_at)


def test_by_error(opened: Open) -> None:
    play = opened(SITE)
    run = play.mill.start("site", "s")
    player = play.player()
    play.turn(player, ABC, {})
    jobs = play.labelled(player.take())
    player.end(jobs["page/a"], BAD, reason="no paper")
    player.end(jobs["page/b"], BAD, reason="no ink")
    player.end(jobs["page/c"])
    play.drain(player)
    play.ran.clear()
    mark = play.mill.job(jobs["page/b"].id).fingerprint
    assert mark is not None
    assert play.retry(run, error=mark).items == {"page": {"failed": 1}}
    play.drain()
    assert play.ran == ["page/b", "total", "publish"]
    assert play.run(run).stage("page").failed == 1


def test_by_the_version_that_it_was_done_with(opened: Open) -> None:
    """And they run, whatever was known to be done before."""
    play = opened(SITE)
    run = play.mill.start("site", "s")
    player = play.player()
    play.turn(player, ABC, {})
    for job, digest in zip(player.take(), ("1f:v1", "2f:v2", "3f:xv1"), strict=True):
        player.end(job, digest=digest)
    play.drain(player)
    play.ran.clear()
    assert play.retry(run, version="v1").items == {"page": {"completed": 1}}
    assert play.value("SELECT count(*) FROM gm_done") == 2
    play.drain()
    assert play.ran == ["page/a", "total", "publish"]
    with pytest.raises(Refused, match="done with version 'v_'"):
        play.retry(run, version="v_")


@pytest.mark.parametrize("version", ["v1", "V1", "ß%_!1"])
def test_a_version_is_that_one_to_the_letter(opened: Open, version: str) -> None:
    play = opened(SITE)
    run = play.mill.start("site", "s")
    player = play.player()
    play.turn(player, ABC, {})
    for job, digest in zip(player.take(), ("1f:v1", "V1", "3f:ß%_!1"), strict=True):
        player.end(job, digest=digest)
    play.drain(player)
    assert play.retry(run, version=version, dry_run=True).items == {"page": {"completed": 1}}
    with pytest.raises(Refused, match="done with version"):
        play.retry(run, version=f"some{version}")  # longer than what was kept


def test_nothing_to_retry_and_nothing_of_that_name(opened: Open) -> None:
    play = opened(SITE)
    run = play.mill.start("site", "s")
    play.drain(items=ABC)
    before = invariants.snapshot(play.ledger)
    with pytest.raises(Refused, match="none failed"):
        play.retry(run)
    with pytest.raises(NotFound, match="did you mean 'page'"):
        play.retry(run, stage="pages")
    with pytest.raises(NotFound, match="no run 99"):
        play.retry(99)
    assert invariants.snapshot(play.ledger) == before


def test_a_rehearsal_says_the_same_and_changes_nothing(opened: Open) -> None:
    play = opened(SITE)
    run = ended(play)
    before = invariants.snapshot(play.ledger)
    rehearsed = play.retry(run, dry_run=True)
    assert invariants.snapshot(play.ledger) == before
    assert play.retry(run) == rehearsed


def test_it_is_recorded(opened: Open) -> None:
    play = opened(SITE)
    run = ended(play)
    play.retry(run, key="b", by="ann")
    row = play.rows("SELECT who, verb, target, detail FROM gm_audit")[-1]
    assert tuple(row)[:3] == ("ann", "run.retry", f"run {run.id}")
    assert '"items":{"page":1}' in row.detail
    assert '"key":"b"' in row.detail


# ---- a run that is under way


def under_way(play: Play) -> tuple[Run, Player, Claimed]:
    """A run whose pages are done, one of them badly, and whose total is in a worker's hands."""
    run = play.mill.start("site", "s")
    player = play.player()
    play.turn(player, ABC, {})
    play.turn(player, {}, {"page/b": BAD})
    play.ran.clear()
    return run, player, player.take_one()


@pytest.mark.parametrize("verdict", [Verdict.COMPLETED, Verdict.ERROR, Verdict.PERMANENT, Verdict.RELEASED, Verdict.END_RUN])
def test_a_descendant_in_progress_is_fenced_off(opened: Open, verdict: Verdict) -> None:
    play = opened(SITE)
    run, player, total = under_way(play)
    play.retry(run)
    assert play.run(run).state == "in_progress"
    assert play.mill.job(total.id).state == "cancelled"
    before = invariants.snapshot(play.ledger)
    assert player.end(total, verdict, reason="late") == [total.id]
    assert player.complete(total, result='"late"') == [total.id]
    assert invariants.snapshot(play.ledger) == before

    play.drain(play.player())
    assert play.ran == ["page/b", "total", "publish"]
    assert play.run(run).state == "completed"
    assert play.mill.job(total.id).attempt == 2


def test_a_late_report_changes_nothing_when_the_descendant_runs_again(opened: Open) -> None:
    play = opened(SITE)
    run, player, total = under_way(play)
    play.retry(run)
    other = play.player()
    other.complete(other.take_one())
    again_ = other.take_one()
    assert (again_.id, again_.attempt) == (total.id, 2)
    assert player.complete(total, result='"late"') == [total.id]
    assert other.complete(again_, result='"new"') == []
    play.drain(other)
    assert play.run(run).result("total") == "new"


def test_a_descendant_that_is_still_queued_waits_again(opened: Open) -> None:
    play = opened(SITE)
    run = play.mill.start("site", "s")
    player = play.player()
    play.turn(player, ABC, {})
    play.turn(player, {}, {"page/b": BAD})
    play.ran.clear()
    play.retry(run)
    assert [play.label(job) for job in player.take()] == ["page/b"]


def test_a_worker_is_told_to_stop_what_was_taken_from_it(opened: Open) -> None:
    play = opened(SITE)
    run, player, total = under_way(play)
    with play.ledger.reading() as tx:
        assert workers.asked_to_stop(tx, player.id, [total.id]) == []
    play.retry(run)
    with play.ledger.reading() as tx:
        assert workers.asked_to_stop(tx, player.id, [total.id]) == [total.id]


def test_items_of_a_stage_that_is_still_open(opened: Open) -> None:
    """Downstream has not begun: nothing is reset but the items themselves."""
    play = opened(SITE)
    run = play.mill.start("site", "s")
    player = play.player()
    play.turn(player, ABC, {})
    jobs = play.labelled(player.take(2))
    player.end(jobs["page/a"], BAD)
    assert play.retry(run).items == {"page": {"failed": 1}}
    assert play.counters(run.id, "page") == (3, 0, 0, 0, 0)
    player.end(jobs["page/b"])
    play.drain(player)
    assert sorted(play.ran) == ["find", "page/a", "page/c", "publish", "total"]
    assert play.run(run).state == "completed"


def test_a_delayed_retry_of_a_descendant_waits_again(opened: Open) -> None:
    play = opened(SITE)
    run, player, total = under_way(play)
    player.end(total, Verdict.LATER, delay=5.0)
    play.retry(run)
    play.clock.advance(10)
    play.ledger.do(promote)
    assert [play.label(job) for job in player.take()] == ["page/b"]


# ---- other runs of the subject


def test_it_is_refused_while_the_subject_has_another_active_run(opened: Open) -> None:
    play = opened(SITE)
    run = ended(play)
    other = play.mill.start("site", "s")
    before = invariants.snapshot(play.ledger)
    with pytest.raises(Refused, match=f"another active run, {other.id}"):
        play.retry(run)
    with pytest.raises(Refused, match=f"another active run, {other.id}"):
        play.retry(run, dry_run=True)
    assert invariants.snapshot(play.ledger) == before
    play.drain(items=ABC)
    play.retry(run)
    play.drain()
    assert play.run(run).state == "completed"


def test_a_retried_run_is_the_active_one(opened: Open) -> None:
    play = opened(SITE)
    run = ended(play)
    play.retry(run)
    assert play.mill.start("site", "s").id == run.id
    waiting = play.mill.start("site", "s", if_active="wait")
    with pytest.raises(Refused, match="no items"):
        play.retry(waiting)
    play.drain(items=ABC)
    assert (play.run(run).state, play.run(waiting).state) == ("completed", "completed")


def test_another_subject_does_not_matter(opened: Open) -> None:
    play = opened(SITE)
    run = ended(play)
    play.mill.start("site", "t")
    play.retry(run)
    play.drain(items=ABC)
    assert play.run(run).state == "completed"


def test_a_run_that_is_being_stopped_is_not_retried(opened: Open) -> None:
    play = opened(SITE)
    run, player, total = under_way(play)
    play.mill.cancel_run(run.id)
    with pytest.raises(Refused, match="being stopped"):
        play.retry(run)
    player.end(total, Verdict.CANCELLED)
    assert play.run(run).state == "cancelled"
    play.retry(run)
    play.drain()
    assert play.run(run).state == "completed"


def test_while_it_is_retried_the_subjects_last_run_is_the_one_before(opened: Open) -> None:
    play = opened(SITE)
    first = play.mill.start("site", "s")
    play.drain(items=ABC)
    play.clock.advance(60)
    second = ended(play)
    subject = play.mill.subject("site", "s")
    assert (subject.last_run, subject.last_good_run) == (second.id, second.id)
    play.retry(second)
    subject = play.mill.subject("site", "s")
    assert (subject.last_run, subject.last_good_run, subject.active_run) == (first.id, first.id, second.id)
    play.drain()
    assert play.mill.subject("site", "s").last_good_run == second.id


def test_a_subject_whose_only_run_is_retried_has_no_last_run(opened: Open) -> None:
    play = opened(SITE)
    run = ended(play)
    play.retry(run)
    subject = play.mill.subject("site", "s")
    assert (subject.last_run, subject.last_good_run, subject.age) == (None, None, None)
    play.mill.cancel_run(run.id)
    invariants.check(play.ledger)


# ---- producers that run again


def with_args(*pairs: tuple[str, str | None]) -> list[Item]:
    return [Item(key, args) for key, args in pairs]


def test_items_given_again_run_only_if_their_arguments_changed(opened: Open) -> None:
    play = opened(SITE)
    run = play.mill.start("site", "s")
    play.drain(items={"find": with_args(("a", '{"n":1}'), ("b", '{"n":2}'), ("c", None))})
    play.ran.clear()
    assert play.retry(run, stage="find").after == ("page", "total", "publish")
    play.drain(items={"find": with_args(("a", '{"n":1}'), ("b", '{"n":9}'), ("d", None))})
    assert sorted(play.ran) == ["find", "page/b", "page/d", "publish", "total"]
    jobs = {job.key: job for job in play.mill.jobs(run=run.id, stage="page")}
    assert jobs["b"].args == {"n": 9}
    assert (jobs["c"].state, jobs["c"].error) == ("skipped", "no longer emitted")
    assert play.counters(run.id, "page") == (4, 3, 0, 1, 0)
    assert play.run(run).state == "completed"


def test_what_came_from_a_dropped_item_is_dropped_too(opened: Open) -> None:
    play = opened(DEEP)
    run = play.mill.start("deep", "s")
    play.drain(items={"find": ["a", "b"], "page": ["x", "y"]})
    play.ran.clear()
    play.retry(run, stage="find")
    play.drain(items={"find": ["b"], "page": ["x", "y"]})
    assert play.ran == ["find", "total"]
    states = {job.key: job.state for job in play.mill.jobs(run=run.id, stage="line")}
    assert states == {"a/x": "skipped", "a/y": "skipped", "b/x": "completed", "b/y": "completed"}


def test_a_dropped_item_that_is_given_again_later_runs_again(opened: Open) -> None:
    play = opened(SITE)
    run = play.mill.start("site", "s")
    play.drain(items={"find": ["a", "b"]})
    play.retry(run, stage="find")
    play.drain(items={"find": ["a"]})
    play.ran.clear()
    play.retry(run, stage="find")
    play.drain(items={"find": ["a", "b"]})
    assert play.ran == ["find", "page/b", "total", "publish"]
    assert play.counters(run.id, "page") == (2, 2, 0, 0, 0)


def test_a_dropped_item_is_not_chosen(opened: Open) -> None:
    play = opened(SITE)
    run = play.mill.start("site", "s")
    play.drain(items={"find": ["a", "b"]})
    play.retry(run, stage="find")
    play.drain(items={"find": ["a"]})
    assert play.retry(run, stage="page", dry_run=True).items == {"page": {"completed": 1}}
    (dropped,) = play.mill.jobs(state="skipped")
    with pytest.raises(Refused, match="was dropped"):
        play.mill.retry_job(dropped.id)


def test_a_producer_that_fails_again_leaves_its_items(opened: Open) -> None:
    play = opened(plan("lax", find=step(need=0), page=each("find"), total=step("page")))
    run = play.mill.start("lax", "s")
    play.drain(items={"find": ["a", "b"]})
    play.retry(run, stage="find")
    play.drain(verdicts={"find": BAD})
    assert play.counters(run.id, "page") == (2, 2, 0, 0, 0)
    assert play.run(run).state == "completed_with_errors"


def test_an_item_in_progress_whose_arguments_change_is_fenced_off(opened: Open) -> None:
    play = opened(plan("lax", find=step(need=0), page=each("find"), total=step("page")))
    run = play.mill.start("lax", "s")
    slow, quick = play.player(), play.player()
    find = slow.take_one()
    slow.emit(find, *with_args(("a", '{"n":1}'), ("b", '{"n":1}'), ("c", '{"n":1}')))
    slow.end(find, BAD)
    held = play.labelled(slow.take())
    play.retry(run, stage="find")
    find = quick.take_one()
    quick.emit(find, *with_args(("a", '{"n":2}'), ("b", '{"n":1}')))
    quick.end(find)
    play.carry_on()
    assert slow.finish(*(end(job, result='"old"') for job in held.values())) == [held["page/a"].id, held["page/c"].id]
    play.drain(quick)
    assert play.ran == ["page/a", "total"]
    assert play.counters(run.id, "page") == (3, 2, 0, 1, 0)
    assert play.mill.job(held["page/a"].id).args == {"n": 2}


def test_an_item_that_knows_its_input_by_a_digest_is_asked_again(opened: Open) -> None:
    """Its arguments are the same, but only its function can tell whether what they name has changed."""
    play = opened(DEEP)
    run = play.mill.start("deep", "s")
    player = play.player()
    play.turn(player, {"find": ["a", "b"]}, {})
    for job in player.take():
        player.emit(job, "x")
        player.end(job, digest=f"{job.key}:v1" if job.key == "a" else None, result=f'"{job.key}"')
    play.drain(player)
    play.ran.clear()
    play.retry(run, stage="find")
    play.turn(player, {"find": ["a", "b"]}, {})
    asked = player.take_one()
    assert play.label(asked) == "page/a"
    assert play.mill.job(asked.id).result == "a"  # until there is another one
    player.end(asked, Verdict.UNCHANGED, result='"a"')
    play.drain(player)
    assert play.ran == ["find", "total"]  # what came of it before still counts
    assert {job.key: job.state for job in play.mill.jobs(run=run.id, stage="line")} == {
        "a/x": "completed",
        "b/x": "completed",
    }
    assert dict(play.mill.results(run.id, "page")) == {"a": "a", "b": "b"}


def test_a_gate_is_asked_again(opened: Open) -> None:
    play = opened(plan("gated", find=step(), page=each("find"), ok=gate("page"), total=step("page")))
    run = play.mill.start("gated", "s")
    play.drain(items=ABC, verdicts={"page/b": BAD, "ok": Verdict.END_RUN})
    assert (play.run(run).state, play.run(run).stage("total").outcome) == ("completed_with_errors", "cancelled")
    play.ran.clear()
    play.retry(run)
    play.drain()
    assert play.ran == ["page/b", "ok", "total"]
    assert (play.run(run).state, play.run(run).reason) == ("completed", None)


def test_a_run_that_ended_early_still_does_after_a_retry_of_another_branch(opened: Open) -> None:
    play = opened(plan("two", a=step(need=0), b=step(), after_b=step("b"), end=step("a", "after_b")))
    run = play.mill.start("two", "s")
    player = play.player()
    jobs = play.labelled(player.take())
    player.end(jobs["a"], BAD)
    player.end(jobs["b"], Verdict.END_RUN, reason="unchanged")
    assert (play.run(run).state, play.run(run).reason) == ("completed_with_errors", "unchanged")
    play.retry(run)
    invariants.check(play.ledger)
    play.drain(player)
    assert play.ran == ["a"]
    assert (play.run(run).state, play.run(run).reason) == ("completed", "unchanged")


# ---- many items, and processes that die


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    for function in (chores.requeue, chores.prune, chores.take_over):
        monkeypatch.setattr(chores, function.__name__, _in_fours(function))


def _in_fours(function: Callable[..., Batch]) -> Callable[..., Batch]:
    return lambda *args: function(*args, most=4)


KEYS = [f"{n:02}" for n in range(30)]


@pytest.mark.usefixtures("small_batches")
def test_many_items_are_queued_in_batches_and_the_run_waits_for_all_of_them(opened: Open) -> None:
    play = opened(SITE)
    run = play.mill.start("site", "s")
    play.drain(items={"find": KEYS})
    play.ran.clear()
    with play.ledger.reading() as tx:
        chosen = again.choose(tx, run.id, chores.Selection(), "page")
    play.ledger.do(again.retry, chosen, by="me")  # and here its process dies
    player = play.player()
    for _ in range(3):
        play.turn(player, {}, {})
    assert 0 < len(play.ran) < 30
    assert play.stage_states(run.id)["page"] == "open"
    assert "in line" not in play.mill.why(run=run.id).sentence
    assert play.mill.why(run=run.id).reason == "preparing"
    invariants.check(play.ledger)
    assert play.mill.reconcile(dry_run=True) == []
    play.mill.reconcile()  # somebody else goes on
    play.drain(player)
    assert sorted(play.ran) == [*(f"page/{key}" for key in KEYS), "publish", "total"]
    assert play.run(run).state == "completed"


@pytest.mark.usefixtures("small_batches")
def test_many_items_are_dropped_in_batches(opened: Open) -> None:
    play = opened(SITE)
    run = play.mill.start("site", "s")
    play.drain(items={"find": KEYS})
    play.retry(run, stage="find")
    player = play.player()
    play.ran.clear()
    play.turn(player, {"find": KEYS[:15]}, {})
    assert player.take() == []  # the total waits until all that is stale is gone
    invariants.check(play.ledger)
    assert play.mill.why(run=run.id).reason == "preparing"
    play.drain(player)
    assert play.ran == ["find", "total", "publish"]
    assert play.counters(run.id, "page") == (30, 15, 0, 15, 0)


@pytest.mark.usefixtures("small_batches")
def test_a_retry_that_is_not_finished_can_be_cancelled_and_retried(opened: Open) -> None:
    play = opened(SITE)
    run = play.mill.start("site", "s")
    play.drain(items={"find": KEYS})
    with play.ledger.reading() as tx:
        chosen = again.choose(tx, run.id, chores.Selection(), "page")
    play.ledger.do(again.retry, chosen, by="me")
    play.mill.cancel_run(run.id)
    assert play.run(run).state == "cancelled"
    invariants.check(play.ledger)
    play.ran.clear()
    play.retry(run)  # and all that was not queued yet comes with it
    play.drain()
    assert sorted(play.ran) == [*(f"page/{key}" for key in KEYS), "publish", "total"]
    assert play.run(run).state == "completed"


@pytest.mark.usefixtures("small_batches")
def test_dropping_items_that_was_cut_off_goes_on_with_the_next_retry(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find"), other=step("find", retries=0), total=step("page")))
    run = play.mill.start("site", "s")
    play.drain(items={"find": KEYS})
    play.retry(run, stage="find")
    player = play.player()
    play.turn(player, {"find": KEYS[15:]}, {})
    assert play.counters(run.id, "page")[3] in range(1, 15)
    player.end(player.take_one(), BAD)  # the other branch fails, and with it the run
    assert play.run(run).state == "failed"
    play.retry(run)
    play.drain(player)
    assert play.run(run).state == "completed"
    assert play.counters(run.id, "page") == (30, 15, 0, 15, 0)


@pytest.mark.usefixtures("small_batches")
def test_a_second_retry_first_finishes_the_one_before(opened: Open) -> None:
    play = opened(SITE)
    run = play.mill.start("site", "s")
    play.drain(items={"find": KEYS})
    with play.ledger.reading() as tx:
        chosen = again.choose(tx, run.id, chores.Selection(), "page")
    play.ledger.do(again.retry, chosen, by="me")
    with pytest.raises(again.Changed):
        play.ledger.do(again.retry, chosen, by="you")
    player = play.player()
    for job in player.take(2):
        player.end(job, BAD)
    assert play.retry(run).items == {"page": {"failed": 2}}
    play.ran.clear()
    play.drain(player)
    assert sorted(play.ran) == [*(f"page/{key}" for key in KEYS), "publish", "total"]


# ---- one job, one error: the same


def test_an_item_of_an_ended_run_is_retried_with_what_depends_on_it(opened: Open) -> None:
    play = opened(SITE)
    run = ended(play)
    (failed,) = play.mill.jobs(state="failed")
    assert play.mill.retry_job(failed.id, dry_run=True).state == "failed"
    assert play.mill.retry_job(failed.id).state == "queued"
    play.drain()
    assert play.ran == ["page/b", "total", "publish"]
    assert (play.run(run).state, play.run(run).epoch) == ("completed", 2)


def test_the_one_job_of_a_closed_stage_is_retried(opened: Open) -> None:
    play = opened(SITE)
    run = ended(play, failed="total")
    assert play.run(run).state == "failed"
    (failed,) = play.mill.jobs(state="failed")
    play.mill.retry_job(failed.id)
    play.drain()
    assert play.ran == ["total", "publish"]


def test_a_job_that_was_set_aside_waits_for_its_turn(opened: Open) -> None:
    play = opened(SITE)
    run, player, total = under_way(play)
    play.retry(run)
    play.mill.retry_job(total.id)
    assert [play.label(job) for job in player.take()] == ["page/b"]


def test_an_error_is_retried_in_ended_runs_too(opened: Open) -> None:
    play = opened(SITE)
    runs = [play.mill.start("site", name) for name in ("s", "t", "u")]
    play.drain(items=ABC, verdicts={"page/b": BAD})
    active = play.mill.start("site", "u")
    (error,) = play.mill.errors()
    said = play.mill.retry_error(error.fingerprint, dry_run=True)
    assert (said.queued, said.refused) == (2, 1)
    assert play.mill.retry_error(error.fingerprint) == said
    assert said.refusal is not None
    assert f"another active run, {active.id}" in said.refusal
    play.drain(items=ABC)
    assert [play.run(run).state for run in runs] == ["completed", "completed", "completed_with_errors"]


# ---- parts


def test_with_an_item_its_failed_parts_run_again(opened: Open) -> None:
    play = opened(SITE)
    run = play.mill.start("site", "s")
    player = play.player()
    play.turn(player, {"find": ["a", "b"]}, {})
    jobs = play.labelled(player.take())
    player.complete(jobs["page/b"])
    item = jobs["page/a"]
    player.split(item, "1", "2")
    one, two = player.take()
    player.complete(one)
    player.end(two, BAD)
    player.end(player.take_one(), BAD)
    play.drain(player)
    assert play.run(run).state == "completed_with_errors"
    assert play.retry(run).items == {"page": {"failed": 1}}
    found = play.mill.job(item.id)
    assert (found.parts, found.parts_left, found.parts_failed) == (2, 1, 0)
    assert {part.key: part.state for part in play.mill.jobs(part_of=item.id)} == {"1": "completed", "2": "queued"}
    invariants.check(play.ledger)
    play.drain(player)
    assert (play.run(run).state, play.mill.job(two.id).state) == ("completed", "completed")


def test_what_depends_on_it_is_not_taken_from_its_parts(opened: Open) -> None:
    play = opened(SITE)
    run, player, total = under_way(play)
    player.split(total, "1")
    before = invariants.snapshot(play.ledger)
    with pytest.raises(Refused, match=f"job {total.id} of stage 'total' depends on what would be retried, and has parts"):
        play.retry(run)
    assert invariants.snapshot(play.ledger) == before
    play.drain(player)
    play.retry(run)
    play.drain(player)
    assert play.run(run).state == "completed"


def test_an_item_with_parts_under_way_goes_on_though_it_is_given_otherwise(opened: Open) -> None:
    play = opened(plan("lax", find=step(need=0), page=each("find"), total=step("page")))
    run = play.mill.start("lax", "s")
    player = play.player()
    find = player.take_one()
    player.emit(find, *with_args(("a", '{"n":1}'), ("b", '{"n":1}')))
    player.end(find, BAD)
    for job in player.take():
        player.split(job, "1")
    play.retry(run, stage="find")
    find = next(job for job in player.take() if play.label(job) == "find")
    player.emit(find, *with_args(("a", '{"n":2}')))
    player.end(find)
    play.carry_on()
    invariants.check(play.ledger)
    play.ledger.do(workers.rescue, player.id, gone=True)
    play.drain_later()
    assert play.counters(run.id, "page") == (2, 2, 0, 0, 0)


@pytest.mark.parametrize("run", [-1, 0, 1 << 63, 1 << 70])
def test_a_number_that_no_run_has(opened: Open, run: int) -> None:
    play = opened(SITE)
    for verb in (play.mill.retry_run, lambda number: play.mill.recoveries(run=number)):
        with pytest.raises(NotFound, match=f"there is no run {run}"):
            verb(run)


@pytest.mark.parametrize("what", ["stage", "error", "key", "version"])
@pytest.mark.parametrize("text", ["\0", "\udcff", 5])
def test_text_that_no_database_can_hold_is_refused(opened: Open, what: str, text: Any) -> None:
    play = opened(SITE)
    run = ended(play)
    with pytest.raises(Invalid, match=what):
        play.retry(run, **{what: text})
