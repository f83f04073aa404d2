"""Retention rules: what `keep=` may say, and what it means."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from gristmill import Invalid, Pipeline, Retention, task
from gristmill.retention import Rule, for_days, rules
from gristmill.states import TERMINAL, State

ENDED = tuple(sorted(map(int, TERMINAL)))
DAY = 86_400 * 1_000_000


def test_one_retention_is_about_every_end() -> None:
    assert rules(Retention(age=86_400), "task 't'") == (Rule(ENDED, DAY, None),)
    assert rules(Retention(age=timedelta(days=1), count=5), "task 't'") == (Rule(ENDED, DAY, 5),)


def test_one_without_a_state_is_about_what_no_other_names() -> None:
    kept = rules([Retention(count=3), Retention(state=["failed", "cancelled"], age=0)], "task 't'")
    others = tuple(n for n in ENDED if n not in (State.FAILED, State.CANCELLED))
    assert kept == (Rule(others, None, 3), Rule((State.FAILED, State.CANCELLED), 0, None))


def test_nothing_declared_is_no_rule() -> None:
    assert rules(None, "task 't'") == for_days(0) == ()
    assert for_days(0.5) == (Rule(ENDED, DAY // 2, None),)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (Retention(), "task 't': a retention has an age, a count, or both"),
        (Retention(age=-1), "age must be a number of seconds, not -1"),
        (Retention(age="30d"), "age must be a number of seconds, not '30d'"),  # type: ignore[arg-type]
        (Retention(count=True), "count must be a whole number, not True"),
        (Retention(count=1.5), "count must be a whole number"),  # type: ignore[arg-type]
        (Retention(state="faild", age=1), "nothing ends in state 'faild'; did you mean 'failed'"),
        (Retention(state="queued", age=1), "nothing ends in state 'queued'"),
        ([Retention(age=1), Retention(count=1)], "two retentions name no state"),
        ([Retention(age=1, state="failed"), Retention(count=1, state="failed")], "two retentions are about state 'failed'"),
        (30, "wants a Retention, or a list of them, not 30"),
        ([30], "wants a Retention, or a list of them, not 30"),
    ],
)
def test_what_makes_no_sense_is_refused(keep: Any, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        rules(keep, "task 't'")


def test_tasks_and_pipelines_declare_it_and_stages_do_not() -> None:
    @task(keep=Retention(count=10))
    def one(ctx: object) -> None: ...

    assert one.keep == (Rule(ENDED, None, 10),)
    pipeline = Pipeline("p", keep=Retention(age=1))
    assert pipeline.keep == (Rule(ENDED, 1_000_000, None),)
    with pytest.raises(Invalid, match=r"stage 's': .* say keep=… of the pipeline"):
        pipeline.stage(name="s", keep=Retention(age=1))(lambda ctx: None)  # type: ignore[call-overload]
    with pytest.raises(Invalid, match="pipeline 'q'"):
        Pipeline("q", keep=7)  # type: ignore[arg-type]
