"""What `doctor` finds: nothing when all is well; each thing that is wrong, with what mends it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text

from gristmill.clock import SECOND, FrozenClock
from gristmill.ledger import health, locks
from gristmill.ledger.finish import Verdict
from gristmill.ledger.store import Ledger
from gristmill.model import Diagnosis
from gristmill.schedule import Schedule
from tests import servers
from tests.ledger.conftest import Open
from tests.ledger.play import Play, stubborn


def wrong(play: Play) -> dict[str, Diagnosis]:
    return {finding.check: finding for finding in health.examine(play.ledger) if not finding.ok}


def the_only_fault(url: str) -> Diagnosis:
    with closing(Ledger(url)) as ledger:
        (finding,) = [found for found in health.examine(ledger) if not found.ok]
    return finding


def test_a_ledger_that_is_well(play: Play) -> None:
    play.player()
    play.mill.enqueue(stubborn)
    findings = health.examine(play.ledger)
    assert [finding for finding in findings if not finding.ok or finding.command] == []
    asked = {"schema", "disk", "permissions", "bloat", "workers"}
    asked |= {"sqlite"} if play.ledger.is_sqlite else {"clock", "transactions", "connections"}
    assert {finding.check for finding in findings} == asked


def test_a_queue_with_work_and_no_worker(play: Play) -> None:
    play.mill.set_queue("lonely", create=True)
    play.mill.enqueue(stubborn, queue="lonely")
    play.player(queues=["default"])
    assert wrong(play)["queues"].command == ("gristmill", "work", "-q", "lonely")
    play.player(queues=["lonely"])
    assert wrong(play) == {}


def test_a_paused_queue_with_work(play: Play) -> None:
    play.mill.enqueue(stubborn)
    play.mill.pause("default")
    found = wrong(play)["queues"]
    assert (found.sentence, found.command) == (
        "default is paused, and has jobs",
        ("gristmill", "queue", "resume", "default"),
    )
    play.player()
    assert wrong(play)["queues"] == found
    play.mill.resume("default")
    assert wrong(play) == {}


def test_a_delayed_job_needs_a_worker_when_it_is_due(play: Play) -> None:
    play.mill.enqueue(stubborn, delay=60)
    assert wrong(play) == {}
    play.clock.at += 61 * SECOND
    assert "queues" in wrong(play)


def test_a_worker_whose_lease_is_over(play: Play) -> None:
    player = play.player()
    play.clock.at += 31 * SECOND
    found = wrong(play)["workers"]
    assert (f"worker {player.id} is over" in found.sentence, found.command) == (True, ("gristmill", "reconcile"))


def test_a_clock_that_was_set_back(play: Play) -> None:
    play.player()
    play.clock.at -= 10 * SECOND
    assert "was set back" in wrong(play)["heartbeats"].sentence


def test_jobs_that_kill_their_process(play: Play) -> None:
    play.mill.enqueue(stubborn)
    play.drain_later(verdicts={"-": Verdict.CRASH})
    play.player()
    assert wrong(play)["crashes"].sentence.startswith("1 failed job has killed")


def test_somebody_who_waits_for_a_lock_for_very_long(sqlite_url: str) -> None:
    with closing(Play(sqlite_url, (), FrozenClock())) as play:
        for job in (1, 2):
            number = play.ledger.do(locks.ask, locks.key_of("page", "home"), locks.Who(job, 1, 1), os.getpid(), "-:1")
            play.ledger.do(locks.take, locks.key_of("page", "home"), number)
        with play.mill.transaction() as connection:
            connection.execute(text("UPDATE gm_lock SET lease_until = lease_until + :long"), {"long": 700 * SECOND})
        assert wrong(play) == {}
        assert isinstance(play.ledger.clock, FrozenClock)
        play.ledger.clock.advance(601)
        found = wrong(play)["locks"]
    assert found.sentence.startswith("job 2 (worker 1 on ")
    assert "waits for the lock page/home for more than 10 min: job 1 (worker 1 on" in found.sentence
    assert found.command == ("gristmill", "lock", "list")


def test_a_schema_that_does_not_fit(empty_pg_url: str, tmp_path: Path) -> None:
    for url in (empty_pg_url, f"sqlite:///{tmp_path}/empty.db"):
        schema = the_only_fault(url)
        assert (schema.check, schema.command) == ("schema", ("gristmill", "db", "upgrade"))


def test_a_disk_that_is_full(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 99, 1))
    assert wrong(play)["disk"].command[0] == "df"


def test_a_clock_that_differs_from_the_databases(pg_url: str, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time
    monkeypatch.setattr("gristmill.ledger.health.time.time", lambda: now() + 60)
    finding = the_only_fault(pg_url)
    assert (finding.check, "60.0 s ahead" in finding.sentence) == ("clock", True)


@contextmanager
def in_transaction(url: str) -> Iterator[int]:
    with psycopg.connect(servers.libpq_url(url)) as connection:
        connection.execute("SELECT 1")
        yield connection.info.backend_pid


def test_a_transaction_that_holds_back_vacuum(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_LONG", 0)
    with closing(Ledger(pg_url)) as ledger, in_transaction(pg_url) as pid:
        mends = [found.command for found in health.examine(ledger) if found.check == "transactions"]
    assert ("psql", "-c", f"SELECT pg_terminate_backend({pid})") in mends


def test_tables_with_dead_rows(fresh_pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the database that the tests share, whatever they deleted is dead too."""
    monkeypatch.setattr(health, "_DEAD", 100)
    servers.execute(fresh_pg_url, "ALTER TABLE gm_ignored_error SET (autovacuum_enabled = off)")
    rows = "INSERT INTO gm_ignored_error SELECT n, 1, 'me' FROM generate_series(1, 500) n"
    servers.execute(fresh_pg_url, f"{rows}; DELETE FROM gm_ignored_error; SELECT pg_stat_force_next_flush()")
    finding = the_only_fault(fresh_pg_url)
    assert (finding.check, finding.command) == ("bloat", ("psql", "-c", "VACUUM (ANALYZE) gm_ignored_error"))


def test_a_file_that_is_mostly_empty(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_FREE", 1000)
    with closing(Ledger(sqlite_url)) as ledger:
        with ledger.transaction() as connection:
            connection.execute(text("CREATE TABLE filler AS SELECT zeroblob(2000000) AS b"))
            connection.execute(text("DROP TABLE filler"))
        assert [found.command for found in health.examine(ledger) if found.check == "bloat"] == [
            ("sqlite3", str(ledger.path), "VACUUM")
        ]


def test_files_that_may_not_be_written(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write everything: so the question is answered here as it would be for others."""
    with closing(Ledger(sqlite_url)) as ledger:
        ledger.check_schema()
    monkeypatch.setattr(os, "access", lambda path, _: not str(path).endswith("-turn"))
    finding = the_only_fault(sqlite_url)
    assert (finding.check, finding.command[0], finding.command[-1]) == ("permissions", "chown", f"{ledger.path}-turn")


def test_a_schedule_that_nobody_fires(play: Play) -> None:
    play.player(lease=10**6)
    play.mill.add_schedule(Schedule("hourly", cron="0 * * * *", task="stubborn"))
    play.mill.add_schedule(Schedule("never", cron="off", task="stubborn"))
    play.clock.advance(2 * 3600)
    found = wrong(play)["schedules"]
    assert "hourly is overdue by" in found.sentence
    assert "no worker that knows task stubborn fires schedules" in found.sentence
    assert found.command == ("gristmill", "up")
    play.mill.scheduler().run()
    assert wrong(play) == {}


def test_a_schedule_that_cannot_be_read(play: Play) -> None:
    play.player()
    play.mill.add_schedule(Schedule("nightly", cron="0 3 * * *", tz="Europe/Berlin", task="stubborn"))
    play.change("UPDATE gm_schedule SET spec = replace(spec, 'Berlin', 'Atlantis')")
    assert "unknown time zone 'Europe/Atlantis'" in wrong(play)["schedules"].sentence
