"""Which jobs start, when, and in what order: delays, unique keys, priorities, pause, weights, strict service, one line."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from gristmill import Invalid, Mill
from tests.apps import everyday, shares
from tests.worker.helpers import all_end, drain, eventually, lines, worker_process, working
from tests.worker.program import open_mill

pytestmark = pytest.mark.alike


def seconds_until_start(mill: Mill, job: int) -> float:
    found = mill.job(job)
    assert found.started_at is not None
    assert found.created_at is not None
    return (found.started_at - found.created_at).total_seconds()


# ---- delays


def test_delayed_jobs_run_when_they_are_due(mill: Mill) -> None:
    soon = mill.enqueue(everyday.add, args={"a": 1}, delay=0.4)
    later = mill.enqueue(everyday.add, args={"a": 2}, at=datetime.now(UTC) + timedelta(seconds=0.8))
    past = mill.enqueue(everyday.add, args={"a": 3}, at=datetime.now(UTC) - timedelta(hours=1))
    assert mill.job(soon.id).run_at is not None
    drain(mill, slots=1, poll=60, lease=180)
    waited = [seconds_until_start(mill, job.id) for job in (soon, later, past)]
    assert [mill.job(job.id).result for job in (soon, later, past)] == [1, 2, 3]
    assert waited[0] > 0.38
    assert waited[1] > 0.7
    assert max(waited) < 30  # not at the next poll


def test_a_job_whose_delay_is_shorter_than_the_one_waited_for_is_not_late(lite: Mill) -> None:
    with working(lite, slots=1, poll=60, lease=180):
        late = lite.enqueue(everyday.add, args={"a": 1}, delay=600)
        soon = lite.enqueue(everyday.add, args={"a": 2}, delay=0.3)
        all_end(lite, soon.id)
        assert lite.job(late.id).attempt == 0
    assert 0.25 < seconds_until_start(lite, soon.id) < 30  # not at the next poll


# ---- unique keys


def test_a_unique_key_is_free_again_when_its_job_has_ended(mill: Mill, folder: Path) -> None:
    first = mill.enqueue(everyday.hold, args={"folder": folder}, unique="site-1")
    with working(mill, slots=1):
        eventually(lambda: lines(folder / "started"))
        twin = mill.enqueue(everyday.hold, args={"folder": folder}, unique="site-1")
        assert (twin.id, twin.created) == (first.id, False)
        (folder / "go").touch()
        all_end(mill, first.id)
        again = mill.enqueue(everyday.hold, args={"folder": folder}, unique="site-1")
        assert (again.id != first.id, again.created) == (True, True)
        all_end(mill, again.id)


def test_a_key_unique_among_queued_jobs_is_free_again_when_its_job_starts(mill: Mill, folder: Path) -> None:
    how = {"args": {"folder": folder}, "unique": "site-1", "unique_scope": "queued"}
    first = mill.enqueue(everyday.hold, **how)  # type: ignore[arg-type]
    assert mill.enqueue(everyday.hold, **how).id == first.id  # type: ignore[arg-type]
    with working(mill, slots=1):
        eventually(lambda: lines(folder / "started"))
        second = mill.enqueue(everyday.hold, **how)  # type: ignore[arg-type]
        assert second.created
        (folder / "go").touch()
        assert [job.state for job in all_end(mill, first.id, second.id)] == ["completed"] * 2


# ---- priorities


def test_urgent_jobs_go_first(mill: Mill, folder: Path) -> None:
    for priority in ("low", "normal", "high"):
        for number in range(3):
            name = f"{priority} {number}"
            mill.enqueue(everyday.write_down, args={"folder": folder, "name": name}, priority=priority)
    drain(mill, slots=1, prefetch=0)
    assert lines(folder / "done") == [f"{priority} {n}" for priority in ("high", "normal", "low") for n in range(3)]


@pytest.mark.exact
def test_a_runs_priority_is_its_jobs_priority_through_all_stages(flows: Mill, folder: Path) -> None:
    for priority in ("low", "normal", "high"):
        flows.start("ranked", priority, args={"folder": folder}, priority=priority)
    drain(flows, slots=1, prefetch=0)
    each = ["first", "second", "second", "third"]
    assert lines(folder / "order") == [f"{subject} {stage}" for subject in ("high", "normal", "low") for stage in each]


# ---- pause


def test_a_paused_queue_stands_still_within_two_seconds_and_after_a_restart(
    mill: Mill, database_url: str, tmp_path: Path
) -> None:
    with worker_process(database_url, "everyday", log=tmp_path / "log") as worker:
        first = mill.enqueue(everyday.add, args={"a": 1})
        all_end(mill, first.id)
        mill.pause("default")
        began = time.monotonic()
        eventually(lambda: time.monotonic() - began > 2)
        stuck = mill.enqueue(everyday.add, args={"a": 2})
        elsewhere = mill.enqueue(everyday.unspent_once, args={"pause": 0}, queue="tools")
        all_end(mill, elsewhere.id)
        worker.kill()
    with working(mill, slots=1):
        again = mill.enqueue(everyday.unspent_once, args={"pause": 0}, queue="tools")
        all_end(mill, again.id)
        assert mill.job(stuck.id).attempt == 0
        (queue,) = [queue for queue in mill.queues() if queue.name == "default"]
        assert (queue.paused, queue.ready) == (True, 1)
        mill.resume("default")
        assert all_end(mill, stuck.id)[0].result == 2


def test_a_pause_holds_for_jobs_that_are_queued_already(mill: Mill, folder: Path) -> None:
    """A worker in the middle of many jobs stops taking them, and goes on where it stopped."""
    numbers = mill.enqueue_many(everyday.write_down, [{"folder": folder, "name": str(n)} for n in range(2000)])
    with working(mill, slots=1, prefetch=0, batch=1, poll=0.1):
        eventually(lambda: lines(folder / "done"))
        mill.pause("default")
        eventually(lambda: not mill.jobs(state="in_progress"), within=5)
        standing = len(lines(folder / "done"))
        other = mill.enqueue(everyday.unspent_once, args={"pause": 0})
        all_end(mill, other.id)
        assert len(lines(folder / "done")) == standing < len(numbers)


# ---- several queues


@pytest.fixture
def sharing(database_url: str) -> Iterator[Mill]:
    with open_mill(database_url, "shares") as mill:
        yield mill


def preload(mill: Mill, folder: Path, big: int, middle: int, small: int) -> None:
    for task, count in ((shares.small, small), (shares.middle, middle), (shares.big, big)):
        mill.enqueue_many(task, [{"folder": folder}] * count)


@pytest.mark.exact
@pytest.mark.parametrize("slots", [1, 2])
def test_starts_are_shared_by_weight(sharing: Mill, folder: Path, slots: int) -> None:
    weights = {"big": 6.0, "middle": 3.0, "small": 1.0}
    with sharing:
        sharing.worker(slots=1)  # declares the queues
        for name, weight in weights.items():
            sharing.set_queue(name, weight=weight)
        preload(sharing, folder, 1200, 800, 500)  # none runs dry before 1,000 have started, some being claimed in advance
        with working(sharing, slots=slots):
            order = eventually(lambda: (found := lines(folder / "order"))[999:] and found[:1000])
    counts = Counter(order)
    for name, weight in weights.items():
        assert abs(counts[name] / 1000 - weight / 10) <= 0.03, counts
    gaps = [n for n, name in enumerate(order) if name == "small"]
    assert max(b - a for a, b in pairwise(gaps)) < 200, "the smallest share never starves"


@pytest.mark.exact
def test_queues_of_equal_weight_get_equal_shares(sharing: Mill, folder: Path) -> None:
    preload(sharing, folder, 400, 400, 400)
    with working(sharing, slots=1):
        order = eventually(lambda: (found := lines(folder / "order"))[999:] and found[:1000])
    assert all(abs(count / 1000 - 1 / 3) <= 0.03 for count in Counter(order).values())


def test_a_share_that_nobody_uses_goes_to_the_others(sharing: Mill, folder: Path) -> None:
    sharing.worker(slots=1)
    sharing.set_queue("big", weight=1000)
    sharing.enqueue_many(shares.small, [{"folder": folder}] * 300)
    drain(sharing, slots=1)
    assert Counter(lines(folder / "order")) == {"small": 300}


@pytest.mark.parametrize("task", [everyday.hold, everyday.hold_async], ids=["plain", "async"])
def test_not_more_jobs_run_at_once_than_there_are_slots(lite: Mill, folder: Path, task) -> None:
    jobs = [lite.enqueue(task, args={"folder": folder, "name": str(n)}).id for n in range(7)]
    with working(lite, slots=3, async_slots=3, poll=0.05):
        eventually(lambda: len(lines(folder / "started")) == 3)
        later = lite.enqueue(everyday.add, args={"a": 1}, delay=0.3)
        eventually(lambda: lite.job(later.id).run_at is None, "some turns have passed")
        assert len(lines(folder / "started")) == 3
        (folder / "go").touch()
        all_end(lite, *jobs)


def test_nothing_is_taken_in_advance_while_nothing_is_known(mill: Mill, folder: Path) -> None:
    """A job that nobody has seen yet may be long: what is behind it belongs to whoever has a free slot."""
    for queue in ("default", "default", "tools", "tools"):
        mill.enqueue(everyday.hold, args={"folder": folder}, queue=queue)
    with working(mill, slots=1, poll=0.05):
        eventually(lambda: lines(folder / "started"))
        later = mill.enqueue(everyday.add, args={"a": 1}, delay=0.5)
        eventually(lambda: mill.job(later.id).run_at is None, "half a second of turns has passed")
        assert sum(job.attempt for job in mill.jobs()) == 1
        (folder / "go").touch()


@pytest.mark.exact
def test_jobs_that_take_longer_than_was_thought_go_back_to_those_who_are_idle(mill: Mill) -> None:
    """A queue whose jobs took no time gets long ones: by the thousand, in advance, they would all be one worker's."""
    mill.enqueue_many(everyday.add, ({"a": n} for n in range(2000)))
    naps = mill.enqueue_many(everyday.nap, [{"seconds": 0.01}] * 500)
    assert naps
    with working(mill, slots=1):
        eventually(lambda: sum(1 for _ in mill.jobs(task="nap", state="completed", limit=500)) > 100)
        held = len(mill.jobs(task="nap", state="in_progress", limit=500))
    assert held < 100


@pytest.mark.exact
def test_strict_service_takes_queues_in_the_order_given(sharing: Mill, folder: Path) -> None:
    preload(sharing, folder, 50, 50, 50)
    drain(sharing, queues=["middle", "big", "small"], strict=True, slots=1)
    assert lines(folder / "order") == ["middle"] * 50 + ["big"] * 50 + ["small"] * 50


def test_a_worker_only_takes_the_queues_it_was_started_for(sharing: Mill, folder: Path) -> None:
    preload(sharing, folder, 20, 20, 20)
    drain(sharing, queues=["middle"], slots=1)
    assert Counter(lines(folder / "order")) == {"middle": 20}


def test_a_job_that_comes_to_the_better_queue_goes_before_the_rest_of_the_other(sharing: Mill, folder: Path) -> None:
    sharing.enqueue_many(shares.small, [{"folder": folder}] * 1500)
    with working(sharing, queues=["big", "small"], strict=True, slots=1):
        eventually(lambda: lines(folder / "order"))
        urgent = sharing.enqueue(shares.big, args={"folder": folder})
        all_end(sharing, urgent.id)
        assert len(lines(folder / "order")) < 1200


# ---- all queues as one line


@pytest.mark.exact
def test_as_one_line_high_jobs_come_first_in_whichever_queue_and_then_the_oldest(sharing: Mill, folder: Path) -> None:
    order = []
    for priority in ("low", "normal", "high"):
        for task in (shares.small, shares.big, shares.middle, shares.big):
            sharing.enqueue(task, args={"folder": folder}, priority=priority)
            order.append(task.queue)
    drain(sharing, one_line=True, slots=1)
    assert lines(folder / "order") == order[8:] + order[4:8] + order[:4]


@pytest.mark.exact
def test_as_one_line_what_several_slots_take_at_once_stands_in_front(sharing: Mill, folder: Path) -> None:
    """Of each queue as many as are among the first. What is taken at once starts in any order."""
    slots = 3
    for _ in range(8):
        sharing.enqueue_many(shares.small, [{"folder": folder}] * 2)
        sharing.enqueue_many(shares.big, [{"folder": folder}])
    sharing.enqueue_many(shares.middle, [{"folder": folder}] * 12)
    drain(sharing, one_line=True, slots=slots)
    order = lines(folder / "order")
    assert "middle" not in order[: 24 - slots]
    for n in range(24 - slots):
        assert abs(order[:n].count("small") - 2 * order[:n].count("big")) <= 2 * slots + 2, order


def test_a_high_job_is_next_though_its_queue_has_had_its_turn(sharing: Mill, folder: Path) -> None:
    sharing.enqueue_many(shares.small, [{"folder": folder}] * 700)
    sharing.enqueue_many(shares.big, [{"folder": folder}] * 700)
    with working(sharing, one_line=True, slots=1):
        eventually(lambda: lines(folder / "order"))
        urgent = sharing.enqueue(shares.middle, args={"folder": folder}, priority="high")
        all_end(sharing, urgent.id)
        assert len(lines(folder / "order")) < 1200


def test_one_line_and_strict_exclude_each_other(sharing: Mill) -> None:
    with pytest.raises(Invalid, match="two ways to serve queues"):
        sharing.worker(strict=True, one_line=True)
