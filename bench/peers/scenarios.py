"""What is measured, the same way for every peer: a function per scenario, from a `Peer` to its figures.

Figures come from the marks that jobs leave, never from what a peer says of itself.
"""

from __future__ import annotations

import collections
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.peers.common import CALLBACK, ENDED, SLOW, Order, Peer, Unsupported, fails, marked, marks

START_SECONDS = 30.0  # a worker that has run nothing by then does not work
LOOK_SECONDS = 0.02  # how often the marks are counted; seldom, since it takes time from what is measured
WARM = 64  # jobs that workers have run before they are timed
PROBE = 2**30  # numbers from here on are those whose latency is taken
Result = dict[str, Any]


# ---- workers -----------------------------------------------------------------------------------------------------


class Workers:
    """The peer's worker processes, each command in a session of its own, so that all of it can be killed."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.processes: list[subprocess.Popen[bytes]] = []
        self._log = Path(peer.order.folder) / "workers.log"

    def start(self) -> None:
        with self._log.open("ab") as log:
            for command in self.peer.worker_commands():
                self.processes.append(
                    subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                    )
                )

    def kill(self) -> None:
        """All below them too: some put their children into groups of their own."""
        for number in family([process.pid for process in self.processes]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        for process in self.processes:
            process.wait()
        self.processes = []

    def check(self) -> None:
        """Raises if one has ended by itself."""
        for process in self.processes:
            if process.poll() is not None:
                raise RuntimeError(f"a worker ended with {process.returncode}:\n{self.said()}")

    def said(self) -> str:
        return self._log.read_text(errors="replace")[-3000:] if self._log.exists() else ""


@contextlib.contextmanager
def working(peer: Peer) -> Iterator[Workers]:
    workers = Workers(peer)
    try:
        workers.start()
        yield workers
    finally:
        workers.kill()


def wait_for_marks(workers: Workers, wanted: int, seconds: float) -> int:
    """Waits for so many marks, at most so long after the first of them; says how many there are."""
    folder = workers.peer.order.folder
    began = time.monotonic()
    first = 0.0
    while (found := marked(folder)) < wanted:
        now = time.monotonic()
        if found and not first:
            first = now
        if first and now - first > seconds:
            break
        if not first and now - began > START_SECONDS:
            raise RuntimeError(f"no job ran in {START_SECONDS:.0f} s; the workers said:\n{workers.said()}")
        workers.check()
        time.sleep(LOOK_SECONDS)
    return found


def fill(peer: Peer, numbers: Sequence[int]) -> float:
    """Enqueues them the fastest way there is; says how long it took."""
    began = time.monotonic()
    try:
        peer.enqueue_many(numbers)
    except Unsupported:
        for number in numbers:
            peer.enqueue(number)
    return time.monotonic() - began


def warm(workers: Workers) -> None:
    """Every process has started and has run something. One first, so that slow starters do not miss it all."""
    peer = workers.peer
    for rounds in range(1, 5):
        fill(peer, [PROBE - 1] * (WARM // 4))
        if wait_for_marks(workers, rounds * (WARM // 4), START_SECONDS) < rounds * (WARM // 4):
            raise RuntimeError(f"jobs did not run in {START_SECONDS:.0f} s; the workers said:\n{workers.said()}")
        time.sleep(0.25)


# ---- arithmetic --------------------------------------------------------------------------------------------------


def rate(times: Sequence[int]) -> float:
    """Jobs per second from the first to the last of these times (nanoseconds, in order)."""
    if len(times) < 2 or times[-1] == times[0]:
        return 0.0
    return (len(times) - 1) / (times[-1] - times[0]) * 1e9


def steady(times: Sequence[int]) -> float:
    """The same without the first and the last tenth, when not every process works."""
    return rate(times[len(times) // 10 : len(times) - len(times) // 10])


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def twice(numbers: Sequence[int]) -> int:
    """How many came more than once."""
    return sum(1 for times in collections.Counter(numbers).values() if times > 1)


# ---- scenarios ---------------------------------------------------------------------------------------------------


def enqueue(peer: Peer) -> Result:
    """One by one, each in a call of its own."""
    peer.enqueue(0)
    began = time.monotonic()
    done = 0
    while done < peer.order.count and time.monotonic() - began < peer.order.seconds:
        peer.enqueue(done)
        done += 1
    return {"rate": done / (time.monotonic() - began), "count": done}


def bulk(peer: Peer) -> Result:
    """All at once; once before with few, so that connections and statements are there."""
    peer.enqueue_many(range(10))
    began = time.monotonic()
    peer.enqueue_many(range(peer.order.count))
    return {"rate": peer.order.count / (time.monotonic() - began), "count": peer.order.count}


def drain(peer: Peer) -> Result:
    """Jobs are there, then the workers start: from the first to the last that runs, or as many as run in the time."""
    count = peer.order.count
    took = fill(peer, range(count))
    with working(peer) as workers:
        wait_for_marks(workers, count, peer.order.seconds)
    found = marks(peer.order.folder)
    times = [when for _, when in found]
    ran = {number for number, _ in found}
    return {
        "rate": rate(times),
        "steady": steady(times),
        "count": count,
        "ran": len(ran),
        "whole": len(ran) >= count,  # else: the rate of those that ran in the time
        "twice": twice([number for number, _ in found]),
        "enqueue_seconds": took,
    }


def fan(peer: Peer) -> Result:
    """From the call that starts it to the callback's first line; the workers are warm."""
    order = peer.order
    if peer.no_fan:
        raise Unsupported(peer.no_fan)
    with working(peer) as workers:
        if not order.fail:
            warm(workers)
        before = marked(order.folder)
        began = time.monotonic_ns()
        peer.fan(order.count)
        asked = time.monotonic_ns()
        wait_for_callback(workers, before)
    found_marks = [(n, when) for n, when in marks(order.folder) if when >= began and n != PROBE - 1]
    callbacks = [when for n, when in found_marks if n == CALLBACK]
    children = [n for n, _ in found_marks if n != CALLBACK]
    if callbacks:
        check_join(order, {n for n, when in found_marks if when < callbacks[0]})
    return {
        "seconds": (callbacks[0] - began) / 1e9 if callbacks else None,
        "asking": (asked - began) / 1e9,
        "callbacks": len(callbacks),
        "children": len(set(children)),
        "twice": twice(children),
        "count": order.count,
        "waited": order.seconds,
    }


def check_join(order: Order, before: set[int]) -> None:
    """A callback that did not wait for the children is no fan-in, however fast it was."""
    left = {number for number in range(order.count) if not fails(number, order.fail)} - before
    if left:
        raise RuntimeError(f"the callback ran when {len(left)} of its {order.count} children had not run")


def wait_for_callback(workers: Workers, before: int) -> None:
    """At most so long after the first mark beyond those from before; where some fail, until nothing happens any more."""
    order = workers.peer.order
    children = order.count * (1 - order.fail) - 1  # fewer have not run before it; to read all marks takes time
    last, changed = before, time.monotonic()
    limit = changed + START_SECONDS
    while (now := time.monotonic()) < limit:
        workers.check()
        if (found := marked(order.folder)) != last:
            limit = now + order.seconds if last == before else limit
            last, changed = found, now
            if found - before > children and any(number == CALLBACK for number, _ in marks(order.folder)):
                return
        elif order.fail and found > before and now - changed > order.seconds / 2:
            return
        time.sleep(LOOK_SECONDS / 2)


def latency(peer: Peer) -> Result:
    """From the enqueueing call to the job's first line, one job at a time, at moments that no poll can be in step with."""
    order = peer.order
    sent: dict[int, int] = {}
    with working(peer) as workers:
        warm(workers)
        before = marked(order.folder)
        began = time.monotonic()
        while len(sent) < order.count and time.monotonic() - began < order.seconds:
            number = PROBE + len(sent)
            sent[number] = time.monotonic_ns()
            peer.enqueue(number)
            time.sleep(random.uniform(0.02, 0.04))  # whoever looks at once takes the processor from the worker
            while marked(order.folder) < before + len(sent) and time.monotonic() - began < order.seconds + 5:
                time.sleep(0.005)
            workers.check()
    return _latencies(peer, sent)


def load(peer: Peer) -> Result:
    """The same while other jobs come at half the rate that the peer can drain, in small lots."""
    order = peer.order
    if not order.rate:
        raise Unsupported("its rate was not measured before")
    sent: dict[int, int] = {}
    fed, number = 0, 0
    with working(peer) as workers:
        warm(workers)
        began = time.monotonic()
        while (elapsed := time.monotonic() - began) < order.seconds:
            due = int(order.rate / 2 * elapsed) - fed
            due = min(due, max(1, int(order.rate / 10)))  # a client that cannot keep up gives less, and that is said
            if due > 0:
                fill(peer, range(fed, fed + due))
                fed += due
            time.sleep(random.uniform(0.0, 0.02))
            sent[PROBE + number] = time.monotonic_ns()
            peer.enqueue(PROBE + number)
            number += 1
            time.sleep(0.01)
        spent = time.monotonic() - began
        wait_for_marks(workers, WARM // 4 * 4 + fed + number, 3.0)
    return {**_latencies(peer, sent), "load": (fed + number) / spent / order.rate, "per_second": (fed + number) / spent}


def _latencies(peer: Peer, sent: dict[int, int]) -> Result:
    begun: dict[int, int] = {}
    for number, when in marks(peer.order.folder):
        begun.setdefault(number, when)
    took = [(begun[number] - when) / 1e6 for number, when in sent.items() if number in begun]
    if not took:
        raise RuntimeError("none of the jobs ran whose latency was to be taken")
    return {
        "p50": percentile(took, 0.5),
        "p99": percentile(took, 0.99),
        "count": len(took),
        "missing": len(sent) - len(took),
    }


def kill(peer: Peer) -> Result:
    """Every worker is killed -9 when a third of the jobs have ended and others are at work, and started again at once."""
    order = peer.order
    fill(peer, range(order.count))
    with working(peer) as workers:
        limit = time.monotonic() + START_SECONDS
        while not midway(order) and time.monotonic() < limit:
            workers.check()
            time.sleep(SLOW / 4)  # who takes jobs at a poll is at work for a moment only
        workers.kill()
        before = _ended(order.folder)
        workers.start()
        limit = time.monotonic() + order.seconds
        while time.monotonic() < limit and len(set(_ended(order.folder))) < order.count:
            workers.check()
            time.sleep(0.1)
        waited = order.seconds - (limit - time.monotonic())
        time.sleep(1.0)  # what runs once more shows itself
    ended = _ended(order.folder)
    return {
        "unfinished": order.count - len(set(ended)),
        "begun_twice": twice(_begun(order.folder)),
        "ended_twice": twice(ended),
        "count": order.count,
        "before": len(set(before)),
        "seconds": waited,
    }


def midway(order: Order) -> bool:
    begun, ended = _begun(order.folder), _ended(order.folder)
    return len(ended) >= order.count // 3 and len(begun) > len(ended)


def _begun(folder: str) -> list[int]:
    return [number for number, _ in marks(folder) if number < ENDED]


def _ended(folder: str) -> list[int]:
    return [number - ENDED for number, _ in marks(folder) if number >= ENDED and number != CALLBACK]


def startup(peer: Peer) -> Result:
    """One job waits: from starting the workers to that job; then what all their processes take when idle."""
    peer.enqueue(0)
    began = time.monotonic_ns()
    with working(peer) as workers:
        wait_for_marks(workers, 1, START_SECONDS)
        first = marks(peer.order.folder)[0][1]
        time.sleep(2.0)
        workers.check()
        processes = family([process.pid for process in workers.processes])
        kibibytes = [memory(process) for process in processes]
    return {"seconds": (first - began) / 1e9, "mebibytes": sum(kibibytes) / 1024, "processes": len(processes)}


def io(peer: Peer) -> Result:
    """Jobs that only await, `at_once` of them at a time; the awaits per second are those of all jobs."""
    result = drain(peer)
    return {**result, "awaits": result["rate"] * peer.order.awaits}


SCENARIOS: dict[str, Callable[[Peer], Result]] = {
    "enqueue": enqueue,
    "bulk": bulk,
    "drain": drain,
    "fan": fan,
    "latency": latency,
    "load": load,
    "kill": kill,
    "startup": startup,
    "io": io,
}


def run(peer: Peer) -> Result:
    """It is not closed: some hang at that, and the process ends anyway."""
    peer.prepare()
    return SCENARIOS[peer.order.scenario](peer)


# ---- memory ------------------------------------------------------------------------------------------------------


def family(roots: list[int]) -> list[int]:
    """These processes and all below them."""
    parents = dict(_parents())
    found = set(roots)
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found)


def _parents() -> Iterator[tuple[int, int]]:
    if sys.platform != "linux":
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        yield from ((int(child), int(parent)) for child, parent in map(str.split, listed.splitlines()))
        return
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            yield int(path.parent.name), int(path.read_text().rpartition(")")[2].split()[1])


def memory(process: int) -> int:
    """KiB. Of what several share, each has its part, where the system says so."""
    if sys.platform != "linux":
        said = subprocess.run(["ps", "-o", "rss=", "-p", str(process)], capture_output=True, text=True).stdout.strip()
        return int(said or 0)
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0
