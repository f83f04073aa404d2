"""Where a retry, or a part of a run, meets something else: what is unchanged, what a stage needs, probes, time limits to
begin in, a caller's own transaction. With real functions, here and now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill import Context, Later, Mill, Permanent, Pipeline, task
from gristmill.clock import FrozenClock
from gristmill.errors import Invalid, Refused
from gristmill.ledger import adopt
from gristmill.testing import drain

Opens = Callable[..., Mill]


@pytest.fixture
def opens(database_url: str, clock: FrozenClock) -> Iterator[Opens]:
    mills: list[Mill] = []

    def open_(*declared: Any) -> Mill:
        mills.append(Mill.open(database_url, *declared, clock=clock))
        return mills[-1]

    yield open_
    for mill in mills:
        mill.close()


# ---- what a stage needs


def test_items_that_are_none_any_more_are_no_success(opens: Opens) -> None:
    pages = Pipeline("pages")
    keys = ["a", "b"]

    @pages.stage
    def find(ctx: Context) -> Iterator[str]:
        yield from keys

    @pages.stage(after=find, each=True)
    def page(ctx: Context) -> None:
        raise Permanent("broken")

    @pages.stage(after=page)
    def publish(ctx: Context) -> int:
        raise AssertionError("there is nothing to publish")

    mill = opens(pages)
    run = mill.start(pages, "s").id
    drain(mill)
    keys[:] = ["c", "d"]
    mill.retry_run(run, stage="find")
    drain(mill)
    over = mill.run(run)
    assert (over.state, over.error) == ("failed", "stage 'page': 0 of 2 succeeded, 1 needed")
    assert (over.stage("page").skipped, mill.subject(pages, "s").last_good_run) == (2, None)


def test_failed_items_that_a_part_run_leaves_as_they_were_are_no_success(opens: Opens) -> None:
    pages = Pipeline("pages")
    broken = {"b"}

    @pages.stage
    def find(ctx: Context) -> Iterator[str]:
        yield from ("a", "b")

    @pages.stage(after=find, each=True)
    def page(ctx: Context) -> None:
        if ctx.key in broken:
            raise Permanent("broken")

    @pages.stage(after=page)
    def publish(ctx: Context) -> int:
        return sum(1 for _ in ctx.results("page"))

    mill = opens(pages)
    mill.start(pages, "s")
    drain(mill)
    broken.add("a")
    part = mill.start(pages, "s", only={"page": "a", "publish": None}).id
    drain(mill)
    assert (mill.run(part).state, mill.run(part).error) == ("failed", "stage 'page': 0 of 1 succeeded, 1 needed")


# ---- what is unchanged


def test_what_failed_since_has_no_result_that_could_be_as_before(opens: Opens) -> None:
    site = Pipeline("site")
    broken = False

    @site.stage
    def find(ctx: Context) -> int:
        return 1

    @site.stage(after=find)
    def read(ctx: Context) -> dict[str, int]:
        if broken:
            raise Permanent("it cannot be read")
        ctx.skip_unchanged("hash")
        return {"pages": 7}

    mill = opens(site)
    run = mill.start(site, "s").id
    drain(mill)
    broken = True
    mill.retry_run(run, stage="find")
    drain(mill)
    assert mill.run(run).state == "failed"
    broken = False
    mill.retry_run(run)
    drain(mill)
    assert mill.run(run).result("read") == {"pages": 7}


def test_an_item_that_is_given_again_after_it_was_dropped_is_done_again(opens: Opens) -> None:
    site = Pipeline("site")
    keys = ["a", "b"]

    @site.stage
    def find(ctx: Context) -> Iterator[str]:
        yield from keys

    @site.stage(after=find, each=True)
    def page(ctx: Context) -> dict[str, str]:
        ctx.skip_unchanged(f"hash of {ctx.key}")
        return {"text": str(ctx.key)}

    @site.stage(after=page, each=True)
    def index(ctx: Context, text: str) -> str:
        return text.upper()

    @site.stage(after=index)
    def publish(ctx: Context) -> list[dict[str, Any]]:
        return [dict(ctx.results("page")), dict(ctx.results("index"))]

    mill = opens(site)
    run = mill.start(site, "s").id
    drain(mill)
    whole = mill.run(run).result("publish")
    for now in (["a"], ["a", "b"]):
        keys[:] = now
        mill.retry_run(run, stage="find")
        drain(mill)
    assert mill.run(run).result("publish") == whole == [{"a": {"text": "a"}, "b": {"text": "b"}}, {"a": "A", "b": "B"}]


@pytest.mark.parametrize("how", [{"stage": "total"}, {"version": "v1"}])
def test_a_stage_that_somebody_chooses_runs_though_nothing_has_changed(opens: Opens, how: dict[str, Any]) -> None:
    site = Pipeline("site")
    ran: list[int] = []

    @site.stage
    def total(ctx: Context) -> None:
        ctx.skip_unchanged("hash", "v1")
        ran.append(ctx.attempt)

    mill = opens(site)
    run = mill.start(site, "s").id
    drain(mill)
    mill.retry_run(run, **how)
    drain(mill)
    assert ran == [1, 2]


# ---- probes


def test_what_was_queued_again_is_not_adopted_by_what_it_left_the_last_time(
    opens: Opens, tmp_path: Path, clock: FrozenClock
) -> None:
    site = Pipeline("site")
    left = tmp_path / "left"
    written = ["old", "new"]

    @site.stage
    def page(ctx: Context) -> str:
        left.write_text(written.pop(0))
        return left.read_text()

    @page.probe
    def there(ctx: Context) -> str | None:
        return left.read_text() if left.exists() else None

    mill = opens(site)
    run = mill.start(site, "s").id
    drain(mill)
    clock.advance(1)
    mill.retry_run(run, stage="page")
    with mill.ledger.reading() as tx:
        stage = adopt.stages_to_probe(tx, [run], {"site.page"})[0]
        assert adopt.candidates(tx, stage.id, None) == []
    [job] = mill.jobs(run=run)
    assert mill.ledger.do(adopt.adopt, [adopt.Adoption(job.id, job.attempt, run, '"old"')], by="test", target="site") == []
    drain(mill)
    assert mill.run(run).result("page") == "new"


# ---- in time


def test_what_was_begun_in_time_is_not_late_when_it_goes_on(opens: Opens, clock: FrozenClock) -> None:
    @task(within=1800)
    def patient(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise Later(3600)
        return ctx.attempt

    @task(within=1800, retries=0)
    def broken(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise Permanent("not yet")
        return ctx.attempt

    mill = opens(patient, broken)
    jobs = [mill.enqueue(patient).id, mill.enqueue(broken).id]
    drain(mill)
    clock.advance(7200)
    mill.retry_job(jobs[1])
    drain(mill)
    assert [(mill.job(job).state, mill.job(job).result) for job in jobs] == [("completed", 2)] * 2


def test_what_would_only_be_late_is_refused(opens: Opens) -> None:
    @task(within=1800)
    def soon(ctx: Context) -> None: ...

    mill = opens(soon)
    with pytest.raises(Invalid, match="not started within 1800 s of being asked for, and this job is to wait for 3600 s"):
        mill.enqueue(soon, delay=3600)
    assert mill.enqueue(soon, delay=1800).created


# ---- within a transaction of one's own


def test_what_is_refused_in_a_transaction_has_done_nothing_for_who_goes_on_and_commits(opens: Opens) -> None:
    site = Pipeline("site")

    @site.stage
    def first(ctx: Context) -> None: ...

    @site.stage(after=first)
    def second(ctx: Context) -> None: ...

    mill = opens(site)
    with mill.transaction() as connection:
        with pytest.raises(Refused, match="start a whole run"):
            mill.start(site, "s", from_stage="second", connection=connection)
        run = mill.start(site, "s", connection=connection)
        with pytest.raises(Refused):
            mill.start(site, "s", once="k", if_active="refuse", connection=connection)
    drain(mill)
    assert (run.created, mill.run(run.id).state) == (True, "completed")
    assert mill.start(site, "s", once="k").created
