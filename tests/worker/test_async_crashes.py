"""When a process with many async jobs dies nobody knows whose fault it was: suspects run alone, the culprit is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill import Mill
from tests.apps import everyday
from tests.worker.helpers import all_end, eventually, is_running, lines, pids_of, working

BYSTANDERS = 5


def crash_among(mill: Mill, folder: Path, bystanders: int, by: str = "async_crash") -> tuple[int, list[int]]:
    """A culprit and its bystanders in one process; returns once that has died."""
    others = [mill.enqueue(everyday.hold_async, args={"folder": folder, "name": str(n)}).id for n in range(bystanders)]
    culprit = mill.enqueue(by, args={"folder": folder}).id
    eventually(lambda: len(lines(folder / "started")) == bystanders and lines(folder / "culprit"), "all run")
    (folder / "crash").touch()
    (shared,) = set(pids_of(folder / "started"))
    eventually(lambda: not is_running(shared), "the process that they shared dies")
    return culprit, others


@pytest.mark.parametrize("by", ["async_crash", "async_send_to_the_supervisor"])
def test_only_the_culprit_fails(mill_nasty: Mill, folder: Path, by: str) -> None:
    with working(mill_nasty, slots=2):
        culprit, bystanders = crash_among(mill_nasty, folder, 3, by)
        (folder / "go").touch()
        guilty, *others = all_end(mill_nasty, culprit, *bystanders)
    assert (guilty.state, guilty.error_class, guilty.crashes) == ("failed", "crash", 3)
    for other in others:
        assert (other.state, other.errors + other.crashes + other.timeouts + other.losses) == ("completed", 0)
        assert mill_nasty.attempts(other.id) == []


def test_suspects_run_alone(nasty: Mill, folder: Path) -> None:
    with working(nasty, slots=2):
        culprit, bystanders = crash_among(nasty, folder, 3)
        together = set(pids_of(folder / "started")[:3])
        (folder / "go").touch()
        all_end(nasty, culprit, *bystanders)
    alone = [pid for pid in pids_of(folder / "started") if pid not in together]
    assert len(together) == 1
    assert len(alone) == len(set(alone)) == 3, "each suspect has a process to itself"


def test_not_more_suspects_at_once_than_there_are_slots(nasty: Mill, folder: Path) -> None:
    with working(nasty, slots=2) as worker:
        culprit, bystanders = crash_among(nasty, folder, BYSTANDERS)
        eventually(lambda: len(lines(folder / "started")) > BYSTANDERS, "a suspect runs again")
        most = 0
        for turn in range(2 * BYSTANDERS):  # a turn of the worker's loop each: time to take one more suspect
            all_end(nasty, nasty.enqueue(everyday.add, args={"a": turn}).id)
            most = max(most, len(worker.crew.children))
        (folder / "go").touch()
        all_end(nasty, culprit, *bystanders)
    assert most <= 2 + 2, "a process per suspect at once would bring the machine down"


def test_who_used_too_much_memory_is_found_too(nasty: Mill, folder: Path) -> None:
    with working(nasty, slots=2):
        hungry = nasty.enqueue("async_eat_memory", args={"folder": folder}).id
        bystander = nasty.enqueue(everyday.hold_async, args={"folder": folder}).id
        eventually(lambda: lines(folder / "started") and lines(folder / "eating"))
        (folder / "eat").touch()
        eventually(lambda: nasty.job(hungry).attempt > 1, "their process is ended")
        (folder / "go").touch()
        guilty, other = all_end(nasty, hungry, bystander)
    assert (guilty.state, guilty.error_class) == ("failed", "memory")
    assert (other.state, other.errors + other.crashes) == ("completed", 0)


def test_a_job_that_crashed_alone_stays_alone(nasty: Mill, folder: Path) -> None:
    """Otherwise each of its retries would take a whole process of innocent jobs with it."""
    with working(nasty, slots=2):
        culprit, bystanders = crash_among(nasty, folder, 1)
        eventually(lambda: nasty.job(culprit).crashes >= 1)
        newcomer = nasty.enqueue(everyday.hold_async, args={"folder": folder, "name": "newcomer"}).id
        all_end(nasty, culprit)
        (folder / "go").touch()
        others = all_end(nasty, newcomer, *bystanders)
    assert [other.state for other in others] == ["completed"] * 2
    assert others[0].attempt == 1, "the newcomer was never disturbed"
