"""The schema: migrations bring a database to what the code describes, and back to nothing."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import CheckConstraint, inspect, text

from gristmill import Mill
from gristmill import ledger as ledger_package
from gristmill.errors import DatabaseError, Invalid, NotYours, SchemaMismatch, Unavailable
from gristmill.ledger import columns, fresh, migrate, workers
from gristmill.ledger.columns import REVISION, VERSION_TABLE
from gristmill.ledger.schema import metadata, written
from gristmill.ledger.store import Ledger
from gristmill.ledger.workers import Registration
from tests.ledger import invariants
from tests.ledger.conftest import Open
from tests.ledger.play import each, plan, solo, step
from tests.ledger.together import together


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.pg)])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without any schema."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/empty.db"
    return str(request.getfixturevalue("empty_pg_url"))


@pytest.fixture
def ledger(empty_url: str):
    ledger = Ledger(empty_url)
    yield ledger
    ledger.close()


def tables(ledger: Ledger) -> set[str]:
    return set(inspect(ledger.engine).get_table_names())


def views(ledger: Ledger) -> set[str]:
    return set(inspect(ledger.engine).get_view_names())


OURS = {table.name for table in metadata.sorted_tables}
OLDEST = "0001"  # the oldest code that may work on this schema: what came since only adds
VIEWS = {"gristmill_jobs", "gristmill_runs", "gristmill_stages"}


def test_up_and_down_and_up_again(empty_url: str, ledger: Ledger) -> None:
    for _ in range(2):
        migrate.upgrade(empty_url)
        assert (ledger.revision(), tables(ledger), views(ledger)) == (REVISION, OURS | {VERSION_TABLE}, VIEWS)
        assert migrate.differences(ledger.engine) == []
        migrate.downgrade(empty_url, "base")
        assert (ledger.revision(), tables(ledger), views(ledger)) == (None, {VERSION_TABLE}, set())


def test_upgrading_twice_changes_nothing(empty_url: str, ledger: Ledger) -> None:
    migrate.upgrade(empty_url)
    migrate.upgrade(empty_url)
    assert ledger.revision() == REVISION


def test_nothing_is_left_on_postgresql_after_a_downgrade(empty_pg_url: str) -> None:
    migrate.upgrade(empty_pg_url)
    migrate.downgrade(empty_pg_url, "base")
    ledger = Ledger(empty_pg_url)
    with ledger.engine.connect() as connection:
        left = connection.execute(text("SELECT relname FROM pg_class WHERE relname LIKE 'gm!_%' ESCAPE '!'")).scalars().all()
    ledger.close()
    assert [name for name in left if not name.startswith(VERSION_TABLE)] == []


def test_a_difference_is_found(empty_url: str, ledger: Ledger) -> None:
    migrate.upgrade(empty_url)
    with ledger.engine.begin() as connection:
        connection.execute(text("DROP INDEX gm_job_line"))
    (difference,) = migrate.differences(ledger.engine)
    assert "gm_job_line" in difference


def test_constraints_are_the_same_in_migrations_and_code(empty_url: str, ledger: Ledger) -> None:
    """Alembic does not compare CHECK constraints, so this does: the names that the code describes are in the database."""
    migrate.upgrade(empty_url)
    found = {
        constraint["name"]
        for table in OURS
        for constraint in inspect(ledger.engine).get_check_constraints(table)
        if constraint["name"]
    }
    described = {
        str(constraint.name)
        for table in metadata.sorted_tables
        for constraint in [*table.constraints, *(c for column in table.columns for c in column.constraints)]
        if isinstance(constraint, CheckConstraint)
    }
    assert found == described


def test_the_newest_migration_is_the_one_that_the_code_needs() -> None:
    assert migrate.history()[0][0] == REVISION


def test_an_unknown_revision_is_refused(empty_url: str) -> None:
    with pytest.raises(Invalid, match="9999"):
        migrate.upgrade(empty_url, "9999")


def test_a_new_sqlite_file_is_set_up_on_first_use(tmp_path: Path) -> None:
    with Mill.open(f"sqlite:///{tmp_path}/new.db", solo) as mill:
        assert mill.enqueue(solo).state == "queued"
        assert mill.ledger.revision() == REVISION


def test_postgresql_is_only_changed_by_an_upgrade(empty_pg_url: str) -> None:
    with pytest.raises(SchemaMismatch, match=r"has no Gristmill schema; run: gristmill --database .* db upgrade"):
        Mill.open(empty_pg_url, solo)
    ledger = Ledger(empty_pg_url)
    assert tables(ledger) == set()
    ledger.close()


def test_a_schema_of_another_time_is_refused_with_the_command(empty_url: str, ledger: Ledger) -> None:
    migrate.upgrade(empty_url)
    with ledger.engine.begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '0000'"))
    with pytest.raises(SchemaMismatch, match="is at schema 0000, this code needs"):
        ledger.check_schema()


def moved_on(ledger: Ledger, oldest: str) -> None:
    """As newer code would leave it: a schema that this code does not know."""
    with ledger.engine.begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
        connection.execute(text("UPDATE gm_ledger SET oldest = :oldest"), {"oldest": oldest})


def test_a_newer_schema_is_used_as_long_as_the_database_accepts_this_code(empty_url: str, ledger: Ledger) -> None:
    migrate.upgrade(empty_url)
    moved_on(ledger, REVISION)
    ledger.check_schema()
    assert ledger.do(workers.register, Registration("here", 1, "now", (), 1, "test"), 1) > 0
    moved_on(ledger, "9999")
    with pytest.raises(SchemaMismatch, match=f"does not take code for {REVISION} any more; update Gristmill here"):
        ledger.check_schema()


def test_a_worker_that_is_not_accepted_any_more_stops_at_its_next_heartbeat(empty_url: str, ledger: Ledger) -> None:
    migrate.upgrade(empty_url)
    me = Registration("here", 1, "now", (), 1, "test")
    worker = ledger.do(workers.register, me, 10**9)
    moved_on(ledger, "9999")
    with pytest.raises(NotYours):
        ledger.do(workers.heartbeat, worker, 10**9)
    with pytest.raises(SchemaMismatch, match="does not take workers"):
        ledger.do(workers.register, me, 10**9)


def test_a_database_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    for url in (f"sqlite:///{tmp_path}/no/such/folder.db", "postgresql://nobody@127.0.0.1:1/nothing"):
        with pytest.raises(Unavailable) as caught:
            Mill.open(url, solo)
        assert "\n" not in str(caught.value)


def test_a_file_that_is_no_database_is_one_line(tmp_path: Path) -> None:
    from gristmill.errors import DatabaseError

    (tmp_path / "text.db").write_text("this is not a database, but long enough to look like one" * 20)
    with pytest.raises(DatabaseError, match="not a database") as caught:
        Mill.open(f"sqlite:///{tmp_path}/text.db", solo)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["", "wordcount", "mysql://h/d", "sqlite://", "sqlite:///:memory:", "://", "postgresql:/x y"]
)
def test_a_malformed_url_is_refused(url: str) -> None:
    with pytest.raises((Invalid, Unavailable)) as caught:
        Ledger(url)
    assert isinstance(caught.value, Invalid)
    assert "\n" not in str(caught.value)


def test_a_password_is_never_shown() -> None:
    with pytest.raises(Unavailable) as caught:
        Ledger("postgresql://nobody:secret@127.0.0.1:1/nothing").check_schema()
    assert "secret" not in str(caught.value)


def test_the_views_show_words_and_times(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find")))
    play.mill.start("site", "s", priority="high")
    play.drain(items={"find": ["a"]})
    (run,) = play.rows("SELECT * FROM gristmill_runs")
    assert (run.pipeline, run.subject, run.state, run.priority) == ("site", "s", "completed", "high")
    assert str(run.created_at).startswith("2023-11-14")
    stages = [
        (row.stage, row.state, row.outcome, row.total)
        for row in play.rows("SELECT * FROM gristmill_stages ORDER BY position")
    ]
    assert stages == [("find", "closed", "completed", 1), ("page", "closed", "completed", 1)]
    jobs = [(row.stage, row.key, row.state) for row in play.rows("SELECT * FROM gristmill_jobs ORDER BY id")]
    assert jobs == [("find", "", "completed"), ("page", "a", "completed")]
    invariants.check(play.ledger)


def test_no_statement_asks_for_all_columns() -> None:
    """While older processes run, newer code may add one; PostgreSQL refuses a prepared statement that then has more."""
    found = [
        f"{path.name}: {line.strip()}"
        for path in Path(ledger_package.__file__).parent.glob("*.py")
        for line in path.read_text().splitlines()
        if re.search(r"SELECT \*|RETURNING \*|\b[a-z]+\.\*", line.partition("  #")[0])
    ]
    assert found == []


@pytest.mark.parametrize("table", ["subject", "run", "stage", "job", "attempt", "worker", "schedule", "fire"])
def test_what_is_read_whole_is_all_that_the_schema_has(table: str) -> None:
    assert getattr(columns, table.upper()) == written(metadata.tables[f"gm_{table}"])


def test_a_new_file_is_what_all_migrations_make_of_it(tmp_path: Path) -> None:
    """If this fails: python -m gristmill.ledger.fresh"""
    assert fresh._FILE.read_text() == fresh.written_down()
    ledgers = [Ledger(f"sqlite:///{tmp_path}/{name}.db") for name in ("made", "migrated")]
    fresh.make(ledgers[0])
    migrate.upgrade(str(ledgers[1].url))
    schemas = []
    for ledger in ledgers:
        with ledger.engine.connect() as connection:
            schemas.append(
                connection.exec_driver_sql("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY rowid").all()
            )
        ledger.close()
    assert schemas[0] == schemas[1]


def test_two_who_make_a_new_file_at_once_make_one(tmp_path: Path) -> None:
    ledgers = [Ledger(f"sqlite:///{tmp_path}/new.db") for _ in range(4)]
    together(*[partial(fresh.make, ledger) for ledger in ledgers])
    assert [ledger.revision() for ledger in ledgers] == [REVISION] * 4
    assert invariants.snapshot(ledgers[0])["gm_ledger"] == [(1, 1, OLDEST)]
    for ledger in ledgers:
        ledger.close()


def test_a_new_file_that_is_half_made_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken.sql"
    broken.write_text(f"{fresh._FILE.read_text()}{fresh._BETWEEN}no statement")
    ledger = Ledger(f"sqlite:///{tmp_path}/new.db")
    with monkeypatch.context() as patched:
        patched.setattr(fresh, "_FILE", broken)
        with pytest.raises(DatabaseError, match="syntax error"):
            fresh.make(ledger)
    assert (ledger.revision(), tables(ledger)) == (None, set())
    fresh.make(ledger)
    assert ledger.revision() == REVISION
    ledger.close()
