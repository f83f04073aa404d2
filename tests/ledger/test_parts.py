"""Parts of a job: handed over by its attempt, jobs of their own, and the last one calls their job again."""

from __future__ import annotations

from typing import Any

import pytest

from gristmill.errors import Invalid, NotYours
from gristmill.ledger import infos, parts, workers
from gristmill.ledger.claim import Claimed
from gristmill.ledger.exchange import Batch, exchange
from gristmill.ledger.finish import Verdict
from tests.ledger.conftest import Open
from tests.ledger.hooks import hooked
from tests.ledger.play import Play, Player, each, end, plain, plan, remembered, solo, step, stubborn

SITE = {"find": step(), "page": each("find", need=0), "total": step("page")}


def parent(play: Play, player: Player, *keys: str, **how: Any) -> Claimed:
    """A job on its own that waits for parts with these keys."""
    play.mill.enqueue(solo)
    job = player.take_one()
    player.split(job, *keys, **how)
    return job


def row(play: Play, job: Claimed) -> Any:
    return play.rows("SELECT * FROM gm_job WHERE id = :id", id=job.id)[0]


def counts(play: Play, job: Claimed) -> tuple[int, int, int]:
    found = play.mill.job(job.id)
    return found.parts or 0, found.parts_left or 0, found.parts_failed or 0


def waits(play: Play, job: Claimed) -> bool:
    found = row(play, job)
    return (found.state, found.ready, found.run_at, found.worker_id) == (0, None, None, None)


def states(play: Play, job: Claimed) -> dict[str | None, str]:
    return {part.key: part.state for part in play.mill.jobs(part_of=job.id)}


def in_run(play: Play, player: Player, *keys: str) -> tuple[int, Claimed]:
    """A run whose one item waits for parts."""
    run = play.mill.start("site", "s").id
    play.turn(player, {"find": ["doc"]}, {})
    item = player.take_one()
    player.split(item, *keys)
    return run, item


# ---- the last part calls its job again


def test_a_job_waits_in_nobodys_hands_until_its_last_part_has_ended(play: Play) -> None:
    player = play.player()
    job = parent(play, player, "a", "b")
    assert waits(play, job)
    assert counts(play, job) == (2, 2, 0)
    assert sorted(found.key or "" for found in play.mill.jobs(state="queued")) == ["", "a", "b"]
    one, two = player.take()
    assert (one.part_of, one.key, two.key) == (job.id, "a", "b")
    player.complete(one, result='"A"')
    assert waits(play, job)
    player.end(two, Verdict.PERMANENT, reason="dark")
    assert counts(play, job) == (2, 0, 1)
    again = player.take_one()
    assert (again.id, again.attempt) == (job.id, 2)
    player.complete(again)
    assert play.mill.job(job.id).state == "completed"


def test_both_last_parts_in_one_batch_call_it_once(play: Play) -> None:
    player = play.player()
    job = parent(play, player, "a", "b", "c")
    player.complete(*player.take())
    assert [again.id for again in player.take()] == [job.id]


def test_a_job_and_the_last_of_its_parts_may_be_reported_together(play: Play) -> None:
    """A worker holds both, and the part is quicker than the report that the job waits for it."""
    player = play.player()
    play.mill.enqueue(solo)
    job = player.take_one()
    player.hand_over(job, "a")
    part = player.take_one()
    assert player.report(Batch(completed=plain(part), outcomes=[end(job, Verdict.WAITING)])) == []
    assert player.take_one().id == job.id


def test_parts_that_end_before_their_job_waits_do_not_keep_it(play: Play) -> None:
    player = play.player()
    play.mill.enqueue(solo)
    job = player.take_one()
    player.hand_over(job, "a")
    player.complete(player.take_one())
    player.end(job, Verdict.WAITING)
    assert player.take_one().id == job.id


def test_a_job_without_parts_that_waits_is_called_again_at_once(play: Play) -> None:
    player = play.player()
    play.mill.enqueue(solo)
    job = player.take_one()
    player.end(job, Verdict.WAITING)
    assert player.take_one().id == job.id
    assert counts(play, job) == (0, 0, 0)


def test_stages_do_not_see_parts(opened: Open) -> None:
    play = opened(plan("site", **SITE))
    player = play.player()
    run, item = in_run(play, player, "a", "b", "c")
    assert play.counters(run, "page") == (1, 0, 0, 0, 0)
    player.complete(*player.take())
    assert play.counters(run, "page") == (1, 0, 0, 0, 0)
    assert [job.id for job in play.mill.jobs(run=run, stage="page")] == [item.id]
    play.drain(player)
    assert play.counters(run, "page") == (1, 1, 0, 0, 0)
    assert play.mill.run(run).state == "completed"


def test_a_part_is_tried_again_by_its_own_budget(play: Play) -> None:
    player = play.player()
    job = parent(play, player, "a")
    player.end(player.take_one(), Verdict.ERROR, reason="no")
    assert waits(play, job)
    assert counts(play, job) == (1, 1, 0)
    play.clock.advance(5)
    play.ledger.do(play_promote())
    player.end(player.take_one(), Verdict.TIMEOUT, reason="slow")
    play.clock.advance(5)
    play.ledger.do(play_promote())
    player.end(player.take_one(), Verdict.TIMEOUT, reason="slow")
    assert states(play, job) == {"a": "failed"}
    assert counts(play, job) == (1, 0, 1)
    assert (play.mill.job(job.id).errors, play.mill.job(job.id).timeouts) == (0, 0)


def play_promote() -> Any:
    from gristmill.ledger.queues import promote

    return promote


def test_parts_of_a_dead_worker_are_rescued_and_the_lost_one_counts(play: Play) -> None:
    player, other = play.player(), play.player()
    job = parent(play, player, "a")
    other.take_one()
    play.ledger.do(workers.rescue, other.id, gone=True)
    assert counts(play, job) == (1, 1, 0)
    other = play.player()
    other.take_one()
    play.ledger.do(workers.rescue, other.id, gone=True)  # its budget of losses is one
    assert states(play, job) == {"a": "failed"}
    assert player.take_one().id == job.id


# ---- handing over


def test_the_same_key_twice_from_one_attempt_is_an_error_and_from_a_retry_a_no_op(play: Play) -> None:
    player = play.player()
    play.mill.enqueue(stubborn)
    job = player.take_one()
    player.hand_over(job, "a", "b")
    with pytest.raises(Invalid, match="'a' was asked for twice"):
        player.hand_over(job, "a")
    with pytest.raises(Invalid, match="'c' was asked for twice"):
        player.hand_over(job, "c", "c")
    player.complete(*player.take(1), result='"A"')
    player.end(job, Verdict.CRASH, reason="died")
    play.clock.advance(20)
    play.ledger.do(play_promote())
    retried = next(found for found in player.take() if found.id == job.id)
    player.hand_over(retried, "a", "b", "c")
    assert states(play, job) == {"a": "completed", "b": "in_progress", "c": "queued"}
    assert counts(play, job) == (3, 2, 0)
    with pytest.raises(Invalid, match="twice"):
        player.hand_over(retried, "b")


def test_a_part_whose_arguments_changed_is_done_afresh_whatever_became_of_it(play: Play) -> None:
    player = play.player()
    job = parent(play, player, "done", "failed", "running", "queued", args='{"n": 1}')
    by_key = {part.key: part for part in player.take(3)}
    player.complete(by_key["done"], result="1")
    player.end(by_key["failed"], Verdict.PERMANENT, reason="no")
    play.mill.cancel_job(play.mill.jobs(part_of=job.id, state="queued")[0].id)
    player.end(by_key["running"], Verdict.SKIPPED, reason="no")
    again = player.take_one()
    player.hand_over(again, "done", "failed", "running", "queued", args='{"n": 1}')
    assert counts(play, job) == (4, 0, 2)
    player.end(again, Verdict.WAITING)
    third = player.take_one()
    player.hand_over(third, "done", "failed", args='{"n": 2}')
    player.hand_over(third, "running", "queued", args='{"n": 1}')
    assert counts(play, job) == (4, 2, 1)
    assert states(play, job) == {"done": "queued", "failed": "queued", "running": "skipped", "queued": "cancelled"}
    player.end(third, Verdict.WAITING)
    play.drain(player)
    assert play.mill.job(job.id).state == "completed"


def test_a_running_part_whose_arguments_changed_is_fenced_off(play: Play) -> None:
    player = play.player()
    play.mill.enqueue(stubborn)
    job = player.take_one()
    player.hand_over(job, "a", args='{"n": 1}')
    part = player.take_one()
    player.end(job, Verdict.CRASH, reason="died")
    play.clock.advance(20)
    play.ledger.do(play_promote())
    retried = player.take_one()
    player.split(retried, "a", args='{"n": 2}')
    assert player.complete(part, result='"old"') == [part.id]
    anew = player.take_one()
    assert (anew.id, anew.attempt, anew.args) == (part.id, 2, '{"n": 2}')
    player.complete(anew)
    assert player.take_one().id == job.id


def test_only_the_attempt_that_holds_a_job_hands_over_parts(play: Play) -> None:
    player = play.player()
    job = parent(play, player, "a")
    with pytest.raises(NotYours):
        player.hand_over(job, "b")
    with pytest.raises(NotYours):
        player.hand_over(remembered(job.id, 7), "b")
    assert counts(play, job) == (1, 1, 0)


def test_a_lost_worker_hands_over_nothing(play: Play) -> None:
    player = play.player()
    play.mill.enqueue(solo)
    job = player.take_one()
    play.ledger.do(workers.rescue, player.id, gone=True)
    with pytest.raises(NotYours):
        player.hand_over(job, "a")


def test_parts_have_no_parts_and_keys_are_unique_among_all_of_them(play: Play) -> None:
    player = play.player()
    parent(play, player, "a")
    part = player.take_one()
    with pytest.raises(Invalid, match="cannot have parts"):
        player.hand_over(part, "b")
    player.complete(part)
    again = player.take_one()
    with pytest.raises(Invalid, match="one of 'part' already"):
        player.hand_over(again, "a", task="other")


def test_there_is_a_limit(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "LIMIT", 3)
    player = play.player()
    play.mill.enqueue(solo)
    job = player.take_one()
    player.hand_over(job, "a", "b")
    with pytest.raises(Invalid, match="at most 3 parts"):
        player.hand_over(job, "c", "d")
    assert counts(play, job) == (2, 2, 0)


# ---- reading


def test_an_attempt_reads_the_parts_that_it_asked_for(play: Play) -> None:
    player = play.player()
    job = parent(play, player, "a", "b", "c", "d", "old")
    by_key = {part.key: part for part in player.take()}
    player.complete(by_key["a"], by_key["old"], result="1")
    player.end(by_key["b"], Verdict.PERMANENT, reason="dark")
    player.end(by_key["c"], Verdict.SKIPPED, reason="blank")
    player.end(by_key["d"], Verdict.CANCELLED)
    again = player.take_one()
    player.hand_over(again, "a", "b", "c", "d")
    which = (job.id, again.attempt, ("part",))
    with play.ledger.reading() as tx:
        assert parts.standing(tx, *which) == (4, 0, 2)
        assert parts.failures(tx, *which) == {"b": "dark", "d": "cancelled"}
    assert list(parts.results(play.ledger, *which, page=1)) == [("a", 1)]


# ---- what it costs


def statements(play: Play, player: Player, batch: Batch) -> int:
    seen: list[int] = []
    play.ledger.do(hooked(exchange, seen.append), player.id, batch)
    return len(seen)


def test_only_a_batch_with_parts_pays_for_them(play: Play) -> None:
    """To lock the jobs that they are parts of, and to count: two statements for however many parts of however many jobs."""
    player = play.player()
    play.mill.enqueue_many(solo, [{}] * 3)
    one, other, alone = player.take()
    plainly = statements(play, player, Batch(completed=plain(alone)))
    player.split(one, "a", "b")
    player.split(other, "a", "b")
    assert statements(play, player, Batch(completed=plain(*player.take()))) == plainly + 2


def test_the_log_names_a_part_after_its_item(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find")))
    play.mill.start("site", "s")
    player = play.player()
    play.turn(player, {"find": ["doc-05"]}, {})
    item = player.take_one()
    player.split(item, "001")
    part = player.take_one()
    with play.ledger.reading() as tx:
        fates = infos.fates(tx, [item.id, part.id])
    assert (fates[item.id].key, fates[part.id].key) == ("doc-05", "doc-05/001")
