"""Databases with clerk's tables in them, and the settings of a test, in the environment: children read it there."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from clerk.app import open_mill
from clerk.config import Config, load
from clerk.db import grants, migrations
from gristmill.ledger.grants import grants as engine_grants
from gristmill.ledger.migrate import upgrade
from tests import servers
from tests.conftest import TestRun


@pytest.fixture(scope="session")
def clerk_sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clerk") / "template.db"
    url = f"sqlite:///{path}"
    upgrade(url, own=[migrations(url)])
    return path


@pytest.fixture(scope="session")
def clerk_pg_template(pg_server_url: str, test_run: TestRun) -> str:
    record = test_run.directory / "clerk-template"
    with servers.locked(test_run.directory / "clerk-template.lock"):
        if not record.exists():
            url = servers.create_database(pg_server_url, prefix=f"{test_run.database_prefix}clerk_template_")
            upgrade(url, own=[migrations(url)])
            servers.seal_template(url)
            record.write_text(servers.database_name(url))
        return record.read_text()


@pytest.fixture
def clerk_sqlite_url(clerk_sqlite_template: Path, tmp_path: Path) -> str:
    for file in clerk_sqlite_template.parent.glob(f"{clerk_sqlite_template.name}*"):
        shutil.copy(file, tmp_path / file.name.replace("template.db", "civic.db", 1))
    return f"sqlite:///{tmp_path}/civic.db"


@pytest.fixture
def clerk_pg_url(pg_server_url: str, clerk_pg_template: str, test_run: TestRun) -> Iterator[str]:
    url = servers.create_database(pg_server_url, template=clerk_pg_template, prefix=test_run.database_prefix)
    yield url
    servers.drop_database(url)


@pytest.fixture
def clerk_worker_url(clerk_pg_url: str) -> Iterator[str]:
    """The same for a role that has what `clerk db grants` prints, and nothing else."""
    role = f"clerk_{uuid.uuid4().hex[:12]}"
    engine = create_engine(clerk_pg_url.replace("postgresql://", "postgresql+psycopg://"), isolation_level="AUTOCOMMIT")
    with engine.connect() as owner:
        owner.execute(text(f"CREATE ROLE {role} LOGIN"))
        with open_mill(Config(database_url=clerk_pg_url)) as mill:
            engine_grants(mill.ledger, role, "hand", apply=True)
        for statement in grants(role):
            owner.execute(text(statement))
        yield clerk_pg_url.replace("//gristmill@", f"//{role}@")
        owner.execute(text(f"DROP OWNED BY {role}"))
        owner.execute(text(f"DROP ROLE {role}"))
    engine.dispose()


URLS = {"sqlite": "clerk_sqlite_url", "postgres": "clerk_pg_url", "worker": "clerk_worker_url"}  # what makes each


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.pg)])
def clerk_url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(URLS[request.param]))


@pytest.fixture
def clerk_config(clerk_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Settings of this test alone, in the environment."""
    (tmp_path / "sites").mkdir()
    given = {
        "DATABASE_URL": clerk_url,
        "STORAGE_DIR": str(tmp_path / "sites"),
        "DEPLOY_TARGET": str(tmp_path / "published"),
        "LOG_DIR": str(tmp_path / "logs"),
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return load(folder=tmp_path)
