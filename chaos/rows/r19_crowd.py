"""Many workers finish one large stage while others purge, retry and cancel, at nearly the rate of a quarter of them.

Each worker has one slot. The few and the many have a queue each and take turns, since the machine's own speed changes
from minute to minute: each turn is a stage whose items wait in the paused queue until all are there. Meanwhile items of
that very stage are cancelled and retried, its run is retried for those that failed, and small runs on the same queue are
started and purged.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from statistics import median

from chaos import oracle
from chaos.play import Play, Violation
from gristmill import Mill
from gristmill.errors import NotFound, Refused

TITLE = "many workers finish one stage while others purge, retry and cancel"
DATABASES = ("SQLite", "PostgreSQL")
WORKERS = {"few": 8, "many": 32}  # also in the short form: another pair would be another question
SHARE = 0.8  # of the rate of the few
PACE = 0.1  # seconds between two acts of one disturber
_MORE = 5  # turns more at most, until each act was done: a short stage may be over before one meets anything
LEASE, POLL = 30.0, 1.0  # as they are by default: so many processes on few processors, silence is no sign of death
_ENDED = (
    "SELECT completed + with_errors + failed + skipped + cancelled, total FROM gm_stage WHERE run_id = {} AND name = 'item'"
)
_SOME = "SELECT id FROM gm_job WHERE run_id = {} AND state {} ORDER BY id {} LIMIT 200"
_DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
_SHOWN = ("deadlock", "database is locked", "Traceback")


def play(play: Play) -> str:
    play.apps = ("chaos.crowd",)
    oracle.watch(play.mill)
    items, turns = play.pick(10_000, 100_000), play.pick(1, 3)
    acts: Counter[str] = Counter()
    for queue in WORKERS:
        play.mill.set_queue(queue, create=True)
    crews = [play.crew(n, slots=1, queues=["default", queue], lease=LEASE, poll=POLL) for queue, n in WORKERS.items()]
    for crew in crews:
        crew.ready()
    play.eventually(lambda: len(play.mill.workers()) == sum(WORKERS.values()), "all workers are there", 120.0)
    rates: list[tuple[float, float]] = []
    while len(rates) < turns or (set(acts) != set(ACTS) and len(rates) < turns + _MORE):
        rates.append((_rate(play, "few", items, acts), _rate(play, "many", items, acts)))
    slow, fast = map(median, zip(*rates, strict=True))
    longest = oracle.settle(play)
    oracle.check(play, failing=True, retried=True)
    deadlocks = oracle.rows(play.mill, _DEADLOCKS)[0][0] if play.database == "PostgreSQL" else 0
    shown = [line for line in crews[0].logs() if any(word in line for word in _SHOWN)]
    each = ", ".join(f"{many:.0f} to {few:.0f}" for few, many in rates)
    said = (
        f"{WORKERS['many']} workers finished {items} items at {fast:.0f}/s, {WORKERS['few']} at {slow:.0f}/s"
        f" ({fast / slow:.0%}; in turn {each}), with"
        f" {', '.join(f'{n} {act}' for act, n in sorted(acts.items()))} meanwhile; 0 deadlocks shown, {deadlocks} in the"
        f" server; longest pause {longest:.1f} s"
    )
    if set(acts) != set(ACTS):
        raise Violation(f"nothing was shown: there were only {dict(acts)}")
    if shown or deadlocks:
        raise Violation(f"{deadlocks} deadlocks in the server; shown by workers: {shown[:3]}")
    play.reach(fast >= SHARE * slow, f"{fast:.0f}/s against {slow:.0f}/s ({each}): {fast / slow:.0%}, less than {SHARE:.0%}")
    return said


def _rate(play: Play, queue: str, items: int, acts: Counter[str]) -> float:
    """Items a second, by the workers of this queue, between the first tenth, while some still notice, and the last one."""
    play.mill.pause(queue)
    run = play.acknowledge("run", play.mill.start(queue, f"{items}", args={"items": items}).id)
    play.eventually(lambda: oracle.rows(play.mill, _ENDED.format(run))[0][1] == items, "all items are there", 300.0)
    with disturbed(play, queue, run, acts):
        play.mill.resume(queue)
        first, began = _reached(play, run, 0.1 * items)
        last, ended = _reached(play, run, 0.9 * items)
    oracle.settle(play)
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
def disturbed(play: Play, queue: str, run: int, acts: Counter[str]) -> Iterator[None]:
    """While this lasts, three others act on the run and on the queue. What they are told must be no more than a refusal."""
    stop = threading.Event()
    failed: list[BaseException] = []

    def disturb(name: str, act: Callable[[Mill, str, int, random.Random], object], dice: random.Random) -> None:
        while not stop.wait(PACE * dice.uniform(0.5, 1.5)):
            try:
                act(play.mill, queue, run, dice)
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
    """Of the first, which workers are about to take, or of the last."""
    rows = oracle.rows(mill, _SOME.format(run, state, dice.choice(("ASC", "DESC"))))
    if not rows:
        raise NotFound("there is none")
    chosen: int = dice.choice(rows)[0]
    return chosen


def cancel(mill: Mill, queue: str, run: int, dice: random.Random) -> None:
    mill.cancel_job(_some(mill, run, dice, "IN (0, 1)"), by="chaos")


def retry(mill: Mill, queue: str, run: int, dice: random.Random) -> None:
    if dice.random() < 0.5:
        mill.retry_run(run, failed=True, by="chaos")
    else:
        mill.retry_job(_some(mill, run, dice, "> 3"), by="chaos")


def purge(mill: Mill, queue: str, run: int, dice: random.Random) -> None:
    subject = f"small {dice.randint(0, 5)}"
    mill.start(queue, subject, args={"items": 20})
    time.sleep(PACE * dice.random())
    mill.purge_subject(queue, subject, history=True, by="chaos")


ACTS: dict[str, Callable[[Mill, str, int, random.Random], object]] = {"cancels": cancel, "retries": retry, "purges": purge}
