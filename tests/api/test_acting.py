"""Acting: what is asked for is done by the mill, in the caller's name; what is about many is counted first."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gristmill import Mill
from tests.stranding import strand


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
        ("/api/runs/retry", {"subject": "BOO*"}, {"retried": 1}),
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
    assert post(client, f"{path}/forget") == {"dry_run": True, "count": 0}
    assert (
        client.get("/api/subjects", params={"pipeline": "letters", "subject": "a/b?c"}).json()["items"][0]["id"]
        == made["id"]
    )


def test_a_schedule_is_added_paused_run_and_removed(client: httpx.Client, mill: Mill) -> None:
    asked = {"name": "daily", "cron": "0 3 * * *", "task": "greet", "args": {"name": "dan"}}
    assert post(client, "/api/schedules", asked, 201)["state"] == "on"
    assert "`replace` puts this one in its place" in post(client, "/api/schedules", asked, 409)["detail"]
    assert post(client, "/api/schedules", {**asked, "cron": "@hourly", "replace": True}, 200)["spec"]["cron"] == "@hourly"
    assert post(client, "/api/schedules", {**asked, "name": "other", "replace": True}, 201)["name"] == "other"
    assert post(client, "/api/schedules/daily/pause")["state"] == "paused"
    assert post(client, "/api/schedules/daily/resume")["state"] == "on"
    fired = post(client, "/api/schedules/daily/run")
    assert mill.job(fired["job"]).args == {"name": "dan"}
    assert client.get("/api/schedules/daily/history").json()["items"][0]["outcome"] == "started"
    assert post(client, "/api/schedules/daily/remove") == {"name": "daily", "declared": False}
    assert client.get("/api/schedules/daily").status_code == 404


def test_what_is_stuck_is_mended_only_if_it_is_confirmed(client: httpx.Client, mill: Mill) -> None:
    run = strand(mill, mill.start("letters", "stuck", args={"folder": "texts"}).id)
    would = post(client, "/api/reconcile", {"pipeline": "letters", "subject": "stuck"})
    assert (would["dry_run"], would["count"] > 0) == (True, True)
    assert [stuck.id for stuck in mill.stuck()] == [run]
    post(client, "/api/reconcile", {"confirm": would["count"] + 1}, 409)
    assert [stuck.id for stuck in mill.stuck()] == [run]
    done = post(client, "/api/reconcile", {"confirm": would["count"]})
    assert (done["dry_run"], done["items"]) == (False, would["items"])
    assert mill.stuck() == []


def test_who_confirms_while_another_one_mends_is_told(client: httpx.Client, mill: Mill) -> None:
    strand(mill, mill.start("letters", "stuck", args={"folder": "texts"}).id)
    would, before = post(client, "/api/reconcile"), [entry.id for entry in mill.audit()]
    with mill.ledger.sole("reconcile"):
        refused = post(client, "/api/reconcile", {"confirm": would["count"]}, 409)
    assert refused["detail"].startswith("another reconciler is at work")
    assert [entry.id for entry in mill.audit()] == before
    assert post(client, "/api/reconcile", {"confirm": would["count"]})["items"] == would["items"]


def test_what_is_not_there_is_not_mended_but_not_found(client: httpx.Client) -> None:
    for asked in ({"pipeline": "lettres"}, {"subject": "boks"}, {"pipeline": "letters", "subject": "boks"}):
        post(client, "/api/reconcile", asked, 404)
    assert "did you mean 'letters'?" in post(client, "/api/reconcile", {"pipeline": "lettres"}, 404)["detail"]
    for asked in ({"pipeline": "letters"}, {"subject": "books"}):
        assert post(client, "/api/reconcile", asked)["count"] == 0


def test_the_stalest_are_started_only_if_it_is_confirmed(client: httpx.Client, mill: Mill) -> None:
    for name in ("old", "older"):
        mill.set_subject("letters", name)
    asked = {"pipeline": "letters", "args": {"folder": "texts"}, "batch": 2, "not_within": 0}
    would = post(client, "/api/runs/stalest", asked)
    assert (would["dry_run"], would["count"], would["items"]) == (True, 2, [])
    assert set(would["subjects"]) == {"old", "older"}
    assert post(client, "/api/runs/stalest", {**asked, "confirm": 1}, 409)["count"] == 2
    assert mill.runs(subject="old") == []
    done = post(client, "/api/runs/stalest", {**asked, "confirm": 2})
    assert [run["subject"] for run in done["items"]] == done["subjects"] == would["subjects"]
    assert [run.state for run in mill.runs(subject="old")] == ["queued"]


def test_who_asked_for_something_is_in_the_audit(client: httpx.Client, mill: Mill) -> None:
    name = {"args": {"name": "eve"}}
    run = post(client, "/api/runs", {"pipeline": "letters", "subject": "asked", "args": {"folder": "texts"}}, 201)["id"]
    job = post(client, "/api/jobs", {"task": "greet", **name, "once": "eve", "unique": "eve"}, 201)["id"]
    many = post(client, "/api/jobs/many", {"task": "greet", "args": [{"name": "a"}, {"name": "b"}]}, 201)["ids"]
    mill.set_subject("letters", "asked for")
    asked = {"pipeline": "letters", "args": {"folder": "texts"}, "not_within": 0, "confirm": 1}
    stale = post(client, "/api/runs/stalest", asked)["items"][0]["id"]
    post(client, "/api/reconcile", {"confirm": 0})
    found = [(entry.verb, entry.target, entry.detail) for entry in mill.audit(limit=6) if entry.who.endswith("(api)")]
    assert found[:5] == [
        ("reconcile", "everything", {"mended": 0, "left": 0}),
        ("run.stalest", "pipeline letters", {"runs": [stale]}),
        ("job.enqueue", "task greet", {"jobs": 2, "first": many[0], "last": many[1]}),
        ("job.enqueue", f"job {job}", {"task": "greet"}),
        ("run.start", f"run {run}", {"pipeline": "letters", "subject": "asked"}),
    ]


def test_what_was_not_started_and_what_programs_start_is_not_in_the_audit(client: httpx.Client, mill: Mill) -> None:
    asked = {"pipeline": "letters", "subject": "twice", "args": {"folder": "texts"}}
    new = {"task": "greet", "args": {"name": "eve"}, "once": "twice"}
    post(client, "/api/runs", asked, 201)
    post(client, "/api/jobs", new, 201)
    before = [entry.id for entry in mill.audit()]
    post(client, "/api/runs", asked)
    post(client, "/api/jobs", new)
    post(client, "/api/reconcile")
    mill.start("letters", "by a program", args={"folder": "texts"})
    mill.enqueue("greet", args={"name": "eve"})
    mill.enqueue_many("greet", [{"name": "eve"}])
    assert [entry.id for entry in mill.audit()] == before


def test_mending_says_what_it_would_do(client: httpx.Client) -> None:
    assert post(client, "/api/reconcile") == {"dry_run": True, "count": 0, "items": []}
    assert post(client, "/api/prune")["count"] == 0
    assert post(client, "/api/prune", {"confirm": 7}, 409)["count"] == 0


def test_many_subjects_are_started_only_if_it_is_confirmed(client: httpx.Client, mill: Mill) -> None:
    for name in ("a", "b", "c"):
        mill.set_subject("letters", name, labels={"shelf": "two"})
    mill.start("letters", "c", args={"folder": "c"})
    asked = {"which": {"pipeline": "letters", "label": ["shelf=two"]}, "args": {"folder": "texts"}}
    would = post(client, "/api/subjects/start", asked)
    assert (would["dry_run"], would["counts"], would["left"]) == (True, {"queued": 2}, 1)
    assert would["refusal"] == "only subjects without a run under way are started"
    assert post(client, "/api/subjects/start", {**asked, "confirm": 3}, 409)["count"] == 2
    assert mill.runs(subject="a") == []
    assert post(client, "/api/subjects/start", {**asked, "confirm": 2})["counts"] == {"queued": 2}
    assert [mill.runs(subject=name)[0].args for name in "abc"] == [{"folder": "texts"}, {"folder": "texts"}, {"folder": "c"}]
    [entry] = mill.audit(limit=1)
    assert (entry.verb, entry.target, len(entry.detail["runs"])) == ("run.start", "2 subjects", 2)


def test_a_subject_is_started_like_the_last_time(client: httpx.Client, mill: Mill) -> None:
    [books] = mill.subjects(name="books")
    mill.set_subject("letters", "new")
    [new] = mill.subjects(name="new")
    said = post(client, "/api/subjects/start", {"which": {"ids": [books.id, new.id]}}, 422)["detail"]
    assert said.startswith("letters 'new': ")
    assert mill.runs(subject="books", state="queued") == [], "all are checked before one is started"
    post(client, "/api/subjects/start", {"which": {"ids": [books.id]}, "confirm": 1})
    assert mill.runs(subject="books")[0].args == mill.run(1).args
    assert post(client, "/api/subjects/start", {"which": {"ids": [999]}}, 404)["detail"] == "there is no subject 999"
