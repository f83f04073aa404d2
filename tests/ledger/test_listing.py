"""Lists of jobs: every combination of filters finds what a plain look at all rows finds, by whichever route it goes."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gristmill.errors import NotFound
from gristmill.ledger import listing, remove
from gristmill.ledger.finish import Verdict
from gristmill.ledger.sql import alike
from gristmill.model import Job
from tests.ledger.conftest import Open
from tests.ledger.play import Play, each, plan, solo, step, stubborn

SITE = plan("site", find=step(), page=each("find", queue="pages", need=0), total=step("page", queue="pages"))
BOOK = plan("book", find=step(queue="pages"), page=each("find", need=0))


@pytest.fixture
def full(opened: Open) -> Play:
    """Jobs of two pipelines and on their own, in every state."""
    play = opened(SITE, BOOK)
    mill = play.mill
    verdicts = {
        "page/a": Verdict.PERMANENT,
        "page/b": Verdict.SKIPPED,
        "page/c": Verdict.WITH_ERRORS,
    }
    for pipeline, subject in (("site", "s"), ("book", "s"), ("site", "t")):
        mill.start(pipeline, subject)
        play.drain(items={"find": ["a", "b", "c", "d"]}, verdicts=verdicts)
        play.clock.at += 3_600_000_000
    mill.set_queue("other", create=True)
    for queue in ("default", "other"):
        mill.enqueue(solo, queue=queue)
        mill.cancel_job(mill.enqueue(solo, queue=queue).id)
        mill.enqueue(stubborn, queue=queue, delay=60)
    player = play.player()
    player.end(player.take(1, queues=["other"])[0], Verdict.PERMANENT, reason="no")
    mill.start("site", "u")
    play.clock.at += 3_600_000_000
    mill.enqueue(solo)
    play.player().take(1, queues=["default"])
    mill.cancel_run(mill.start("book", "u").id)
    items_with_parts(play)
    return play


def items_with_parts(play: Play) -> None:
    """A run of subject p with two items, of which one waits for parts in several states."""
    play.mill.start("site", "p", priority="high")
    player = play.player()
    find = player.take_one()
    player.emit(find, "doc", "leaf")
    player.complete(find)
    doc = play.labelled(player.take(2))["page/doc"]
    player.split(doc, "1", "2", "3", "4", task="site.page.ocr")
    part, *_ = player.take(2, queues=["default"])
    player.end(part, Verdict.PERMANENT, reason="too dark")


FILTERS: dict[str, list[Any]] = {
    "run": [None, 1, 4, 6, 99],
    "stage": [None, "page", "nothing"],
    "subject": [None, "s", "p", "nobody"],
    "state": [None, "queued", "in_progress", "completed", "completed_with_errors", "failed", "cancelled", "skipped"],
    "queue": [None, "pages", "other"],
    "task": [None, "solo", "site.page", "site.page.ocr", "nothing"],
    "since": [None, 1, 100],
}


def plainly(jobs: list[Job], **wanted: object) -> list[int]:
    def fits(job: Job) -> bool:
        since = wanted["since"]
        assert job.created_at is not None
        return (since is None or job.created_at >= since) and all(  # type: ignore[operator]
            value is None or getattr(job, name) == value for name, value in wanted.items() if name != "since"
        )

    return [job.id for job in jobs if fits(job)]


@pytest.mark.parametrize("few", [0, listing._FEW_JOBS], ids=["many", "few"])
def test_whatever_is_asked_for_is_found(full: Play, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_FEW_JOBS", few)
    everything = full.mill.jobs(limit=1000)
    assert [job.id for job in everything] == [row.id for row in full.rows("SELECT id FROM gm_job ORDER BY id DESC")]
    first = min(run.id for run in full.mill.runs())
    now = datetime.fromtimestamp(full.clock.at / 1e6, UTC)
    seen: set[int] = set()
    for values in itertools.product(*FILTERS.values()):
        wanted = dict(zip(FILTERS, values, strict=True))
        if sum(value is not None for value in values) > 2:
            continue
        wanted["run"] = None if wanted["run"] is None else wanted["run"] + first - 1
        wanted["since"] = None if wanted["since"] is None else now - timedelta(hours=wanted["since"])
        found = [job.id for job in full.mill.jobs(limit=1000, **wanted)]
        assert found == plainly(everything, **wanted), wanted
        assert [job.id for job in full.mill.jobs(limit=2, **wanted)] == found[:2], wanted
        seen.add(len(found))
    assert len(seen) > 10  # or it was no test


def test_jobs_are_found_by_when_they_were_made(full: Play) -> None:
    """Numbers are found by time, also where some are missing."""
    rows = full.rows("SELECT id, created_at FROM gm_job ORDER BY id")
    with full.ledger.reading() as tx:
        for moment in {row.created_at + n for row in rows for n in (-1, 0, 1)}:
            first = next((row.id for row in rows if row.created_at >= moment), rows[-1].id)
            assert listing._first_since(tx, moment) <= first
            assert not [row for row in rows if row.created_at >= moment and row.id < listing._first_since(tx, moment)]


def test_any_of_several_states_will_do(full: Play) -> None:
    everything = full.mill.jobs(limit=1000)
    for states in (["failed", "cancelled"], ["queued", "in_progress"], ["completed", "failed"], ["skipped"]):
        expected = [job.id for job in everything if job.state in states]
        assert len(expected) > 1
        assert [job.id for job in full.mill.jobs(state=states, limit=1000)] == expected
        of_run = [job.id for job in everything if job.state in states and job.run == everything[0].run]
        assert [job.id for job in full.mill.jobs(state=states, run=everything[0].run, limit=1000)] == of_run
    assert len(full.mill.runs(state=["cancelled", "completed_with_errors"])) == 4
    assert len(full.mill.runs(state=[])) == len(full.mill.runs())


def test_runs_are_found_by_a_pattern_of_their_subject_by_stage_and_by_error(full: Play) -> None:
    mill, everything = full.mill, full.mill.runs(limit=100)
    assert [run.id for run in mill.runs(subject="[st]")] == []
    assert [run.id for run in mill.runs(subject="?")] == [run.id for run in everything]
    assert [run.id for run in mill.runs(subject="S*")] == [run.id for run in everything if run.subject == "s"]
    at_page = [r.id for r in everything if any(s.name == "page" and (s.failed or s.state == "sealed") for s in r.stages)]
    assert len(at_page) == 4
    assert [run.id for run in mill.runs(stage="page")] == at_page
    assert [run.subject for run in mill.runs(stage="page", state="in_progress")] == ["p"]
    [error] = {job.fingerprint for job in mill.jobs(state="failed", stage="page", subject="s")}
    with_error = {job.run for job in mill.jobs(error=error, limit=1000)}
    assert [run.id for run in mill.runs(error=error)] == [run.id for run in everything if run.id in with_error]
    assert mill.runs(error="0123456789ab") == mill.runs(stage="nothing") == []


@pytest.mark.parametrize("few", [0, listing._FEW_JOBS], ids=["many", "few"])
def test_jobs_are_found_by_a_pattern_of_their_subject_and_by_worker(
    full: Play, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "_FEW_JOBS", few)
    everything = full.mill.jobs(limit=1000)
    for subject, named in (("*", "pstu"), ("S*", "s"), ("?", "pstu"), ("x*", "")):
        wanted = [job.id for job in everything if job.subject is not None and job.subject in named]
        assert [job.id for job in full.mill.jobs(subject=subject, limit=1000)] == wanted
    for worker in {job.worker for job in everything if job.worker}:
        held = [job.id for job in everything if job.worker == worker]
        assert [job.id for job in full.mill.jobs(worker=worker)] == held
        assert [job.id for job in full.mill.jobs(worker=worker, state=["in_progress", "queued"], limit=1)] == held[:1]
        assert full.mill.jobs(worker=worker, state="failed") == []
    assert full.mill.jobs(worker=10**9) == []


@pytest.mark.parametrize("few", [0, 3, listing._FEW_JOBS], ids=["none", "some", "few"])
@pytest.mark.parametrize("keys", [0, 2, listing._FEW_KEYS], ids=["alike", "rare", "few"])
def test_jobs_are_found_by_their_key(full: Play, few: int, keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Items, parts and jobs on their own: among the newest, by the indexes of keys, or by walking past all."""
    monkeypatch.setattr(listing, "_FEW_JOBS", few)
    monkeypatch.setattr(listing, "_FEW_KEYS", keys)
    keyed = {full.mill.enqueue(solo, unique=key).id: key for key in ("a", "one", "one more")}
    keyed |= {full.mill.cancel_job(full.mill.enqueue(stubborn, unique="a").id).id: "a"}
    full.mill.start("site", "v")
    keyed |= {row.id: row.key for row in full.rows("SELECT id, key FROM gm_job WHERE key IS NOT NULL")}
    assert len({*keyed.values()}) > 8
    for pattern in ("a", "?", "*", "one*", "*o*", "[1-4]", "1", "doc", "nothing", "*nothing*", "nothing*", ""):
        wanted = [number for number in sorted(keyed, reverse=True) if alike(keyed[number], pattern)]
        assert [job.id for job in full.mill.jobs(key=pattern, limit=1000)] == wanted, pattern
        assert [job.id for job in full.mill.jobs(key=pattern, limit=2)] == wanted[:2], pattern
        for before, after in itertools.pairwise(wanted):
            assert [job.id for job in full.mill.jobs(key=pattern, limit=1, after=before)] == [after], pattern


def test_jobs_of_a_run_include_parts_and_those_of_a_stage_do_not(full: Play) -> None:
    [run] = full.mill.runs(subject="p")
    assert [job.key for job in full.mill.jobs(run=run.id)] == ["4", "3", "2", "1", "leaf", "doc", None]
    assert [job.key for job in full.mill.jobs(subject="p", state="failed")] == ["1"]
    assert [job.key for job in full.mill.jobs(run=run.id, stage="page")] == ["leaf", "doc"]
    assert [job.key for job in full.mill.jobs(run=run.id, parts=False)] == ["leaf", "doc", None]


def test_what_a_queued_job_waits_for_is_said(full: Play) -> None:
    said = {job.waits for job in full.mill.jobs(state="queued", limit=1000)}
    assert said == {None, "delayed", "for parts"}
    assert {job.waits for job in full.mill.jobs(state=["failed", "in_progress", "completed"], limit=1000)} == {None}
    job = full.mill.enqueue(stubborn, queue="pages", priority="high")
    player = full.player()
    player.end(player.take(1, queues=["pages"])[0], Verdict.ERROR, reason="not now")
    assert full.mill.job(job.id).waits == "retrying"


def test_parts_of_a_run_that_is_being_removed_are_nowhere(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    play = opened(SITE)
    run = play.mill.start("site", "p").id
    player = play.player()
    play.turn(player, {"find": ["doc"]}, {})
    player.split(player.take_one(), "1", "2", task="site.page.ocr")
    play.drain(player)
    part = play.mill.jobs(run=run, task="site.page.ocr")[0].id
    monkeypatch.setattr(remove, "BATCH", 0)  # nothing of it goes in the transaction that removes the run
    play.ledger.do(remove.remove_run, run)
    assert play.value("SELECT count(*) FROM gm_job") == 5
    assert play.mill.jobs(limit=1) == []
    assert play.rows("SELECT id FROM gristmill_jobs") == []
    with pytest.raises(NotFound, match=f"there is no job {part}"):
        play.mill.why(job=part)
