"""Many workers finish one large stage while others purge, retry and cancel, at nearly the rate of a quarter of them.

Each worker has one slot. First the few, then all of them finish a stage of their own, whose items wait in a paused queue
until everyone is there. Meanwhile items of that very stage are cancelled and retried, its run is retried for those that
failed, and small runs on the same queue are started and purged.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

from chaos import oracle
from chaos.crowd import QUEUE
from chaos.play import Crew, Play, Violation
from gristmill import Mill
from gristmill.errors import NotFound, Refused

TITLE = "many workers finish one stage while others purge, retry and cancel"
DATABASES = ("SQLite", "PostgreSQL")
FEW, MANY = 8, 32  # also in the short form: another pair would be another question
SHARE = 0.8  # of the rate of the few
PACE = 0.1  # seconds between two acts of one disturber
LEASE, POLL = 30.0, 1.0  # as they are by default: so many processes on few processors, silence is no sign of death
_ENDED = (
    "SELECT completed + with_errors + failed + skipped + cancelled, total FROM gm_stage WHERE run_id = {} AND name = 'item'"
)
_SOME = "SELECT id FROM gm_job WHERE run_id = {} AND state {} ORDER BY id LIMIT 200"
_DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
_SHOWN = ("deadlock", "database is locked", "Traceback")


def play(play: Play) -> str:
    play.apps = ("chaos.crowd",)
    oracle.watch(play.mill)
    items = play.pick(10_000, 100_000)
    crew = play.crew(FEW, slots=1, lease=LEASE, poll=POLL)
    acts: Counter[str] = Counter()
    slow = _rate(play, crew, FEW, items, acts)
    crew.keep(MANY)
    fast = _rate(play, crew, MANY, items, acts)
    longest = oracle.settle(play)
    oracle.check(play, failing=True, retried=True)
    deadlocks = oracle.rows(play.mill, _DEADLOCKS)[0][0] if play.database == "PostgreSQL" else 0
    shown = [line for line in crew.logs() if any(word in line for word in _SHOWN)]
    said = (
        f"{MANY} workers finished {items} items at {fast:.0f}/s, {FEW} at {slow:.0f}/s ({fast / slow:.0%}), with"
        f" {', '.join(f'{n} {act}' for act, n in sorted(acts.items()))} meanwhile; 0 deadlocks shown, {deadlocks} in the"
        f" server; longest pause {longest:.1f} s"
    )
    if set(acts) != set(ACTS):
        raise Violation(f"nothing was shown: there were only {dict(acts)}")
    if shown or deadlocks:
        raise Violation(f"{deadlocks} deadlocks in the server; shown by workers: {shown[:3]}")
    play.reach(fast >= SHARE * slow, f"{fast:.0f}/s against {slow:.0f}/s: {fast / slow:.0%} is less than {SHARE:.0%}")
    return said


def _rate(play: Play, crew: Crew, workers: int, items: int, acts: Counter[str]) -> float:
    """Items a second, with so many workers: of those between the first tenth, while some still notice, and the last one."""
    play.mill.set_queue(QUEUE, create=True)
    play.mill.pause(QUEUE)
    crew.ready()
    run = play.acknowledge("run", play.mill.start("crowd", f"{workers}", args={"items": items}).id)
    play.eventually(lambda: oracle.rows(play.mill, _ENDED.format(run))[0][1] == items, "all items are there", 300.0)
    play.eventually(lambda: len(play.mill.workers()) == workers, "all workers are there", 120.0)
    with disturbed(play, run, acts):
        play.mill.resume(QUEUE)
        first, began = _reached(play, run, 0.1 * items)
        last, ended = _reached(play, run, 0.9 * items)
        return (last - first) / (ended - began)


def _reached(play: Play, run: int, number: float) -> tuple[int, float]:
    """How many items have ended once these have, and when that was."""
    until = time.monotonic() + 1800
    while (ended := oracle.rows(play.mill, _ENDED.format(run))[0][0]) < number:
        if time.monotonic() > until:
            raise Violation(f"only {ended} items after half an hour")
        time.sleep(0.01)
    return ended, time.monotonic()


@contextlib.contextmanager
def disturbed(play: Play, run: int, acts: Counter[str]) -> Iterator[None]:
    """While this lasts, three others act on the run and on the queue. What they are told must be no more than a refusal."""
    stop = threading.Event()
    failed: list[BaseException] = []

    def disturb(name: str, act: Callable[[Mill, int, random.Random], object], dice: random.Random) -> None:
        while not stop.wait(PACE * dice.uniform(0.5, 1.5)):
            try:
                act(play.mill, run, dice)
                acts[name] += 1
            except (Refused, NotFound):
                pass
            except BaseException as error:
                failed.append(error)
                return

    threads = [
        threading.Thread(target=disturb, args=(name, act, random.Random(play.dice.random()))) for name, act in ACTS.items()
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    if any(thread.is_alive() for thread in threads):
        raise Violation("someone who acted has had no answer for a minute")
    if failed:
        raise Violation(f"shown to whoever acted: {type(failed[0]).__name__}: {failed[0]}")


def _some(mill: Mill, run: int, dice: random.Random, state: str) -> int:
    rows = oracle.rows(mill, _SOME.format(run, state))
    if not rows:
        raise NotFound("there is none")
    chosen: int = dice.choice(rows)[0]
    return chosen


def cancel(mill: Mill, run: int, dice: random.Random) -> None:
    mill.cancel_job(_some(mill, run, dice, "IN (0, 1)"), by="chaos")


def retry(mill: Mill, run: int, dice: random.Random) -> None:
    if dice.random() < 0.5:
        mill.retry_run(run, failed=True, by="chaos")
    else:
        mill.retry_job(_some(mill, run, dice, "> 3"), by="chaos")


def purge(mill: Mill, run: int, dice: random.Random) -> None:
    subject = f"small {dice.randint(0, 5)}"
    mill.start("crowd", subject, args={"items": 20})
    time.sleep(PACE * dice.random())
    mill.purge_subject("crowd", subject, history=True, by="chaos")


ACTS: dict[str, Callable[[Mill, int, random.Random], object]] = {"cancels": cancel, "retries": retry, "purges": purge}
