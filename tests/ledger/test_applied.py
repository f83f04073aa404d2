"""The stale guard: what was applied last is written with the end of its job, and what comes too late is skipped."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from gristmill import Context, Invalid, Mill, Pipeline, Skip, task
from gristmill.clock import FrozenClock
from gristmill.errors import Permanent
from gristmill.ledger import applied
from gristmill.ledger.applied import Guard
from gristmill.ledger.finish import Outcome, Verdict
from gristmill.testing import call, drain
from tests.ledger.conftest import Open
from tests.ledger.play import Play, solo

flow = Pipeline("flow")


@task(retries=0)
def publish(ctx: Context, number: int, force: bool = False, how: str = "") -> int:
    ctx.skip_stale("edition", 42, version=number, label=f"build {number}", force=force)
    if how == "fails":
        raise Permanent("no")
    if how == "finishes":
        with ctx.transaction() as connection, ctx.finish(connection, "kept"):
            pass
    return number


@task(retries=0)
def several(ctx: Context, numbers: list[int]) -> None:
    """Things of one job, each applied in a transaction of its own."""
    phase = ctx.phase("editions")
    for edition, number in enumerate(numbers):
        try:
            with ctx.transaction() as connection:
                ctx.skip_stale("edition", edition, version=number, label=f"build {number}", connection=connection)
            phase.complete(str(edition))
        except Skip as why:
            phase.skip(str(edition), why.reason)


@flow.stage
def build(ctx: Context, number: int) -> dict[str, int]:
    ctx.skip_stale("flow", version=number)
    if number == 1:
        beat(ctx, "flow", version=2)
    return {"n": number}


@flow.stage(after=build, each=True)
def follow(ctx: Context, n: int) -> int:
    return n


def beat(ctx: Context, *resource: str | int, version: int) -> None:
    """Somebody else is faster, after this one has looked."""
    with ctx.transaction() as connection:
        ctx._open().join(connection, applied.apply, applied.guard(resource, version, "the other", False), None)


@pytest.fixture
def mill(database_url: str) -> Iterator[Mill]:
    with Mill.open(database_url, publish, several, flow, clock=FrozenClock()) as mill:
        yield mill


def done(mill: Mill, **args: Any) -> tuple[str, str | None]:
    job = mill.enqueue(publish, args=args)
    drain(mill)
    ended = mill.job(job.id)
    return ended.state, ended.error


def test_what_is_older_than_what_was_applied_is_skipped(mill: Mill) -> None:
    assert done(mill, number=2) == ("completed", None)
    assert done(mill, number=1) == ("skipped", "superseded by build 2")
    assert done(mill, number=2) == ("completed", None)
    assert done(mill, number=3) == ("completed", None)
    assert done(mill, number=2) == ("skipped", "superseded by build 3")


def test_a_job_that_fails_has_applied_nothing(mill: Mill) -> None:
    assert done(mill, number=2, how="fails")[0] == "failed"
    assert done(mill, number=1) == ("completed", None)


def test_what_is_applied_on_purpose_does_not_make_others_less_late(mill: Mill) -> None:
    assert done(mill, number=3) == ("completed", None)
    assert done(mill, number=1, force=True) == ("completed", None)
    assert done(mill, number=2) == ("skipped", "superseded by build 3")
    assert done(mill, number=4) == ("completed", None)


def test_a_job_that_ends_itself_is_guarded_too(mill: Mill) -> None:
    assert done(mill, number=2, how="finishes") == ("completed", None)
    assert done(mill, number=1, how="finishes") == ("skipped", "superseded by build 2")


def test_what_a_late_job_passes_on_goes_with_it(mill: Mill) -> None:
    run = mill.start(flow, "s", args={"number": 1})
    drain(mill)
    stages = mill.run(run.id).stages
    assert [(stage.total, stage.skipped) for stage in stages] == [(1, 1), (0, 0)]
    run = mill.start(flow, "s", args={"number": 2})
    drain(mill)
    assert [(stage.total, stage.completed) for stage in mill.run(run.id).stages] == [(1, 1), (1, 1)]


def test_a_job_may_apply_several_things_each_in_a_transaction_of_its_own(mill: Mill) -> None:
    for numbers in ([2, 1, 3], [1, 2, 3]):
        job = mill.enqueue(several, args={"numbers": numbers})
        drain(mill)
    editions = mill.job(job.id).progress["phases"]["editions"]
    assert (editions["completed"], editions["skipped"]) == (["1", "2"], {"0": "superseded by build 2"})


# ---- the moment of the end


def guarded(play: Play, *versions: int) -> list[Outcome]:
    """Jobs in progress that have applied these versions of one resource, in the order in which they end."""
    play.mill.enqueue_many(solo, [{}] * len(versions))
    player = play.player()
    guards = [applied.guard(["edition", 42], version, f"build {version}", False) for version in versions]
    return [
        Outcome(job.id, job.attempt, None, Verdict.COMPLETED, guards=[guard])
        for job, guard in zip(player.take(), guards, strict=True)
    ]


def ends(play: Play, *outcomes: Outcome) -> list[str | None]:
    from gristmill.ledger.finish import finish

    worker = play.mill.job(outcomes[0].job).worker
    assert worker is not None
    play.ledger.do(finish, worker, outcomes)
    return [play.mill.job(outcome.job).error or play.mill.job(outcome.job).state for outcome in outcomes]


def test_the_order_of_the_ends_decides(play: Play) -> None:
    assert ends(play, *guarded(play, 1, 3, 2)) == ["completed", "completed", "superseded by build 3"]


def test_a_late_attempt_applies_nothing(play: Play) -> None:
    (late,) = guarded(play, 5)
    ends(play, late._replace(attempt=late.attempt + 1))
    assert play.value("SELECT count(*) FROM gm_applied WHERE version IS NOT NULL") == 0
    assert ends(play, *guarded(play, 4)) == ["completed"]


def test_two_that_end_at_the_same_time_cannot_both_be_the_newest(opened: Open, database_url: str) -> None:
    """The newer one never ends up behind the older one, whoever commits first."""
    play = opened()
    for n in range(5):
        pair = guarded(play, 2 * n + 1, 2 * n + 2)
        threads = [threading.Thread(target=ends, args=(play, outcome)) for outcome in pair]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert play.value("SELECT version FROM gm_applied") == f"[{2 * n + 2}]"
        assert play.mill.job(pair[1].job).state == "completed"
        assert play.mill.job(pair[0].job).state in ("completed", "skipped")


# ---- values


def test_versions_are_numbers_text_times_or_several_of_these() -> None:
    def newer(one: Any, other: Any) -> bool:
        return applied.newer_than(guard(one).version, guard(other).version)

    def guard(version: Any) -> Guard:
        return applied.guard(["x"], version, None, False)

    assert newer(1, 2)
    assert not newer(2, 2)
    assert newer("1.9", "2.0")
    assert newer((1, "b"), (2, "a"))
    assert newer((1, "a"), (1, "b"))
    assert newer(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC))
    assert not newer(1, "2")


def test_a_version_that_cannot_be_compared_is_an_error(mill: Mill) -> None:
    assert done(mill, number=2)[0] == "completed"
    mill.ledger.do(applied.record, [(1, [applied.guard(["edition", 42], 2, None, False)])])
    with mill.transaction() as connection:
        connection.exec_driver_sql("UPDATE gm_applied SET version = '[\"two\"]'")
    assert done(mill, number=3) == ("failed", 'Invalid: the version [3] cannot be compared with ["two"], which was applied')


@pytest.mark.parametrize(
    ("resource", "version"),
    [
        ((), 1),
        ((None,), 1),
        (("x" * 600,), 1),
        (("x",), None),
        (("x",), ()),
        (("x",), {"a": 1}),
        (("\udcff",), 1),
        (("x",), 2**70),
    ],
)
def test_what_names_no_resource_or_no_version_is_refused(resource: Any, version: Any) -> None:
    with pytest.raises(Invalid):
        applied.guard(resource, version, None, False)


def test_a_function_that_is_called_alone_is_never_late() -> None:
    called = call(publish, args={"number": 1})
    assert (called.outcome, called.result) == ("completed", 1)
