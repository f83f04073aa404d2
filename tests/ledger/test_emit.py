"""Streaming fan-out: items are counted with their rows, known by their path, and refused from those who lost their job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import orjson
import pytest

from gristmill import Pipeline
from gristmill.errors import NotYours
from gristmill.ledger import workers
from gristmill.ledger.claim import Claimed, Lane, Want
from gristmill.ledger.emit import Item, emit
from gristmill.ledger.exchange import Batch, exchange
from gristmill.ledger.finish import Verdict
from tests.ledger import invariants
from tests.ledger.conftest import Open
from tests.ledger.play import Play, Player, each, end, plan, solo, step


def site() -> Pipeline:
    return plan("site", find=step(retries=5), page=each("find"), total=step("page"))


def finding(play: Play, player: Player, pipeline: str = "site") -> Claimed:
    """The claimed first job of a run that was just started."""
    play.mill.start(pipeline, "s")
    return player.take_one()


def keys(play: Play, stage: str) -> list[str]:
    return sorted(job.key or "" for job in play.mill.jobs(stage=stage))


def test_each_batch_is_counted_and_ready_while_the_producer_still_runs(opened: Open) -> None:
    play = opened(site())
    player = play.player()
    find = finding(play, player)
    assert find.run_id is not None
    assert player.emit(find, "a", "b") == {}
    assert play.counters(find.run_id, "page") == (2, 0, 0, 0, 0)
    assert player.emit(find, "c") == {}
    assert play.counters(find.run_id, "page") == (3, 0, 0, 0, 0)
    player.complete(*player.take())
    assert play.counters(find.run_id, "page") == (3, 3, 0, 0, 0)
    assert play.stage_states(find.run_id) == {"find": "sealed", "page": "open", "total": "waiting"}


def test_an_item_carries_its_arguments_and_its_producer(opened: Open) -> None:
    play = opened(site())
    player = play.player()
    find = finding(play, player)
    player.emit(find, Item("a", '{"path":"/a"}'))
    (item,) = player.take()
    assert (item.key, item.args) == ("a", '{"path":"/a"}')
    row = play.rows("SELECT parent_id, parent_attempt FROM gm_job WHERE id = :id", id=item.id)[0]
    assert tuple(row) == (find.id, find.attempt)


def test_the_path_of_an_item_is_its_producers_path_and_its_own_key(opened: Open) -> None:
    play = opened(plan("deep", find=step(), page=each("find"), image=each("page")))
    play.mill.start("deep", "s")
    play.drain(items={"find": ["a", "b"], "page": ["1", "2"]})
    assert keys(play, "image") == ["a/1", "a/2", "b/1", "b/2"]


def test_a_slash_in_a_key_makes_no_two_items_one(opened: Open) -> None:
    play = opened(plan("deep", find=step(), page=each("find"), image=each("page")))
    play.mill.start("deep", "s")
    play.drain(items={"find": ["a", "a/b"], "page": ["b/c", "c", "b%2Fc"]})
    assert keys(play, "page") == ["a", "a/b"]
    assert keys(play, "image") == sorted(f"{a}/{b}" for a in ("a", "a/b") for b in ("b%2Fc", "c", "b%252Fc"))


def test_an_item_without_a_key_goes_on_under_its_producers(opened: Open) -> None:
    play = opened(plan("deep", find=step(), page=each("find"), image=each("page")))
    play.mill.start("deep", "s")
    play.drain(items={"find": ["a", "b"], "page": [""]})
    assert keys(play, "image") == ["a", "b"]


def test_an_item_without_a_key_of_a_plain_stage_is_named_after_the_stage(opened: Open) -> None:
    play = opened(site())
    play.mill.start("site", "s")
    play.drain(items={"find": [""]})
    assert keys(play, "page") == ["find"]


@pytest.mark.parametrize("batches", [[["a", "a"]], [["a"], ["a"]], [["a", "b"], ["c", "a"]]])
def test_the_same_key_twice_from_one_attempt_is_an_error(opened: Open, batches: list[list[str]]) -> None:
    play = opened(site())
    player = play.player()
    find = finding(play, player)
    refused = [player.emit(find, *batch) for batch in batches]
    assert not any(refused[:-1])
    assert "emitted twice" in refused[-1][find.id]
    assert "'a'" in refused[-1][find.id]


def test_the_same_key_from_a_retry_is_a_no_op_and_new_ones_are_added(opened: Open) -> None:
    play = opened(site())
    player = play.player()
    find = finding(play, player)
    assert find.run_id is not None
    player.emit(find, "a", "b")
    player.end(find, Verdict.RELEASED)
    (again,) = (job for job in player.take() if job.id == find.id)
    assert player.emit(again, "a", "b", "c") == {}
    assert keys(play, "page") == ["a", "b", "c"]
    assert play.counters(find.run_id, "page")[0] == 3


def test_the_same_key_twice_from_a_retry_is_an_error_again(opened: Open) -> None:
    play = opened(site())
    player = play.player()
    find = finding(play, player)
    player.emit(find, "a")
    player.end(find, Verdict.RELEASED)
    (again,) = (job for job in player.take() if job.id == find.id)
    assert player.emit(again, "a") == {}
    assert "emitted twice" in player.emit(again, "a").get(find.id, "")


def test_the_same_key_from_two_producers_is_an_error_of_the_second(opened: Open) -> None:
    play = opened(plan("two", left=step(), right=step(), page=each("left", "right")))
    play.mill.start("two", "s")
    player = play.player()
    jobs = play.labelled(player.take())
    assert player.emit(jobs["left"], "a") == {}
    assert list(player.emit(jobs["right"], "a", "b")) == [jobs["right"].id]


def test_an_item_goes_to_every_each_stage_after_its_producer(opened: Open) -> None:
    play = opened(plan("fork", find=step(), text=each("find"), image=each("find"), plain=step("find")))
    play.mill.start("fork", "s")
    play.drain(items={"find": ["a", "b"]})
    assert (keys(play, "text"), keys(play, "image"), keys(play, "plain")) == (["a", "b"], ["a", "b"], [""])


def test_an_item_that_names_a_stage_goes_to_that_one_only(opened: Open) -> None:
    play = opened(plan("fork", find=step(), text=each("find"), image=each("find")))
    player = play.player()
    find = finding(play, player, "fork")
    player.emit(find, Item("a", None, "text"), Item("b", None, "image"), Item("c", None))
    assert (keys(play, "text"), keys(play, "image")) == (["a", "c"], ["b", "c"])


def test_the_same_key_may_go_to_two_stages_by_name(opened: Open) -> None:
    play = opened(plan("fork", find=step(), text=each("find"), image=each("find")))
    player = play.player()
    find = finding(play, player, "fork")
    assert player.emit(find, Item("a", '{"n":1}', "text"), Item("a", '{"n":2}', "image")) == {}
    assert (keys(play, "text"), keys(play, "image")) == (["a"], ["a"])


def test_items_of_several_producers_go_in_one_transaction(opened: Open) -> None:
    play = opened(plan("deep", find=step(), page=each("find"), image=each("page")))
    play.mill.start("deep", "s")
    player = play.player()
    play.turn(player, {"find": ["a", "b"]}, {})
    batch = [player.batch_of(job, "1") for job in player.take()]
    assert play.ledger.do(emit, player.id, batch) == {}
    assert keys(play, "image") == ["a/1", "b/1"]


MANY = [f"k{n:03}" for n in range(50)]  # enough for the short cut that workers take with items of one producer


def test_many_items_of_a_first_attempt_are_added_at_once(opened: Open) -> None:
    play = opened(site())
    player = play.player()
    find = finding(play, player)
    assert find.run_id is not None
    assert player.emit(find, *MANY) == {}
    assert (keys(play, "page"), play.counters(find.run_id, "page")[0]) == (MANY, 50)


@pytest.mark.parametrize("batches", [[[*MANY, "k007"]], [MANY, ["k007"]], [MANY, MANY]], ids=["in one", "few", "many"])
def test_among_many_items_too_a_key_twice_is_an_error_and_the_others_stay(opened: Open, batches: list[list[str]]) -> None:
    play = opened(site())
    player = play.player()
    find = finding(play, player)
    assert find.run_id is not None
    refused = [player.emit(find, *batch) for batch in batches]
    assert not any(refused[:-1])
    assert "emitted twice" in refused[-1][find.id]
    assert (keys(play, "page"), play.counters(find.run_id, "page")[0]) == (MANY, 50)


def test_many_items_of_a_retry_that_were_there_already_are_a_no_op(opened: Open) -> None:
    play = opened(site())
    player = play.player()
    find = finding(play, player)
    assert find.run_id is not None
    player.emit(find, *MANY[:30])
    player.end(find, Verdict.RELEASED)
    (again,) = (job for job in player.take() if job.id == find.id)
    assert player.emit(again, *MANY) == {}
    assert (keys(play, "page"), play.counters(find.run_id, "page")[0]) == (MANY, 50)


def test_many_items_of_two_producers_that_collide_are_an_error_of_the_second(opened: Open) -> None:
    play = opened(plan("two", left=step(), right=step(), page=each("left", "right")))
    run = play.mill.start("two", "s")
    player = play.player()
    jobs = play.labelled(player.take())
    assert player.emit(jobs["left"], *MANY) == {}
    assert list(player.emit(jobs["right"], *MANY[:30], *[f"r{n}" for n in range(30)])) == [jobs["right"].id]
    assert play.counters(run.id, "page")[0] == 80


def test_a_path_that_no_index_can_hold_is_refused_by_name(opened: Open) -> None:
    play = opened(plan("deep", find=step(), page=each("find"), image=each("page")))
    play.mill.start("deep", "s")
    player = play.player()
    play.turn(player, {"find": ["\N{OLD PERSIAN SIGN A}" * 500]}, {})
    (page,) = player.take()
    assert "shorter keys" in player.emit(page, "\N{OLD PERSIAN SIGN A}" * 500)[page.id]


def test_a_batch_that_is_sent_again_because_its_commit_got_no_answer_is_a_no_op(opened: Open) -> None:
    play = opened(site())
    player = play.player()
    find = finding(play, player)
    first, second = player.batch_of(find, "a"), player.batch_of(find, "b")
    play.ledger.do(emit, player.id, [first])
    after = invariants.snapshot(play.ledger)
    assert play.ledger.do(emit, player.id, [first]) == {}
    assert invariants.snapshot(play.ledger) == after
    assert play.ledger.do(emit, player.id, [first, second]) == {}
    assert keys(play, "page") == ["a", "b"]


def test_the_batches_of_a_retry_are_not_mistaken_for_those_of_the_attempt_before(opened: Open) -> None:
    play = opened(site())
    player = play.player()
    find = finding(play, player)
    for key in "abc":
        player.emit(find, key)
    player.end(find, Verdict.RELEASED)
    (again,) = (job for job in player.take() if job.id == find.id)
    assert player.emit(again, "new") == {}
    assert keys(play, "page") == ["a", "b", "c", "new"]


# ---- refused


def test_items_of_a_late_attempt_are_refused_and_change_nothing(opened: Open) -> None:
    play = opened(site())
    player = play.player()
    find = finding(play, player)
    player.end(find, Verdict.RELEASED)
    player.take()
    before = invariants.snapshot(play.ledger)
    assert player.emit(find, "a") == {find.id: "not yours any more"}
    assert invariants.snapshot(play.ledger) == before


def test_items_of_an_ended_job_are_refused_and_change_nothing(opened: Open) -> None:
    play = opened(site())
    player = play.player()
    find = finding(play, player)
    player.complete(find)
    before = invariants.snapshot(play.ledger)
    assert player.emit(find, "a") == {find.id: "not yours any more"}
    assert invariants.snapshot(play.ledger) == before


def test_items_from_another_worker_are_refused_and_change_nothing(opened: Open) -> None:
    play = opened(site())
    find = finding(play, play.player())
    other = play.player()
    before = invariants.snapshot(play.ledger)
    assert other.emit(find, "a") == {find.id: "not yours any more"}
    assert invariants.snapshot(play.ledger) == before


def test_items_of_a_lost_worker_are_refused_and_change_nothing(opened: Open) -> None:
    play = opened(site())
    player = play.player()
    find = finding(play, player)
    play.clock.advance(60)
    play.ledger.do(workers.rescue, player.id)
    before = invariants.snapshot(play.ledger)
    with pytest.raises(NotYours):
        player.emit(find, "a")
    assert invariants.snapshot(play.ledger) == before


def test_items_of_a_stopped_run_are_refused(opened: Open) -> None:
    play = opened(site())
    player = play.player()
    find = finding(play, player)
    assert find.run_id is not None
    play.mill.cancel_run(find.run_id)
    assert player.emit(find, "a") == {find.id: "the run is being stopped"}
    assert keys(play, "page") == []


def test_one_refused_producer_does_not_take_the_others_with_it(opened: Open) -> None:
    play = opened(plan("two", left=step(), right=step(), page=each("left", "right")))
    play.mill.start("two", "s")
    player = play.player()
    jobs = play.labelled(player.take())
    batch = [player.batch_of(jobs["left"]._replace(attempt=7), "a"), player.batch_of(jobs["right"], "b")]
    assert set(play.ledger.do(emit, player.id, batch)) == {jobs["left"].id}
    assert keys(play, "page") == ["b"]


# ---- the last items travel with the end


def last_words(player: Player, find: Claimed, *keys: str) -> Batch:
    return Batch(emissions=[player.batch_of(find, *keys)], outcomes=[end(find)])


def test_the_last_items_and_the_end_are_one_transaction(opened: Open) -> None:
    play = opened(site())
    player = play.player()
    find = finding(play, player)
    assert find.run_id is not None
    done = player.exchange(last_words(player, find, "a", "b"))
    assert (done.refused_items, done.late) == ({}, [])
    assert play.stage_states(find.run_id) == {"find": "closed", "page": "sealed", "total": "waiting"}


def test_a_producer_whose_last_items_were_refused_has_failed(opened: Open) -> None:
    play = opened(site())
    player = play.player()
    find = finding(play, player)
    player.exchange(last_words(player, find, "a", "a"))
    job = play.mill.job(find.id)
    assert job.state == "failed"
    assert "emitted twice" in (job.error or "")


def test_a_producer_whose_run_was_ended_meanwhile_did_not_fail(opened: Open) -> None:
    """One branch ends the run (`unchanged`) while the other still streams: nothing went wrong."""
    play = opened(plan("two", look=step(), find=step(), page=each("find")))
    run = play.mill.start("two", "s")
    player = play.player()
    jobs = play.labelled(player.take())
    player.end(jobs["look"], Verdict.END_RUN, reason="unchanged")
    player.exchange(last_words(player, jobs["find"], "a"))
    play.drain(player)
    ended = play.run(run)
    assert (play.mill.job(jobs["find"].id).state, ended.state, ended.reason) == ("cancelled", "completed", "unchanged")


# ---- new items that start at once


def emit_and_take(
    play: Play, player: Player, find: Claimed, items: Sequence[str | Item], shares: dict[str, int]
) -> list[Claimed]:
    """A turn of a worker that has room for so many jobs of each queue, in this order, and for no more in all."""
    lanes = {name: (Lane(play.queue_ids()[name], 0),) for name in shares}
    room = sum(shares.values())
    wants = [Want(0, share, lanes[name]) for name, share in shares.items()] + [Want(0, room, lanes[name]) for name in shares]
    taken = play.ledger.do(exchange, player.id, Batch([player.batch_of(find, *items)]), wants, {0: room}).taken
    assert taken is not None
    return taken.jobs


@pytest.mark.parametrize(("in_line", "own"), [(0, 5), (2, 3), (9, 0)])
def test_a_queue_whose_new_items_start_gets_no_more_than_its_share(opened: Open, in_line: int, own: int) -> None:
    """What stood in line before them starts too; other queues have their own share."""
    play = opened(plan("site", find=step(), page=each("find", queue="pages")), plan("other", page=step(queue="pages")))
    player = play.player()
    find = finding(play, player)
    play.mill.enqueue_many(solo, [{}] * 20)
    before = [play.mill.start("other", str(n)).id for n in range(in_line)]
    jobs = emit_and_take(play, player, find, MANY, {"pages": 5, "default": 5})
    assert Counter(job.run_id in before for job in jobs if job.run_id) == Counter({True: 5 - own, False: own})
    assert sum(job.run_id is None for job in jobs) == 5
    player.complete(find, *jobs)
    play.drain(player)


def test_only_what_is_above_the_floor_stands_in_line_before_new_items(opened: Open) -> None:
    """Below it PostgreSQL keeps entries of jobs that are gone: to count these costs more than all else."""
    play = opened(site())
    player = play.player()
    find = finding(play, player)
    play.mill.enqueue_many(solo, [{}] * 20)
    floor = play.value("SELECT max(ready) FROM gm_job")
    lanes = tuple(Lane(play.queue_ids()["default"], 0, priority, floor) for priority in (0, 1, 2))
    batch = Batch([player.batch_of(find, *MANY)])
    taken = play.ledger.do(exchange, player.id, batch, [Want(0, 5, lanes)], {0: 5}).taken
    assert taken is not None
    assert [job.key for job in taken.jobs] == MANY[:5]


HOSTILE = [
    "\\",
    "\\.",
    "\\N",
    "a\tb",
    "a\nb",
    "a\rb",
    '"',
    "'",
    "{",
    "},",
    "NULL",
    "",
    " ",
    "é",
    "\U0001f600",
    "\u2028",
    "\x01",
]
HOSTILE += ["%", "%s", "%(now)s", ":now", "{now}", "$1", "a\\", '\\"', "x" * (1 << 20)]


def test_items_and_results_come_back_as_they_were_whatever_they_hold(opened: Open) -> None:
    """The arguments here are text that no child would send, so that nothing but the ledger protects them."""
    play = opened(site())
    player = play.player()
    find = finding(play, player)
    items = [
        Item(f"{n} {text[:20]}", text if n % 2 else orjson.dumps({"v": text}).decode()) for n, text in enumerate(HOSTILE)
    ]
    jobs = [*emit_and_take(play, player, find, items, {"default": 9}), *player.take()]
    assert sorted((job.key, job.args) for job in jobs) == sorted((item.key, item.args) for item in items)
    done = Batch()
    for job, text in zip(jobs, HOSTILE, strict=True):
        done.completed.rows.append((job.id, job.attempt, text, 0))
        done.completed.origins.append(job.kind.origin)
    assert player.report(done) == []
    results = {row.id: row.result for row in play.rows("SELECT id, result FROM gm_job")}
    assert [results[job.id] for job in jobs] == HOSTILE
    player.complete(find)
