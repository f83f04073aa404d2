"""What a worker costs while it has nothing to do, and while it has very much to do. The bench has the tight figures."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil

from gristmill import Mill
from tests.apps import everyday
from tests.servers import ROOT
from tests.worker.helpers import all_end, cpu_seconds, eventually, lines, rss_mib, slowness, worker_process

WINDOW = 3.0


def test_an_idle_worker_costs_next_to_nothing(mill: Mill, database_url: str, tmp_path: Path) -> None:
    with worker_process(database_url, "everyday", log=tmp_path / "log", slots=2, fresh=True) as worker:
        jobs = [mill.enqueue(task, args={"a": 1}).id for task in (everyday.add, everyday.add_async)]
        all_end(mill, *jobs)
        pids = [worker.pid, *(child.pid for child in worker.children)]
        before, began = sum(map(cpu_seconds, pids)), time.monotonic()
        eventually(lambda: time.monotonic() - began > WINDOW)
        used = (sum(map(cpu_seconds, pids)) - before) / (time.monotonic() - began)
        assert used < 0.10, f"{used:.1%} of a core"
        assert rss_mib(worker.pid) < 120


def test_a_fan_out_does_not_grow_with_its_items(lite_flows: Mill, sqlite_url: str, folder: Path, tmp_path: Path) -> None:
    items = 20_000 // slowness()
    run = lite_flows.start("wide", "books", args={"items": items, "folder": folder})
    with worker_process(sqlite_url, "flows", log=tmp_path / "log", slots=2, fresh=True) as worker:
        producer = int(eventually(lambda: lines(folder / "producer"))[0])
        eventually(lambda: lite_flows.run(run.id).stage("leaf").total >= 1000)
        at_first = {pid: rss_mib(pid) for pid in (worker.pid, producer)}
        peaks = dict(at_first)

        def sampled() -> bool:
            for pid in peaks:
                try:
                    peaks[pid] = max(peaks[pid], rss_mib(pid))
                except psutil.NoSuchProcess:
                    continue
            return lite_flows.run(run.id).terminal

        eventually(sampled, "the run ends", within=60)
    ended = lite_flows.run(run.id)
    assert (ended.state, ended.stage("leaf").completed) == ("completed", items)
    for pid, first in at_first.items():
        assert peaks[pid] - first < 40, "items are 40 MB of text: some are held, not all"
        assert peaks[pid] < 160


def test_a_child_that_loads_an_application_loads_no_database() -> None:
    """As `examples/wordcount.py` does, applications import Mill at their top."""
    program = (
        "import sys; from gristmill.execution import child;"
        f" child.load_for_child(['file:{ROOT / 'examples' / 'wordcount.py'}']);"
        " print(*sorted({'sqlalchemy', 'psutil', 'asyncio', 'alembic', 'gristmill.ledger'} & sys.modules.keys()))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []


def test_a_worker_starts_without_what_only_migrations_need() -> None:
    program = (
        "import sys; import gristmill.worker;"
        " print(*sorted({'alembic', 'gristmill.ledger.schema', 'sqlalchemy.dialects.postgresql'} & sys.modules.keys()))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []
