"""Nobody hears that there is work: whatever rings is dropped on its way. Jobs are found by polling."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from chaos import oracle
from chaos.play import Play, Violation
from chaos.record import noted
from gristmill.ledger import names
from tests.worker.cables import cable

TITLE = "every NOTIFY dropped"
DATABASES = ("SQLite", "PostgreSQL")
INTERVAL = 1.0  # seconds between two looks of a worker, which is what they have unless told otherwise
WORKERS = 6  # each with a queue of its own, so that nobody else looks for its jobs


def play(play: Play) -> str:
    oracle.watch(play.mill)
    url, dropped = play.url, [0]
    if play.database == "PostgreSQL":
        line, url = play.stack.enter_context(cable(play.url))
        line.deafen()
    queues = [f"q{n}" for n in range(WORKERS)]
    play.mill.ledger.do(names.add_queues, queues)
    crews = [play.crew(1, url=url, slots=1, queues=[queue], poll=INTERVAL, lease=5 * INTERVAL) for queue in queues]
    for queue in queues:
        play.acknowledge("job", _enqueue(play, queue))
    for crew in crews:
        crew.ready()
    oracle.settle(play)
    if play.database == "SQLite":
        dropped[0] = _take_bells_away(Path(f"{play.mill.ledger.path}-bells"))
    waits = _pickups(play, queues, play.pick(15, 200))
    oracle.settle(play)
    oracle.check(play)
    if play.database == "PostgreSQL":
        dropped[0] = line.unheard
    if dropped[0] < (WORKERS if play.database == "SQLite" else len(waits)):
        raise Violation(f"only {dropped[0]} of what rings were dropped: the row shows nothing")
    p50, p95 = waits[len(waits) // 2], waits[int(len(waits) * 0.95)]
    slow = f"pickup p95 {p95:.3f} s with a poll of {INTERVAL:g} s (p50 {p50:.3f} s, worst {waits[-1]:.3f} s)"
    play.reach(p95 <= INTERVAL, slow)
    what = "bells taken away" if play.database == "SQLite" else "notifications dropped"
    return (
        f"{dropped[0]} {what}: {len(waits)} jobs for idle workers that poll every {INTERVAL:g} s begun after"
        f" {p50 * 1000:.0f} ms (p50), {p95 * 1000:.0f} ms (p95), {waits[-1] * 1000:.0f} ms (worst)"
    )


def _enqueue(play: Play, queue: str) -> int:
    return play.mill.enqueue("one", args={"folder": str(play.folder)}, queue=queue).id


def _take_bells_away(folder: Path) -> int:
    """On SQLite every worker has a pipe there; who rings finds none any more."""
    bells = list(folder.iterdir())
    for bell in bells:
        bell.unlink()
    return len(bells)


def _pickups(play: Play, queues: list[str], each: int) -> list[float]:
    """Seconds from the commit of a job until it begins, sorted. Its worker has been idle for a while, by the dice."""
    asked: dict[int, float] = {}
    pauses = [[play.dice.uniform(INTERVAL * 0.2, INTERVAL * 1.2) for _ in range(each)] for _ in queues]

    def ask(queue: str, pauses: list[float]) -> None:
        for pause in pauses:
            time.sleep(pause)
            before = time.monotonic()
            asked[play.acknowledge("job", _enqueue(play, queue))] = before

    threads = [threading.Thread(target=ask, args=each) for each in zip(queues, pauses, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    oracle.settle(play)
    began = {job: at for job, _, _, _, at in noted(play.folder, "began")}
    return sorted(began[job] - before for job, before in asked.items())
