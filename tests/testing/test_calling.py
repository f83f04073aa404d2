"""One function, called with a real context and no database."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill import Context, Invalid, Pipeline, task
from gristmill.testing import Item, call
from tests.testing.press import bind, find, greet, number, numbers, outcome, read, twice


def test_a_task_gives_its_result_as_the_database_would() -> None:
    called = call(greet, args={"name": "Ada", "on": "2026-11-15", "into": Path("a/b")})
    assert (called.outcome, called.result, called.items, called.progress) == ("completed", "hello Ada 2026 b", [], None)

    @task
    def pair(ctx: Context) -> tuple[int, int]:
        return 1, 2

    assert call(pair).result == [1, 2]


def test_arguments_are_checked_as_when_work_is_asked_for() -> None:
    for args, message in [({}, "needs argument 'name'"), ({"name": "x", "nome": 1}, "did you mean 'name'")]:
        with pytest.raises(Invalid, match=message):
            call(greet, args=args)
    with pytest.raises(Invalid, match="argument 'pages'"):
        call(find, args={"pages": 7})
    with pytest.raises(Invalid, match="is not a task"):
        call(len)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="is no stage"):
        call(greet, args={"name": "x"}, run_args={"name": "y"})


def test_a_generator_gives_items_and_a_result() -> None:
    called = call(find, args={"pages": ["a", "b"]}, run_args={"year": 2026}, subject="books")
    assert (called.items, called.result) == ([Item("a", {"page": "a"}), Item("b", {"page": "b"})], 2)
    assert len(call(numbers, args={"most": 1234}).items) == 1234


def test_a_function_that_is_no_generator_passes_its_result_on() -> None:
    chain = Pipeline("chain")

    @chain.stage
    def first(ctx: Context) -> dict[str, str]:
        return {"name": f"{ctx.pipeline} {ctx.subject} {ctx.stage} {ctx.key}"}

    @chain.stage(after=first, each=True)
    def second(ctx: Context, name: str) -> None: ...

    assert call(first, subject="s").items == [Item("", {"name": "chain s first None"}, "second")]


def test_items_that_the_next_stage_cannot_take_are_refused() -> None:
    bad = Pipeline("bad")

    @bad.stage
    def first(ctx: Context):
        yield "k", {"nmae": 1}

    @bad.stage(after=first, each=True)
    def second(ctx: Context, name: str) -> None: ...

    called = call(first)
    assert called.outcome == "permanent"
    with pytest.raises(Invalid, match="takes no argument 'nmae'; did you mean 'name'"):
        _ = called.result


def test_an_item_gets_its_own_arguments_then_those_of_the_run() -> None:
    called = call(read, args={"page": "a"}, run_args={"year": 1999}, key="a")
    assert called.result == "a of 1999"
    with pytest.raises(Invalid, match="needs argument 'year'"):
        call(read, args={"page": "a"})


def test_chosen_outcomes_are_told_with_their_reason() -> None:
    skipped = call(read, args={"page": "blank"}, run_args={"year": 1})
    assert (skipped.outcome, skipped.reason) == ("skipped", "nothing on it")
    failed = call(read, args={"page": "torn"}, run_args={"year": 1})
    assert (failed.outcome, failed.reason) == ("permanent", "half of it is missing")
    later, unspent = call(outcome, args={"kind": "later"}), call(outcome, args={"kind": "unspent"})
    assert [(c.outcome, c.delay) for c in (later, unspent)] == [("later", 30), ("unspent", 90)]
    assert call(outcome, args={"kind": "end_run"}).reason == "unchanged"


def test_an_error_is_an_outcome_and_is_raised_where_a_result_was_expected() -> None:
    jammed = call(read, args={"page": "stuck"}, run_args={"year": 1})
    assert (jammed.outcome, jammed.reason) == ("error", "OSError: paper jam")
    with pytest.raises(OSError, match="paper jam"):
        _ = jammed.result
    assert call(read, args={"page": "stuck"}, run_args={"year": 1}, attempt=3).result == "stuck of 1"
    assert call(outcome, args={"kind": "exit"}).outcome == "error"


def test_ctrl_c_and_the_end_of_a_test_go_through() -> None:
    @task
    def interrupted(ctx: Context) -> None:
        raise KeyboardInterrupt

    @task
    def refused(ctx: Context) -> None:
        pytest.fail("seen by pytest")

    with pytest.raises(KeyboardInterrupt):
        call(interrupted)
    with pytest.raises(pytest.fail.Exception):
        call(refused)


def test_progress_and_phases_are_kept() -> None:
    called = call(outcome, args={"kind": "errors"})
    assert (called.outcome, called.reason) == ("completed_with_errors", "1 failed: b")
    assert called.progress is not None
    assert called.progress["message"] == "going"
    assert called.progress["phases"]["pages"]["failed"] == {"b": "torn"}
    assert called.result == "done"


def test_results_of_other_stages_are_given_by_the_test() -> None:
    assert call(bind, results={"read": {"b": "two", "a": "one"}}).result == ["one", "two"]
    with pytest.raises(Invalid, match="no results of stage 'read' were given"):
        _ = call(bind).result
    with pytest.raises(Invalid, match="did you mean 'read'"):
        call(bind, results={"raed": {}})
    with pytest.raises(Invalid, match="dict by key"):
        call(bind, results={"read": 7})


def test_a_job_that_was_cancelled_before_it_began_does_not_run() -> None:
    assert call(greet, args={"name": "x"}, cancelled=True).outcome == "cancelled"


def test_keys_belong_to_items() -> None:
    assert call(number, key="00001").outcome == "completed"
    with pytest.raises(Invalid, match="has no items"):
        call(twice, key="k")


def test_an_async_test_can_call_an_async_function() -> None:
    import asyncio

    async def test() -> str:
        return str(call(greet, args={"name": "Ada"}).result)

    assert asyncio.run(test()) == "hello Ada None out"
