"""The test servers themselves: real, separate databases, and nothing left running afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import psycopg
import pytest

from tests import servers


def test_the_server_answers(pg_server_url: str) -> None:
    assert servers.execute(pg_server_url, "SELECT 1") == [(1,)]


def test_the_server_is_recent_and_durable(pg_server_url: str) -> None:
    with psycopg.connect(servers.libpq_url(pg_server_url)) as connection:
        assert connection.info.server_version >= 140000
    assert servers.execute(pg_server_url, "SHOW fsync") == [("on",)]


def test_two_databases_are_distinct(pg_server_url: str, empty_pg_url: str) -> None:
    other = servers.create_database(pg_server_url)
    try:
        servers.execute(empty_pg_url, "CREATE TABLE only_here (id int)")
        assert servers.execute(empty_pg_url, "SELECT to_regclass('only_here')::text") == [("only_here",)]
        assert servers.execute(other, "SELECT to_regclass('only_here')::text") == [(None,)]
    finally:
        servers.drop_database(other)


def test_a_copy_has_what_its_sealed_template_has(pg_server_url: str, empty_pg_url: str) -> None:
    servers.execute(empty_pg_url, "CREATE TABLE word AS SELECT 'grist' AS word")
    servers.seal_template(empty_pg_url)
    copy = servers.create_database(pg_server_url, template=servers.database_name(empty_pg_url))
    try:
        assert servers.execute(copy, "SELECT word FROM word") == [("grist",)]
    finally:
        servers.drop_database(copy)


def test_a_dropped_database_is_gone_even_with_a_connection_open(pg_server_url: str) -> None:
    url = servers.create_database(pg_server_url)
    with psycopg.connect(servers.libpq_url(url)):
        servers.drop_database(url)
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        servers.execute(url, "SELECT 1")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://u@h:1/a", "postgresql://u@h:1/b"),
        ("postgresql+psycopg://u:p@h/a?sslmode=require", "postgresql+psycopg://u:p@h/b?sslmode=require"),
    ],
)
def test_another_database_on_the_same_server(url: str, expected: str) -> None:
    assert servers.with_database(url, "b") == expected


@pytest.mark.pg
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_the_server_does_not_outlive_its_owner(end: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.servers", "postgres"],
        cwd=servers.ROOT,
        env={name: value for name, value in os.environ.items() if name != servers.URL_VARIABLE},
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        url = owner.stdout.readline().strip()
        [guard] = psutil.Process(owner.pid).children()
        [postgres] = guard.children()
        home = Path(postgres.cwd()).parent
        assert servers.execute(url, "SELECT 1") == [(1,)]
        owner.send_signal(end)
    _gone, alive = psutil.wait_procs([guard, postgres], timeout=30)
    assert not alive
    assert not home.exists()
