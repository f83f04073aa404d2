"""The terminal moment: an application's own SQL runs in the transaction of every end, and never keeps a run from ending."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gristmill import Invalid, Pipeline, Retries, task
from gristmill.ledger import adopt, workers
from gristmill.ledger.adopt import Adoption
from gristmill.ledger.finish import Verdict
from gristmill.ledger.own import finish_own, lock_own
from gristmill.model import Reason
from gristmill.pipeline import Task
from tests.ledger.conftest import Open, empty
from tests.ledger.play import Play, end, plan, step

LOG = "INSERT INTO ended (job, task, key, subject, state, result) SELECT id, task, key, subject, state, result FROM jobs"
NOTE = "UPDATE tally SET n = n + (SELECT count(*) FROM jobs WHERE state LIKE 'c%' OR ':x' = '{}')"


def watched(statements: Any = (LOG, NOTE)) -> list[Any]:
    """A pipeline and a task that say so, and a task that does not."""
    flow = Pipeline("flow", on_terminal=statements)

    def nothing(ctx: Any) -> None: ...

    flow.stage(name="find")(nothing)
    flow.stage(name="page", after="find", each=True, retries=Retries(0, losses=0, crashes=0))(nothing)
    alone: Task[Any, Any] = task(name="alone", on_terminal=statements)(nothing)
    quiet: Task[Any, Any] = task(name="quiet")(nothing)
    return [flow, alone, quiet]


@pytest.fixture
def moments(opened: Open) -> Iterator[Callable[..., Play]]:
    """A play in whose database the application has its tables."""
    plays: list[Play] = []

    def open_play(statements: Any = (LOG, NOTE)) -> Play:
        play = opened(*watched(statements))
        if not plays:
            make(play, "ended", "job bigint, task text, key text, subject text, state text, result text")
            make(play, "tally", "n int")
            play.change("INSERT INTO tally VALUES (0)")
        plays.append(play)
        return play

    yield open_play
    for name in ("ended", "tally"):
        empty(plays[0].ledger, f"DROP TABLE IF EXISTS {name}")


def make(play: Play, name: str, columns: str) -> None:
    """A table of the application's. Workers may use it, but only the owner may make it."""
    allowed = "" if play.ledger.is_sqlite else f";GRANT ALL ON {name} TO PUBLIC"
    empty(play.ledger, f"CREATE TABLE {name} ({columns}){allowed}")


def seen(play: Play) -> Counter[tuple[str, str]]:
    """(key or task, state) of every end that the application was told of."""
    return Counter((row.key or row.task, row.state) for row in play.rows("SELECT * FROM ended"))


def fanned_out(play: Play, *keys: str) -> tuple[int, Any]:
    run = play.mill.start("flow", "s")
    player = play.player()
    play.turn(player, {"find": list(keys or "abc")}, {})
    assert seen(play) == {("flow.find", "completed"): 1}
    return run.id, player


def test_plain_completions(moments: Callable[..., Play]) -> None:
    play = moments()
    _, player = fanned_out(play)
    player.complete(*player.take())
    assert seen(play) == {(key, "completed"): 1 for key in ("a", "b", "c", "flow.find")}
    assert play.value("SELECT n FROM tally") == 4
    assert {row.subject for row in play.rows("SELECT subject FROM ended")} == {"s"}


@pytest.mark.parametrize(
    ("verdict", "state"),
    [
        (Verdict.WITH_ERRORS, "completed_with_errors"),
        (Verdict.SKIPPED, "skipped"),
        (Verdict.PERMANENT, "failed"),
        (Verdict.ERROR, "failed"),
        (Verdict.TIMEOUT, "failed"),
        (Verdict.CRASH, "failed"),
        (Verdict.LOST, "failed"),
        (Verdict.CANCELLED, "cancelled"),
        (Verdict.END_RUN, "completed"),
    ],
)
def test_every_verdict(moments: Callable[..., Play], verdict: Verdict, state: str) -> None:
    play = moments()
    _, player = fanned_out(play, "a")
    player.end(player.take_one(), verdict, result='"r"')
    assert seen(play) == {("a", state): 1, ("flow.find", "completed"): 1}
    assert play.mill.runs()[0].terminal


@pytest.mark.parametrize("verdict", [Verdict.LATER, Verdict.UNSPENT, Verdict.RELEASED])
def test_what_goes_back_has_not_ended(moments: Callable[..., Play], verdict: Verdict) -> None:
    play = moments()
    _, player = fanned_out(play, "a")
    player.end(player.take_one(), verdict)
    assert seen(play) == {("flow.find", "completed"): 1}


def test_a_late_worker_is_no_end(moments: Callable[..., Play]) -> None:
    play = moments()
    _, player = fanned_out(play, "a")
    job = player.take_one()
    player.end(job)
    assert player.end(job, Verdict.PERMANENT) == [job.id]
    assert seen(play) == {("a", "completed"): 1, ("flow.find", "completed"): 1}


def test_rescue(moments: Callable[..., Play]) -> None:
    play = moments()
    _, player = fanned_out(play)
    player.take(2)
    play.ledger.do(workers.rescue, player.id, gone=True)
    assert seen(play)["a", "failed"] == seen(play)["b", "failed"] == 1


def test_an_orphan_that_reconcile_finds(moments: Callable[..., Play]) -> None:
    play = moments()
    _, player = fanned_out(play, "a")
    player.take(1)
    play.change("UPDATE gm_worker SET state = 2")
    play.mill.reconcile()
    assert seen(play)["a", "failed"] == 1


def test_adoption(moments: Callable[..., Play]) -> None:
    play = moments()
    run, _ = fanned_out(play, "a")
    [job] = play.rows("SELECT id FROM gm_job WHERE state = 0")
    play.ledger.do(adopt.adopt, [Adoption(job.id, 0, run, "7")], by="me", target="x")
    assert play.rows("SELECT state, result FROM ended WHERE key = 'a'") == [("completed", "7")]


def test_cancel_and_sweep(moments: Callable[..., Play]) -> None:
    play = moments()
    run, player = fanned_out(play)
    held = play.labelled(player.take(1))["page/a"]
    play.mill.cancel_job(play.value("SELECT id FROM gm_job WHERE key = 'b'"))
    assert seen(play)["b", "cancelled"] == 1
    play.mill.cancel_run(run)
    assert (seen(play)["c", "cancelled"], seen(play)["a", "cancelled"]) == (1, 0)
    player.end(held, Verdict.RELEASED)  # what goes back to a run that is being stopped ends
    assert seen(play)["a", "cancelled"] == 1
    assert play.mill.run(run).state == "cancelled"


def test_jobs_on_their_own_and_those_that_did_not_ask(moments: Callable[..., Play]) -> None:
    play = moments()
    play.mill.enqueue("alone")
    play.mill.enqueue("quiet")
    play.drain()
    assert seen(play) == {("alone", "completed"): 1}


def test_an_end_in_the_applications_own_transaction(moments: Callable[..., Play]) -> None:
    play = moments()
    _, player = fanned_out(play, "a", "b")
    one, two = player.take()

    def finish(job: Any, undo: bool = False) -> None:
        with play.mill.transaction() as connection:
            assert play.ledger.join(connection, lock_own, player.id, job.id, job.attempt)
            play.ledger.join(connection, finish_own, player.id, end(job))
            if undo:
                raise KeyError

    finish(one)
    assert seen(play)["a", "completed"] == 1
    with pytest.raises(KeyError):
        finish(two, undo=True)  # and the moment with it
    assert seen(play)["b", "completed"] == 0


# ---- statements that fail


def test_a_statement_that_fails_is_undone_alone_and_tried_again_by_reconcile(
    moments: Callable[..., Play], caplog: pytest.LogCaptureFixture
) -> None:
    play = moments((LOG, "INSERT INTO elsewhere SELECT id FROM jobs"))
    run = play.mill.start("flow", "s")
    play.drain(items={"find": ["a", "b"]}, verdicts={"page/a": Verdict.PERMANENT})
    assert play.mill.run(run.id).state == "completed_with_errors"
    assert seen(play) == {}  # all of its statements, or none
    assert "on_terminal failed for job" in caplog.text
    assert "elsewhere" in caplog.text
    missed = play.mill.reconcile(dry_run=True)
    told = next(job for job in play.mill.jobs() if job.missed is not None)
    assert "elsewhere" in str(told.missed)
    why = play.mill.why(job=told.id)
    assert (why.reason, why.command) == (Reason.FINISHED, ("reconcile",))
    assert f"; its on_terminal failed: {told.missed}" in why.sentence
    [finding] = [finding for finding in play.mill.doctor() if finding.check == "on_terminal"]
    assert (finding.ok, finding.command) == (False, ("gristmill", "reconcile"))
    assert finding.sentence.startswith("an application's SQL failed when 3 jobs ended; for job ")
    assert [repair.what for repair in missed] == ["on_terminal"] * 3
    assert all("elsewhere" in repair.detail for repair in missed)
    assert [repair.what for repair in play.mill.reconcile()] == ["not mended"] * 3
    make(play, "elsewhere", "id bigint")
    try:
        assert [repair.what for repair in play.mill.reconcile()] == ["on_terminal"] * 3
        assert seen(play) == {("a", "failed"): 1, ("b", "completed"): 1, ("flow.find", "completed"): 1}
        assert play.mill.reconcile() == []
    finally:
        empty(play.ledger, "DROP TABLE elsewhere")


def test_one_job_that_breaks_it_does_not_hold_up_the_others(moments: Callable[..., Play]) -> None:
    play = moments(LOG)
    empty(play.ledger, "CREATE UNIQUE INDEX one_of_each ON ended (key)")
    play.change("INSERT INTO ended (key) VALUES ('b')")
    play.mill.start("flow", "s")
    play.drain(items={"find": list("abc")})
    found = play.mill.reconcile()
    assert sorted(repair.what for repair in found) == ["not mended", "on_terminal", "on_terminal"]
    assert [row.key for row in play.rows("SELECT key FROM ended WHERE state = 'completed' AND key <> '' ORDER BY key")] == [
        "a",
        "c",
    ]


def test_what_failed_is_tried_again_as_the_newest_code_says_it(moments: Callable[..., Play]) -> None:
    old = moments("INSERT INTO dropped SELECT id FROM jobs")
    old.mill.enqueue("alone")
    old.drain()
    new = moments(LOG)
    new.mill.enqueue("alone")
    new.drain()
    assert seen(new) == {("alone", "completed"): 1}
    assert [repair.what for repair in new.mill.reconcile()] == ["on_terminal"]
    assert seen(new) == {("alone", "completed"): 2}


def test_what_has_ended_anew_since_is_not_told_twice(moments: Callable[..., Play]) -> None:
    play = moments(LOG)
    job = play.mill.enqueue("alone")
    empty(play.ledger, "ALTER TABLE ended RENAME TO away")
    player = play.player()
    player.end(player.take_one(), Verdict.PERMANENT)
    empty(play.ledger, "ALTER TABLE away RENAME TO ended")
    play.mill.retry_job(job.id)
    assert play.mill.reconcile() == []
    play.clock.advance(1)
    play.drain()
    assert seen(play) == {("alone", "completed"): 1}
    assert play.mill.reconcile() == []
    assert seen(play) == {("alone", "completed"): 1}


# ---- declaring


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda conn, jobs: None, "is SQL text .* it runs where your code is not loaded"),
        ("SELECT * FROM jobs", "is SQL text"),
        (["UPDATE x SET n = 1"], "about the jobs that ended"),
        ("UPDATE gm_job SET state = 2 WHERE id IN (SELECT id FROM jobs)", "not for the ledger's"),
        ("DELETE FROM x WHERE id IN (SELECT id FROM jobs); DELETE FROM y", "give a list of several"),
    ],
)
def test_what_cannot_be_said_is_refused(given: Any, said: str) -> None:
    with pytest.raises((Invalid, TypeError), match=said):
        Pipeline("flow", on_terminal=given)


def test_a_statement_with_tables_of_its_own(moments: Callable[..., Play]) -> None:
    play = moments(
        "with good AS (SELECT key FROM jobs WHERE state = 'completed') INSERT INTO ended (key) SELECT key FROM good;"
    )
    play.mill.start("flow", "s")
    play.drain(items={"find": ["a", "b"]}, verdicts={"page/b": Verdict.SKIPPED})
    assert sorted(row.key for row in play.rows("SELECT key FROM ended")) == ["", "a"]


def test_who_declares_nothing_pays_nothing() -> None:
    assert "on_terminal" not in plan("one", work=step()).stages["work"].spec()
