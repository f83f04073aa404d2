"""What the last item of a stage sets off: stages close, what follows starts, runs end. Played over whole graphs."""

from __future__ import annotations

import functools
import itertools
import operator
from collections import Counter

import pytest

from gristmill.ledger.finish import Verdict
from tests.ledger.conftest import Open
from tests.ledger.play import Play, each, end, gate, plan, step

ABC = ["a", "b", "c"]


def outcomes(play: Play, run: int) -> dict[str, str | None]:
    return {stage.name: stage.outcome for stage in play.mill.run(run).stages}


# ---- graphs


def test_a_chain_runs_in_order(opened: Open) -> None:
    play = opened(plan("chain", one=step(), two=step("one"), three=step("two")))
    run = play.mill.start("chain", "s")
    play.drain()
    assert play.ran == ["one", "two", "three"]
    assert play.run(run).state == "completed"


def test_parallel_branches_are_open_at_once_and_a_join_waits_for_both(opened: Open) -> None:
    play = opened(plan("diamond", top=step(), left=step("top"), right=step("top"), bottom=step("left", "right")))
    run = play.mill.start("diamond", "s")
    player = play.player()
    player.complete(player.take_one())
    branches = play.labelled(player.take())
    assert set(branches) == {"left", "right"}
    player.complete(branches["left"])
    assert play.stage_states(run.id)["bottom"] == "waiting"
    player.complete(branches["right"])
    play.drain(player)
    assert play.ran == ["bottom"]
    assert play.run(run).state == "completed"


def test_both_branches_of_a_join_may_end_in_one_batch(opened: Open) -> None:
    play = opened(plan("diamond", left=step(), right=step(), bottom=step("left", "right")))
    run = play.mill.start("diamond", "s")
    play.drain()
    assert Counter(play.ran) == {"left": 1, "right": 1, "bottom": 1}
    assert play.run(run).state == "completed"


def test_a_wide_graph_fires_every_stage_once(opened: Open) -> None:
    layers = [[f"s{layer}{n}" for n in range(4)] for layer in range(4)]
    steps = {name: step() for name in layers[0]}
    for above, below in itertools.pairwise(layers):
        steps |= {name: step(*above) for name in below}
    play = opened(plan("wide", **steps))
    run = play.mill.start("wide", "s")
    play.drain()
    assert Counter(play.ran) == dict.fromkeys(functools.reduce(operator.iadd, layers, []), 1)
    assert play.run(run).state == "completed"


def test_fan_out_and_fan_in(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find"), total=step("page")))
    run = play.mill.start("site", "s")
    play.drain(items={"find": ABC})
    assert play.ran == ["find", "page/a", "page/b", "page/c", "total"]
    assert play.counters(run.id, "page") == (3, 3, 0, 0, 0)


def test_a_join_waits_for_items_that_end_after_their_producer(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find"), total=step("page")))
    run = play.mill.start("site", "s")
    player = play.player()
    play.turn(player, {"find": ABC}, {})
    first, *rest = player.take()
    player.complete(*rest)
    assert play.stage_states(run.id) == {"find": "closed", "page": "sealed", "total": "waiting"}
    player.complete(first)
    assert play.stage_states(run.id) == {"find": "closed", "page": "closed", "total": "sealed"}


def test_items_may_all_end_before_their_producer(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find"), total=step("page")))
    run = play.mill.start("site", "s")
    player = play.player()
    find = player.take_one()
    player.emit(find, *ABC)
    player.complete(*player.take())
    assert play.stage_states(run.id) == {"find": "sealed", "page": "open", "total": "waiting"}
    player.complete(find)
    assert play.stage_states(run.id)["total"] == "sealed"


def test_each_after_each_after_each(opened: Open) -> None:
    play = opened(plan("deep", a=step(), b=each("a"), c=each("b"), d=each("c"), end=step("d")))
    run = play.mill.start("deep", "s")
    play.drain(items={"a": ["1", "2"], "b": ["x", "y", "z"], "c": lambda job: ["!"] if job.key != "1/x" else []})
    assert [play.counters(run.id, name)[0] for name in "abcd"] == [1, 2, 6, 5]
    assert Counter(play.ran)["end"] == 1
    assert play.run(run).state == "completed"


def test_an_each_stage_after_two_producers_is_sealed_when_both_are_closed(opened: Open) -> None:
    play = opened(plan("two", left=step(), right=step(), page=each("left", "right"), total=step("page")))
    run = play.mill.start("two", "s")
    player = play.player()
    jobs = play.labelled(player.take())
    player.emit(jobs["left"], "l")
    player.complete(jobs["left"])
    player.complete(*player.take())
    assert play.stage_states(run.id)["page"] == "open"
    player.emit(jobs["right"], "r")
    player.complete(jobs["right"])
    assert play.stage_states(run.id)["page"] == "sealed"
    play.drain(player)
    assert play.ran == ["page/r", "total"]
    assert play.run(run).state == "completed"


def test_an_each_stage_may_follow_a_plain_and_an_each_stage(opened: Open) -> None:
    play = opened(plan("mixed", find=step(), page=each("find"), check=each("find", "page"), total=step("check")))
    run = play.mill.start("mixed", "s")
    play.drain(items={"find": ["a", "b"], "page": ["p"]})
    assert play.counters(run.id, "check") == (4, 4, 0, 0, 0)
    assert Counter(play.ran)["total"] == 1


# ---- nothing, and nothing but failures


def test_a_fan_out_of_nothing_goes_on(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find"), image=each("page"), total=step("image")))
    run = play.mill.start("site", "s")
    play.drain()
    assert play.ran == ["find", "total"]
    assert (play.run(run).state, play.counters(run.id, "page")) == ("completed", (0, 0, 0, 0, 0))


def test_a_fan_out_of_nothing_fails_where_some_are_needed(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find", need=1), total=step("page")))
    run = play.mill.start("site", "s")
    play.drain()
    ended = play.run(run)
    assert (play.ran, ended.state) == (["find"], "failed")
    assert ended.error == "stage 'page': 0 of 0 succeeded, 1 needed"


def test_when_every_item_fails_the_run_fails_and_says_why(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find"), total=step("page")))
    run = play.mill.start("site", "s")
    play.drain(items={"find": ABC}, verdicts={"page": Verdict.PERMANENT})
    ended = play.run(run)
    assert (ended.state, ended.error) == ("failed", "stage 'page': 0 of 3 succeeded, 1 needed")
    assert outcomes(play, run.id) == {"find": "completed", "page": "failed", "total": "cancelled"}
    assert "total" not in play.ran


def test_one_failed_page_does_not_stop_the_site(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find"), total=step("page")))
    run = play.mill.start("site", "s")
    play.drain(items={"find": ABC}, verdicts={"page/b": Verdict.PERMANENT})
    ended = play.run(run)
    assert (ended.state, ended.error) == ("completed_with_errors", "1 of 3 failed in 'page'")
    assert [job.key for job in play.mill.jobs(run=run.id, state="failed")] == ["b"]
    assert outcomes(play, run.id) == {"find": "completed", "page": "completed_with_errors", "total": "completed"}


def test_a_failed_producer_leaves_its_items_and_its_own_need_decides(opened: Open) -> None:
    play = opened(plan("site", find=step(need=0), page=each("find"), total=step("page")))
    run = play.mill.start("site", "s")
    play.drain(items={"find": ABC}, verdicts={"find": Verdict.PERMANENT})
    assert (play.run(run).state, Counter(play.ran)["total"]) == ("completed_with_errors", 1)
    assert play.counters(run.id, "page") == (3, 3, 0, 0, 0)


# ---- how much success a stage needs


@pytest.mark.parametrize(
    ("need", "failed", "state"),
    [
        (None, 9, "completed_with_errors"),
        (None, 10, "failed"),
        (0, 10, "completed_with_errors"),
        (3, 7, "completed_with_errors"),
        (3, 8, "failed"),
        (10, 0, "completed"),
        (10, 1, "failed"),
        (11, 0, "failed"),
        (0.5, 5, "completed_with_errors"),
        (0.5, 6, "failed"),
        (1.0, 0, "completed"),
        (1.0, 1, "failed"),
        (0.0, 10, "completed_with_errors"),
    ],
)
def test_need_is_a_count_or_a_share_or_one(opened: Open, need: float | None, failed: int, state: str) -> None:
    play = opened(plan("site", find=step(), page=each("find", need=need), total=step("page")))
    run = play.mill.start("site", "s")
    bad = {f"page/{n}": Verdict.PERMANENT for n in range(failed)}
    play.drain(items={"find": [str(n) for n in range(10)]}, verdicts=bad)
    assert play.run(run).state == state
    assert ("total" in play.ran) == (state != "failed")


def test_skipped_counts_as_success(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find", need=1.0), total=step("page")))
    run = play.mill.start("site", "s")
    play.drain(items={"find": ABC}, verdicts={"page/b": Verdict.SKIPPED})
    assert (play.run(run).state, play.counters(run.id, "page")) == ("completed", (3, 2, 0, 1, 0))


def test_a_stage_whose_items_were_all_skipped_is_skipped_and_the_run_goes_on(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find"), total=step("page")))
    run = play.mill.start("site", "s")
    play.drain(items={"find": ABC}, verdicts={"page": Verdict.SKIPPED})
    assert outcomes(play, run.id)["page"] == "skipped"
    assert (play.run(run).state, "total" in play.ran) == ("completed", True)


def test_an_item_with_errors_counts_as_completed_and_shows_in_the_run(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find", need=1.0), total=step("page")))
    run = play.mill.start("site", "s")
    play.drain(items={"find": ABC}, verdicts={"page/a": Verdict.WITH_ERRORS})
    assert (play.run(run).state, play.counters(run.id, "page")) == ("completed_with_errors", (3, 3, 0, 0, 0))
    assert outcomes(play, run.id)["page"] == "completed_with_errors"


def test_need_is_judged_only_when_every_item_is_terminal(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find", need=3), total=step("page")))
    run = play.mill.start("site", "s")
    player = play.player()
    play.turn(player, {"find": ABC}, {})
    jobs = play.labelled(player.take())
    player.end(jobs["page/a"], Verdict.PERMANENT)
    assert (play.run(run).state, play.run(run).stopping) == ("in_progress", None)
    player.complete(jobs["page/b"], jobs["page/c"])
    assert play.run(run).state == "failed"


def test_a_stage_that_did_not_get_what_it_needs_stops_the_run_and_cancels_the_rest(opened: Open) -> None:
    play = opened(plan("two", left=step(), right=step(), after=step("right"), page=each("right"), total=step("left")))
    run = play.mill.start("two", "s")
    player = play.player()
    jobs = play.labelled(player.take())
    player.emit(jobs["right"], *ABC)
    player.end(jobs["left"], Verdict.PERMANENT, reason="no such site")
    stopped = play.run(run)
    assert (stopped.state, stopped.stopping) == ("in_progress", "stage 'left': no such site")
    assert play.sweep() == 3
    assert play.run(run).state == "in_progress"
    player.complete(jobs["right"])
    ended = play.run(run)
    assert (ended.state, ended.stopping, ended.error) == ("failed", None, "stage 'left': no such site")
    assert outcomes(play, run.id) == {
        "left": "failed",
        "right": "completed",
        "after": "cancelled",
        "page": "cancelled",
        "total": "cancelled",
    }


def test_two_stages_that_fail_in_one_batch_fail_the_run_once(opened: Open) -> None:
    play = opened(plan("two", left=step(), right=step(), total=step("left", "right")))
    run = play.mill.start("two", "s")
    play.drain(verdicts={"left": Verdict.PERMANENT, "right": Verdict.PERMANENT})
    assert (play.run(run).state, play.stage_states(run.id)["total"]) == ("failed", "closed")


# ---- gates


def gated(**options: object):
    return plan("site", find=step(), page=each("find"), enough=gate("page"), total=step("page"), last=step("total"))


def test_a_gate_runs_after_its_stage_and_what_follows_waits_for_it(opened: Open) -> None:
    play = opened(gated())
    run = play.mill.start("site", "s")
    play.drain(items={"find": ABC})
    assert play.ran[-3:] == ["enough", "total", "last"]
    assert play.run(run).state == "completed"


def test_a_gate_that_fails_fails_the_run(opened: Open) -> None:
    play = opened(gated())
    run = play.mill.start("site", "s")
    play.drain(items={"find": ABC}, verdicts={"enough": Verdict.PERMANENT})
    assert (play.run(run).state, play.ran[-1]) == ("failed", "enough")


def test_a_gate_may_end_the_run_here(opened: Open) -> None:
    play = opened(gated())
    run = play.mill.start("site", "s")
    play.drain(items={"find": ABC}, verdicts={"enough": Verdict.END_RUN})
    assert (play.run(run).state, play.ran[-1]) == ("completed", "enough")
    assert outcomes(play, run.id)["total"] == "cancelled"


def test_two_gates_must_both_open(opened: Open) -> None:
    play = opened(plan("site", work=step(), one=gate("work"), two=gate("work"), total=step("work")))
    run = play.mill.start("site", "s")
    player = play.player()
    player.complete(player.take_one())
    gates = play.labelled(player.take())
    assert set(gates) == {"one", "two"}
    player.complete(gates["one"])
    assert play.stage_states(run.id)["total"] == "waiting"
    player.complete(gates["two"])
    assert play.stage_states(run.id)["total"] == "sealed"


def test_a_gate_that_is_tried_again_keeps_what_follows_waiting(opened: Open) -> None:
    play = opened(plan("site", work=step(), ok=gate("work", retries=1), total=step("work")))
    run = play.mill.start("site", "s")
    play.drain(verdicts={"ok": Verdict.ERROR})
    assert (play.ran, play.stage_states(run.id)["total"]) == (["work", "ok"], "waiting")
    play.drain_later()
    assert play.ran == ["work", "ok", "ok", "total"]
    assert play.run(run).state == "completed"


# ---- ending a run here


def test_end_run_ends_it_with_its_reason_and_runs_nothing_more(opened: Open) -> None:
    play = opened(plan("site", look=step(), page=each("look"), total=step("page")))
    run = play.mill.start("site", "s")
    player = play.player()
    player.end(player.take_one(), Verdict.END_RUN, reason="unchanged", result='{"etag":"x"}')
    ended = play.run(run)
    assert (ended.state, ended.reason, ended.error, ended.stopping) == ("completed", "unchanged", None, None)
    assert (ended.result("look"), player.take()) == ({"etag": "x"}, [])


def test_end_run_cancels_what_is_queued_and_lets_what_runs_be_stopped(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find"), total=step("page")))
    run = play.mill.start("site", "s")
    player = play.player()
    play.turn(player, {"find": ABC}, {})
    first, second = player.take(2)
    player.end(first, Verdict.END_RUN, reason="enough")
    assert play.run(run).stopping == "enough"
    assert play.sweep() == 1
    player.end(second, Verdict.CANCELLED)
    assert (play.run(run).state, play.counters(run.id, "page")) == ("completed", (3, 1, 0, 0, 2))


def test_end_run_after_failures_is_completed_with_errors(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find"), total=step("page")))
    run = play.mill.start("site", "s")
    play.drain(items={"find": ABC}, verdicts={"page/a": Verdict.PERMANENT, "page/c": Verdict.END_RUN})
    assert play.run(run).state == "completed_with_errors"


def test_of_two_reasons_to_end_in_one_batch_one_counts(opened: Open) -> None:
    play = opened(plan("two", left=step(), right=step(), total=step("left", "right")))
    run = play.mill.start("two", "s")
    player = play.player()
    left, right = player.take()
    player.finish(end(left, Verdict.END_RUN, reason="one"), end(right, Verdict.END_RUN, reason="two"))
    assert play.run(run).state == "completed"
    assert play.run(run).reason in {"one", "two"}


# ---- the run and its subject


def test_a_run_begins_with_the_first_end_at_the_latest(opened: Open) -> None:
    from gristmill.ledger.finish import begin

    play = opened(plan("chain", one=step(), two=step("one")))
    run = play.mill.start("chain", "s")
    assert (run.state, run.started_at) == ("queued", None)
    play.clock.advance(1)
    play.ledger.do(begin, play.player().id, [run.id])
    began = play.run(run)
    assert began.state == "in_progress"
    play.clock.advance(1)
    play.drain()
    ended = play.run(run)
    assert ended.started_at == began.started_at
    assert ended.finished_at is not None
    assert ended.created_at is not None
    assert (ended.finished_at - ended.created_at).total_seconds() == 2


def test_a_subject_knows_its_last_run_and_its_last_good_one(opened: Open) -> None:
    def last() -> tuple[int | None, int | None]:
        return tuple(play.rows("SELECT last_run_id, last_good_run_id FROM gm_subject")[0])

    play = opened(plan("site", find=step(), page=each("find")))
    good = play.mill.start("site", "s").id
    assert last() == (None, None)
    play.drain()
    assert last() == (good, good)
    bad = play.mill.start("site", "s").id
    play.drain(verdicts={"find": Verdict.PERMANENT})
    assert last() == (bad, good)
    partly = play.mill.start("site", "s").id
    play.drain(items={"find": ABC}, verdicts={"page/a": Verdict.PERMANENT})
    assert last() == (partly, partly)


def test_results_are_read_by_stage(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find"), total=step("page")))
    run = play.mill.start("site", "s")
    player = play.player()
    play.turn(player, {"find": ["b", "a", "c"]}, {})
    jobs = play.labelled(player.take())
    player.complete(jobs["page/b"], result="2")
    player.complete(jobs["page/a"], result="1")
    player.end(jobs["page/c"], Verdict.PERMANENT)
    assert list(play.mill.results(run.id, "page")) == [("a", 1), ("b", 2)]
    player.complete(player.take_one(), result='{"sum":3}')
    assert play.run(run).result("total") == {"sum": 3}
