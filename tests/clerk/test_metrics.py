"""What clerk adds to /metrics: read from the text as Prometheus reads it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import update as set_row

from clerk import metrics, reconciling, sites
from clerk.app import open_mill
from clerk.config import load
from clerk.db import tables
from clerk.names import STAGES
from clerk.sites import Description
from gristmill import Mill
from gristmill.metrics import exposition
from gristmill.testing import drain
from tests.clerk.playing import Play, minutes
from tests.clerk.test_cli_mending import broken, lose_a_worker
from tests.clerk.test_cli_status import cli, fetched, mill, play  # noqa: F401 - fixtures
from tests.clerk.test_pipeline import SITE
from tests.servers import ROOT


def read(asked: Mill, now: datetime | None = None) -> dict[str, dict[str, float]]:
    """By name, then by the values of the labels."""
    text = exposition(asked, metrics.measure(asked, now))
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[" ".join(sample.labels.values())] = sample.value
    return found


def test_stages_have_their_durations_and_how_much_of_them_succeeds(mill: Mill, play: Play) -> None:  # noqa: F811
    assert "pipeline_stage_success_rate" not in read(mill)  # of nothing there is no rate
    play.site(SITE, {**minutes(3), **minutes(1, first=3, read="Unreadable")})
    sites.enqueue(mill, [SITE])
    drain(mill)
    found = read(mill)
    assert found["pipeline_stage_duration_seconds_count"] == {**dict.fromkeys(STAGES, 1), "ocr": 4}
    buckets = found["pipeline_stage_duration_seconds_bucket"]
    assert (buckets["ocr +Inf"], buckets["ocr 3600"]) == (4, 4)
    assert found["pipeline_stage_duration_seconds_sum"].keys() == set(STAGES)
    assert found["pipeline_stage_success_rate"] == {**dict.fromkeys(STAGES, 1.0), "ocr": 0.75}


def test_stuck_sites_and_recoveries_are_counted(mill: Mill, play: Play) -> None:  # noqa: F811
    fetched(mill, play, 2)
    found = read(mill)
    assert (found["pipeline_stuck_sites_count"], found["reconciliation_recoveries_total"]) == ({"": 0}, {"": 0})
    broken(mill)
    assert reconciling.reconcile(mill, subdomain=SITE)
    with mill.transaction() as connection:
        old = datetime.now(UTC) - timedelta(hours=3)
        connection.execute(set_row(tables.site).values(updated_at=old))
    found = read(mill)
    assert (found["pipeline_stuck_sites_count"], found["reconciliation_recoveries_total"]) == ({"": 1}, {"": 1})
    lose_a_worker(mill)
    with open_mill(load()) as later:  # with a clock that goes
        assert reconciling.reconcile(later, subdomain=SITE)
    assert read(mill)["reconciliation_recoveries_total"] == {"": 2}


def test_high_work_that_is_queued_for_long_is_warned_of_and_what_waits_behind_it(mill: Mill, play: Play) -> None:  # noqa: F811
    sites.create(mill, Description("elm.ca", "Elm", "played"))
    fetched(mill, play, 2)
    fetched(mill, play, 2, "elm.ca", "high")

    def warned(after: int) -> list[str]:
        found = read(mill, datetime.now(UTC) + timedelta(minutes=after))["pipeline_priority_warning"]
        assert len(found) == 2 * len(STAGES)
        return [labels for labels, value in found.items() if value]

    assert warned(50) == []
    assert warned(61) == ["ocr high_for_an_hour"]
    assert warned(121) == ["ocr high_for_an_hour", "ocr waiting_behind_high"]


@pytest.mark.parametrize("clerk_url", ["sqlite"], indirect=True)
def test_each_of_them_is_on_the_operators_page(mill: Mill) -> None:  # noqa: F811
    page = (ROOT / "docs" / "clerk" / "operations.md").read_text()
    assert [one.name for one in metrics.measure(mill) if f"| `{one.name}` |" not in page] == []
