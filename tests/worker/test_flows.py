"""Whole runs through real workers: fan-out, fan-in, items that are passed on, gates, runs that end early."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gristmill import Mill, worker
from gristmill.bookkeeping import write
from gristmill.ledger.claim import Want
from gristmill.ledger.exchange import Batch, Exchanged
from gristmill.ledger.store import Ledger
from gristmill.model import Run
from tests import servers
from tests.worker.helpers import drain, eventually, lines, run_ends, working
from tests.worker.program import open_mill

pytestmark = pytest.mark.alike


def finished(mill: Mill, pipeline: str, **args: object) -> Run:
    run = mill.start(pipeline, "books", args=args)
    drain(mill, slots=1)
    return mill.run(run.id)


def test_items_are_found_read_and_added_up(flows: Mill) -> None:
    run = finished(flows, "site", pages=12)
    total = run.result("total")
    assert run.state == "completed"
    assert total["sum"] == sum(range(12))
    assert total["counts"] == [12, 12, 0]
    assert total["keys"] == [f"p{n:03}" for n in range(12)]
    assert total["first"] == ["books", run.id, "read", "p000", 1, "site"]


@pytest.mark.parametrize("pages", [500, 4001])  # of batches of 500: one, just full; more than may be under way at once
def test_many_items_wait_for_quick_children_and_all_of_them_come(flows: Mill, pages: int) -> None:
    with working(flows, slots=2):
        for _ in range(2):  # the second time it is known how quick they are
            run = run_ends(flows, flows.start("site", "books", args={"pages": pages}).id)
            total = run.result("total")
            assert (total["sum"], total["counts"]) == (sum(range(pages)), [pages, pages, 0])


def test_while_others_finish_items_of_the_same_run_a_worker_writes_first_and_claims_after(
    flows: Mill, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[tuple[bool, bool]] = []

    def waiting(ledger: Ledger, number: int, batch: Batch, wants: Sequence[Want] = (), *more: Any) -> Exchanged:
        turns.append((bool(batch) and not batch.emissions, bool(wants)))
        return write(ledger, number, batch, wants, *more)._replace(waited=1.0)

    monkeypatch.setattr(worker, "write", waiting)
    run = finished(flows, "site", pages=300)
    assert run.result("total")["counts"] == [300, 300, 0]
    seen = Counter(turns[1:])
    assert seen[True, False]
    assert seen[False, True]
    assert seen[True, True] <= seen[True, False]  # something was done again before the claim's turn came


def test_a_generators_return_value_is_its_result(flows: Mill) -> None:
    run = finished(flows, "site", pages=1)
    assert run.result("find") == {"found": 1, "key": None}
    assert run.result("total")["found"] == {"found": 1, "key": None}


def test_a_function_gets_the_items_arguments_and_those_of_the_run(flows: Mill) -> None:
    run = finished(flows, "site", pages=5, bad=2, prefix="q")
    read = run.stage("read")
    assert (run.state, read.completed, read.failed) == ("completed_with_errors", 4, 1)
    assert run.result("total")["keys"] == ["q000", "q001", "q003", "q004"]
    assert run.result("total")["counts"] == [5, 4, 1]
    (failed,) = flows.jobs(run=run.id, state="failed")
    assert (failed.key, failed.error, failed.error_class) == ("q002", "unreadable", "Permanent")


def test_no_items_at_all_is_no_failure(flows: Mill) -> None:
    run = finished(flows, "site", pages=0)
    assert (run.state, run.result("total")["sum"]) == ("completed", 0)


def test_an_async_generator_feeds_async_functions(flows: Mill) -> None:
    run = finished(flows, "asynchronous", items=700)
    assert (run.state, run.result("add_up")) == ("completed", sum(n * n for n in range(700)))


def test_each_after_each_passes_on_items_dicts_scalars_and_nothing(flows: Mill) -> None:
    run = finished(flows, "nested")
    assert run.state == "completed"
    assert {s.name: s.completed for s in run.stages} == {
        "shelves": 1,
        "books": 3,
        "titles": 3,
        "texts": 3,
        "words": 3,
        "nothing": 3,
    }
    assert dict(flows.results(run.id, "texts")) == {"a/0": "A-0", "a/1": "A-1", "c/0": "C-0"}
    assert dict(flows.results(run.id, "nothing")) == {key: key for key in ("a/0", "a/1", "c/0")}


def test_an_item_may_name_the_stage_that_it_is_for(flows: Mill) -> None:
    run = finished(flows, "routed")
    assert dict(flows.results(run.id, "left")) == {"x": 1, "z": 3}
    assert dict(flows.results(run.id, "right")) == {"x": -4, "y": -2, "z": -3}


@pytest.mark.parametrize(
    ("verdict", "state", "reason", "used"),
    [
        ("pass", "completed", None, "used pass"),
        ("fail", "failed", None, None),
        ("end", "completed", "no_documents", None),
        ("unchanged", "completed", "unchanged", None),
    ],
)
def test_a_gate_lets_a_run_go_on_fails_it_or_ends_it(
    flows: Mill, verdict: str, state: str, reason: str | None, used: str | None
) -> None:
    run = finished(flows, "gated", verdict=verdict)
    assert (run.state, run.reason, run.result("use")) == (state, reason, used)
    if verdict == "fail":
        assert "check" in str(run.error)


WRONG = {
    "number": "not 7",
    "list": "a stage yields key",
    "unknown argument": "takes no argument 'm'",
    "wrong type": "'n'",
    "missing argument": "needs argument 'n'",
    "unknown stage": "did you mean 'consume'",
    "empty key": "must not be empty",
    "long key": "501 characters",
    "control character": "cannot be printed",
    "same key": "emitted twice",
    "same key much later": "emitted twice",
    "too large": "the limit is 1 MiB",
    "not json": "not JSON",
}


def test_a_wrong_item_fails_its_producer_at_once_and_by_name(lite_flows: Mill) -> None:
    runs = {how: lite_flows.start("wrong", how, args={"how": how}).id for how in WRONG}
    drain(lite_flows, slots=1)
    for how, run in runs.items():
        (producer,) = lite_flows.jobs(run=run, stage="produce")
        assert (how, producer.state, len(lite_flows.attempts(producer.id))) == (how, "failed", 1)
        assert WRONG[how] in str(producer.error)
        assert "binding.py" not in str(lite_flows.attempts(producer.id)[0].traceback), "frames of ours tell the user nothing"
        assert (lite_flows.run(run).state, "produce" in str(lite_flows.run(run).error)) == ("failed", True)


def test_items_of_a_producer_that_failed_for_good_stay(flows: Mill) -> None:
    run = finished(flows, "wrong", how="raises")
    (producer,) = flows.jobs(run=run.id, stage="produce")
    assert (producer.errors, producer.error_class) == (3, "ZeroDivisionError")
    assert run.state == "failed"
    assert [job.key for job in flows.jobs(run=run.id, stage="consume")] == ["good"]


def test_a_producer_that_tries_again_emits_each_item_once(flows: Mill) -> None:
    run = finished(flows, "again")
    assert run.state == "completed"
    assert (run.stage("once").total, run.stage("once").completed) == (1200, 1200)
    assert dict(flows.results(run.id, "once")) == {str(n): n for n in range(1200)}


def test_a_slow_producers_items_do_not_wait_for_its_next_one(flows: Mill, folder: Path) -> None:
    run = flows.start("streaming", "books", args={"folder": folder})
    with working(flows, slots=2):
        eventually(lambda: lines(folder / "dropped") == ["first"], "the first item runs while its producer still does")
        assert flows.run(run.id).stage("drip").state == "sealed"
        (folder / "go").touch()
        run_ends(flows, run.id)
    assert lines(folder / "dropped") == ["first", "second"]


def test_a_run_that_is_cancelled_stops_an_endless_producer(flows: Mill, folder: Path) -> None:
    run = flows.start("endless", "books", args={"folder": folder})
    with working(flows, slots=2, poll=0.1, cancel_grace=0.2):
        eventually(lambda: lines(folder / "sips"))
        flows.cancel_run(run.id)
        ended = run_ends(flows, run.id)
    assert_whole(ended, "cancelled")


def test_an_item_may_end_a_run_whose_producer_would_go_on_for_ever(flows: Mill, folder: Path) -> None:
    run = flows.start("endless", "books", args={"folder": folder, "enough": 10})
    with working(flows, slots=2, poll=0.1, cancel_grace=0.2):
        ended = run_ends(flows, run.id)
    assert_whole(ended, "completed")
    assert ended.reason == "enough"


def assert_whole(run: Run, state: str) -> None:
    """It ended as it should, and every item is accounted for."""
    sip = run.stage("sip")
    assert (run.state, sip.total, sip.failed) == (state, sip.completed + sip.cancelled, 0)
    assert sip.cancelled > 0


def test_a_cancelled_run_stops_its_jobs_and_ends(flows: Mill, folder: Path) -> None:
    run = flows.start("streaming", "books", args={"folder": folder})
    with working(flows, slots=2, poll=0.1, cancel_grace=0.2):
        eventually(lambda: lines(folder / "dropped"))
        flows.cancel_run(run.id, reason="wrong site")
        ended = run_ends(flows, run.id)
    assert (ended.state, ended.reason) == ("cancelled", "wrong site")
    assert lines(folder / "dropped") == ["first"]


@pytest.mark.parametrize("purpose", ["worker", "hand"])
def test_a_worker_needs_no_more_of_postgresql_than_its_grants(pg_url: str, purpose: str) -> None:
    with servers.role(pg_url, purpose) as role, open_mill(servers.with_user(pg_url, role), "flows") as mill:
        assert finished(mill, "site", pages=12).state == "completed"
