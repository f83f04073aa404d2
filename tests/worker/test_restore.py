"""A worker that lives through a restore: its jobs are killed, it writes nothing more, and begins anew."""

from __future__ import annotations

from pathlib import Path

from gristmill import Mill
from gristmill.ledger import backup as backups
from tests.apps import everyday
from tests.ledger import invariants
from tests.worker.helpers import all_end, eventually, is_running, lines, pids_of, worker_process


def test_a_worker_finds_out_within_a_heartbeat_and_begins_anew(mill: Mill, log: Path, folder: Path, tmp_path: Path) -> None:
    url, file = mill.ledger.absolute_url, tmp_path / "backup"
    with worker_process(url, "everyday", log=log, slots=2, lease=3) as worker:
        known = mill.enqueue(everyday.hold, args={"folder": str(folder), "name": "known"})
        eventually(lambda: len(lines(folder / "started")) == 1)
        (before,) = mill.workers()
        backups.backup(mill.ledger, file)
        mill.enqueue(everyday.hold, args={"folder": str(folder), "name": "forgotten"})
        eventually(lambda: len(lines(folder / "started")) == 2)
        running = pids_of(folder / "started")
        backups.restore(url, file, by="me", force=True)
        eventually(lambda: not any(map(is_running, running)), "its jobs are killed", within=10)
        eventually(lambda: len(lines(folder / "started")) == 3, "what the backup knew is run again")
        (after,) = mill.workers()
        assert (after.pid, after.pid == before.pid, after.id > before.id) == (worker.pid, True, True)
        (folder / "go").touch()
        all_end(mill, known.id)
    (job,) = mill.jobs()
    assert (job.id, job.state, job.attempt, job.losses) == (known.id, "completed", 2, 0)
    assert [line.split()[0] for line in lines(folder / "started")] == ["known", "forgotten", "known"]
    assert lines(folder / "ended") == ["known"]
    assert "starting again" in log.read_text()
    invariants.check(mill.ledger)
