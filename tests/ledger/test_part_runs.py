"""Part runs: some stages are run, the others stand for the subject's last good run."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Any

import pytest

from gristmill import Invalid
from gristmill.errors import NotFound, Refused
from gristmill.ledger import chores, remove
from gristmill.ledger.emit import Item
from gristmill.ledger.finish import Verdict
from gristmill.model import Run
from tests.ledger import invariants
from tests.ledger.conftest import Open
from tests.ledger.play import Items, Play, each, gate, plan, step
from tests.ledger.test_again import small_batches

__all__ = ["small_batches"]

SITE = plan("site", find=step(), page=each("find"), ok=gate("page"), total=step("page"), publish=step("total"))
CHAIN = plan("chain", find=step(), page=each("find"), index=each("page"), word=each("index"), total=step("word"))
ON: Items = {"page": lambda job: [Item("", None)], "index": ["x", "y"]}  # what goes on from each page, and from its index
TWO = plan("two", a=step(), b=step(), both=each("a", "b"), deep=each("both", need=0), end=step("deep", need=0))


def good(play: Play, pipeline: str = "site", **items: Any) -> Run:
    """A run that ended well."""
    run = play.mill.start(pipeline, "s")
    play.drain(items=items or {"find": ["a", "b", "c"]})
    assert play.run(run).state == "completed"
    play.ran.clear()
    return run


def ran(play: Play, **part: Any) -> list[str]:
    """What a part run runs, until it ends well."""
    run = play.mill.start("site", "s", **part)
    play.drain()
    assert play.run(run).state == "completed"
    return play.ran


def test_from_a_stage_on(opened: Open) -> None:
    play = opened(SITE)
    before = good(play)
    run = play.mill.start("site", "s", from_stage="page")
    assert play.stage_states(run.id) == {
        "find": "closed",
        "page": "sealed",
        **dict.fromkeys(["ok", "total", "publish"], "waiting"),
    }
    play.drain()
    assert play.ran == ["page/a", "page/b", "page/c", "ok", "total", "publish"]
    over = play.run(run)
    assert (over.state, over.stage("find").outcome, over.stage("find").taken_from) == ("completed", "skipped", before.id)
    assert over.stage("page").taken_from is None


def test_a_run_that_ended_early_is_nothing_to_stand_on(opened: Open) -> None:
    """Most days a gate says that nothing is new: what that run did not do must not be taken for done."""
    play = opened(SITE)
    whole = good(play)
    play.mill.start("site", "s")
    play.drain(items={"find": ["a"]}, verdicts={"find": Verdict.END_RUN})
    early = play.mill.subject("site", "s").last_good_run
    assert early not in (None, whole.id)
    play.ran.clear()
    assert ran(play, from_stage="page") == ["page/a", "page/b", "page/c", "ok", "total", "publish"]
    assert play.mill.runs(subject="s")[0].stage("find").taken_from == whole.id


def test_from_a_plain_stage_on(opened: Open) -> None:
    play = opened(SITE)
    good(play)
    assert ran(play, from_stage="total") == ["total", "publish"]


def test_only_some_stages(opened: Open) -> None:
    play = opened(SITE)
    good(play)
    assert ran(play, only="total") == ["total"]
    play.ran.clear()
    assert ran(play, only=["page", "publish"]) == ["page/a", "page/b", "page/c", "publish"]
    play.ran.clear()
    assert ran(play, from_stage="page", only=["page"]) == ["page/a", "page/b", "page/c"]


def test_only_some_items_of_the_first_stage(opened: Open) -> None:
    play = opened(SITE)
    good(play)
    assert ran(play, from_stage="page", only={"page": "b"}) == ["page/b"]
    play.ran.clear()
    assert ran(play, only={"page": ["a", "c*", "x*"], "total": None}) == ["page/a", "page/c", "total"]


def test_the_items_that_were_not_chosen_are_there_as_they_were(opened: Open) -> None:
    """Or what is computed from them next would be of a few only."""
    play = opened(SITE)
    play.mill.start("site", "s")
    player = play.player()
    play.turn(player, {"find": ["a", "b", "c", "d"]}, {})
    for job, verdict in zip(player.take(), ("completed", "completed", "permanent", "skipped"), strict=True):
        player.end(job, Verdict(verdict), result=f'"{job.key}1"', reason="so it was")
    play.drain(player)
    part = play.mill.start("site", "s", only={"page": "b", "total": None})
    assert play.run(part).state == "in_progress"
    (job,) = player.take()
    player.complete(job, result='"b2"')
    play.drain(player)
    assert dict(play.mill.results(part.id, "page")) == {"a": "a1", "b": "b2"}
    assert play.counters(part.id, "page") == (4, 2, 0, 2, 0)
    assert {job.key: job.error for job in play.mill.jobs(run=part.id, stage="page")} == {
        "a": None,
        "b": None,
        "c": "not chosen; before: so it was",
        "d": "so it was",
    }
    later = play.mill.start("site", "s", from_stage="total")
    assert dict(play.mill.results(later.id, "page")) == {"a": "a1", "b": "b2"}


def keys(play: Play, run: Run, stage: str) -> list[str]:
    return [key for key, _ in play.mill.results(run.id, stage)]


def test_what_came_from_items_that_were_not_chosen_is_there_as_it_was(opened: Open) -> None:
    """Through all stages: or what is computed from these next, and all that stands on this run, would be of a few only."""
    play = opened(CHAIN)
    good(play, "chain", find=["2023", "2024"], **ON)
    part = play.mill.start("chain", "s", only={"page": "2024*", "index": None, "word": None, "total": None})
    play.drain(items={**ON, "index": ["y", "z"]})
    assert (play.run(part).state, play.ran) == (
        "completed",
        ["page/2024", "index/2024", "word/2024/y", "word/2024/z", "total"],
    )
    assert (keys(play, part, "page"), keys(play, part, "index")) == (["2023", "2024"], ["2023", "2024"])
    assert keys(play, part, "word") == ["2023/x", "2023/y", "2024/y", "2024/z"]
    play.ran.clear()
    other = play.mill.start("chain", "s", only={"page": "2023", "index": None, "word": None})
    play.drain(items={**ON, "index": ["x"]})
    assert play.ran == ["page/2023", "index/2023", "word/2023/x"]
    assert keys(play, other, "word") == ["2023/x", "2024/y", "2024/z"]
    play.ran.clear()
    play.mill.start("chain", "s", from_stage="index")
    play.drain(items=ON)
    assert play.ran[:2] == ["index/2023", "index/2024"]


def test_what_came_from_an_item_that_was_not_chosen_has_its_result(opened: Open) -> None:
    play = opened(CHAIN)
    play.mill.start("chain", "s")
    player = play.player()
    play.turn(player, {"find": ["a", "b", "c"]}, {})
    play.turn(player, ON, {})
    for job, verdict in zip(player.take(), ("completed", "completed", "permanent"), strict=True):
        player.end(job, Verdict(verdict), result=f'"{job.key}1"', reason="so it was")
    play.drain(player)
    part = play.mill.start("chain", "s", only={"page": "b", "index": None})
    play.turn(player, ON, {})
    player.complete(player.take_one(), result='"b2"')
    assert dict(play.mill.results(part.id, "index")) == {"a": "a1", "b": "b2"}
    assert play.counters(part.id, "index") == (3, 2, 0, 1, 0)
    assert play.run(part).state == "completed"


def test_an_item_that_was_not_chosen_gives_its_items_again_when_it_is_retried(opened: Open) -> None:
    play = opened(CHAIN)
    good(play, "chain", find=["a", "b"], **ON)
    part = play.mill.start("chain", "s", only={"page": "b", "index": None, "word": None})
    play.drain(items=ON)
    play.ran.clear()
    play.retry(part, stage="index", key="a")
    play.drain(items={"index": ["y", "z"]})
    assert play.ran == ["index/a", "word/a/z"]
    assert keys(play, part, "word") == ["a/y", "a/z", "b/x", "b/y"]
    play.ran.clear()
    play.retry(part, stage="page", key="a")
    play.drain()
    assert (play.ran, keys(play, part, "index"), keys(play, part, "word")) == (["page/a"], ["b"], ["b/x", "b/y"])


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("chosen", ["0*", "2*", "*5"])
def test_what_came_from_many_items_that_were_not_chosen_comes_in_batches(opened: Open, chosen: str) -> None:
    play = opened(CHAIN)
    numbers = [f"{n:02}" for n in range(30)]
    good(play, "chain", find=numbers, **ON)
    part = play.mill.start("chain", "s", only={"page": chosen, "index": None, "word": None})
    while play.carry_on() or play.turn(play.player(), ON, {}):
        invariants.check(play.ledger)
    assert play.run(part).state == "completed"
    assert (keys(play, part, "index"), keys(play, part, "word")) == (numbers, [f"{n}/{w}" for n in numbers for w in "xy"])
    assert len(play.ran) == 4 * sum(fnmatch(n, chosen) for n in numbers)


@pytest.mark.usefixtures("small_batches")
def test_what_came_from_items_that_were_not_chosen_comes_also_after_a_retry_of_a_cancelled_run(opened: Open) -> None:
    play = opened(CHAIN)
    numbers = [f"{n:02}" for n in range(30)]
    good(play, "chain", find=numbers, **ON)
    part = play.mill.start("chain", "s", only={"page": "*1", "index": None, "word": None})
    play.turn(play.player(), ON, {})
    play.mill.cancel_run(part.id)
    play.drain()
    assert play.run(part).state == "cancelled"
    play.retry(part)
    play.drain(items=ON)
    assert (play.run(part).state, keys(play, part, "index")) == ("completed", numbers)
    assert keys(play, part, "word") == [f"{n}/{w}" for n in numbers for w in "xy"]


def test_items_of_both_kinds_meet_in_a_stage(opened: Open) -> None:
    """From a stage that is not run they are done again, from what was not chosen of another they are as they were."""
    play = opened(plan("join", r=step(), s=step(), u=each("r"), v=each("s"), e=each("u", "v")))
    on: Items = {"u": ON["page"], "v": ON["page"]}
    good(play, "join", r=["a", "b"], s=["x"], **on)
    part = play.mill.start("join", "s", only={"u": "a", "e": None})
    play.drain(items=on)
    assert (sorted(play.ran), keys(play, part, "e")) == (["e/a", "e/x", "u/a"], ["a", "b", "x"])


def test_of_a_stage_that_is_new_nothing_came_from_items_that_were_not_chosen(opened: Open) -> None:
    play = opened(plan("chain", find=step(), page=each("find"), total=step("page")))
    good(play, "chain", find=["a", "b"])
    newer = opened(CHAIN)
    with pytest.raises(Refused, match=r"stage 'index' cannot be taken .* the last good run of this subject did not have it"):
        newer.mill.start("chain", "s", only={"page": "a", "index": None, "word": None})


def test_results_are_those_of_the_run_that_is_stood_on(opened: Open) -> None:
    play = opened(SITE)
    run = play.mill.start("site", "s")
    player = play.player()
    find = player.take_one()
    player.emit(find, Item("a", '{"n":1}'), Item("b", None))
    player.complete(find, result='"found"')
    player.complete(*player.take(), result='"read"')
    play.drain(player)
    part = play.mill.start("site", "s", from_stage="total")
    play.drain(player)
    assert dict(play.mill.results(part.id, "page")) == {"a": "read", "b": "read"}
    assert play.run(part).result("find") == "found"
    third = play.mill.start("site", "s", from_stage="publish")  # stands on the second, and through it on the first
    play.drain(player)
    assert play.run(third).stage("page").taken_from == run.id
    assert play.run(third).stage("total").taken_from == part.id
    assert dict(play.mill.results(third.id, "page")) == {"a": "read", "b": "read"}
    fourth = play.mill.start("site", "s", from_stage="page")
    assert {job.key: job.args for job in play.mill.jobs(run=fourth.id)} == {"a": {"n": 1}, "b": None}


def test_the_last_good_run_counts_and_not_a_later_bad_one(opened: Open) -> None:
    play = opened(SITE)
    first = good(play)
    play.mill.start("site", "s")
    play.drain(items={"find": ["x"]}, verdicts={"page": Verdict.PERMANENT})
    run = play.mill.start("site", "s", from_stage="total")
    assert play.run(run).stage("page").taken_from == first.id


def test_without_a_good_run_there_is_nothing_to_stand_on(opened: Open) -> None:
    play = opened(SITE)
    before = invariants.snapshot(play.ledger)
    with pytest.raises(Refused, match="stage 'find' cannot be taken from an earlier run: no run of this subject ended well"):
        play.mill.start("site", "s", from_stage="page")
    names: dict[str, Any] = {"gm_queue": [], "gm_task": [], "gm_ringer": []}  # made on first use
    assert invariants.snapshot(play.ledger) | names == before | names
    assert ran(play, only=["find"]) == ["find"]  # what needs nothing before it


def test_a_stage_that_the_last_good_run_did_not_have(opened: Open) -> None:
    play = opened(plan("site", find=step(), total=step("find")))
    play.mill.start("site", "s")
    play.drain()
    newer = opened(SITE)
    with pytest.raises(Refused, match="the last good run of this subject did not have it"):
        newer.mill.start("site", "s", from_stage="total")


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"from_stage": "pages"}, "has no stage 'pages'; did you mean 'page'"),
        ({"only": ["totl"]}, "has no stage 'totl'; did you mean 'total'"),
        ({"only": []}, "names no stage"),
        ({"from_stage": "total", "only": "page"}, "stage 'page' does not come after 'total'"),
        ({"only": {"total": "a*"}}, "stage 'total' has one job and no items"),
        ({"only": {"find": None, "page": "a*"}}, "gets its items from 'find', which is run too"),
        ({"from_stage": 7}, "7 is not a stage"),
    ],
)
def test_what_makes_no_sense_is_refused(opened: Open, part: dict[str, Any], message: str) -> None:
    play = opened(SITE)
    with pytest.raises(Invalid, match=message):
        play.mill.start("site", "s", **part)


def test_keys_that_nothing_has_are_refused(opened: Open) -> None:
    play = opened(SITE)
    good(play)
    with pytest.raises(Refused, match="no item that stage 'page' had in the last good run has a key like 'x"):
        play.mill.start("site", "s", only={"page": "x*"})
    assert len(play.mill.runs()) == 1


def test_a_stage_gets_items_from_both_a_stage_that_runs_and_one_that_does_not(opened: Open) -> None:
    play = opened(TWO)
    good(play, "two", a=["a1", "a2"], b=["b1", "b2"])
    for _ in range(2):  # the second stands on the first, whose items from b are themselves taken over
        play.ran.clear()
        run = play.mill.start("two", "s", from_stage="a")
        play.drain(items={"a": ["a2", "a3"]})
        assert play.run(run).state == "completed"
        assert sorted(play.ran) == ["a", "both/a2", "both/a3", "both/b1", "both/b2", "end"]


def test_items_of_a_stage_that_runs_are_known_as_such_also_if_they_come_from_an_earlier_run_of_it(opened: Open) -> None:
    """The items of `e` are those of the first run, and so are their producers: `u` of the second has none in `e`."""
    play = opened(plan("join", r=step(), s=step(), u=each("r"), v=each("s"), e=each("u", "v")))
    on: Items = {"u": ON["page"], "v": ON["page"]}
    good(play, "join", r=["a", "b"], s=["x"], **on)
    play.mill.start("join", "s", only={"u": "a"})
    play.drain()
    play.ran.clear()
    run = play.mill.start("join", "s", from_stage="u")
    play.drain(items=on)
    assert play.run(run).state == "completed"
    assert sorted(play.ran) == ["e/a", "e/b", "e/x", "u/a", "u/b"]


def test_a_part_run_that_waits_stands_on_what_is_good_when_it_begins(opened: Open) -> None:
    play = opened(SITE)
    first = play.mill.start("site", "s")
    waiting = play.mill.start("site", "s", from_stage="total", if_active="wait")
    assert play.run(waiting).state == "waiting"
    play.drain(items={"find": ["a"]})
    assert play.ran == ["find", "page/a", "ok", "total", "publish", "total", "publish"]
    assert play.run(waiting).stage("page").taken_from == first.id


def test_a_part_run_that_waits_for_a_run_which_fails_has_nothing_to_stand_on(opened: Open) -> None:
    play = opened(SITE)
    play.mill.start("site", "s")
    waiting = play.mill.start("site", "s", from_stage="page", if_active="wait")
    play.drain(verdicts={"find": Verdict.PERMANENT})
    over = play.run(waiting)
    assert over.state == "failed"
    assert over.error is not None
    assert "no run of this subject ended well" in over.error
    cancelled = play.mill.start("site", "s")
    play.mill.cancel_run(play.mill.start("site", "s", from_stage="page", if_active="wait").id)
    play.mill.cancel_run(cancelled.id)


def test_a_waiting_run_is_a_whole_one_if_parts_differ(opened: Open) -> None:
    play = opened(SITE)
    good(play)
    play.mill.start("site", "s")
    waiting = play.mill.start("site", "s", from_stage="total", if_active="wait")
    assert play.mill.start("site", "s", from_stage="total", if_active="wait").id == waiting.id
    assert play.stage_states(waiting.id)["page"] == "closed"
    assert play.mill.start("site", "s", from_stage="publish", if_active="wait").id == waiting.id
    assert set(play.stage_states(waiting.id).values()) == {"waiting"}
    play.drain(items={"find": ["a"]})
    assert play.run(waiting).stage("page").completed == 1


def test_a_part_run_can_be_retried(opened: Open) -> None:
    play = opened(SITE)
    good(play)
    run = play.mill.start("site", "s", from_stage="page")
    play.drain(verdicts={"page/b": Verdict.PERMANENT})
    play.ran.clear()
    play.retry(run)
    play.drain()
    assert play.ran == ["page/b", "ok", "total", "publish"]
    assert (play.run(run).state, play.run(run).stage("find").outcome) == ("completed", "skipped")


def test_arguments_are_those_of_the_last_good_run_unless_given(opened: Open) -> None:
    from gristmill import Context, Pipeline

    pipeline = Pipeline("args")

    @pipeline.stage
    def find(ctx: Context, folder: str) -> None: ...

    @pipeline.stage(after=find)
    def total(ctx: Context, folder: str, deep: bool = False) -> None: ...

    play = opened(pipeline)
    play.mill.start("args", "s", args={"folder": "texts"})
    play.drain()
    assert play.mill.start("args", "s", from_stage=total, args={"deep": True}).args == {"folder": "texts", "deep": True}
    play.drain()


@pytest.mark.usefixtures("small_batches")
def test_many_items_are_taken_over_in_batches(opened: Open) -> None:
    play = opened(SITE)
    keys = [f"{n:02}" for n in range(30)]
    good(play, find=keys)
    run = play.mill.start("site", "s", from_stage="page")  # and here its process dies
    assert 0 < play.run(run).stage("page").total < 30
    player = play.player()
    play.turn(player, {}, {})
    assert play.stage_states(run.id)["page"] == "open"
    invariants.check(play.ledger)
    with play.ledger.reading() as tx:
        assert chores.pending(tx) == [run.id]
    play.drain(player)
    assert play.run(run).stage("page").completed == 30


@pytest.mark.usefixtures("small_batches")
def test_a_part_run_that_was_cancelled_before_all_items_were_there_can_be_retried(opened: Open) -> None:
    play = opened(SITE)
    good(play, find=[f"{n:02}" for n in range(30)])
    run = play.mill.start("site", "s", from_stage="page")
    play.mill.cancel_run(run.id)
    assert play.run(run).state == "cancelled"
    play.retry(run)
    play.drain()
    assert (play.run(run).state, play.run(run).stage("page").completed) == ("completed", 30)


def test_a_part_run_in_the_callers_transaction(opened: Open) -> None:
    play = opened(SITE)
    good(play)
    with play.mill.transaction() as connection:
        run = play.mill.start("site", "s", from_stage="page", connection=connection)
    play.drain()
    assert play.run(run).state == "completed"
    assert play.ran == ["page/a", "page/b", "page/c", "ok", "total", "publish"]


@pytest.mark.usefixtures("small_batches")
def test_a_part_run_whose_items_are_deleted_before_it_has_them_fails(opened: Open) -> None:
    play = opened(SITE)
    before = good(play, find=[f"{n:02}" for n in range(30)])
    run = play.mill.start("site", "s", from_stage="page")
    play.ledger.do(remove.remove_run, before.id)  # as no command does while that run is under way
    play.drain()
    over = play.run(run)
    assert (over.state, over.stage("total").outcome) == ("failed", "cancelled")
    assert "was deleted; start a whole run" in (over.error or "")
    with pytest.raises(Refused, match="stage 'find' is that of an earlier run, which was deleted; start a whole run"):
        play.retry(run, stage="page")  # nor would it be whole the second time
    assert play.run(run).state == "failed"


@pytest.mark.parametrize("only", [5, {"page": 5}])
def test_what_is_no_stage_or_pattern_is_refused(opened: Open, only: Any) -> None:
    play = opened(SITE)
    with pytest.raises(Invalid, match=r"not (as )?5"):
        play.mill.start("site", "s", only=only)


def test_what_a_run_under_way_stands_on_is_not_deleted(opened: Open) -> None:
    play = opened(SITE)
    before = good(play)
    part = play.mill.start("site", "s", from_stage="total")
    assert "no run under way has stages from" in (play.mill.delete_runs(ids=[before.id]).refusal or "")
    assert play.mill.delete_runs(state="completed").counts.get("runs", 0) == 0
    assert [key for key, _ in play.mill.results(part, "page")] == ["a", "b", "c"]
    play.drain()
    assert play.mill.delete_runs(ids=[before.id]).counts["runs"] == 1


def deleted(play: Play) -> Run:
    """A part run of which the run that it stands on is gone."""
    before = good(play)
    part = play.mill.start("site", "s", from_stage="total")
    play.drain()
    assert play.mill.delete_runs(ids=[before.id]).counts["runs"] == 1
    play.ran.clear()
    return part


def test_a_stage_whose_run_was_deleted_is_nothing_to_stand_on(opened: Open) -> None:
    play = opened(SITE)
    part = deleted(play)
    with pytest.raises(Refused, match=r"stage 'page' cannot .*: it is that of a run before, which was deleted; start"):
        play.mill.start("site", "s", from_stage="total")
    assert [run.id for run in play.mill.runs()] == [part.id]
    assert ran(play, from_stage="publish") == ["publish"]  # `total` is the part run's own
    later = play.mill.runs()[0]
    with pytest.raises(NotFound, match=f"stage 'page' of run {later.id} is that of an earlier run, which was deleted"):
        list(play.mill.results(later.id, "page"))


def test_a_part_run_that_waits_has_nothing_to_stand_on_if_that_is_deleted(opened: Open) -> None:
    play = opened(SITE)
    deleted(play)
    active = play.mill.start("site", "s", only=["find"])
    waiting = play.mill.start("site", "s", from_stage="total", if_active="wait")
    play.mill.cancel_run(active.id)
    over = play.run(waiting)
    assert (over.state, "which was deleted; start a whole run" in (over.error or "")) == ("failed", True)


def test_results_of_a_run_that_was_deleted_are_not_taken_for_none(opened: Open) -> None:
    play = opened(SITE)
    part = deleted(play)
    gone = f"stage '{{}}' of run {part.id} is that of an earlier run, which was deleted"
    for stage in ("find", "page"):
        with pytest.raises(NotFound, match=gone.format(stage)):
            list(play.mill.results(part.id, stage))
    assert list(play.mill.results(part.id, "total")) != []


def test_a_part_run_is_not_retried_without_what_it_stands_on(opened: Open) -> None:
    play = opened(SITE)
    part = deleted(play)
    before = invariants.snapshot(play.ledger)
    for dry_run in (True, False):
        with pytest.raises(Refused, match="stage 'page' is that of an earlier run, which was deleted; start a whole run"):
            play.retry(part, stage="total", dry_run=dry_run)
    assert invariants.snapshot(play.ledger) == before
    play.retry(part, stage="publish")  # stands on `total`, which is its own
    play.drain()
    assert (play.run(part).state, play.ran) == ("completed", ["publish"])
