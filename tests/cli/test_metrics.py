"""`metrics`: the text that Prometheus reads, and the same as JSON."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tests.cli.conftest import Cli


def test_metrics_prints_what_prometheus_reads(finished: Cli) -> None:
    result = finished.run("metrics")
    assert (result.code, result.err) == (0, "")
    found = {family.name for family in text_string_to_metric_families(result.out)}
    assert found >= {"gristmill_info", "gristmill_queue_jobs", "gristmill_queue_wanted_slots", "gristmill_workers"}


def test_the_same_as_json(finished: Cli) -> None:
    said = finished.call("metrics", "--json").json
    assert said["gristmill_workers"]["kind"] == "gauge"
    assert {"labels": {"state": "active"}, "value": 0} in said["gristmill_workers"]["samples"]


def test_a_database_that_is_not_there_is_an_error(cli: Cli) -> None:
    result = cli.call("metrics", "--database", "sqlite:///nowhere.db")
    assert result.code != 0
    assert "there is no database" in result.err
