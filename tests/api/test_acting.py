"""Acting: what is asked for is done by the mill, in the caller's name; what is about many is counted first."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gristmill import Mill


def post(client: httpx.Client, path: str, body: Any = None, status: int = 200) -> Any:
    answer = client.post(path, json={} if body is None else body)
    assert answer.status_code == status, answer.text
    return answer.json()


def patch(client: httpx.Client, path: str, body: Any, status: int = 200) -> Any:
    answer = client.patch(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_a_queue_is_paused_resumed_set_and_made(client: httpx.Client, mill: Mill) -> None:
    assert post(client, "/api/queues/mail/pause")["paused"]
    assert not post(client, "/api/queues/mail/resume")["paused"]
    changed = patch(client, "/api/queues/mail", {"weight": 2.5, "at_once": 3})
    assert (changed["weight"], changed["at_once"], changed["per_second"]) == (2.5, 3, None)
    assert patch(client, "/api/queues/mail", {"at_once": None})["at_once"] is None
    assert patch(client, "/api/queues/mai", {"weight": 1}, 404)["detail"] == "there is no queue 'mai'; did you mean 'mail'?"
    assert patch(client, "/api/queues/parcels", {"create": True})["name"] == "parcels"
    assert {entry.verb for entry in mill.audit()} >= {"queue.pause", "queue.resume"}
    assert all(entry.who.endswith("(api)") for entry in mill.audit(verb="queue.*"))


def test_a_run_is_started_joined_cancelled_and_deleted(client: httpx.Client, mill: Mill) -> None:
    asked = {"pipeline": "letters", "subject": "more", "args": {"folder": "nowhere"}, "priority": "high"}
    started = post(client, "/api/runs", asked, 201)
    assert (started["created"], started["priority"]) == (True, "high")
    joined = post(client, "/api/runs", asked, 200)
    assert (joined["created"], joined["id"]) == (False, started["id"])
    assert post(client, "/api/runs", {**asked, "if_active": "refuse"}, 409)["title"] == "Conflict"
    rehearsed = post(client, f"/api/runs/{started['id']}/cancel", {"dry_run": True})
    assert rehearsed["state"] == "queued"
    assert post(client, f"/api/runs/{started['id']}/cancel", {"reason": "no shelf"})["state"] == "cancelled"
    assert post(client, f"/api/runs/{started['id']}/cancel", status=409)["detail"].endswith("is cancelled already")
    which = {"which": {"ids": [started["id"]]}}
    would = post(client, "/api/runs/delete", which)
    assert would["dry_run"]
    assert mill.run(started["id"]).state == "cancelled"
    gone = post(client, "/api/runs/delete", {**which, "confirm": would["count"]})
    assert (gone["counts"], gone["dry_run"]) == (would["counts"], False)
    assert client.get(f"/api/runs/{started['id']}").status_code == 404


def test_a_part_run_begins_at_a_stage(client: httpx.Client) -> None:
    part = post(client, "/api/runs", {"pipeline": "letters", "subject": "books", "from_stage": "total"}, 201)
    assert [stage["taken_from"] for stage in part["stages"]] == [1, 1, None]


def test_jobs_are_added_once_and_many_at_a_time(client: httpx.Client, mill: Mill) -> None:
    asked = {"task": "greet", "args": {"name": "cat"}, "once": "cat", "delay": 60}
    added = post(client, "/api/jobs", asked, 201)
    assert (added["created"], added["waits"]) == (True, "delayed")
    assert post(client, "/api/jobs", asked, 200)["id"] == added["id"]
    ids = post(client, "/api/jobs/many", {"task": "anything", "args": [{"a": 1}, {"a": 2}]}, 201)["ids"]
    assert [mill.job(number).args for number in ids] == [{"a": 1}, {"a": 2}]
    assert post(client, "/api/jobs", {"task": "gret"}, 404)["detail"].startswith(
        "unknown task 'gret'; did you mean 'greet'?"
    )
    assert "needs argument 'name'" in post(client, "/api/jobs", {"task": "greet"}, 422)["detail"]


def test_the_arguments_of_a_job_that_waits_are_changed_and_checked(client: httpx.Client, mill: Mill) -> None:
    [waiting] = mill.jobs(queue="mail", state="queued")
    assert patch(client, f"/api/jobs/{waiting.id}", {"args": {"name": "eve", "times": 2}})["args"] == {
        "name": "eve",
        "times": 2,
    }
    assert "no argument 'nam'" in patch(client, f"/api/jobs/{waiting.id}", {"args": {"nam": "x"}}, 422)["detail"]
    [done] = mill.jobs(queue="mail", state="completed")
    assert patch(client, f"/api/jobs/{done.id}", {"args": {"name": "x"}}, 409)["status"] == 409


@pytest.mark.parametrize(
    ("path", "which", "counts"),
    [
        ("/api/jobs/cancel", {"task": "anything"}, {"cancelled": 5}),
        ("/api/jobs/run-now", {"queue": "mail"}, {"ready": 1}),
        ("/api/jobs/archive", {"state": ["completed", "failed"], "run": 1}, {"archived": 6}),
        ("/api/jobs/delete", {"task": "greet"}, {"deleted": 1}),
        ("/api/jobs/retry", {"run": 1}, {"queued": 2}),
        ("/api/runs/delete", {"pipeline": "letters"}, {"runs": 1, "jobs": 7}),
    ],
)
def test_many_are_counted_then_confirmed(
    client: httpx.Client, mill: Mill, path: str, which: dict[str, Any], counts: dict[str, int]
) -> None:
    before = [(job.id, job.state, job.archived_at, job.run_at) for job in mill.jobs(limit=100, archived=None)]
    would = post(client, path, {"which": which})
    assert (would["dry_run"], would["count"], would["counts"]) == (True, sum(counts.values()), counts)
    wrong = post(client, path, {"which": which, "confirm": would["count"] + 1}, 409)
    assert wrong["count"] == would["count"]
    assert [(job.id, job.state, job.archived_at, job.run_at) for job in mill.jobs(limit=100, archived=None)] == before
    done = post(client, path, {"which": which, "confirm": would["count"]})
    assert (done["dry_run"], done["counts"]) == (False, counts)
    assert post(client, path, {"which": which})["count"] == 0
    assert mill.audit(limit=1)[0].who.endswith("(api)")


def test_a_queue_is_purged_by_its_count(client: httpx.Client) -> None:
    assert post(client, "/api/queues/default/purge")["counts"] == {"cancelled": 5}
    assert post(client, "/api/queues/default/purge", {"confirm": 4}, 409)["count"] == 5
    assert post(client, "/api/queues/default/purge", {"confirm": 5})["counts"] == {"cancelled": 5}


def test_failed_items_are_retried_by_run_by_error_and_one_by_one(client: httpx.Client, mill: Mill) -> None:
    first, second = mill.jobs(state="failed")
    would = post(client, "/api/runs/1/retry", {"failed": True})
    assert (would["dry_run"], would["count"], would["items"]) == (True, 2, {"count": {"failed": 2}})
    assert post(client, "/api/runs/1/retry", {"confirm": 1}, 409)["count"] == 2
    path = f"/api/errors/{first.fingerprint}/retry"
    assert post(client, path)["count"] == 1
    assert post(client, path, {"confirm": 1})["queued"] == 1
    assert mill.job(first.id).state == "queued"
    assert post(client, f"/api/jobs/{second.id}/retry", {"dry_run": True})["state"] == "failed"
    assert post(client, f"/api/jobs/{second.id}/retry")["state"] == "queued"
    mill.work(run=1, slots=1)
    assert mill.run(1).epoch > 1
    assert mill.run(1).state == "completed_with_errors"
    assert post(client, "/api/runs/1/retry", {"stage": "count", "key": "good*", "confirm": 1})["after"] == ["total"]


def test_an_error_is_ignored_and_heeded_again(client: httpx.Client, mill: Mill) -> None:
    [error, *_] = mill.errors()
    post(client, f"/api/errors/{error.fingerprint}/ignore")
    assert error.fingerprint not in [one["fingerprint"] for one in client.get("/api/errors").json()["items"]]
    post(client, f"/api/errors/{error.fingerprint}/ignore", {"undo": True})
    assert error.fingerprint in [one["fingerprint"] for one in client.get("/api/errors").json()["items"]]


def test_a_subject_is_made_set_purged_and_forgotten(client: httpx.Client, mill: Mill) -> None:
    made = post(client, "/api/subjects", {"pipeline": "letters", "subject": "a/b?c", "interval": 60, "labels": {"x": "y"}})
    path = f"/api/subjects/{made['id']}"
    assert (made["name"], made["interval"], made["labels"]) == ("a/b?c", 60.0, {"x": "y"})
    assert patch(client, path, {"labels": {"x": None, "z": "1"}})["labels"] == {"z": "1"}
    run = post(client, "/api/runs", {"pipeline": "letters", "subject": "a/b?c", "args": {"folder": "x"}}, 201)["id"]
    would = post(client, f"{path}/purge")
    assert would["counts"]["stopped"] == 1
    post(client, f"{path}/purge", {"confirm": would["count"]})
    assert mill.run(run).state == "cancelled"
    assert post(client, f"{path}/forget") == {"forgotten": 0}
    assert (
        client.get("/api/subjects", params={"pipeline": "letters", "subject": "a/b?c"}).json()["items"][0]["id"]
        == made["id"]
    )


def test_a_schedule_is_added_paused_run_and_removed(client: httpx.Client, mill: Mill) -> None:
    asked = {"name": "daily", "cron": "0 3 * * *", "task": "greet", "args": {"name": "dan"}}
    assert post(client, "/api/schedules", asked, 201)["state"] == "on"
    assert post(client, "/api/schedules", asked, 409)["status"] == 409
    assert post(client, "/api/schedules/daily/pause")["state"] == "paused"
    assert post(client, "/api/schedules/daily/resume")["state"] == "on"
    fired = post(client, "/api/schedules/daily/run")
    assert mill.job(fired["job"]).args == {"name": "dan"}
    assert client.get("/api/schedules/daily/history").json()["items"][0]["outcome"] == "started"
    assert post(client, "/api/schedules/daily/remove") == {"name": "daily", "declared": False}
    assert client.get("/api/schedules/daily").status_code == 404


def test_mending_says_what_it_would_do(client: httpx.Client) -> None:
    assert post(client, "/api/reconcile", {"dry_run": True}) == {"items": []}
    assert post(client, "/api/prune")["count"] == 0
    assert post(client, "/api/prune", {"confirm": 7}, 409)["count"] == 0
