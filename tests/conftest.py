"""Databases for tests: every test gets a fresh one with the schema in it, on real SQLite and on real PostgreSQL."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests import forking, servers
from tests.valkey import Valkey, shared_valkey

PG_FIXTURES = {"pg_server_url", "pg_url", "empty_pg_url"}

# A database on a busy machine has no useful deadline per example; the timeout per test stands.
hypothesis.settings.register_profile("gristmill", deadline=None, print_blob=True)
hypothesis.settings.load_profile("gristmill")


@dataclass(frozen=True)
class TestRun:
    """What the processes of one pytest run share: the one the user started (the owner) and xdist's workers."""

    __test__ = False
    directory: Path
    owner: int
    database_prefix: str

    @classmethod
    def begin(cls) -> TestRun:
        directory = Path(tempfile.mkdtemp(prefix="gristmill-tests-"))
        return cls(directory, os.getpid(), f"{servers.DATABASE_PREFIX}{uuid.uuid4().hex[:8]}_")

    def end(self) -> None:
        servers.stop_shared_postgres(self.directory)
        given = os.environ.get(servers.URL_VARIABLE)
        if given and (self.directory / "pg-used").exists():
            servers.drop_databases(given, self.database_prefix)
        shutil.rmtree(self.directory, ignore_errors=True)


RUN = pytest.StashKey[TestRun]()
ALL = pytest.StashKey[bool]()  # nobody chose among the tests: those that are slow are left to ./run chaos
LEFT_OUT = pytest.StashKey[dict[str, int]]()  # how many, by mark
APPLICATIONS = Path(__file__).parent / "clerk"  # it has a suite of its own
WHY_LEFT_OUT = {
    "application": "clerk's own: ./run test tests/clerk",
    "slow": "they are of ./run chaos suites",
    "exact": "only the database's own delivery promises it",
    "timing": "machines are noisy: ./run test -m timing",
    "promtool": "it is not here: apt-get install prometheus (other tests read the rules too)",
}


# ---- one run, many processes -------------------------------------------------------------------------------------


def is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as it is for a shell's background job, and for what that starts
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[LEFT_OUT] = {}
    if is_worker(config):
        config.stash[ALL] = config.workerinput["gristmill_all"]  # type: ignore[attr-defined]
        directory, owner, prefix = config.workerinput["gristmill_run"]  # type: ignore[attr-defined]
        config.stash[RUN] = TestRun(Path(directory), owner, prefix)
    else:
        config.stash[ALL] = config.args_source is config.ArgsSource.TESTPATHS and not config.getoption("-m")
        config.stash[RUN] = TestRun.begin()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    run = node.config.stash[RUN]
    node.workerinput["gristmill_run"] = (str(run.directory), run.owner, run.database_prefix)
    node.workerinput["gristmill_all"] = node.config.stash[ALL]


def pytest_unconfigure(config: pytest.Config) -> None:
    forking.stop()
    if not is_worker(config) and RUN in config.stash:
        config.stash[RUN].end()


# ---- what is left out --------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--without",
        action="append",
        choices=["pg", "browser"],
        default=[],
        help="leave out the tests that need it; the summary says how many (pg: PostgreSQL, browser: Chromium)",
    )
    parser.addoption(
        "--delivery",
        choices=["database", "redis", "rq", "arq"],
        default="database",
        help="what the tests of the worker are run with (those of tests/delivery are run with each anyway)",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if PG_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("pg")
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")
        if APPLICATIONS in item.path.parents:
            item.add_marker("application")
        if item.get_closest_marker("alike") and item.get_closest_marker("pg"):
            item.add_marker("slow")
    other = config.getoption("--delivery") != "database"
    for item in items if other else ():
        item.add_marker(pytest.mark.timeout(600))  # a message for each job takes its time
    left = {
        "application": config.stash[ALL],
        "slow": config.stash[ALL],
        "exact": other,
        "timing": "timing" not in config.getoption("-m"),
        "promtool": shutil.which("promtool") is None,
    }
    for mark in [*config.getoption("--without"), *(mark for mark, out in left.items() if out)]:
        left_out = [item for item in items if item.get_closest_marker(mark)]
        items[:] = [item for item in items if not item.get_closest_marker(mark)]
        config.hook.pytest_deselected(items=left_out)
        config.stash[LEFT_OUT][mark] = len(left_out)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if is_worker(session.config):
        session.config.workeroutput["left_out"] = session.config.stash[LEFT_OUT]  # type: ignore[attr-defined]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Every worker collects, and leaves out, the same tests: not a sum."""
    node.config.stash[LEFT_OUT].update(getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for mark, count in ((mark, count) for mark, count in config.stash[LEFT_OUT].items() if count):
        why = WHY_LEFT_OUT.get(mark, f"by --without={mark}")
        terminalreporter.write_line(f"left out: {count} tests that are marked {mark}, {why}", yellow=True)


# ---- databases ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def test_run(pytestconfig: pytest.Config) -> TestRun:
    return pytestconfig.stash[RUN]


@pytest.fixture(scope="session")
def session_valkey() -> Iterator[Valkey]:
    with shared_valkey() as server:
        yield server


@pytest.fixture(scope="session")
def pg_server_url(pytestconfig: pytest.Config, test_run: TestRun) -> str:
    if "pg" in pytestconfig.getoption("--without"):
        pytest.fail("this test needs PostgreSQL but is not marked pg, so --without=pg could not leave it out")
    (test_run.directory / "pg-used").touch()
    return servers.shared_postgres(test_run.directory, test_run.owner)


@pytest.fixture(scope="session")
def pg_template(pg_server_url: str, test_run: TestRun) -> str:
    """The name of a database with the schema in it, made once per run; copying it is much faster than migrating."""
    from gristmill.ledger.migrate import upgrade

    record = test_run.directory / "template"
    with servers.locked(test_run.directory / "template.lock"):
        if not record.exists():
            url = servers.create_database(pg_server_url, prefix=f"{test_run.database_prefix}template_")
            upgrade(url)
            servers.seal_template(url)
            record.write_text(servers.database_name(url))
        return record.read_text()


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database file with the schema in it."""
    from gristmill.ledger.migrate import upgrade

    path = tmp_path_factory.mktemp("template") / "template.db"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    for file in sqlite_template.parent.glob(f"{sqlite_template.name}*"):  # with -wal, if it was left
        shutil.copy(file, tmp_path / file.name.replace("template.db", "test.db", 1))
    return f"sqlite:///{tmp_path}/test.db"


@pytest.fixture
def fresh_pg_url(pg_server_url: str, pg_template: str, test_run: TestRun) -> Iterator[str]:
    """A PostgreSQL database with the schema in it that nobody used before, whatever pg_url is in some folder of tests."""
    url = servers.create_database(pg_server_url, template=pg_template, prefix=test_run.database_prefix)
    yield url
    servers.drop_database(url)


@pytest.fixture(scope="session")
def swept_database(pg_server_url: str, pg_template: str, test_run: TestRun) -> Iterator[servers.SweptDatabase]:
    from gristmill.ledger.schema import metadata

    def make() -> str:
        return servers.create_database(pg_server_url, template=pg_template, prefix=test_run.database_prefix)

    tables = [table.name for table in metadata.sorted_tables if table.name != "gm_ledger"]
    swept = servers.SweptDatabase(make, tables)
    yield swept
    swept.drop()


@pytest.fixture
def pg_url(swept_database: servers.SweptDatabase) -> str:
    """A PostgreSQL database with the schema in it and nothing else."""
    return swept_database.fresh()


@pytest.fixture
def empty_pg_url(pg_server_url: str, test_run: TestRun) -> Iterator[str]:
    """A PostgreSQL database without the schema."""
    url = servers.create_database(pg_server_url, prefix=test_run.database_prefix)
    yield url
    servers.drop_database(url)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.pg)])
def database_url(request: pytest.FixtureRequest) -> str:
    """A fresh database with the schema in it; a test that uses this runs once on each kind."""
    return str(request.getfixturevalue({"sqlite": "sqlite_url", "postgres": "pg_url"}[request.param]))
