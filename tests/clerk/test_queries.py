"""The SQL of operators: the eight queries as they were printed, and the views that stand in for them on SQLite."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from clerk import metrics
from clerk.app import open_mill
from clerk.config import Config
from clerk.db import terminal
from gristmill import GristmillError, Mill
from tests.clerk.loading import fill
from tests.servers import ROOT

QUERIES = ROOT / "docs" / "pipeline-queries.sql"
ONLY_POSTGRES = ("NOW()", "INTERVAL", "EXTRACT(")
SECOND = 1.0


def printed() -> dict[str, str]:
    """By the comment above each."""
    found = re.findall(r"^-- (.+)\n((?:SELECT)[^;]+);$", QUERIES.read_text(), re.MULTILINE)
    return dict(found)


@pytest.fixture
def mill(clerk_config: Config) -> Iterator[Mill]:
    with open_mill(clerk_config) as opened:
        yield opened


@pytest.fixture
def is_sqlite(clerk_url: str) -> bool:
    return clerk_url.startswith("sqlite")


def timed(mill: Mill, sql: str) -> tuple[float, list[tuple[object, ...]]]:
    with mill.transaction() as connection:
        began = time.monotonic()
        rows = connection.exec_driver_sql(sql, execution_options={"no_parameters": True}).fetchall()
        return time.monotonic() - began, [tuple(row) for row in rows]


def test_there_are_the_eight_printed_queries_and_the_four_views() -> None:
    names = list(printed())
    assert len(names) == 12
    assert sum(any(word in query for word in ONLY_POSTGRES) for query in printed().values()) == 4


def test_the_printed_queries_run(mill: Mill, is_sqlite: bool) -> None:
    fill(mill, 100, documents=10)
    for query in printed().values():
        if is_sqlite and any(word in query for word in ONLY_POSTGRES):
            with pytest.raises(GristmillError):  # its words are PostgreSQL's; there is a view for both
                timed(mill, query)
        else:
            assert timed(mill, query)[1]


def test_the_printed_queries_say_what_the_views_say(mill: Mill, is_sqlite: bool) -> None:
    fill(mill, 200, documents=10)
    queries = printed()
    stages = {row[0]: row[1] for row in timed(mill, queries["How many sites in each stage?"])[1]}
    assert stages == {"ocr": 6, "extraction": 2, "compilation": 2, "completed": 190}
    rates = {row[0]: row[1:] for row in timed(mill, queries["Success rates by stage"])[1]}
    both = {row[0]: row[1:] for row in timed(mill, "SELECT * FROM clerk_success_rate")[1]}
    assert set(both) == {"fetch", "ocr", "compilation", "extraction", "deploy"}
    for stage, row in rates.items():
        assert [float(str(value)) for value in row] == [float(str(value)) for value in both[stage]]
    stuck = {row[0] for row in timed(mill, "SELECT * FROM clerk_stuck")[1]}
    assert stuck == {"site00004.example", "site00104.example", "site00003.example", "site00103.example"} & stuck
    assert {"site00004.example", "site00104.example"} <= stuck
    if not is_sqlite:
        assert {row[0] for row in timed(mill, queries["Sites stuck > 2 hours?"])[1]} == stuck


def test_case_20_counters_are_integers_and_flags_are_real_booleans(mill: Mill, is_sqlite: bool) -> None:
    fill(mill, 10, documents=4)
    with mill.transaction() as connection:
        rows = connection.execute(text("SELECT * FROM sites")).mappings().all()
    for row in rows:
        counters = {name: row[name] for name in row if name.endswith(("_total", "_completed", "_failed"))}
        assert len(counters) == 15
        assert all(type(value) is int for value in counters.values())
        assert row["coordinator_enqueued"] == 0
        assert type(row["coordinator_enqueued"]) is (int if is_sqlite else bool)
    columns = set(rows[0])
    described = """subdomain name state kind scraper pages start_year extra country lat lng current_stage started_at
        updated_at coordinator_enqueued last_error_stage last_error_message last_error_at status extraction_status
        last_updated last_deployed last_extracted"""
    assert set(described.split()) <= columns


def test_times_are_moments_with_their_offset_in_every_view(mill: Mill, is_sqlite: bool) -> None:
    fill(mill, 10, documents=2)
    columns = {
        "sites": ["started_at", "updated_at", "last_updated"],
        "site_progress": ["started_at", "updated_at"],
        "job_tracking": ["created_at"],
        "clerk_stuck": ["updated_at"],
    }
    for view, names in columns.items():
        for name in names:
            [(value,)] = timed(mill, f"SELECT {name} FROM {view} WHERE {name} IS NOT NULL LIMIT 1")[1]
            assert isinstance(value, str if is_sqlite else datetime), (view, name)
            moment = datetime.fromisoformat(value) if isinstance(value, str) else value
            assert isinstance(moment, datetime)
            assert moment.tzinfo is not None
            assert abs(datetime.now(UTC) - moment) < timedelta(days=4)


def test_throughput_and_health_are_what_ended_each_day_and_what_waits_in_each_stage(mill: Mill) -> None:
    """Of a hundred sites one has failed and four are under way."""
    fill(mill, 100, documents=2)
    days = timed(mill, "SELECT sites_completed, runs_failed FROM clerk_throughput ORDER BY date")[1]
    assert [(int(str(good)), int(str(bad))) for good, bad in days] == [(95, 1)]
    found = {row[0]: row[1] for row in timed(mill, "SELECT current_stage, site_count FROM clerk_health")[1]}
    assert found == {"ocr": 3, "extraction": 1, "compilation": 1}
    [(hours,)] = timed(mill, "SELECT avg_hours_in_stage FROM clerk_health WHERE current_stage = 'compilation'")[1]
    assert 3.0 <= float(str(hours)) < 3.1


def plan(mill: Mill, sql: str) -> str:
    """What the database means to do. A small table is read as a whole on PostgreSQL, so it is told not to."""
    with mill.transaction() as connection:
        if connection.dialect.name == "sqlite":
            rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}")
            return "\n".join(row[3] for row in rows)
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        return "\n".join(row[0] for row in connection.exec_driver_sql(f"EXPLAIN {sql}"))


def test_the_indexes_of_the_design_are_there_and_used(mill: Mill) -> None:
    fill(mill, 50, documents=4)
    for index, sql in [
        ("idx_sites_current_stage", "SELECT subdomain FROM sites WHERE current_stage = 'ocr'"),
        ("idx_sites_updated_at", "SELECT subdomain FROM sites WHERE updated_at < '2020-01-01T00:00:00Z'"),
        ("idx_job_tracking_site_id", "SELECT rq_job_id FROM job_tracking WHERE site_id = 'site00001.example'"),
        ("idx_job_tracking_site_id", "SELECT rq_job_id FROM job_tracking WHERE subdomain = 'site00001.example'"),
    ]:
        assert index in plan(mill, sql)


@pytest.mark.timing
def test_each_query_takes_less_than_a_second_at_5000_sites_and_500000_jobs(mill: Mill, is_sqlite: bool) -> None:
    fill(mill)
    with mill.transaction() as connection:
        jobs = connection.execute(text("SELECT count(*) FROM gm_job")).scalar_one()
    assert jobs > 500_000
    asked = {
        **printed(),
        "all of sites": "SELECT * FROM sites",
        "one site": "SELECT * FROM sites WHERE subdomain = 'site00001.example'",
        "all of site_progress": "SELECT * FROM site_progress",
        "jobs of a site": "SELECT * FROM job_tracking WHERE site_id = 'site00001.example'",
    }
    took = {}
    for name, query in asked.items():
        if not (is_sqlite and any(word in query for word in ONLY_POSTGRES)):
            took[name] = timed(mill, query)[0]
    began = time.monotonic()
    metrics.measure(mill)
    took["metrics"] = time.monotonic() - began
    print({name: round(seconds, 3) for name, seconds in took.items()})
    assert max(took.values()) < SECOND
    with mill.transaction() as connection:  # what the end of a job costs, beside the engine's own
        number = connection.execute(text("SELECT max(run_id) FROM clerk_site")).scalar_one()
        name = connection.execute(text("SELECT subdomain FROM clerk_site WHERE run_id = :n"), {"n": number}).scalar_one()
        began = time.monotonic()
        terminal.started(connection, name, number)
        assert time.monotonic() - began < SECOND / 10
