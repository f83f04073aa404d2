"""Parts in the helpers for tests: one function in two calls, and a whole run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gristmill import Context, Invalid, Mill, Permanent, Pipeline, Retries, Skip, task
from gristmill.errors import Refused, Waiting
from gristmill.testing import FrozenClock, Item, call, drain

scans = Pipeline("scans")


@scans.stage
def find(ctx: Context, sizes: dict[str, int]) -> Iterator[tuple[str, dict[str, int]]]:
    yield from ((key, {"size": size}) for key, size in sizes.items())


@scans.stage(after=find, each=True, retries=Retries(1, delays=[60]))
def read(ctx: Context, size: int, clumsy: bool = False) -> str:
    pages = ctx.parts(page, ((f"{n:02}", {"number": n}) for n in range(size)))
    if clumsy and ctx.attempt < 3:
        raise ValueError("dropped them")
    assert list(pages) == list(pages)
    return f"{pages.total} {sorted(pages.failed)} " + " ".join(text for _, text in pages)


@read.part(queue="pages", retries=Retries(1, delays=[5]), need=0.5)
def page(ctx: Context, number: int, tongue: str = "eng") -> str:
    if number == 1:
        raise Permanent("dark")
    if number == 2:
        raise Skip("blank")
    if number == 3 and ctx.attempt == 1:
        raise OSError("jam")
    return f"{tongue}{number}:{ctx.stage}:{ctx.key}:{ctx.subject}"


@task
async def total(ctx: Context, most: int, swallow: bool = False) -> int:
    try:
        return sum(value for _, value in ctx.parts(double, ((str(n), {"n": n}) for n in range(most))))
    except BaseException:
        if swallow:
            return -1  # a function that catches everything still waits
        raise


@total.part
async def double(ctx: Context, n: int) -> int:
    return n * 2


@pytest.fixture
def open_mill(database_url: str) -> Iterator[Callable[..., Mill]]:
    with contextlib.ExitStack() as stack:
        yield lambda *parts: stack.enter_context(Mill.open(database_url, *parts, clock=FrozenClock()))


# ---- one function


def test_the_first_call_hands_over_and_the_second_reads() -> None:
    first = call(read, args={"size": 2})
    assert (first.outcome, first.parts) == (
        "waiting",
        [Item("00", {"number": 0}, "page"), Item("01", {"number": 1}, "page")],
    )
    with pytest.raises(Waiting):
        _ = first.result
    again = call(read, args={"size": 3}, parts={"00": "a", "01": Permanent("dark"), "02": Skip("blank")})
    assert (again.outcome, again.result, again.reason) == ("completed_with_errors", "3 ['01'] a", "1 failed: 01")
    assert again.progress is not None
    assert again.progress["phases"]["page"]["failed"] == {"01": "dark"}


def test_no_parts_are_no_reason_to_wait() -> None:
    assert call(read, args={"size": 0}).result == "0 [] "
    assert call(total, args={"most": 0}).result == 0


def test_too_few_that_succeed_fail_it() -> None:
    called = call(read, args={"size": 3}, parts={"00": "a", "01": OSError("x"), "02": OSError("y")})
    assert (called.outcome, called.reason) == ("permanent", "part 'page': 1 of 3 succeeded, 50% needed; failed: 01, 02")


def test_a_part_is_called_like_a_function_of_its_own() -> None:
    called = call(page, args={"number": 7}, run_args={"tongue": "deu"}, key="07", subject="s")
    assert called.result == "deu7:read:07:s"
    assert call(double, args={"n": 2}).result == 4


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([("a", {"n": 1}), ("a", {"n": 2})], "'a' was asked for twice"),
        ([("a", {"m": 1})], "takes no argument 'm'"),
        ([("a", {"n": "x"})], "argument 'n'"),
        (["b"], "needs argument 'n'"),
        ([7], "a part is a key, or a key and arguments"),
        ([("a", 7)], "a part is a key, or a key and arguments"),
        ([("", {"n": 1})], "must not be empty"),
    ],
)
def test_what_is_asked_for_is_checked(items: list[Any], message: str) -> None:
    @task
    def whole(ctx: Context) -> None:
        ctx.parts(piece, items)

    @whole.part
    def piece(ctx: Context, n: int) -> None: ...

    called = call(whole)
    assert called.outcome == "permanent"
    assert message in (called.reason or "")


def test_only_ones_own_parts_can_be_handed_over() -> None:
    @task
    def thief(ctx: Context) -> None:
        ctx.parts(double, ["1"])

    assert "is no part of <task 'thief'>; it has: none; declare one with @thief.part" in (call(thief).reason or "")


def test_it_must_be_said_what_became_of_each() -> None:
    assert "what became of the part '01'" in (call(read, args={"size": 2}, parts={"00": "a"}).reason or "")


# ---- a whole run


def test_a_run_with_parts_is_drained(open_mill: Callable[..., Mill]) -> None:
    mill = open_mill(scans, total)
    run = mill.start(scans, "s", args={"sizes": {"a": 5, "b": 0, "c": 2}, "tongue": "lat"})
    job = mill.enqueue(total, args={"most": 4})
    drain(mill)
    results = dict(mill.results(run, "read"))
    assert results == {
        "a": "5 ['01'] lat0:read:00:s lat3:read:03:s lat4:read:04:s",
        "b": "0 [] ",
        "c": "2 ['01'] lat0:read:00:s",
    }
    assert mill.run(run.id).stage("read").total == 3
    assert mill.job(job.id).result == 12


def test_a_function_that_swallows_everything_waits_all_the_same(open_mill: Callable[..., Mill]) -> None:
    mill = open_mill(total)
    job = mill.enqueue(total, args={"most": 3, "swallow": True})
    drain(mill)
    assert mill.job(job.id).result == 6


def test_completed_parts_are_not_done_again_when_their_item_is_retried(open_mill: Callable[..., Mill]) -> None:
    mill = open_mill(scans)
    run = mill.start(scans, "s", args={"sizes": {"a": 1}, "clumsy": True})
    drain(mill)
    [item] = mill.jobs(run=run.id, stage="read")
    assert (item.state, item.attempt, item.errors) == ("completed", 3, 1)
    assert [(part.attempt, part.state) for part in mill.jobs(part_of=item.id)] == [(1, "completed")]


def test_an_item_that_ends_without_its_parts_takes_them_along(open_mill: Callable[..., Mill]) -> None:
    @task
    def hasty(ctx: Context) -> str:
        try:
            ctx.parts(slow, ["a", "b"])
        except Waiting:
            raise Permanent("no patience") from None
        return ""

    @hasty.part
    def slow(ctx: Context) -> None: ...

    mill = open_mill(hasty)
    job = mill.enqueue(hasty)
    drain(mill)
    found = mill.job(job.id)
    assert (found.state, found.error, found.parts, found.parts_left) == ("failed", "no patience", 2, 0)
    assert {part.state for part in mill.jobs(part_of=job.id)} == {"cancelled"}
    with pytest.raises(Refused):
        mill.cancel_job(job.id)


def test_a_part_is_not_enqueued_and_not_unchanged(open_mill: Callable[..., Mill]) -> None:
    @task
    def whole(ctx: Context) -> int:
        return len(ctx.parts(piece, ["a"]).failed)

    @whole.part(need=0)
    def piece(ctx: Context) -> None:
        ctx.skip_unchanged("same")

    mill = open_mill(whole)
    with pytest.raises(Invalid, match=r"'whole.piece' is a part: <task 'whole'> hands it over"):
        mill.enqueue(piece)
    job = mill.enqueue(whole)
    drain(mill)
    assert mill.job(job.id).result == 1
    assert "a part cannot be unchanged" in (mill.jobs(part_of=job.id)[0].error or "")


def test_a_job_whose_run_is_stopped_while_it_hands_over_is_cancelled_and_no_error(open_mill: Callable[..., Mill]) -> None:
    stopped = Pipeline("stopped")

    @stopped.stage
    def whole(ctx: Context) -> None:
        def keys() -> Iterator[str]:
            yield from (f"{n:03}" for n in range(500))
            mill.cancel_run(ctx.run or 0)
            yield "late"

        ctx.parts(piece, keys())

    @whole.part
    def piece(ctx: Context) -> None: ...

    mill = open_mill(stopped)
    run = mill.start(stopped, "s")
    drain(mill)
    [job] = mill.jobs(run=run.id, parts=False)
    assert (mill.run(run.id).state, job.state, job.parts, job.parts_left) == ("cancelled", "cancelled", 500, 0)
    assert mill.attempts(job.id) == []
