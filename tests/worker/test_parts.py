"""Parts in real processes: the item holds no slot while they are done, and what kills one of them costs that one only."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gristmill import Mill
from tests.apps.parts import gather, scans
from tests.ledger import invariants
from tests.worker.helpers import drain, eventually, lines, run_ends, worker_process, working
from tests.worker.program import open_mill

pytestmark = pytest.mark.alike


@pytest.fixture
def mill(database_url: str) -> Iterator[Mill]:
    with open_mill(database_url, "parts") as mill:
        yield mill
        invariants.check(mill.ledger)


@pytest.fixture
def lite(sqlite_url: str) -> Iterator[Mill]:
    with open_mill(sqlite_url, "parts") as mill:
        yield mill
        invariants.check(mill.ledger)


def test_one_slot_is_enough_and_each_part_has_its_own_time_limit_and_retries(mill: Mill, tmp_path: Path) -> None:
    run = mill.start(scans, "s", args={"sizes": {"a": 7, "b": 0, "c": 2}, "folder": str(tmp_path)})
    drain(mill, slots=1)
    run = mill.run(run.id)
    assert (run.state, run.result("total")) == ("completed_with_errors", sum(range(7)) - 3 + 1)
    items = {item.key: item for item in mill.jobs(run=run.id, stage="read")}
    assert {key: item.state for key, item in items.items()} == {
        "a": "completed_with_errors",
        "b": "completed",
        "c": "completed",
    }
    assert (items["a"].error, items["a"].timeouts, items["a"].crashes) == ("1 failed: 003", 0, 0)
    parts = {part.key: part for part in mill.jobs(part_of=items["a"].id)}
    assert (parts["003"].state, parts["003"].error_class, parts["003"].timeouts) == ("failed", "timeout", 1)
    assert (parts["005"].state, parts["005"].crashes) == ("completed", 1)


def test_parts_of_a_worker_that_dies_are_done_by_another_and_the_item_is_called_once(
    database_url: str, mill: Mill, tmp_path: Path
) -> None:
    run = mill.start(scans, "s", args={"sizes": {"a": 3}, "folder": str(tmp_path), "slow": 0.2}).id
    with worker_process(database_url, "parts", log=tmp_path / "log", slots=1) as worker:
        eventually(lambda: len(lines(tmp_path / "notes")) >= 2, "parts are being done")
        worker.send(signal.SIGKILL)
    drain(mill, slots=1)
    assert (mill.run(run).state, mill.run(run).result("total")) == ("completed", 3)


def test_a_run_is_cancelled_while_a_part_runs_and_nothing_is_left(lite: Mill, tmp_path: Path) -> None:
    run = lite.start(scans, "s", args={"sizes": {"a": 3}, "folder": str(tmp_path), "slow": 1.5}).id
    with working(lite, slots=1, cancel_grace=0.1):
        eventually(lambda: len(lines(tmp_path / "notes")) >= 1, "a part is being done")
        lite.cancel_run(run)
        assert run_ends(lite, run).state == "cancelled"
    [item] = lite.jobs(run=run, stage="read")
    states = sorted(part.state for part in lite.jobs(part_of=item.id))
    assert states in (["cancelled"] * 3, ["cancelled", "cancelled", "completed"])  # the first may just have made it


def test_async_parts_of_an_async_task_on_its_own(lite: Mill) -> None:
    job = lite.enqueue(gather, args={"most": 600})
    drain(lite, slots=1)
    assert lite.job(job.id).result == [n * n for n in range(600)]
    assert lite.job(job.id).parts == 600
