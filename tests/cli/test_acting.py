"""Commands that change something: cancel, retry, pause, resume, set, reconcile."""

from __future__ import annotations

import pytest

from tests.cli.conftest import APP, Cli


@pytest.fixture
def waiting(made: Cli) -> Cli:
    """Run 1 and job 2 (on its own) are queued, and nobody works."""
    made.call("-A", APP, "start", "letters", "books", "--arg", f"folder={made.texts(a='abc')}")
    made.call("-A", APP, "enqueue", "greet", "--arg", "name=x")
    return made


def test_a_run_is_cancelled_once(waiting: Cli) -> None:
    result = waiting.run("run", "cancel", 1, "--reason", "a mistake")
    assert (result.code, result.out) == (0, "run 1 is cancelled\n")
    shown = waiting.call("run", "show", 1, "--json").json
    assert (shown["state"], shown["reason"]) == ("cancelled", "a mistake")
    again = waiting.call("run", "cancel", 1)
    assert (again.code, again.err) == (1, "Error: run 1 is cancelled already\n")


def test_a_job_is_cancelled_and_retried(waiting: Cli) -> None:
    assert waiting.run("job", "cancel", 2, "--reason", "not now").out == "job 2 is cancelled\n"
    assert waiting.call("job", "show", 2, "--json").json["error"] == "not now"
    assert waiting.call("job", "cancel", 2).code == 1
    assert waiting.run("job", "retry", 2).out == "job 2 is queued\n"
    assert waiting.call("-A", APP, "work", "--drain").code == 0
    assert waiting.call("job", "show", 2, "--json").json["state"] == "completed"
    assert waiting.call("job", "retry", 2).code == 1


def test_a_dry_run_says_what_would_be_done_and_does_nothing(waiting: Cli) -> None:
    would_stop = "run 1 is queued; it would be stopped, and 1 unfinished job of it cancelled\n"
    assert waiting.call("run", "cancel", 1, "--dry-run").out == would_stop
    assert waiting.call("run", "show", 1, "--json").json["state"] == "queued"
    assert waiting.call("job", "cancel", 2, "--dry-run").out == "job 2 is queued; it would be cancelled\n"
    assert waiting.call("job", "retry", 2, "--dry-run").code == 1
    assert waiting.call("job", "cancel", 2).out == "job 2 is cancelled\n"
    assert waiting.call("job", "retry", 2, "--dry-run").out == "job 2 is cancelled; it would be queued again\n"
    assert waiting.call("job", "cancel", 2, "--dry-run").err == "Error: job 2 is cancelled already\n"


def test_a_paused_queue_is_left_alone_until_it_is_resumed(waiting: Cli) -> None:
    assert waiting.run("queue", "pause", "mail").code == 0
    waiting.call("-A", APP, "work", "--burst")
    assert waiting.call("job", "show", 2, "--json").json["state"] == "queued"
    assert {q["name"] for q in waiting.call("queue", "list", "--json").json if q["paused"]} == {"mail"}
    assert "paused" in waiting.call("queue", "list").out
    assert waiting.run("queue", "resume", "mail").code == 0
    waiting.call("-A", APP, "work", "--burst")
    assert waiting.call("job", "show", 2, "--json").json["state"] == "completed"


def test_queue_set_changes_the_weight_and_makes_queues(waiting: Cli) -> None:
    assert waiting.run("queue", "set", "mail", "--weight", "2.5").out == "queue mail has weight 2.5\n"
    assert waiting.call("queue", "set", "extra", "--create").code == 0
    weights = {queue["name"]: queue["weight"] for queue in waiting.call("queue", "list", "--json").json}
    assert (weights["mail"], weights["extra"]) == (2.5, 1.0)


def test_reconcile_finds_nothing_to_mend(waiting: Cli) -> None:
    result = waiting.run("reconcile")
    assert (result.code, result.out) == (0, "nothing to mend\n")
    assert waiting.call("reconcile", "--dry-run", "--subject", "books", "--json").json == []


def test_reconcile_takes_back_the_jobs_of_a_worker_that_was_killed(made: Cli) -> None:
    started, release = made.fifo("started"), made.fifo("release")
    made.call("-A", APP, "enqueue", "hold", "--arg", f"started={started}", "--arg", f"release={release}")
    with made.spawn("-A", APP, "work", "-n", 1) as worker:
        assert started.read_text() == "running"
        worker.kill()
    dry = made.call("reconcile", "--dry-run")
    assert "its process is gone" in dry.out
    assert "1 thing to mend" in dry.out
    assert made.call("job", "show", 1, "--json").json["state"] == "in_progress"
    assert "1 thing mended" in made.call("reconcile").out
    assert made.call("job", "show", 1, "--json").json["state"] == "queued"
