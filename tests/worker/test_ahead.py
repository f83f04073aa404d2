"""An event loop has some jobs in advance, which begin when others end: bringing them takes longer than they do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gristmill import Mill
from tests.apps import everyday, loops
from tests.worker.helpers import all_end, eventually, lines, working
from tests.worker.program import open_mill

pytestmark = pytest.mark.exact  # deliveries that hand over each job by name give nothing in advance
MANY = 3000


@pytest.fixture
def mill(database_url: str) -> Iterator[Mill]:
    with open_mill(database_url, "everyday", "loops") as mill:
        yield mill


def test_some_are_there_in_advance_and_still_not_more_run_at_once_than_may(mill: Mill) -> None:
    jobs = mill.enqueue_many(loops.at_once, [{}] * MANY)
    with working(mill, slots=1, async_slots=20) as worker:
        eventually(lambda: any(child.ahead for child in list(worker.crew.children)), "one waits for others to end")
        ended = all_end(mill, *jobs[::30])
    assert {(job.state, 0 < job.result <= 20) for job in ended} == {("completed", True)}


def test_those_that_wait_behind_long_ones_go_to_whoever_has_room(mill: Mill, folder: Path) -> None:
    mill.enqueue_many(loops.at_once, [{}] * MANY)
    long = [mill.enqueue(everyday.hold_async, args={"folder": folder, "name": str(n)}).id for n in range(2)]
    behind = mill.enqueue_many(loops.at_once, [{}] * 50)
    with working(mill, slots=1, async_slots=2):
        eventually(lambda: len(lines(folder / "started")) == 2, "the long ones take all that may run")
        with working(mill, slots=1, async_slots=2):
            short = all_end(mill, *behind)
        assert [mill.job(job).state for job in long] == ["in_progress"] * 2
        (folder / "go").touch()
        all_end(mill, *long)
    assert {(job.state, job.errors + job.timeouts + job.losses) for job in short} == {("completed", 0)}
