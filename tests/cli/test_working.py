"""Commands that ask for work and do it: start, enqueue, work, up."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import APP, Cli, clean_environment


def start_held(cli: Cli) -> tuple[Path, Path]:
    """A run whose one job says through a FIFO that it runs, and waits for another."""
    started, release = cli.fifo("started"), cli.fifo("release")
    gates = ["--arg", f"started={started}", "--arg", f"release={release}"]
    assert cli.call("-A", APP, "start", "held", "s", *gates).code == 0
    return started, release


def test_start_prints_the_id_and_nothing_else_on_stdout(made: Cli) -> None:
    result = made.run("-A", APP, "start", "letters", "books", "--arg", f"folder={made.texts(a='x')}")
    assert (result.code, result.out) == (0, "1\n")
    assert "no worker is running; start one with: gristmill -A" in result.err
    assert made.call("run", "show", 1, "--json").json["state"] == "queued"


def test_whoever_makes_the_database_is_told(cli: Cli) -> None:
    """Else a typo, or another folder, would be found out when nothing ever runs."""
    start = ["-A", APP, "start", "letters", "books", "--arg", f"folder={cli.texts(a='x')}"]
    assert "made the database sqlite:" in cli.call(*start).err
    assert "made the database" not in cli.call(*start).err


def test_start_on_an_active_subject(made: Cli) -> None:
    start = ["-A", APP, "start", "letters", "books", "--arg", f"folder={made.texts(a='x')}"]
    assert made.call(*start).out == "1\n"
    joined = made.call(*start)
    assert (joined.code, joined.out) == (0, "1\n")
    assert "this joined it" in joined.err
    assert "ignored" not in joined.err
    other = made.call(*start[:-1], "folder=elsewhere")
    assert (other.code, other.out) == (0, "1\n")
    assert "note: run 1 of letters 'books' goes on with its own arguments; those given now are ignored" in other.err
    assert made.call(*start, "--if-active", "refuse").code == 1
    waiting = made.call(*start, "--if-active", "wait", "--json").json
    assert (waiting["id"], waiting["state"]) == (2, "waiting")


@pytest.mark.parametrize(
    ("files", "code", "state"),
    [({"a": "abc"}, 0, "completed"), ({"a": "abc", "b": ""}, 2, "completed_with_errors"), ({"a": ""}, 1, "failed")],
    ids=["completed", "with errors", "failed"],
)
def test_start_and_wait_follows_the_run_to_its_end(made: Cli, files: dict[str, str], code: int, state: str) -> None:
    with made.spawn("-A", APP, "work", "-n", 1) as worker:
        assert worker.stderr is not None
        assert "worker for all queues, 1 slot" in worker.stderr.readline()
        result = made.run("-A", APP, "start", "letters", "s", "--arg", f"folder={made.texts(**files)}", "--wait")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
    assert (result.code, result.out) == (code, "1\n")
    assert f"run 1 letters s: {state} in " in result.err.splitlines()[-1]


def test_start_wait_and_json_is_one_document_at_the_end(made: Cli) -> None:
    with made.spawn(
        "-A", APP, "start", "letters", "s", "--arg", f"folder={made.texts(a='abc')}", "--wait", "--json"
    ) as process:
        assert process.stderr is not None
        assert "run 1" in next(line for line in process.stderr if "waiting" in line)
        assert made.call("-A", APP, "work", "--drain").code == 0
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert '"state": "completed"' in out


def test_ctrl_c_leaves_the_run_alone(made: Cli) -> None:
    with made.spawn("-A", APP, "start", "letters", "s", "--arg", f"folder={made.texts(a='abc')}", "--wait") as process:
        assert process.stderr is not None
        next(line for line in process.stderr if line.startswith("run 1"))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == f"note: run 1 goes on; to see it again: gristmill -A {APP} watch 1\n"
    assert made.call("run", "show", 1, "--json").json["state"] == "queued"


def test_watch_ends_quietly_at_ctrl_c(made: Cli) -> None:
    made.call("-A", APP, "start", "letters", "s", "--arg", f"folder={made.texts(a='abc')}")
    with made.spawn("watch") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("run 1 letters s: find 0/1, count 0/0+, total waiting")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")


def test_a_terminal_shows_bars(made: Cli) -> None:
    made.call("-A", APP, "start", "letters", "s", "--arg", f"folder={made.texts(a='abc', b='')}")
    made.call("-A", APP, "work", "--drain")
    screen = on_terminal(made, "watch", "1")
    assert re.search(r"count +.*━+.* 2/2 +.*1 failed", screen)
    assert "completed_with_errors" in screen
    table = on_terminal(made, "run", "list")
    assert "\x1b[33mcompleted_with_errors" in table
    assert "\x1b[33m" not in on_terminal(made, "run", "list", NO_COLOR="1")


def on_terminal(cli: Cli, *args: str, **environment: str) -> str:
    """What a terminal gets to see."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "gristmill", *args]
    env = clean_environment() | {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"} | environment
    process = subprocess.Popen(command, cwd=cli.folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    screen = b""
    with contextlib.suppress(OSError):  # so Linux says that the other side has closed
        while part := os.read(ours, 4096):
            screen += part
    os.close(ours)
    assert process.wait(30) == 0
    return screen.decode()


# ---- enqueue


def test_enqueue_prints_the_id(made: Cli) -> None:
    result = made.run("-A", APP, "enqueue", "greet", "--arg", "name=world", "--priority", "low", "--queue", "count")
    assert (result.code, result.out) == (0, "1\n")
    job = made.call("job", "show", 1, "--json").json
    assert (job["task"], job["queue"], job["priority"], job["args"]) == ("greet", "count", "low", {"name": "world"})


@pytest.mark.parametrize("when", [["--in", "2h"], ["--at", "2099-01-31T14:30"], ["--at", "2099-01-31T14:30Z"]], ids=str)
def test_enqueue_for_later(made: Cli, when: list[str]) -> None:
    job = made.call("-A", APP, "enqueue", "greet", "--arg", "name=x", "--json", *when).json
    assert job["state"] == "queued"
    assert job["run_at"] > job["created_at"]


def test_a_job_in_the_past_is_ready_at_once(made: Cli) -> None:
    made.call("-A", APP, "enqueue", "greet", "--arg", "name=x", "--at", "2001-01-01T00:00Z")
    made.call("-A", APP, "work", "--burst")
    assert made.call("job", "show", 1, "--json").json["state"] == "completed"


def test_a_unique_job_is_added_once(made: Cli) -> None:
    enqueue = ["-A", APP, "enqueue", "greet", "--arg", "name=x", "--unique", "daily"]
    assert made.call(*enqueue).out == "1\n"
    second = made.call(*enqueue)
    assert (second.code, second.out) == (0, "1\n")
    assert "nothing was added" in second.err


def test_timeout_and_retries_of_one_job(made: Cli) -> None:
    made.call("-A", APP, "enqueue", "greet", "--arg", "name=x", "--timeout", "5m", "--retries", 0)
    assert made.call("-A", APP, "work", "--drain").code == 0
    assert made.call("job", "show", 1, "--json").json["state"] == "completed"


# ---- work, up


def test_burst_leaves_what_is_delayed(made: Cli) -> None:
    made.call("-A", APP, "enqueue", "greet", "--arg", "name=now")
    made.call("-A", APP, "enqueue", "greet", "--arg", "name=later", "--in", "1h")
    burst = made.run("-A", APP, "work", "--burst")
    assert (burst.code, burst.out) == (0, "")
    assert [job["state"] for job in made.call("job", "list", "--json").json] == ["queued", "completed"]


def test_drain_waits_for_what_is_delayed(made: Cli) -> None:
    made.call("-A", APP, "enqueue", "greet", "--arg", "name=later", "--in", "1")
    assert made.run("-A", APP, "work", "--drain").code == 0
    assert made.call("job", "show", 1, "--json").json["state"] == "completed"


def test_a_worker_takes_only_its_queues(made: Cli) -> None:
    made.call("-A", APP, "enqueue", "greet", "--arg", "name=x")
    made.call("-A", APP, "enqueue", "anything")
    assert made.run("-A", APP, "work", "-q", "mail", "-q", "count", "--strict", "--drain").code == 0
    assert {job["queue"]: job["state"] for job in made.call("job", "list", "--json").json} == {
        "mail": "completed",
        "default": "queued",
    }


def test_sigterm_lets_the_job_in_hand_finish(made: Cli) -> None:
    started, release = start_held(made)
    with made.spawn("-A", APP, "work", "--grace", "20s") as worker:
        assert started.read_text() == "running"
        worker.send_signal(signal.SIGTERM)
        release.write_text("done")
        _, err = worker.communicate(timeout=30)
    assert worker.returncode == 0
    assert err.splitlines()[-1].endswith("stopped")
    assert made.call("run", "show", 1, "--json").json["state"] == "completed"


def test_up_serves_all_queues_and_reports_itself(made: Cli) -> None:
    started, release = start_held(made)
    with made.spawn("-A", APP, "up", "-n", 1, "--no-dashboard") as up:
        assert up.stderr is not None
        assert re.fullmatch(
            r"\d\d:\d\d:\d\d worker for all queues, reconciler, schedules and retention, 1 slot, on sqlite:///gristmill\.db;"
            r" Ctrl-C stops it\n",
            up.stderr.readline(),
        )
        assert started.read_text() == "running"
        [worker] = made.call("worker", "list", "--json").json
        assert (worker["pid"], worker["state"], worker["slots"]) == (up.pid, "active", 1)
        assert "held" in made.call("status").out
        assert made.call("queue", "list").out.splitlines()[1].split()[1] == "served"
        release.write_text("done")
        up.send_signal(signal.SIGINT)
        assert up.wait(30) == 0
    assert made.call("worker", "list", "--json").json == []
    assert made.call("worker", "list", "--all", "--json").json[0]["state"] == "stopped"


def test_watching_as_json_prints_each_change(made: Cli) -> None:
    made.call("-A", APP, "start", "letters", "s", "--arg", f"folder={made.texts(a='abc')}")
    with made.spawn("watch", 1, "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["state"] == "queued"
        made.call("-A", APP, "work", "--drain", "-n", 1)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert json.loads(out.splitlines()[-1])["state"] == "completed"


def test_the_log_names_the_item_the_attempt_and_what_comes_next(made: Cli) -> None:
    made.call("-A", APP, "start", "letters", "s", "--arg", f"folder={made.texts(a='abc', empty='')}")
    log = made.call("-A", APP, "work", "--drain", "-n", 1).err
    assert re.search(r"job \d letters.count\[empty.txt\] attempt 1: permanent: empty file; failed for good\n", log)


# ---- what a worker has


def test_a_worker_says_what_it_has(made: Cli) -> None:
    options = ["-n", 2, "-n", "default=1", "--label", "gpu", "--label", "region=eu", "--memory", "2GB"]
    with made.spawn("-A", APP, "work", *options) as worker:
        assert worker.stderr is not None
        assert "worker for all queues with gpu, region=eu, 2 slots, default=1, on" in worker.stderr.readline()
        deadline = time.monotonic() + 60
        while not (found := made.call("worker", "list", "--json").json) and time.monotonic() < deadline:
            time.sleep(0.02)
        worker.send_signal(signal.SIGTERM)
    (listed,) = found
    assert (listed["labels"], listed["slots"], listed["own_slots"]) == (["gpu", "region=eu"], 2, {"default": 1})
    assert listed["memory_mib"] == 2048
    shown = made.call("worker", "list", "--all").out
    assert "gpu, region=eu" in shown
    assert "2 + default=1" in shown
    assert "  database  " in shown


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-n", "a=1", "-n", "a=2"], "names a queue twice"),
        (["-n", 2, "-n", 3], "give one number for all queues, and -n QUEUE=N for one of them"),
        (["-n", "default=x"], "'x' is not a whole number from 1 to 1,024"),
        (["-n", "defualt=2"], "unknown queue 'defualt'; did you mean 'default'?"),
        (["--label", "g p u"], "a label is a word or WORD=VALUE"),
        (["--memory", "much"], "--memory wants a size such as 512MB or 2GB"),
    ],
)
def test_what_a_worker_cannot_have_is_refused(made: Cli, options: list[object], words: str) -> None:
    result = made.call("-A", APP, "work", "--burst", *options)
    assert result.code in (1, 64)
    assert words in result.err


def test_who_asks_for_work_may_need_labels(made: Cli) -> None:
    assert made.call("-A", APP, "enqueue", "greet", "--arg", "name=Ada", "--needs", "region=eu").code == 0
    with made.spawn("-A", APP, "work", "--burst") as worker:
        assert "left queued: 1 job for want of label region=eu" in worker.communicate()[1]
    said = made.call("why", "job", 1)
    assert "which no running worker serves" in said.out
    assert made.run("-A", APP, "work", "--burst", "--label", "region=eu").code == 0
    assert made.call("job", "show", 1, "--json").json["state"] == "completed"


def test_a_plan_for_this_machine(made: Cli) -> None:
    shown = made.call("-A", APP, "worker", "plan")
    assert shown.code == 0
    assert f"to run it: gristmill -A {APP}" in shown.out.replace("\n", " ")
    plan = made.call("-A", APP, "worker", "plan", "--json").json
    assert plan["command"][:3] == ["work", "-n", str(plan["slots"])]
    assert all(planned["at_once"] == plan["slots"] for planned in plan["classes"])
