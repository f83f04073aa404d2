"""What every delivery must do, and what may be taken from it: a message is only a doorbell."""

from __future__ import annotations

import contextlib
import select
import time
from contextlib import closing
from pathlib import Path

from gristmill import Mill
from gristmill.delivery.protocol import ALL, Bell, Seat
from gristmill.model import Job
from tests.apps import everyday
from tests.delivery.conftest import Opener
from tests.worker.helpers import all_end, drain, eventually, working

SEAT = Seat()
QUIET = 0.3  # seconds in which nothing is to be heard


def listening(mill: Mill) -> Bell:
    """A bell that is known to be heard on: the first ringing of one that connects in a thread is "all"."""
    bell = mill.delivery.bell(SEAT)
    bell.want(4)
    if mill.delivery.name != "database":
        eventually(lambda: ALL in bell.heard().queues, "it listens")
    if mill.delivery.name in ("rq", "arq"):
        eventually(lambda: bell.feeds, "it offers")
        while not is_quiet(bell):
            bell.heard()
    return bell


def hears(mill: Mill, bell: Bell, *jobs: Job) -> None:
    """Until the bell has told of all these jobs, by their queue or by their name."""
    queues = {mill._known_queue(job.queue) for job in jobs}
    wanted = {job.id for job in jobs}
    heard: set[int] = set()
    offered: set[int] = set()

    def all_of_them() -> bool:
        select.select([bell], [], [], 1)
        rung = bell.heard()
        heard.update(rung.queues)
        offered.update(rung.jobs)
        return offered >= wanted if bell.feeds else heard >= queues

    eventually(all_of_them, f"{mill.delivery.name} tells of {wanted}")


def is_quiet(bell: Bell) -> bool:
    return select.select([bell], [], [], QUIET)[0] == []


def test_a_bell_tells_of_a_new_job_and_is_quiet_again(mill: Mill) -> None:
    with closing(listening(mill)) as bell:
        assert is_quiet(bell)
        for n in range(3):
            hears(mill, bell, mill.enqueue(everyday.add, args={"a": n}))
        assert is_quiet(bell)


def test_a_bell_tells_of_several_queues(mill: Mill) -> None:
    with closing(listening(mill)) as bell:
        jobs = [
            mill.enqueue(task, queue=queue) for task, queue in ((everyday.anything, "default"), (everyday.anything, "tools"))
        ]
        hears(mill, bell, *jobs)


def test_nothing_is_told_of_what_was_not_committed(mill: Mill) -> None:
    with closing(listening(mill)) as bell:
        with contextlib.suppress(ZeroDivisionError), mill.transaction() as connection:
            mill.enqueue(everyday.add, args={"a": 1}, connection=connection)
            assert is_quiet(bell)
            raise ZeroDivisionError
        assert is_quiet(bell)
        with mill.transaction() as connection:
            job = mill.enqueue(everyday.add, args={"a": 1}, connection=connection)
        hears(mill, bell, job)


def test_another_process_is_heard(mill: Mill, opened: Opener) -> None:
    with opened() as other, closing(listening(mill)) as bell:
        hears(mill, bell, other.enqueue(everyday.add, args={"a": 1}))


def test_a_closed_bell_leaves_the_others_alone(mill: Mill) -> None:
    with closing(listening(mill)) as bell:
        listening(mill).close()
        hears(mill, bell, mill.enqueue(everyday.add, args={"a": 1}))


def test_bells_leave_no_files_open(mill: Mill) -> None:
    def open_files() -> int:
        return len(list(Path("/dev/fd").iterdir()))

    listening(mill).close()
    time.sleep(0.7)  # a thread that listens sees after half a second that it is over
    before = open_files()
    for _ in range(5):
        listening(mill).close()
    eventually(lambda: open_files() <= before, "their files are closed")


def test_a_worker_drains(mill: Mill) -> None:
    jobs = mill.enqueue_many(everyday.add, [{"a": n} for n in range(100)])
    drain(mill, slots=2)
    assert [job.result for job in all_end(mill, *jobs)] == list(range(100))


def test_a_flow_goes_through(opened: Opener) -> None:
    with opened("flows") as flows, working(flows, slots=2):
        run = flows.start("site", "books", args={"pages": 5})
        eventually(lambda: flows.run(run.id).state == "completed")


def test_an_idle_worker_starts_a_new_job_without_polling(mill: Mill) -> None:
    with working(mill, slots=1, poll=60.0, lease=600.0):
        all_end(mill, mill.enqueue(everyday.add, args={"a": 0}).id)
        for n in range(3):
            assert all_end(mill, mill.enqueue(everyday.add, args={"a": n}).id)[0].result == n
        all_end(mill, mill.enqueue(everyday.add, args={"a": 1}, delay=0.3).id)
        mill.pause("default")
        paused = mill.enqueue(everyday.add, args={"a": 4})
        mill.resume("default")
        all_end(mill, paused.id)


def test_a_worker_says_how_it_learns_of_work(mill: Mill) -> None:
    with working(mill, slots=1):
        (worker,) = eventually(lambda: mill.workers())
        assert worker.delivery == mill.delivery.name
