"""Who is measured: Gristmill, its peers, and the raw loops as a yardstick."""

from __future__ import annotations

from dataclasses import dataclass

OURS = "gristmill"
LOOPS = "loops"


@dataclass(frozen=True)
class System:
    """A program of bench.peers in one of its variants."""

    program: str
    store: str  # sqlite, postgres or redis
    variant: str = ""
    rate: int = 1000  # jobs per second that it drains at best, roughly: how many it is given
    main: bool = True  # a second variant of a peer is only drained and killed, and its idle latency taken
    fans_in: bool = True  # by a chord, group or batch; else a parent waits, and begins anew if its worker ends
    quick: bool = True  # the quick form leaves out, unless they are named, some that come first in no row
    title: str = ""

    @property
    def name(self) -> str:
        return f"{self.program}-{self.variant}" if self.variant else self.program

    @property
    def is_peer(self) -> bool:
        return self.program not in (OURS, LOOPS)

    @property
    def is_fast(self) -> bool:
        """Drains 100,000 in a time that one can wait for."""
        return self.rate >= 8000


SYSTEMS = (
    System(OURS, "sqlite", "sqlite", 60_000, title="Gristmill, SQLite"),
    System(OURS, "postgres", "postgres", 25_000, title="Gristmill, PostgreSQL"),
    System(LOOPS, "sqlite", "sqlite", 100_000, title="raw loop, SQLite"),
    System(LOOPS, "postgres", "postgres", 30_000, title="raw loop, PostgreSQL"),
    System("pgqueuer", "postgres", "100", 28_000, fans_in=False, title="PgQueuer, batches of 100"),
    System("huey", "redis", "redis", 4800, title="Huey, Redis"),
    System("dramatiq", "redis", "", 4200, title="Dramatiq"),
    System("huey", "sqlite", "sqlite", 4000, title="Huey, SQLite"),
    System("taskiq", "redis", "list", 4800, fans_in=False, title="taskiq, list"),
    System("saq", "redis", "redis", 3000, fans_in=False, title="SAQ, Redis"),
    System("streaq", "redis", "", 1900, quick=False, title="streaq"),
    System("dbos", "sqlite", "sqlite", 2000, quick=False, title="DBOS, SQLite"),
    System("celery", "redis", "early", 1000, title="Celery"),
    System("procrastinate", "postgres", "10", 1000, title="Procrastinate, concurrency 10"),
    System("rq", "redis", "simple", 400, title="RQ, SimpleWorker"),
    System("arq", "redis", "", 300, quick=False, title="Arq"),
    System("pgqueuer", "postgres", "10", 8000, main=False, title="PgQueuer, batches of 10"),
    System("taskiq", "redis", "stream", 5300, main=False, title="taskiq, stream"),
    System("dbos", "postgres", "postgres", 600, main=False, title="DBOS, PostgreSQL"),
    System("celery", "redis", "late", 970, main=False, title="Celery, acks_late"),
    System("saq", "postgres", "postgres", 700, main=False, title="SAQ, PostgreSQL"),
    System("procrastinate", "postgres", "1", 900, main=False, title="Procrastinate, concurrency 1"),
    System("rq", "redis", "fork", 110, main=False, title="RQ, fork per job"),
)
BY_NAME = {system.name: system for system in SYSTEMS}


def chosen(only: list[str], quick: bool = False) -> list[System]:
    """By name of a system or of a program; nothing named: all."""
    unknown = set(only) - set(BY_NAME) - {system.program for system in SYSTEMS}
    if unknown:
        known = sorted({*BY_NAME, *(system.program for system in SYSTEMS)})
        raise SystemExit(f"bench: there is no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if not only:
        return [system for system in SYSTEMS if not quick or (system.main and system.quick)]
    return [system for system in SYSTEMS if system.name in only or system.program in only]
