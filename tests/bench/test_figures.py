"""Medians, spread, what was to be reached, and the page that says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import page
from bench.figures import Figures, number, spread
from bench.peers import common, scenarios
from bench.reaches import Reach, reaches
from bench.systems import BY_NAME


def figures(**results: dict[str, list[dict[str, Any]]]) -> Figures:
    return Figures("full", "a machine", results={name.replace("_", "-"): found for name, found in results.items()})


def drained(*rates: float) -> dict[str, list[dict[str, Any]]]:
    return {"drain": [{"rate": 1.0, "steady": rate} for rate in rates]}


def row(found: Figures, row: str, wanted: str) -> Reach:
    return next(reach for reach in reaches(found) if reach.row == row and wanted in reach.wanted)


def test_a_figure_is_the_median_of_its_rounds_with_its_spread():
    found = figures(arq=drained(300, 100, 200))
    assert found.median("arq", "drain") == 200
    assert spread(found.values("arq", "drain"), number) == "200 (100–300)"
    assert spread([3.14159], number) == "3.14"


def test_what_went_wrong_is_no_figure_and_says_why():
    found = figures(arq={"fan": [{"unsupported": "no fan-in"}, {"error": "broken"}]})
    assert found.median("arq", "fan") is None
    assert found.why_not("arq", "fan") == "unsupported: no fan-in"


def test_figures_come_back_from_their_file(tmp_path: Path):
    found = figures(arq=drained(1, 2))
    (tmp_path / "figures.json").write_text(found.text())
    assert Figures.read(tmp_path / "figures.json") == found


def test_a_ratio_is_taken_against_the_best_of_the_peers():
    found = figures(gristmill_sqlite=drained(50_000), huey_sqlite=drained(2000), dbos_sqlite=drained(1000))
    reach = row(found, "drain, SQLite", "SQLite")
    assert reach.reached
    assert reach.measured == "25.0 ×: 50,000 against 2,000 (Huey, SQLite)"
    found.add("huey-sqlite", "drain", {"steady": 3000})
    assert row(found, "drain, SQLite", "SQLite").word == "**not reached**"


def test_without_a_figure_a_row_is_not_measured():
    assert {reach.word for reach in reaches(figures())} == {"not measured"}


def test_a_row_is_reached_only_if_every_peer_was_measured():
    broken = {"drain": [{"error": "broken"}]}
    found = figures(gristmill_sqlite=drained(50_000), huey_sqlite=drained(2000), dbos_sqlite=broken)
    reach = row(found, "drain, SQLite", "SQLite")
    assert reach.word == "not all measured"
    assert reach.measured == "25.0 ×: 50,000 against 2,000 (Huey, SQLite); not measured: DBOS, SQLite"
    found.add("huey-sqlite", "drain", {"steady": 3000})
    assert row(found, "drain, SQLite", "SQLite").reached is False  # whatever the other would have given


def test_a_row_is_not_reached_by_the_rounds_that_went_well_alone():
    peers = {"huey_sqlite": drained(1), "dbos_sqlite": drained(1)}
    found = figures(gristmill_sqlite={"drain": [{"steady": 50_000.0}, {"error": "broken"}]}, **peers)
    assert row(found, "drain, SQLite", "SQLite").word == "not measured"
    calls = [{"seconds": seconds, "callbacks": int(seconds is not None), "waited": 20.0} for seconds in (0.1, None)]
    found = figures(gristmill_sqlite={"fan-many": calls}, pgqueuer_100={"fan-many": [{"seconds": 9.0, "callbacks": 1}]})
    assert row(found, "fan-in of 10,000, Gristmill, SQLite", "ahead").word == "not measured"


def test_what_went_wrong_in_one_round_is_said_beside_the_figures_of_the_others():
    found = figures(arq={"drain": [{"steady": 300.0}, {"error": "a worker ended"}]})
    assert "- Arq, drain of up to 10,000, jobs/s, 1 of 2 rounds: error: a worker ended\n" in page.page(found, [])


def test_less_work_than_a_million_rows_does_not_say_what_those_cost():
    found = figures(gristmill_sqlite={**drained(12_000), "backlog": [{"steady": 12_000.0, "count": 100_000}]})
    assert row(found, "cost as work grows, Gristmill, SQLite", "1.3").word == "not all measured"


def test_pgqueuer_has_a_row_of_its_own():
    found = figures(gristmill_postgres=drained(20_000), pgqueuer_100=drained(10_000), dramatiq=drained(3000))
    assert row(found, "drain, PostgreSQL", "PgQueuer").reached is True
    assert row(found, "drain, PostgreSQL", "every other").reached is False


def test_a_fan_in_that_was_not_done_in_the_time_counts_as_if_it_had_been_then():
    def fan(seconds: float | None) -> dict[str, list[dict[str, Any]]]:
        return {"fan-many": [{"seconds": seconds, "callbacks": int(seconds is not None), "waited": 40.0}]}

    others = {name: fan(50.0) for name in ("huey_redis", "huey_sqlite", "dramatiq", "streaq", "dbos_sqlite", "celery_early")}
    cannot = {name: {"fan-many": [{"unsupported": "no fan-in"}]} for name in ("procrastinate_10", "arq")}
    found = figures(gristmill_sqlite=fan(1.0), rq_simple=fan(None), **others, **cannot)
    reach = row(found, "fan-in of 10,000, Gristmill, SQLite", "5 ×")
    assert (reach.reached, reach.measured) == (True, "40.0 ×: 1.00 s against 40.0 s (RQ, SimpleWorker)")
    assert page.cell(found, BY_NAME["rq-simple"], "fan-many") == "> 40"


def test_cost_as_work_grows_is_against_the_best_rate_with_little_work():
    backlog = {"backlog": [{"steady": 10_000.0, "count": 1_000_000}]}
    found = figures(gristmill_sqlite={**drained(12_000), **backlog, "drain-many": [{"steady": 14_000.0}]})
    reach = row(found, "cost as work grows, Gristmill, SQLite", "1.3")
    assert reach.measured.startswith("1.40 × at 1,000,000: 100 µs")
    assert reach.reached is False


@pytest.mark.parametrize(
    ("callbacks", "children", "said"),
    [(1, 190, "once"), (2, 190, "2 times"), (0, 190, "**never**"), (0, 100, "not in 10 s: 90 children had not run")],
)
def test_only_who_ran_all_children_has_forgotten_the_callback(callbacks: int, children: int, said: str):
    result = {"callbacks": callbacks, "children": children, "count": 200, "waited": 10.0}
    assert page.callback_said(result) == said


def test_as_many_children_fail_as_the_page_says():
    assert sum(common.fails(number, 0.05) for number in range(200)) == 10


def test_the_page_has_all_that_was_measured(tmp_path: Path):
    found = figures(gristmill_sqlite=drained(50_000), arq={**drained(300, 320), "fan": [{"unsupported": "no fan-in"}]})
    found.about["arq"] = {"version": "0.28", "row_per_job": False, "acks": "after"}
    path = page.write(found, tmp_path)
    text = path.read_text()
    assert "| Arq | 310 (300–320) | none |" in text
    assert "| Arq | 0.28 | – | – | no | after |" in text
    assert "![Drain of trivial jobs](benchmarks/drain.svg)" in text
    assert (tmp_path / "benchmarks" / "drain.svg").exists()
    assert json.loads((tmp_path / "benchmarks" / "figures.json").read_text())["machine"] == "a machine"


def test_a_table_keeps_its_columns_whatever_a_cell_says():
    assert page.table(["a", "b"], [["x|y", "z"]]) == "| a | b |\n| --- | --- |\n| x/y | z |\n"


def test_a_callback_that_did_not_wait_for_the_children_is_no_fan_in():
    order = common.Order("fan", "", count=40, fail=0.05)
    ran = {number for number in range(40) if not common.fails(number, 0.05)}
    scenarios.check_join(order, ran)
    with pytest.raises(RuntimeError, match="when 1 of its 40 children had not run"):
        scenarios.check_join(order, ran - {0})


def test_workers_are_killed_while_one_is_at_work(tmp_path: Path):
    order = common.Order("kill", str(tmp_path), count=3)
    assert not scenarios.midway(order)
    common.mark(order.folder, 0)
    common.mark(order.folder, 0 + common.ENDED)
    assert not scenarios.midway(order)  # between two polls there is nothing to lose
    common.mark(order.folder, 1)
    assert scenarios.midway(order)
