"""Commands that read: what they print, and their JSON."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import APP, Cli, clean_environment, words

RUN_FIELDS = {"id", "pipeline", "subject", "state", "priority", "epoch", "created_at", "finished_at", "error", "stages"}
STAGE_FIELDS = {"name", "state", "total", "completed", "failed", "skipped", "cancelled"}
JOB_FIELDS = {"id", "run", "stage", "key", "task", "queue", "state", "attempt", "error"}
READERS = [
    ["status"],
    ["subject", "list"],
    ["subject", "show", "letters", "books"],
    ["run", "list"],
    ["run", "show", "1"],
    ["job", "list"],
    ["job", "show", "1"],
    ["error", "list"],
    ["why", "run", "1"],
    ["why", "job", "1"],
    ["why", "subject", "letters", "books"],
    ["queue", "list"],
    ["worker", "list", "--all"],
    ["-A", str(APP), "worker", "plan"],
    ["-A", str(APP), "reconcile", "--dry-run"],
    ["db", "current"],
    ["db", "history"],
    ["db", "check"],
]


@pytest.mark.parametrize("command", READERS, ids=words)
def test_every_reading_command_prints_plain_text_and_one_json_document(finished: Cli, command: list[str]) -> None:
    text = finished.run(*command)
    assert (text.code, text.err) == (0, "")
    assert text.out.strip()
    assert "\x1b" not in text.out
    document = finished.call(*command, "--json")
    assert (document.code, document.err) == (0, "")
    assert document.json is not None


def test_run_show_has_the_documented_fields(finished: Cli) -> None:
    run = finished.call("run", "show", "1", "--json").json
    assert run.keys() >= RUN_FIELDS
    assert all(stage.keys() >= STAGE_FIELDS for stage in run["stages"])
    assert (run["id"], run["subject"], run["state"], run["priority"]) == (1, "books", "completed_with_errors", "high")
    counted = run["stages"][1]
    assert [counted[name] for name in ("name", "total", "completed", "failed", "skipped")] == ["count", 5, 2, 2, 1]
    assert run["results"]["total"] == 9
    assert {item["key"]: item["error_class"] for item in run["failed_items"]} == {
        "empty.txt": "Permanent",
        "odd.txt": "ValueError",
    }


def test_run_show_names_the_failed_items_with_their_errors(finished: Cli) -> None:
    out = finished.call("run", "show", "1").out
    assert "run 1  letters  books  completed_with_errors" in out
    assert "failed items: 2" in out
    lines = [line.split() for line in out.splitlines() if ".txt" in line]
    assert ["count", "empty.txt", "empty", "file"] in [line[1:] for line in lines]
    assert ["count", "odd.txt", "ValueError:", "bad", "text"] in [line[1:] for line in lines]


def test_lists_are_arrays_newest_first(finished: Cli) -> None:
    jobs = finished.call("job", "list", "--json").json
    assert all(job.keys() >= JOB_FIELDS for job in jobs)
    assert [job["id"] for job in jobs] == sorted((job["id"] for job in jobs), reverse=True)
    assert len(finished.call("job", "list", "--json", "--limit", 3).json) == 3
    runs = finished.call("run", "list", "--json").json
    assert [run["id"] for run in runs] == [1]
    assert runs[0].keys() >= RUN_FIELDS


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (["--state", "failed"], {"empty.txt", "odd.txt"}),
        (["--state", "skipped", "--stage", "count"], {"left.txt"}),
        (["--state", "completed", "--queue", "count"], {"good.txt", "long.txt"}),
        (["--queue", "count", "--subject", "elsewhere"], set()),
        (["--task", "letters.count", "--run", "1"], {"good.txt", "long.txt", "empty.txt", "odd.txt", "left.txt"}),
        (["--task", "greet", "--since", "2h"], {None}),
        (["--since", "0s"], set()),
    ],
    ids=words,
)
def test_job_list_filters(finished: Cli, filters: list[str], found: set[str | None]) -> None:
    assert {job["key"] for job in finished.call("job", "list", "--json", *filters).json} == found


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (["--state", "completed_with_errors", "--subject", "books", "--pipeline", "letters", "--since", "1d"], 1),
        (["--state", "completed"], 0),
        (["--subject", "elsewhere"], 0),
        (["--subject", "BOO*", "--stage", "count"], 1),
        (["--stage", "total"], 0),
        (["--error", "0123456789ab"], 0),
        (["--since", "0"], 0),
    ],
    ids=words,
)
def test_run_list_filters(finished: Cli, filters: list[str], found: int) -> None:
    assert len(finished.call("run", "list", "--json", *filters).json) == found
    assert ("no runs match" in finished.call("run", "list", *filters).err) == (not found)


def test_job_show_prints_attempts_with_traceback_and_log(finished: Cli) -> None:
    odd = next(job["id"] for job in finished.call("job", "list", "--json").json if job["key"] == "odd.txt")
    out = finished.call("job", "show", odd).out
    for expected in ("odd.txt  failed", "attempt 1", "traceback:", "in count", "log:", "printed before", "logged before"):
        assert expected in out
    assert "\x1b" not in out  # what a job says cannot steer the terminal
    assert "two lines \\x1b[31m" in out
    [attempt] = finished.call("job", "show", odd, "--json").json["attempts"]
    assert attempt["error_class"] == "ValueError"
    assert "logged before the end" in attempt["log"]


def test_job_show_of_a_completed_job_prints_its_result(finished: Cli) -> None:
    greet = finished.call("job", "list", "--task", "greet", "--json").json[0]
    assert greet["result"] == ["007", 1, None]
    assert '["007", 1, null]' in finished.call("job", "show", greet["id"]).out


def test_a_list_that_was_cut_says_so(finished: Cli) -> None:
    assert "--limit N shows more" in finished.call("job", "list", "--limit", 2).err
    assert finished.call("job", "list", "--limit", 100).err == ""


def test_status_of_a_database_with_nothing_in_it(made: Cli) -> None:
    out = made.call("status").out
    assert "runs  none yet" in out
    assert "workers  none is running" in out
    assert "there are no runs yet" in made.call("run", "list").err
    assert made.call("run", "list", "--json").json == []


READING = [["status"], ["run", "list"], ["job", "show", "1"], ["watch"], ["queue", "list"], ["worker", "list"]]


@pytest.mark.parametrize("command", READING, ids=words)
def test_reading_makes_no_database(cli: Cli, command: list[str]) -> None:
    result = cli.call(*command, "--database", "sqlite:///typo.db")
    to_make_it = "gristmill --database sqlite:///typo.db db upgrade"
    assert (result.code, result.err) == (69, f"Error: there is no database sqlite:///typo.db; to make it: {to_make_it}\n")
    assert not (cli.folder / "typo.db").exists()


def test_reading_makes_no_tables_in_a_database_of_others(cli: Cli) -> None:
    (cli.folder / "empty.db").touch()
    result = cli.call("status", "--database", "sqlite:///empty.db")
    assert result.code == 69
    assert "has no Gristmill schema; run: gristmill --database sqlite:///empty.db db upgrade" in result.err
    with contextlib.closing(sqlite3.connect(cli.folder / "empty.db")) as database:
        assert database.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)


def test_watching_as_json_is_one_document_per_line(finished: Cli) -> None:
    result = finished.call("watch", 1, "--json")
    (line,) = result.out.splitlines()
    assert json.loads(line)["state"] == "completed_with_errors"


def test_a_run_shows_its_gates_and_its_one_jobs_error(made: Cli) -> None:
    (made.folder / "gated.py").write_text(
        """
from gristmill import Pipeline
flow = Pipeline("flow")
@flow.stage
def first(ctx): pass
@flow.gate(after=first)
def enough(ctx): raise ValueError("not enough")
"""
    )
    made.call("-A", "gated.py", "start", "flow", "s")
    made.call("-A", "gated.py", "work", "--drain", "-n", 1)
    shown = made.call("run", "show", 1)
    assert "enough (gate)  failed" in shown.out
    assert "stage 'enough': ValueError: not enough" in shown.out


def test_watching_an_ended_run_prints_how_it_ended(finished: Cli) -> None:
    result = finished.run("watch", 1)
    assert result.code == 0
    assert result.out.startswith("run 1 letters books: completed_with_errors in ")
    assert "count 5/5 (2 failed, 1 skipped)" in result.out


def test_watching_all_without_a_terminal_ends_when_nothing_runs(finished: Cli) -> None:
    result = finished.call("watch")
    assert (result.code, result.out) == (0, "nothing is running\n")


def test_a_reader_that_leaves_is_answered_quietly(finished: Cli) -> None:
    with finished.spawn("job", "list") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


def test_a_full_disk_is_one_line(finished: Cli) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "gristmill", "run", "list"]
        result = subprocess.run(
            command, cwd=finished.folder, env=clean_environment(), stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (result.returncode, result.stderr) == (1, "Error: [Errno 28] No space left on device\n")


def test_a_terminal_that_lacks_letters_gets_question_marks_and_escaped_json(made: Cli) -> None:
    texts = made.texts(a="x")
    assert made.call("-A", APP, "start", "letters", "Жук", "--arg", f"folder={texts}").code == 0
    assert "  ???  " in made.run("run", "list", PYTHONIOENCODING="latin-1").out
    assert made.run("run", "list", "--json", PYTHONIOENCODING="latin-1").json[0]["subject"] == "Жук"
