"""`schedule`, `subject start-stalest`, `--once`: what an operator, cron and Kubernetes type."""

from __future__ import annotations

import re

import pytest

from tests.cli.conftest import APP, Cli


def add(cli: Cli, name: str, cron: str, *options: str) -> None:
    result = cli.call("-A", APP, "schedule", "add", name, cron, *options)
    assert (result.code, result.err) == (0, "")


def test_adding_and_listing(made: Cli) -> None:
    added = made.call(
        "-A", APP, "schedule", "add", "hello", "0 3 * * *", "--tz", "Europe/Berlin", "--task", "greet", "--arg", "name=007"
    )
    assert (added.code, added.err) == (0, "")
    assert added.out.startswith("hello: task greet; At 03:00 every day (Europe/Berlin); next in ")
    add(made, "sweep", "off", "--pipeline", "letters", "--label", "region=eu", "--spread", "1h", "--arg", "folder=x")
    [header, hello, sweep] = made.call("schedule", "list").out.splitlines()
    assert header.split() == ["SCHEDULE", "STATE", "STARTS", "WHEN", "NEXT", "LAST", "NOTE"]
    assert re.search(
        r"^hello +on +task greet +At 03:00 every day \(Europe/Berlin\) +in \d+ .* +never +added by hand$", hello
    )
    assert re.search(r"^sweep +off +stalest of letters +off +never", sweep)
    [first, second] = made.call("schedule", "list", "--json").json
    assert (first["name"], first["state"], first["spec"]["args"], first["declared"]) == (
        "hello",
        "on",
        {"name": "007"},
        False,
    )
    assert (second["spec"]["labels"], second["spec"]["spread"], second["next_at"]) == (["region=eu"], 3600, None)


def test_a_life(made: Cli) -> None:
    add(made, "hello", "@daily", "--task", "greet", "--arg", "name=x")
    paused = made.call("schedule", "pause", "hello")
    assert (paused.code, paused.out) == (0, "schedule hello is paused; to go on: gristmill schedule resume hello\n")
    assert re.search(r"paused just now by |paused .* ago by ", made.call("schedule", "list").out)
    assert made.call("schedule", "resume", "hello").out.startswith("schedule hello fires again: in ")
    assert made.call("schedule", "history").err == "note: nothing was due yet\n"
    ran = made.call("-A", APP, "schedule", "run-now", "hello")
    assert (ran.code, ran.out) == (0, "1\n")
    assert ran.err.startswith("note: no worker is running; start one with: gristmill ")
    again = made.call("-A", APP, "schedule", "run-now", "hello")
    assert (again.code, again.err) == (1, "Error: schedule 'hello': job 1 of the last time is queued\n")
    [_, row] = made.call("schedule", "history", "hello").out.splitlines()
    assert re.search(r"^hello .* started +job 1 +asked for by ", row)
    assert made.call("schedule", "history", "--json").json[0]["job"] == 1
    assert made.call("schedule", "remove", "hello").out == "schedule hello is gone\n"
    assert made.call("schedule", "list").err.startswith("note: there are no schedules")
    assert made.call("job", "show", "1").code == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["add", "x", "61 * * * *", "--task", "greet", "--arg", "name=x"], 64, "'61' at character 1 is no minute (0 to 59"),
        (
            ["add", "x", "off", "--task", "greet", "--tz", "Europe/Berln", "--arg", "name=x"],
            64,
            "did you mean 'Europe/Berlin'",
        ),
        (["add", "x", "off", "--task", "great"], 64, "unknown task 'great'; did you mean 'greet'"),
        (["add", "x", "off", "--task", "greet"], 64, "needs argument 'name'"),
        (["add", "x", "off"], 64, "give it a task or a pipeline"),
        (["add", "x", "off", "--task", "greet", "--pipeline", "letters"], 64, "and not both"),
        (["add", "x", "off", "--task", "anything", "--window", "2-4"], 64, "window '2-4' must be like"),
        (["add", "x", "off", "--task", "anything", "--catch-up", "al"], 64, "did you mean 'all'"),
        (["pause", "x"], 1, "there is no schedule 'x'"),
        (["history", "x"], 1, "there is no schedule 'x'"),
        (["run-now", "x"], 1, "there is no schedule 'x'"),
    ],
)
def test_what_is_wrong_is_said(made: Cli, words: list[str], code: int, said: str) -> None:
    result = made.call("-A", APP, "schedule", *words)
    assert (result.code, result.out) == (code, "")
    assert said in result.err
    assert len(result.err.splitlines()) == 1


def test_adding_twice_wants_replace(made: Cli) -> None:
    add(made, "x", "off", "--task", "anything")
    twice = made.call("-A", APP, "schedule", "add", "x", "@daily", "--task", "anything")
    assert (twice.code, "--replace" in twice.err) == (1, True)
    add(made, "x", "@daily", "--task", "anything", "--replace")


# ---- for other schedulers


def test_enqueue_once_is_one_job_and_no_error(made: Cli) -> None:
    command = ("-A", APP, "enqueue", "anything", "--once", "nightly-28391220")
    first, again = made.call(*command), made.call(*command)
    assert (first.code, again.code, first.out, again.out) == (0, 0, "1\n", "1\n")
    assert "job 1 has this --once key and is queued; nothing was added" in again.err


def test_start_once_is_one_run_and_no_error(made: Cli) -> None:
    command = ("-A", APP, "start", "letters", "books", "--arg", "folder=x", "--once", "k")
    first, again = made.call(*command), made.call(*command)
    assert (first.code, again.code, first.out, again.out) == (0, 0, "1\n", "1\n")
    assert "run 1 of books is queued already; nothing was started" in again.err


def test_the_stalest_is_started_and_none_is_no_error(made: Cli) -> None:
    for name in ("b", "a"):
        made.call("-A", APP, "subject", "set", "letters", name, "--label", "region=eu")
    command = ("-A", APP, "subject", "start-stalest", "letters", "--arg", "folder=x", "--label", "region=eu")
    assert made.call(*command).out == "1  a\n"
    assert [run["subject"] for run in made.call(*command, "--batch", "5", "--json").json] == ["b"]
    none = made.call(*command)
    assert (none.code, none.out, none.err) == (0, "", "note: no subject of letters is due\n")
