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


def test_subject_set_changes_what_is_given_and_the_lists_find_it(waiting: Cli) -> None:
    set_ = ("subject", "set", "letters", "books")
    said = waiting.run(*set_, "--interval", "6h", "--label", "tier=gold", "--label", "town=Oak Field")
    assert (said.code, said.out) == (0, "letters books: every 6 h; tier=gold  town=Oak Field\n")
    assert waiting.call(*set_, "--unlabel", "town", "--interval", "off").out == (
        "letters books: no interval of its own; tier=gold\n"
    )
    (found,) = waiting.call(
        "subject", "list", "--label", "tier=gold", "--stale-for", "1d", "--state", "queued", "--json"
    ).json
    assert (found["name"], found["labels"], found["interval"]) == ("books", {"tier": "gold"}, None)
    assert (found["state"], found["active_run"], found["age"]) == ("queued", 1, None)
    assert waiting.call("subject", "list", "--label", "tier=silver").err == "note: no subjects match\n"
    shown = waiting.call("subject", "show", "letters", "books").out
    assert "subject 1  letters  books  queued" in shown
    assert [run["id"] for run in waiting.call("subject", "show", "letters", "books", "--json").json["runs"]] == [1]


def test_a_subject_is_made_only_where_the_application_is_known(waiting: Cli) -> None:
    words = ("subject", "set", "letters", "films", "--label", "tier=gold")
    assert waiting.call(*words).err == "Error: letters has no subject 'films'\n"
    assert waiting.call("-A", APP, *words).code == 0
    assert "never run" in waiting.call("subject", "show", "letters", "films").out
    page = waiting.call("subject", "list", "--limit", 1)
    assert page.err == "note: there may be more: --after 1, or --limit N\n"
    assert [s["name"] for s in waiting.call("subject", "list", "--after", 1, "--json").json] == ["films"]


def test_subject_set_refuses_what_it_cannot_read(waiting: Cli) -> None:
    set_ = ("subject", "set", "letters", "books")
    for words, message in [
        ((), "nothing to set"),
        (("--label", "gold"), "'gold' must be KEY=VALUE"),
        (("--interval", "often"), "'often' is not a duration"),
        (("--label", "tier="), "label must not be empty"),
    ]:
        result = waiting.call(*set_, *words)
        assert result.code != 0
        assert message in result.err
