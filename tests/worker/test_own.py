"""Jobs that end themselves in a transaction of their application: their end and its rows together, or neither."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from gristmill import Mill
from tests.apps import own
from tests.worker.helpers import drain, lines
from tests.worker.program import open_mill

pytestmark = pytest.mark.alike


@pytest.fixture
def mill(database_url: str) -> Iterator[Mill]:
    with open_mill(database_url, "own") as mill:
        with mill.transaction() as connection:
            connection.execute(text("CREATE TABLE note (job bigint PRIMARY KEY)"))
        yield mill


def notes(mill: Mill) -> list[int]:
    with mill.transaction() as connection:
        return list(connection.execute(text("SELECT job FROM note")).scalars())


def test_the_end_of_a_job_and_its_rows_are_one_commit_and_what_follows_starts(mill: Mill) -> None:
    run = mill.start(own.page, "p", args={"text": "grist"})
    drain(mill, slots=1)
    run = mill.run(run.id)
    assert (run.state, run.result("after")) == ("completed", [{"length": 5}])
    assert notes(mill) == [job.id for job in mill.jobs(run=run.id) if job.stage == "keep"]


def test_an_error_inside_undoes_both(mill: Mill) -> None:
    job = mill.enqueue(own.raises_inside)
    drain(mill, slots=1)
    assert (mill.job(job.id).state, mill.job(job.id).error, notes(mill)) == ("failed", "LookupError: no", [])


def test_an_end_that_is_not_committed_is_an_error(mill: Mill) -> None:
    job = mill.enqueue(own.forgets_to_commit)
    drain(mill, slots=1)
    assert mill.job(job.id).state == "failed"
    assert "was not committed" in str(mill.job(job.id).error)
    assert notes(mill) == []


def test_a_process_that_dies_before_the_commit_has_done_nothing(mill: Mill) -> None:
    job = mill.enqueue(own.dies_before_the_commit)
    drain(mill, slots=1)
    ended = mill.job(job.id)
    assert (ended.state, ended.result, ended.crashes, notes(mill)) == ("completed", "kept", 1, [job.id])


def test_a_process_that_dies_after_the_commit_has_ended_its_job(mill: Mill) -> None:
    job = mill.enqueue(own.dies_after_the_commit)
    drain(mill, slots=1)
    ended = mill.job(job.id)
    assert (ended.state, ended.result, ended.attempt, ended.crashes, notes(mill)) == ("completed", "kept", 1, 0, [job.id])


def test_a_job_that_is_another_attempts_by_now_is_told_so(mill: Mill, tmp_path: Path) -> None:
    said = tmp_path / "said"
    mill.enqueue(own.too_late, args={"said": said})
    drain(mill, slots=1)
    assert set(lines(said)) == {"False"}


def test_a_stage_that_gives_items_is_refused(mill: Mill) -> None:
    run = mill.start(own.pieces, "p")
    drain(mill, slots=1)
    assert mill.run(run.id).state == "failed"
    assert "cannot end itself" in str(mill.jobs(run=run.id)[-1].error)
    assert notes(mill) == []


def test_every_end_runs_the_applications_own_sql(mill: Mill) -> None:
    run = mill.start(own.watched, "w")
    drain(mill, slots=2)
    run = mill.run(run.id)
    assert (run.state, run.result("itself"), run.stage("each_of_them").failed) == ("completed_with_errors", "done", 1)
    assert sorted(notes(mill)) == sorted(job.id for job in mill.jobs(run=run.id, limit=100))
    assert len(notes(mill)) == 62
