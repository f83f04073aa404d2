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
    done = waiting.run("job", "retry", 2)
    assert (done.out, done.err) == ("job 2 is queued\n", "note: no worker is running; start one with: gristmill up\n")
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
    assert waiting.run("queue", "set", "mail", "--weight", "2.5").out == "queue mail has weight 2.5, no limit\n"
    assert waiting.call("queue", "set", "extra", "--create").code == 0
    weights = {queue["name"]: queue["weight"] for queue in waiting.call("queue", "list", "--json").json}
    assert (weights["mail"], weights["extra"]) == (2.5, 1.0)


def test_reconcile_finds_nothing_to_mend(waiting: Cli) -> None:
    result = waiting.run("reconcile")
    assert (result.code, result.out) == (0, "nothing to mend\n")
    assert waiting.call("reconcile", "--dry-run", "--subject", "books", "--json").json == []
    unknown = waiting.call("reconcile", "--pipeline", "letters", "--subject", "bokos")
    assert unknown.code == 1
    assert "bokos" in unknown.err


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
    assert waiting.run(*words, GRISTMILL_APP=str(APP)).code == 0
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


PROBED = APP.parents[1] / "apps" / "probed.py"


def test_reconcile_asks_the_application_and_says_what_it_adopted(made: Cli) -> None:
    scans = made.folder / "scans"
    scans.mkdir()
    (scans / "a").write_text("42")
    app = ["-A", PROBED]
    start = made.call(*app, "start", "scans", "s", "--arg", f"folder={scans}", "--arg", 'pages=["a"]')
    assert (start.code, start.out) == (0, "1\n")
    made.sqlite(
        "UPDATE gm_job SET state = 2, ready = NULL, finished_at = 1",
        "UPDATE gm_stage SET state = 3, total = 1, completed = 1, outcome = 2, closed_at = 1 WHERE name = 'find'",
        "UPDATE gm_stage SET state = 2, total = 1, waiting_for = 0 WHERE name = 'ocr'",
        "INSERT INTO gm_job (run_id, stage_id, key, args, task_id, queue_id, pool, priority, state, ready, created_at)"
        " SELECT run_id, id, 'a', '{\"page\": \"a\"}', task_id, queue_id, 0, 1, 0, 1, 1 FROM gm_stage WHERE name = 'ocr'",
    )
    dry = made.call(*app, "reconcile", "--dry-run", "--json")
    assert dry.json == [
        {"what": "adopt", "target": "job 2 run 1 stage ocr key a", "detail": "queued → completed, result 42"}
    ]
    unasked = made.call("reconcile")  # without the application nobody can be asked
    assert unasked.out == "nothing to mend\n"
    assert unasked.err == "note: no application was given (-A): its probes and checks were not asked\n"
    asked = made.call(*app, "reconcile", "--pipeline", "other")
    assert (asked.out, asked.err) == ("nothing to mend\n", "")
    assert "1 thing mended" in made.run(*app, "reconcile", "--subject", "s", "--pipeline", "scans").out
    job = made.call("job", "show", 2, "--json").json
    assert (job["state"], job["result"], job["adopted"], job["attempts"][0]["outcome"]) == (
        "completed",
        42,
        True,
        "adopted",
    )
    assert "adopted by" in made.call("job", "show", 2).out
    assert made.call("run", "show", 1, "--json").json["recoveries"][0]["what"] == "adopt"
    assert "recovered: 1 time" in made.call("run", "show", 1).out
    assert "recovered: 1 time" in made.call("subject", "show", "scans", "s").out


def test_reconcile_counts_only_what_it_mended(made: Cli) -> None:
    app = ["-A", PROBED]
    made.sqlite(
        "CREATE TABLE wish (subject text, verb text)",
        "INSERT INTO wish VALUES ('a', 'enqueue'), ('b', 'look'), ('c', 'retry')",
    )
    dry = made.call(*app, "reconcile", "--dry-run")
    assert (dry.code, dry.out.splitlines()[-1]) == (1, "2 things to mend, 1 left to a person")
    done = made.call(*app, "reconcile")
    assert (done.code, done.out.splitlines()[-1]) == (1, "1 thing mended, 2 left to a person")
    assert made.call(*app, "reconcile", "--json").code == 1
    made.sqlite("DELETE FROM wish WHERE subject <> 'b'")
    assert made.call(*app, "reconcile").out.splitlines()[-1] == "1 left to a person"


def test_reconcile_as_a_loop_ends_when_it_is_told(made: Cli) -> None:
    made.sqlite(
        "INSERT INTO gm_worker (id, host, pid, born, queues, slots, version, state, registered_at, heartbeat_at,"
        " lease_until) VALUES (1, 'h', 1, 'b', '[]', 1, 'v', 0, 1, 1, 1)"
    )
    with made.spawn("reconcile", "--every", "0.05") as loop:
        assert loop.stderr is not None
        assert "mended: rescue worker 1: its lease is over" in loop.stderr.readline()
        loop.terminate()
        assert loop.wait(20) == 0
    assert made.call("reconcile", "--every", "5", "--json").code == 64


def test_a_second_reconcile_steps_aside(made: Cli) -> None:
    from gristmill.ledger.store import Ledger

    with Ledger(f"sqlite:///{made.folder}/gristmill.db").sole("reconcile"):
        second = made.run("reconcile", "--json")
        assert (second.code, second.json) == (0, [])
        assert "another reconciler is at work; this one stepped aside" in second.err
