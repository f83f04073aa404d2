"""PostgreSQL is killed and started again under load; then its backends are ended, ten a second."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import psycopg
from sqlalchemy import exc

from chaos import oracle
from chaos.enqueuer import Enqueuer
from chaos.play import Play, Violation
from chaos.record import note, noted
from gristmill.ledger.migrate import upgrade
from tests import servers
from tests.own_server import OwnServer, own_server

TITLE = "PostgreSQL killed, then its backends ended"
DATABASES = ("none",)
BACK = 10.0  # seconds in which all works again
PACE = 0.1  # seconds between two ends of a backend

_BACKENDS = (
    "SELECT pid FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
    " AND application_name <> %s ORDER BY pid"
)
_WATCHER = "chaos watches"  # whose own connection is not among those that end
_ENDS = "SELECT coalesce(max(n), 0) FROM chaos_change"


def play(play: Play) -> str:
    with own_server() as server:
        play.url = servers.create_database(server.url)
        upgrade(play.url)
        oracle.watch(play.mill)
        crew = play.crew(2)
        crew.ready()
        enqueuer = Enqueuer(play, pause=0.02, seconds=0.005)
        moves(play, time.monotonic(), 30.0)
        kills, slowest = _kill(play, server)
        ended, gap = _end_backends(play, server)
        play.mill.ledger.engine.dispose()
        enqueuer.stop()
        longest = oracle.settle(play)
        oracle.check(play)
        oracle.once(play)
    asked = sum(1 for _ in noted(play.folder, "named"))
    refused = sum(1 for kind in ("refused", "unclear") for _ in noted(play.folder, kind))
    return (
        f"{kills} kills, then {ended} backends ended: {asked} acknowledged, 0 lost, 0 twice ({refused} refused meanwhile);"
        f" worked again at most {slowest:.1f} s after a restart, longest pause among ended backends {gap:.1f} s;"
        f" settled with pauses of at most {longest:.1f} s"
    )


def _kill(play: Play, server: OwnServer) -> tuple[int, float]:
    """How often, and the longest time from a start of the server until jobs ended and enqueues were acknowledged."""
    slowest = 0.0
    kills = play.pick(3, 100)
    for _ in range(kills):
        time.sleep(play.dice.uniform(0.3, 1.5))
        note(play.folder, "killed_servers", server.process.pid, time.monotonic())
        server.kill()
        time.sleep(play.dice.choice([0.0, 0.2, 1.0, 2.5]))
        since = time.monotonic()
        server.start(wait=False)
        slowest = max(slowest, moves(play, since))
    return kills, slowest


def _end_backends(play: Play, server: OwnServer) -> tuple[int, float]:
    """How many, and the longest time in which nothing ended or nothing was acknowledged."""
    ended, longest = 0, 0.0
    until = time.monotonic() + play.pick(4, 300)
    name = servers.database_name(play.url)
    with psycopg.connect(servers.libpq_url(server.url), autocommit=True) as admin:
        watcher = psycopg.connect(servers.libpq_url(play.url), autocommit=True, application_name=_WATCHER)
        play.stack.callback(watcher.close)
        since, at = _seen_by(watcher, play), time.monotonic()
        last, due = [at, at], at
        while at < until:
            found = [pid for (pid,) in admin.execute(_BACKENDS, [name, _WATCHER])]
            if found:
                admin.execute("SELECT pg_terminate_backend(%s)", [play.dice.choice(found)])
                ended += 1
            due += PACE
            time.sleep(max(0.0, due - time.monotonic()))
            now, at = _seen_by(watcher, play), time.monotonic()
            last = [at if then != when else mark for then, when, mark in zip(since, now, last, strict=True)]
            since = now
            longest = max(longest, *(at - mark for mark in last))
            if longest > BACK:
                raise Violation(f"nothing ended, or nothing was acknowledged, for {longest:.1f} s")
    if ended < 0.8 * play.pick(4, 300) / PACE:
        raise Violation(f"only {ended} backends were ended: the machine was too slow to show anything")
    return ended, max(longest, moves(play, time.monotonic()))


# ---- signs of life


def _signs(play: Play) -> tuple[int, int]:
    """How many jobs ended, by the database, and how much was acknowledged, by the record. Grows while all works."""
    with contextlib.suppress(exc.DBAPIError):
        ((ends,),) = oracle.rows(play.mill, _ENDS)
        return int(ends), _acknowledged(play)
    return -1, -1


def _seen_by(watcher: psycopg.Connection[Any], play: Play) -> tuple[int, int]:
    ((ends,),) = watcher.execute(_ENDS).fetchall()
    return int(ends), _acknowledged(play)


def _acknowledged(play: Play) -> int:
    return (play.folder / "named").stat().st_size if (play.folder / "named").exists() else 0


def moves(play: Play, since: float, within: float = BACK) -> float:
    """Seconds from `since` until jobs have ended and something was acknowledged, both of now."""
    before = play.eventually(lambda: (signs := _signs(play))[0] >= 0 and signs, "the database answers", within)
    while True:
        now = _signs(play)
        if now[0] > before[0] and now[1] > before[1]:
            return time.monotonic() - since
        if time.monotonic() - since > within:
            raise Violation(f"{within:g} s after it was back: ends {before[0]} -> {now[0]}, record {before[1]} -> {now[1]}")
        time.sleep(0.02)
