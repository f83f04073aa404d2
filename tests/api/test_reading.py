"""Looking: every list and every thing, as the mill knows it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gristmill import Mill
from gristmill.model import to_json
from tests.api.server import Served


def test_health_and_readiness_need_nothing(shared: Served) -> None:
    with shared.client() as client:
        assert client.get("/health").json()["status"] == "ok"
        assert client.get("/ready").json()["status"] == "ready"


def test_prometheus_reads_the_metrics(client: httpx.Client, mill: Mill) -> None:
    answer = client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = {family.name for family in text_string_to_metric_families(answer.text)}
    assert {"gristmill_queue_jobs", "gristmill_jobs_finished", "gristmill_workers"} <= found


def test_what_is_read_is_what_the_mill_says(client: httpx.Client, mill: Mill) -> None:
    [run] = mill.runs()
    failed = mill.jobs(state="failed")[0]
    found: dict[str, Any] = {
        "/api/queues": {"items": to_json(mill.queues())},
        "/api/queues/mail": to_json(next(queue for queue in mill.queues() if queue.name == "mail")),
        "/api/runs": {"items": to_json([run]), "next": None},
        f"/api/runs/{run.id}/stages": {"items": to_json(run.stages)},
        f"/api/jobs/{failed.id}/attempts": {"items": to_json(mill.attempts(failed.id))},
        "/api/errors": {"items": to_json(mill.errors())},
        f"/api/errors/{failed.fingerprint}": to_json(mill.error(str(failed.fingerprint))),
        "/api/workers?every=true": {"items": to_json(mill.workers(every=True))},
        "/api/schedules": {"items": []},
        "/api/locks": {"items": []},
        "/api/limits": {"items": []},
        "/api/runs/1/why": to_json(mill.why(run=1)),
        f"/api/jobs/{failed.id}/why": to_json(mill.why(job=failed.id)),
        "/api/subjects/1/why": to_json(mill.why(pipeline="letters", subject="books")),
        "/api/jobs?state=failed&state=skipped": {"items": to_json(mill.jobs(state=["failed", "skipped"])), "next": None},
    }
    for path, expected in found.items():
        answer = client.get(path)
        assert (path, answer.status_code, answer.json()) == (path, 200, expected)
    assert client.get("/api/overview").json()["runs"] == {"completed_with_errors": 1}
    [subject] = client.get("/api/subjects", params={"pipeline": "letters", "label": "shelf=one"}).json()["items"]
    assert (subject["name"], subject["last_state"]) == ("books", "completed_with_errors")
    assert client.get(f"/api/subjects/{subject['id']}").json()["name"] == "books"


def test_an_attempt_has_its_traceback_and_its_log(shared: Served) -> None:
    with shared.client() as client:
        [job] = client.get("/api/jobs", params={"key": "odd*"}).json()["items"]
        [attempt, *_] = client.get(f"/api/jobs/{job['id']}").json()["attempts"]
        assert "ValueError: bad text" in attempt["traceback"]
        assert "printed before the end" in attempt["log"]


@pytest.mark.parametrize(
    "path", ["/api/jobs", "/api/jobs?run=1&parts=false", "/api/audit", "/api/subjects", "/api/jobs?queue=default"]
)
def test_pages_are_the_whole_list_each_thing_once(client: httpx.Client, mill: Mill, path: str) -> None:
    for name in ("a", "b", "c"):
        mill.set_subject("letters", name, labels={"shelf": "two"})
    whole = client.get(path, params={"limit": 1000} | dict(httpx.URL(path).params)).json()
    assert whole["next"] is None
    assert len(whole["items"]) > 2
    pages, cursor = list[Any](), dict[str, str]()
    while True:
        page = client.get(path, params={"limit": 2, **cursor} | dict(httpx.URL(path).params)).json()
        pages += page["items"]
        if page["next"] is None:
            break
        assert len(page["items"]) == 2
        cursor = {"cursor": page["next"]}
    assert [thing["id"] for thing in pages] == [thing["id"] for thing in whole["items"]]


def test_results_of_a_stage_come_in_pages_by_key(client: httpx.Client) -> None:
    first = client.get("/api/runs/1/stages/count/results", params={"limit": 1}).json()
    assert first == {"items": [{"key": "good.txt", "result": 3}], "next": "good.txt"}
    rest = client.get("/api/runs/1/stages/count/results", params={"limit": 1, "cursor": first["next"]}).json()
    assert rest == {"items": [{"key": "long.txt", "result": 6}], "next": None}


def test_a_page_is_not_moved_by_what_comes_meanwhile(client: httpx.Client, mill: Mill) -> None:
    first = client.get("/api/jobs", params={"limit": 3}).json()
    mill.enqueue_many("anything", [{"n": n} for n in range(3)])
    following = client.get("/api/jobs", params={"limit": 3, "cursor": first["next"]}).json()
    seen = [job["id"] for job in first["items"] + following["items"]]
    assert seen == sorted(set(seen), reverse=True)
    assert seen == list(range(seen[0], seen[0] - 6, -1))
