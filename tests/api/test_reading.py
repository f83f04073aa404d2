"""Looking: every list and every thing, as the mill knows it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gristmill import Mill, Schedule
from gristmill.api import routes
from gristmill.model import to_json
from tests.api.server import Served
from tests.stranding import strand


def test_health_and_readiness_need_nothing(shared: Served) -> None:
    with shared.client() as client:
        assert client.get("/health").json()["status"] == "ok"
        assert client.get("/ready").json()["status"] == "ready"


def test_who_only_wants_to_know_whether_it_answers_gets_no_body(shared: Served, client: httpx.Client) -> None:
    with shared.client() as anybody:
        for path in ("/health", "/ready"):
            assert (anybody.head(path).status_code, anybody.head(path).content) == (200, b"")
    assert client.head("/metrics").status_code == 200


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/api/jobs?colour=red", "query.colour: there is none of this name; there are: archived, "),
        ("/api/jobs?stat=failed", "query.stat: there is none of this name; did you mean 'state'?"),
        ("/api/history?since=1h", "query.since: write it as"),
    ],
)
def test_what_is_not_known_is_told_what_there_is(client: httpx.Client, path: str, said: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.json()["detail"][: len(said)]) == (422, said)


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
        "/api/errors": {"items": to_json(mill.errors()), "next": None},
        f"/api/errors/{failed.fingerprint}": to_json(mill.error(str(failed.fingerprint))),
        "/api/workers?every=true": {"items": to_json(mill.workers(every=True))},
        "/api/schedules": {"items": []},
        "/api/locks": {"items": []},
        "/api/limits": {"items": []},
        "/api/runs/1/why": to_json(mill.why(run=1)),
        f"/api/jobs/{failed.id}/why": to_json(mill.why(job=failed.id)),
        "/api/subjects/1/why": to_json(mill.why(pipeline="letters", subject="books")),
        "/api/runs?subject=*OOK?&stage=count": {"items": to_json([run]), "next": None},
        f"/api/runs?error={failed.fingerprint}": {"items": to_json([run]), "next": None},
        "/api/runs?stage=total": {"items": [], "next": None},
        "/api/jobs?subject=boo*&state=failed": {"items": to_json(mill.jobs(run=1, state="failed")), "next": None},
        "/api/jobs?worker=1": {"items": [], "next": None},
        "/api/jobs?state=failed&state=skipped": {"items": to_json(mill.jobs(state=["failed", "skipped"])), "next": None},
    }
    for path, expected in found.items():
        answer = client.get(path)
        assert (path, answer.status_code, answer.json()) == (path, 200, expected)
    assert client.get("/api/overview").json()["runs"] == {"completed_with_errors": 1}
    assert [one["name"] for one in client.get("/api/subjects?subject=BOO*").json()["items"]] == ["books"]
    [subject] = client.get("/api/subjects", params={"pipeline": "letters", "label": "shelf=one"}).json()["items"]
    assert (subject["name"], subject["last_state"]) == ("books", "completed_with_errors")
    assert client.get(f"/api/subjects/{subject['id']}").json()["name"] == "books"


def test_what_was_done_when_is_told_by_the_minute_and_in_all(client: httpx.Client, mill: Mill) -> None:
    minutes = client.get("/api/history", params={"task": "letters.count"}).json()["items"]
    assert len(minutes) == 61
    assert sum(minute["failed"] for minute in minutes) == 2
    longer = client.get("/api/history", params={"since": "2026-01-01T00:00:00Z", "step": 86_400 * 7}).json()["items"]
    assert sum(week["failed"] for week in longer) == 2
    totals = client.get("/api/totals").json()["items"]
    assert totals == to_json(mill.totals())
    assert sum(total["done"]["failed"] for total in totals) == 2
    assert client.get("/api/history", params={"step": 90}).status_code == 422
    ages = client.get("/api/history", params={"since": "1970-01-02T00:00:00Z"}).json()["items"]
    assert 2000 < len(ages) < 10_000
    assert sum(week["failed"] for week in ages) == 2
    assert client.get("/api/history", params={"since": "1970-01-02T00:00:00Z", "step": 60}).status_code == 422
    assert client.get("/api/history", params={"queue": "mai"}).status_code == 404


def test_a_run_says_after_what_its_stages_come(client: httpx.Client, mill: Mill) -> None:
    assert client.get("/api/runs/1").json()["order"] == {"count": ["find"], "total": ["count"]}


# What is no request: what opens and closes a mill, works, or is for code that shares its transactions and its machine.
HERE = {"open", "close", "transaction", "lock", "event", "check_token", "backup", "declare_schedules"}
HERE |= {"work", "worker", "relay", "scheduler", "pruner", "reconciler"}
HERE |= {"subject"}  # by its number it is one of `subjects`
HERE |= {"ended", "open_circuits"}  # of `history` and `limits`, what the overview needs of them


def test_everything_that_the_mill_can_do_can_be_asked_for() -> None:
    """Each function of the mill is called by a route; a new one needs a route, or a place in the list above."""
    folder = Path(routes.__file__).parent
    source = "\n".join(path.read_text() for path in [*folder.glob("*.py"), folder.parent / "events.py"])
    called = set(re.findall(r"mill\.([a-z_]+)", source)) | {"metrics"}
    public = {name for name in dir(Mill) if not name.startswith("_") and callable(getattr(Mill, name))}
    assert public - called - HERE == set()
    assert public >= HERE


def test_what_is_cut_has_a_limit_to_be_asked_for(client: httpx.Client, mill: Mill) -> None:
    for name in ("one", "two", "three"):
        strand(mill, mill.start("letters", name, args={"folder": "texts"}).id)
    assert [len(client.get(f"/api/runs/stuck?limit={n}").json()["items"]) for n in (1, 2, 500)] == [1, 2, 3]
    assert client.get("/api/runs/stuck?limit=501").status_code == 422
    mill.reconcile()
    subject = mill.subject("letters", "one")
    for path in (f"/api/subjects/{subject.id}/recoveries", f"/api/runs/{subject.last_run or subject.active_run}/recoveries"):
        assert len(client.get(f"{path}?limit=1").json()["items"]) == 1
        assert client.get(f"{path}?limit=0").status_code == 422
    assert client.get("/api/runs/99/recoveries").status_code == 404
    for name in ("daily", "history"):
        mill.add_schedule(Schedule(name, cron="0 3 * * *", task="greet", args={"name": "dan"}))
        mill.run_schedule(name)
    assert [one["schedule"] for one in client.get("/api/firings").json()["items"]] == ["history", "daily"]
    assert len(client.get("/api/firings?limit=1").json()["items"]) == 1


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


def test_errors_come_in_pages_what_fails_the_most_first(client: httpx.Client, mill: Mill) -> None:
    mill.start("letters", "again", args=mill.run(1).args)
    mill.work(until="idle", slots=1)
    whole = client.get("/api/errors").json()["items"]
    assert [error["failed"] for error in whole] == [2, 2]
    first = client.get("/api/errors", params={"limit": 1}).json()
    rest = client.get("/api/errors", params={"limit": 1, "cursor": first["next"]}).json()
    assert first["items"] + rest["items"] == whole
    assert rest["next"] is None
    for wrong in ("1", "x-1-y", "1-1-"):
        assert client.get("/api/errors", params={"cursor": wrong}).status_code == 422


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
