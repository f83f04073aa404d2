"""What ships for Prometheus, Grafana and KEDA: every expression can be read, and asks for metrics that there are."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from gristmill.metrics import Family
from tests.docs.test_monitoring_page import families
from tests.servers import ROOT

__all__ = ["families"]  # the fixture

OPS = ROOT / "ops"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((OPS / "alerts.yml").read_text())["groups"] for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((OPS / "grafana-dashboard.json").read_text())
KEDA: dict[str, Any] = yaml.safe_load((OPS / "keda.yml").read_text())
SUFFIXES = ("_bucket", "_sum", "_count")
_METRIC = re.compile(r"(gristmill_\w+)(?:\{([^}]*)\})?")
_GROUPING = re.compile(r"\b(?:by|on) \(([^)]*)\)")


def expressions() -> Iterator[tuple[str, str]]:
    yield from ((rule["alert"], rule["expr"]) for rule in RULES)
    for panel in DASHBOARD["panels"]:
        yield from ((panel["title"], target["expr"].replace("$__rate_interval", "5m")) for target in panel["targets"])
    yield from (("keda", trigger["metadata"]["query"]) for trigger in KEDA["spec"]["triggers"])


EXPRESSIONS = list(expressions())


@pytest.mark.parametrize(
    "expression", [text for _, text in EXPRESSIONS], ids=[f"{n} {e[0]}" for n, e in enumerate(EXPRESSIONS)]
)
def test_an_expression_is_promql_over_metrics_that_there_are(expression: str, families: list[Family]) -> None:
    promql_parser.parse(expression)
    known = {family.name: {name for sample in family.samples for name, _ in sample.labels} for family in families}
    known |= {name + suffix: labels for name, labels in known.items() for suffix in SUFFIXES if "le" in labels}
    asked = _METRIC.findall(expression)
    assert {name for name, _ in asked} - known.keys() == set()
    for name, matchers in asked:
        assert set(re.findall(r"(\w+)\s*[=!]", matchers)) <= known[name]
    grouped = {word.strip() for words in _GROUPING.findall(expression) for word in words.split(",")}
    assert grouped <= set().union(*(known[name] for name, _ in asked))


def test_an_alert_says_what_is_wrong_and_what_to_do() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"Gristmill[A-Z]\w+", rule["alert"])
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"].keys() == {"summary", "description"}
        assert re.fullmatch(r"\d+[smhd]", rule.get("for", "1m"))


def test_an_alert_names_only_labels_that_its_expression_keeps(families: list[Family]) -> None:
    for rule in RULES:
        used = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        by = {word.strip() for words in re.findall(r"by \(([^)]*)\)", rule["expr"]) for word in words.split(",")}
        first = _METRIC.findall(rule["expr"])[0][0]
        own = {name for family in families if family.name == first for sample in family.samples for name, _ in sample.labels}
        assert used <= (by or own)


def test_the_panels_of_the_dashboard_do_not_overlap_and_fit() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        assert panel["datasource"]["uid"] == "${datasource}"
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_the_dashboard_shows_every_kind_of_metric(families: list[Family]) -> None:
    shown = {name for _, text in EXPRESSIONS for name, _ in _METRIC.findall(text)}
    hidden = {"gristmill_run_oldest_seconds", "gristmill_schedules", "gristmill_workers_busy"}
    hidden |= {"gristmill_limit_running", "gristmill_limit_at_once"}
    asked = {re.sub("(_bucket|_sum|_count)$", "", name) for name in shown}
    assert {family.name for family in families} - asked == hidden


# ---- Prometheus's own checker


def promtool(*words: str | Path) -> None:
    done = subprocess.run(["promtool", *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.promtool
def test_promtool_reads_the_rules() -> None:
    promtool("check", "rules", OPS / "alerts.yml")


FIRING: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "GristmillNoWorkers": (
        {'gristmill_workers{state="active"}': "0x60", 'gristmill_queue_wanted_slots{queue="a"}': "3x60"},
        {"severity": "critical"},
    ),
    "GristmillManyFailures": (
        {
            'gristmill_jobs_finished_total{queue="a",task="t",outcome="failed"}': "0+2x60",
            'gristmill_jobs_finished_total{queue="a",task="t",outcome="completed"}': "0+8x60",
        },
        {"severity": "warning", "queue": "a", "task": "t"},
    ),
    "GristmillQueueNotServed": (
        {
            'gristmill_queue_workers{queue="a"}': "0x60",
            'gristmill_queue_wanted_slots{queue="a"}': "1x60",
            'gristmill_queue_paused{queue="a"}': "0x60",
        },
        {"severity": "warning", "queue": "a"},
    ),
    "GristmillSlow": (
        {
            'gristmill_job_wait_seconds_bucket{queue="a",le="900"}': "0+1x60",
            'gristmill_job_wait_seconds_bucket{queue="a",le="3600"}': "0+9x60",
            'gristmill_job_wait_seconds_bucket{queue="a",le="+Inf"}': "0+9x60",
        },
        {"severity": "warning", "queue": "a"},
    ),
    "GristmillSubjectsStuck": (
        {'gristmill_subjects_stuck{pipeline="p"}': "2x60"},
        {"severity": "critical", "pipeline": "p"},
    ),
}


@pytest.mark.promtool
@pytest.mark.parametrize("alert", FIRING)
def test_an_alert_fires_when_it_should_and_not_before(alert: str, tmp_path: Path) -> None:
    series, labels = FIRING[alert]
    annotations = next(rule["annotations"] for rule in RULES if rule["alert"] == alert)
    said = {name: _filled(text, labels) for name, text in annotations.items()}
    case = {
        "rule_files": [str(OPS / "alerts.yml")],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "alert_rule_test": [
                    {"eval_time": "1m", "alertname": alert, "exp_alerts": []},
                    {
                        "eval_time": "55m",
                        "alertname": alert,
                        "exp_alerts": [{"exp_labels": labels, "exp_annotations": said}],
                    },
                ],
            }
        ],
    }
    file = tmp_path / "case.yml"
    file.write_text(yaml.safe_dump(case))
    promtool("test", "rules", file)


def _filled(text: str, labels: dict[str, str]) -> str:
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda match: labels[match[1]], text)
    return text.replace("{{ $value }}", "2" if "subjects" in text else "0")
