"""Who runs what: labels, slots and memory that jobs ask for, slots of a queue's own, and bigger classes after an OOM."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gristmill import Mill
from tests.apps import hungry
from tests.worker.helpers import all_end, drain, eventually, lines, run_ends, working
from tests.worker.program import open_mill

pytestmark = pytest.mark.alike


@pytest.fixture
def hungry_mill(database_url: str) -> Iterator[Mill]:
    with open_mill(database_url, "hungry") as mill:
        yield mill


@pytest.fixture
def lite_hungry(sqlite_url: str) -> Iterator[Mill]:
    with open_mill(sqlite_url, "hungry") as mill:
        yield mill


class Held:
    """Jobs that wait for the test, by name."""

    def __init__(self, mill: Mill, folder: Path) -> None:
        self.mill, self.folder = mill, folder

    def add(self, task: Any, *names: str) -> list[int]:
        return [self.mill.enqueue(task, args={"folder": self.folder, "name": name}).id for name in names]

    def end(self, *names: str) -> None:
        for name in names:
            (self.folder / f"end-{name}").touch()

    @property
    def running(self) -> set[str]:
        log = lines(self.folder / "log")
        return {line[1:] for line in log if line[0] == "+"} - {line[1:] for line in log if line[0] == "-"}

    def await_running(self, *names: str) -> None:
        eventually(lambda: self.running == set(names), f"{names} run; {self.running} do")


@pytest.fixture
def held(lite_hungry: Mill, folder: Path) -> Held:
    return Held(lite_hungry, folder)


# ---- labels


def test_jobs_go_to_workers_with_the_labels_that_they_need(hungry_mill: Mill, caplog: pytest.LogCaptureFixture) -> None:
    plain = hungry_mill.enqueue("quick", args={"n": 1}).id
    painted = [hungry_mill.enqueue("paint", args={"n": n}).id for n in range(5)]
    abroad = hungry_mill.enqueue("paint_abroad", args={"n": 7}).id
    asked = hungry_mill.enqueue("quick", needs="region=eu").id
    with caplog.at_level(logging.WARNING):
        drain(hungry_mill, slots=1)
    states = [hungry_mill.job(job).state for job in (plain, *painted, abroad, asked)]
    assert states == ["completed"] + ["queued"] * 7
    assert "left queued: 5 jobs for want of label gpu" in caplog.text
    drain(hungry_mill, slots=1, labels=["gpu"])
    states = [hungry_mill.job(job).state for job in (*painted, abroad, asked)]
    assert states == ["completed"] * 5 + ["queued"] * 2
    drain(hungry_mill, slots=1, labels=["gpu", "region=eu"])
    assert [hungry_mill.job(job).state for job in (abroad, asked)] == ["completed"] * 2


def test_the_stages_of_a_run_need_what_they_declare_and_what_was_asked_for(hungry_mill: Mill) -> None:
    run = hungry_mill.start("album", "holidays", needs={"region=eu"})
    with working(hungry_mill, slots=1, labels=["gpu"]), working(hungry_mill, slots=1, labels=["region=eu"]) as eu:
        why = eventually(lambda: "draw" in (w := hungry_mill.why(run=run.id)).sentence and w, "it waits for a worker")
        assert why.reason == "no_worker"
        needs = "no running worker with all of label gpu, label region=eu, 200 MB of memory; the nearest lacks"
        assert needs in why.sentence
        assert why.command == ("work", "-q", "default", "--label", "gpu", "--label", "region=eu", "--memory", "200MB")
        assert eu.settings.labels == ("region=eu",)
        with working(hungry_mill, slots=2, labels=["gpu", "region=eu"]):
            assert run_ends(hungry_mill, run.id).state == "completed"


def test_a_worker_that_is_busy_with_others_serves_jobs_with_needs_too(hungry_mill: Mill) -> None:
    """Plain jobs that keep coming do not starve those that need a label, nor those that say what they take."""
    with working(hungry_mill, slots=1, labels=["gpu"], jobs_mib=1000) as worker:
        hungry_mill.enqueue_many("quick", [{}] * 100)
        painted = hungry_mill.enqueue("paint").id
        grown = hungry_mill.enqueue("grows", args={"mib": 1}).id
        flood = 0
        while not all(hungry_mill.job(job).finished_at for job in (painted, grown)):
            hungry_mill.enqueue_many("quick", [{}] * 500)
            flood += 500
            assert flood < 500_000, "they starve"
        assert worker.crew.held or flood


# ---- slots and memory


def test_as_one_line_a_job_that_takes_much_memory_is_before_or_behind_those_of_other_queues(held: Held) -> None:
    for task, name, priority in (
        (hungry.small, "old", "normal"),
        (hungry.ocr, "light", "normal"),
        (hungry.ocr, "urgent", "high"),
        (hungry.small, "urgent too", "high"),
    ):
        held.mill.enqueue(task, args={"folder": held.folder, "name": name}, priority=priority)
        held.end(name)
    drain(held.mill, slots=1, jobs_mib=1000, one_line=True)
    began = [line[1:] for line in lines(held.folder / "log") if line[0] == "+"]
    assert (began[:2], sorted(began[2:])) == (["urgent", "urgent too"], ["light", "old"])


def test_a_job_that_takes_two_slots_waits_for_them_and_leaves_none(held: Held) -> None:
    held.add(hungry.plain, "a", "b")
    with working(held.mill, slots=2) as worker:
        held.await_running("a", "b")
        held.add(hungry.wide, "wide")
        held.add(hungry.plain, "c")
        held.add(hungry.small, "s")
        eventually(lambda: worker.crew.room.held_back, "room is kept for it")
        held.end("a")
        eventually(lambda: "-a" in lines(held.folder / "log"))
        held.end("b")
        held.await_running("wide")
        held.end("wide")
        held.await_running("c", "s")
        held.end("c", "s")
        held.await_running()
    assert [line for line in lines(held.folder / "log") if line[0] == "+"][2] == "+wide"


def test_memory_is_given_out_once_and_a_big_job_does_not_wait_for_ever(held: Held) -> None:
    with working(held.mill, slots=4, jobs_mib=1000) as worker:
        held.add(hungry.big, "big1")
        held.await_running("big1")
        held.add(hungry.big, "big2")
        eventually(lambda: worker.appetite.admission._blocked, "it is the first that waits")
        held.add(hungry.small, "s1", "s2", "s3", "s4")
        # 1,000 are there, 600 in use, 600 wanted by big2, which comes first: of those after it only what it leaves.
        held.await_running("big1", "s1", "s2")
        held.end("s1")
        held.await_running("big1", "s2", "s3")
        held.end("big1")
        held.await_running("big2", "s2", "s3")
        held.end("big2")
        held.await_running("s2", "s3", "s4")
        held.end("s2", "s3", "s4")
        held.await_running()


def test_a_job_that_no_slot_or_memory_is_enough_for_stays_and_says_so(
    hungry_mill: Mill, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    held = Held(hungry_mill, folder)
    (wide,) = held.add(hungry.wide, "wide")
    (big,) = held.add(hungry.big, "big")
    with caplog.at_level(logging.WARNING):
        drain(hungry_mill, slots=1, jobs_mib=500)
    assert "for want of 2 slots (of 1)" in caplog.text
    assert "for want of 600 MB of memory (of 500 MB)" in caplog.text
    with working(hungry_mill, slots=1, jobs_mib=500):
        for job, words in ((wide, "no running worker with 2 slots (of 1)"), (big, "with 600 MB of memory (of 500 MB)")):
            eventually(partial(_is_said, hungry_mill, job, words))


def _is_said(mill: Mill, job: int, words: str) -> bool:
    return words in mill.why(job=job).sentence


# ---- slots of a queue's own


def test_a_queue_with_slots_of_its_own_takes_no_others_and_leaves_its_own_to_nobody(held: Held) -> None:
    held.add(hungry.ocr, "o1", "o2", "o3")
    held.add(hungry.plain, "a", "b", "c")
    with working(held.mill, slots=2, own_slots=["ocr=1"]):
        held.await_running("o1", "a", "b")
        held.end("o1")
        held.await_running("o2", "a", "b")
        held.end("a", "b")
        held.await_running("o2", "c")
        held.end("c", "o2")
        held.await_running("o3")
        held.end("o3")
        held.await_running()


# ---- out of memory


def test_a_job_that_runs_out_of_memory_is_tried_again_in_a_bigger_class(hungry_mill: Mill) -> None:
    fits, grows, never = (hungry_mill.enqueue(hungry.grows, args={"mib": mib}).id for mib in (10, 250, 4000))
    drain(hungry_mill, slots=1, jobs_mib=3000)
    jobs = [hungry_mill.job(job) for job in (fits, grows, never)]
    assert [(job.state, job.attempt, job.result) for job in jobs[:2]] == [("completed", 1, 10), ("completed", 2, 250)]
    assert (jobs[2].state, jobs[2].attempt) == ("failed", 3)
    assert "there is no class bigger than 2 GB" in str(jobs[2].error)
    assert [attempt.outcome for attempt in hungry_mill.attempts(never)] == ["error"] * 3


def test_a_worker_too_small_for_the_bigger_class_leaves_it_to_another(lite_hungry: Mill) -> None:
    job = lite_hungry.enqueue(hungry.grows, args={"mib": 250}).id
    drain(lite_hungry, slots=1, jobs_mib=200)
    assert (lite_hungry.job(job).state, lite_hungry.job(job).attempt) == ("queued", 1)
    drain(lite_hungry, slots=1, jobs_mib=500)
    assert all_end(lite_hungry, job)[0].result == 250
