"""A rolling upgrade: workers of two checkouts, an older and a newer one, on one database at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from gristmill import Mill
from gristmill.ledger.columns import REVISION
from tests.apps.rolling import rolling
from tests.ledger import invariants
from tests.servers import ROOT
from tests.worker.helpers import environment, eventually, lines, run_ends, worker_process
from tests.worker.program import open_mill

pytestmark = pytest.mark.slow  # of ./run chaos

NEXT = f"{int(REVISION) + 1:04}"
EXPAND = f'''"""Something new: a column that may be empty, and a table."""

import sqlalchemy as sa
from alembic import op

revision = "{NEXT}"
down_revision = "{REVISION}"


def upgrade() -> None:
    for table in ("gm_job", "gm_stage", "gm_run", "gm_worker", "gm_subject"):
        op.add_column(table, sa.Column("remark", sa.Text()))
    op.create_table("gm_remark", sa.Column("id", sa.Integer(), primary_key=True))


def downgrade() -> None:
    raise NotImplementedError
'''


def _edit(path: Path, old: str, new: str) -> None:
    source = path.read_text()
    assert source.count(old) == 1
    path.write_text(source.replace(old, new))


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """The next version: the same code, one migration further."""
    package = tmp_path / "newer" / "gristmill"
    shutil.copytree(ROOT / "src" / "gristmill", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "ledger/migrations/versions" / f"v{NEXT}_remark.py").write_text(EXPAND)
    _edit(package / "ledger/columns.py", f'REVISION = "{REVISION}"', f'REVISION = "{NEXT}"')
    _edit(package / "ledger/columns.py", 'heartbeat_at lease_until"', 'heartbeat_at remark lease_until"')  # and it reads it
    beat = '    Column("heartbeat_at", BigInteger, nullable=False),\n'
    _edit(package / "ledger/schema.py", beat, f'{beat}    Column("remark", Text),\n')
    return package.parent


def upgrade(checkout: Path, url: str) -> None:
    command = [sys.executable, "-m", "gristmill", "--database", url, "db", "upgrade"]
    done = subprocess.run(command, env=environment() | {"PYTHONPATH": str(checkout)}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert f"from {REVISION} to {NEXT}" in done.stdout


def worked(mill: Mill, *places: Path) -> None:
    """Runs go through, and soon one that all these checkouts, and no other, have worked on."""

    def together() -> bool:
        run = run_ends(mill, mill.start(rolling, "s", args={"items": 20}).id)
        assert (run.state, run.stage("where").completed) == ("completed", 20)
        print(run.id, run.result("count"))  # shown if it fails
        return set(run.result("count")) == {os.path.realpath(place) for place in places}

    eventually(together, f"a run by {places}")


def test_workers_of_the_version_before_work_on_beside_the_new_ones(
    database_url: str, newer: Path, log: Path, tmp_path: Path
) -> None:
    older = ROOT / "src"
    with (
        open_mill(database_url, "rolling") as mill,
        worker_process(database_url, "rolling", log=log, slots=1, lease=3) as old,
    ):
        for _ in range(8):  # psycopg prepares what it has seen five times: that must hold over the upgrade
            mill.status(), mill.jobs(), mill.workers(), mill.subjects()
        worked(mill, older)
        upgrade(newer, database_url)
        new_log = tmp_path / "new.log"
        with worker_process(database_url, "rolling", log=new_log, python_path=newer, slots=1) as new:
            eventually(lambda: len(mill.workers()) == 2, "both are registered")
            worked(mill, older, newer)
            mill.status(), mill.jobs(), mill.workers(), mill.subjects()
            assert (old.process.poll(), new.process.poll()) == (None, None)
            invariants.check(mill.ledger)
            # Contract: the database does not take the older code any more.
            with mill.transaction() as connection:
                connection.execute(text("UPDATE gm_ledger SET oldest = :oldest"), {"oldest": NEXT})
            assert old.wait() == 1
            assert "does not take workers" in lines(log)[-1]
            assert not old.children
            worked(mill, newer)
