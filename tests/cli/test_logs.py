"""The log as lines of JSON: of the worker, and of the functions in its children, with their ids."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from gristmill.logs import LONGEST, JsonLines, json_lines_to
from tests.cli.conftest import Cli

pytestmark = pytest.mark.alike

APP = Path(__file__).with_name("speaking.py")
FIELDS = ("pipeline", "subject", "run", "stage", "task", "key", "job", "attempt")


@pytest.fixture
def cli(on_either: Cli) -> Cli:
    return on_either


def worked(cli: Cli, *options: str, **environment: str) -> list[dict[str, Any]]:
    """What a worker says until there is nothing to do; each line is a whole JSON object."""
    result = cli.run("-A", APP, "work", "--drain", *options, **environment)
    assert result.code == 0, result.err
    return [json.loads(line) for line in result.err.splitlines()]


def said(lines: list[dict[str, Any]], message: str) -> dict[str, Any]:
    (found,) = [line for line in lines if line["message"] == message]
    return found


def test_a_job_speaks_with_its_ids(cli: Cli) -> None:
    assert cli.run("-A", APP, "start", "site", "example.org").code == 0
    lines = worked(cli, "--log-json")
    line = said(lines, "reading b")
    assert {name: line[name] for name in FIELDS if name != "job"} == {
        "pipeline": "site",
        "subject": "example.org",
        "run": 1,
        "stage": "page",
        "task": "site.page",
        "key": "b",
        "attempt": 1,
    }
    assert (line["level"], line["logger"], line["pages"]) == ("warning", "speaking", 7)
    jobs = cli.run("job", "list", "--json").json
    assert line["job"] in {job["id"] for job in jobs if job["stage"] == "page"}
    assert said(lines, "looking").keys() >= {"run", "stage", "job", "attempt", "worker", "time"}


def test_async_jobs_that_run_together_do_not_speak_for_each_other(cli: Cli) -> None:
    cli.run("-A", APP, "start", "site", "example.org")
    lines = worked(cli, GRISTMILL_LOG_JSON="1")
    assert {said(lines, f"sending {key}")["key"] for key in ("a", "b")} == {"a", "b"}
    assert said(lines, "sending a")["job"] != said(lines, "sending b")["job"]


def test_what_a_thread_of_a_job_says_is_the_jobs(cli: Cli) -> None:
    cli.run("-A", APP, "enqueue", "in_thread")
    line = said(worked(cli, "--log-json"), "from a thread")
    assert (line["task"], line["job"], line["attempt"]) == ("in_thread", 1, 1)


def test_an_error_comes_with_its_traceback_in_a_line_that_is_not_torn(cli: Cli) -> None:
    cli.run("-A", APP, "enqueue", "breaks")
    lines = worked(cli, "--log-json")
    line = said(lines, "it broke")
    assert line["error"].startswith("ValueError: xxx")
    assert line["traceback"].endswith("x")
    assert len(json.dumps(line)) < LONGEST + 200
    (end,) = [line for line in lines if line.get("outcome") == "permanent"]
    assert (end["job"], end["attempt"], end["logger"]) == (1, 1, "gristmill.worker")


def test_the_last_words_of_a_process_that_is_killed_are_there(cli: Cli) -> None:
    cli.run("-A", APP, "enqueue", "dies")
    lines = worked(cli, "--log-json")
    attempts = [line["attempt"] for line in lines if line["message"] == "my last words"]
    assert attempts == [line["attempt"] for line in lines if line.get("outcome") == "crash"]
    assert attempts


def test_without_it_a_worker_says_nothing_of_what_its_jobs_log(cli: Cli) -> None:
    cli.run("-A", APP, "enqueue", "in_thread")
    result = cli.run("-A", APP, "work", "--drain")
    assert "from a thread" not in result.err
    assert not result.err.startswith("{")


# ---- the lines themselves


def record(message: object, *args: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("x", logging.INFO, "x.py", 1, message, args, None)
    vars(made).update(extra)
    return made


class Nasty:
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    "given",
    [
        record("%d %d", 1),
        record(Nasty()),
        record("x", value=Nasty()),
        record("\ud800 half"),
        record("x", big=2**80),
        record("x", deep={"a": [{"b": {3}}], 4: "number"}),
        record("two\nlines \x00"),
        record("ü" * 100_000, more="ö" * 100_000, **{f"n{n}": "z" * 1000 for n in range(1000)}),
    ],
)
def test_whatever_is_logged_is_one_short_line_of_json(given: logging.LogRecord) -> None:
    line = JsonLines(lambda: {"job": 7})
    text = line.format(given)
    assert "\n" not in text
    assert len(text.encode()) <= LONGEST
    assert json.loads(text)["level"] == "info"


def test_who_cannot_be_written_to_is_not_waited_for() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        json_lines_to(writing).emit(record("nobody reads this"))
    finally:
        os.close(writing)
