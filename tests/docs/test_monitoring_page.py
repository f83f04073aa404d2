"""The page on monitoring lists the metrics that there are, with their kinds and labels, and no others."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gristmill import Limit, Mill, Pipeline, task
from gristmill.ledger import failures
from gristmill.metrics import Family
from tests.servers import ROOT

PAGE = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
_ROW = re.compile(r"^\| `(gristmill_\w+)` \| (\w+) \|([^|]*)\|", re.MULTILINE)
flow = Pipeline("flow")


@flow.stage()
def first(ctx: Any) -> None: ...


@task(limit=Limit("host", per="host", at_once=1))
def polite(ctx: Any, host: str) -> None: ...


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> list[Family]:
    """Of a ledger where each has something to say."""
    url = f"sqlite:///{tmp_path_factory.mktemp('metrics')}/test.db"
    with Mill.open(url, flow, polite) as mill:
        mill.start("flow", "a")
        mill.cancel_job(mill.enqueue_many("polite", [{"host": "x"}] * 9)[0])
        mill.ledger.do(failures.count, 1, ["ValueError"])
        return mill.metrics()


def test_the_page_lists_every_metric_and_no_other(families: list[Family]) -> None:
    said = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in _ROW.findall(PAGE)}
    found = {f.name: (f.kind, {name for sample in f.samples for name, _ in sample.labels} - {"le"}) for f in families}
    assert said == found


def test_every_metric_has_a_name_as_prometheus_wants_it(families: list[Family]) -> None:
    for family in families:
        assert re.fullmatch(r"gristmill_[a-z_]+", family.name)
        assert family.name.endswith("_total") == (family.kind == "counter")
        assert family.help.endswith(".")
