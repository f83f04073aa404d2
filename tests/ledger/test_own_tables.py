"""An application's own tables: a history of their own, moved with the ledger's, and never mixed up with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import inspect

from gristmill import Migrations, Mill
from gristmill.errors import DatabaseError, Invalid, SchemaMismatch
from gristmill.ledger import migrate
from gristmill.ledger.columns import REVISION
from gristmill.ledger.standing import plain_head, standings
from gristmill.ledger.store import Ledger
from tests.apps import shelving
from tests.ledger.test_migrations import OURS, empty_url, ledger, tables  # noqa: F401
from tests.servers import ROOT

OWN = [shelving.tables]


def where(ledger: Ledger) -> list[tuple[str, str | None]]:  # noqa: F811
    return [(standing.name, standing.revision) for standing in standings(ledger, OWN)]


def test_all_go_up_and_down_together(empty_url: str, ledger: Ledger) -> None:  # noqa: F811
    for _ in range(2):
        migrate.upgrade(empty_url, own=OWN)
        assert where(ledger) == [("gristmill", REVISION), ("shelves", "s2")]
        assert tables(ledger) >= OURS | {"shelf", "shelves_version"}
        assert "shelf_jobs" in inspect(ledger.engine).get_view_names()
        assert migrate.differences(ledger.engine, OWN) == []
        migrate.downgrade(empty_url, "base", own=OWN)
        assert where(ledger) == [("gristmill", None), ("shelves", None)]
        assert not tables(ledger) & (OURS | {"shelf"})
        assert inspect(ledger.engine).get_view_names() == []


def test_one_moves_alone_when_it_is_named(empty_url: str, ledger: Ledger) -> None:  # noqa: F811
    migrate.upgrade(empty_url, own=OWN)
    migrate.downgrade(empty_url, "-1", OWN, of="shelves")
    assert where(ledger) == [("gristmill", REVISION), ("shelves", "s1")]
    found = migrate.differences(ledger.engine, OWN)
    assert any("colour" in difference for difference in found)
    assert found[-1] == "the view 'shelf_jobs' is missing"  # it is one of s2
    with pytest.raises(SchemaMismatch, match=r"tables of 'shelves' are at s1, its code needs s2; run: gristmill -A APP"):
        Mill.open(empty_url, shelving.put, shelving.tables)
    migrate.upgrade(empty_url, "s2", OWN, of="shelves")
    with Mill.open(empty_url, shelving.put, shelving.tables) as mill:
        assert mill.registry.own() == OWN
    assert migrate.differences(ledger.engine, OWN) == []


def test_a_step_of_which_history_must_be_said(empty_url: str) -> None:  # noqa: F811
    for revision, of, said in (
        ("-1", None, r"'-1' of which history\? Say --of NAME; there is: gristmill, shelves"),
        ("-1", "shelvs", r"there is no history 'shelvs'; did you mean 'shelves'\?"),
        ("s9", "shelves", "cannot move the tables of 'shelves' to 's9'"),
    ):
        with pytest.raises(Invalid, match=said):
            migrate.upgrade(empty_url, revision, OWN, of)


def test_a_revision_that_fails_leaves_everything_as_it_was(
    empty_url: str,  # noqa: F811
    ledger: Ledger,  # noqa: F811
    tmp_path: Path,
) -> None:
    folder = tmp_path / "a folder, with spaces 100%"
    folder.mkdir()
    (folder / "a.py").write_text(
        "from alembic import op\nrevision, down_revision = 'a', None\n"
        "def upgrade():\n    op.execute('CREATE TABLE fine (n int)')\n    op.execute('INSERT INTO nowhere VALUES (1)')\n"
    )
    broken = Migrations("broken", folder)
    with pytest.raises(DatabaseError, match="nowhere"):
        migrate.upgrade(empty_url, own=[shelving.tables, broken])
    assert where(ledger) == [("gristmill", None), ("shelves", None)]  # also what came before it
    assert not tables(ledger) & {"fine", "shelf", "gm_job"}


def test_a_new_sqlite_file_gets_them_on_first_use(tmp_path: Path) -> None:
    with Mill.open(f"sqlite:///{tmp_path}/new.db", shelving.put, shelving.tables) as mill:
        job = mill.enqueue(shelving.put, args={"book": "Emma"})
        mill.work(until="drained", slots=1)
        with mill.transaction() as connection:
            rows = connection.exec_driver_sql("SELECT book, state FROM shelf_jobs").all()
        assert (rows, mill.job(job.id).state) == ([("Emma", "completed")], "completed")


@pytest.mark.parametrize("name", ["gm_x", "gristmill", "Shelf", "", "a b", 7, "x" * 41])
def test_a_name_must_be_good_for_a_table_that_is_not_ours(name: str) -> None:
    with pytest.raises(Invalid, match="must not begin with 'gm_'"):
        Migrations(name, "folder")


def test_what_cannot_be_a_history_is_said(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="there is no folder"):
        migrate.history([Migrations("lost", tmp_path / "nowhere")])
    with pytest.raises(Invalid, match="give the folder"):
        Migrations("lost", None)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="views are queries by name"):
        Migrations("lost", tmp_path, views={"gristmill_jobs": "SELECT 1"})
    for revision in ("a", "b"):
        (tmp_path / f"{revision}.py").write_text(f"revision, down_revision = {revision!r}, None\n")
    with pytest.raises(Invalid, match="multiple heads"):
        standings(None, [Migrations("forked", tmp_path)])


PLAIN = {
    "one": ["revision = 'a'\ndown_revision = None"],
    "a chain": ["down_revision = 'a'\nrevision: str = 'b'", "revision = 'a'\ndown_revision: str | None = None"],
    "three, in any order": [
        "revision = 'z'\ndown_revision = 'm'",
        "revision = 'm'\ndown_revision = 'q'",
        "revision = 'q'\ndown_revision = None\nbranch_labels = None\ndepends_on = None",
    ],
}
OTHERS = {
    "both at once": ["revision, down_revision = 'a', None"],
    "computed": ["revision = 'a' + 'b'\ndown_revision = None"],
    "said twice": ["revision = 'a'\nrevision = 'b'\ndown_revision = None"],
    "merged": [
        *("revision = 'a'\ndown_revision = None", "revision = 'b'\ndown_revision = 'a'"),
        *("revision = 'c'\ndown_revision = 'a'", "revision = 'd'\ndown_revision = ('b', 'c')"),
    ],
}


@pytest.mark.parametrize("name", [*PLAIN, *OTHERS])
def test_the_end_of_a_history_is_what_alembic_says_or_left_to_it(name: str, tmp_path: Path) -> None:
    for number, text in enumerate((PLAIN | OTHERS)[name]):
        (tmp_path / f"v{number}.py").write_text(f"{text}\n")
    by_alembic = migrate.head_by_alembic(Migrations("some", tmp_path))
    assert plain_head(tmp_path) == (by_alembic if name in PLAIN else None)
    assert [standing.needed for standing in standings(None, [Migrations("some", tmp_path)])][1:] == [by_alembic]


@pytest.mark.parametrize(
    "files",
    [
        [],
        ["revision = 'a'\ndown_revision = None", "revision = 'b'\ndown_revision = None"],
        ["revision = 'a'\ndown_revision = 'b'", "revision = 'b'\ndown_revision = 'a'"],
        ["revision = 'b'\ndown_revision = 'missing'"],
        [
            "revision = 'a'\ndown_revision = None",
            "revision = 'b'\ndown_revision = 'a'",
            "revision = 'c'\ndown_revision = 'a'",
        ],
        ["revision = 'a'\ndown_revision = None\nbranch_labels = 'left'"],
        ["revision = 'a'\ndown_revision = None", "no revision at all"],
        ["x = 1"],
    ],
)
def test_what_is_no_chain_is_left_to_alembic(files: list[str], tmp_path: Path) -> None:
    for number, text in enumerate(files):
        (tmp_path / f"v{number}.py").write_text(f"{text}\n")
    assert plain_head(tmp_path) is None


def test_an_application_with_tables_of_its_own_is_opened_without_alembic(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    migrate.upgrade(url, own=OWN)
    program = (
        "import sys; from gristmill import Mill; from tests.apps import shelving\n"
        f"with Mill.open({url!r}, shelving.put, shelving.tables) as mill: mill.jobs()\n"
        "sys.exit('alembic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
