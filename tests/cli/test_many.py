"""Commands on many jobs and runs: which, how many, are you sure, and the record of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import APP, Cli


@pytest.fixture
def waiting(made: Cli) -> Cli:
    """Run 1 is queued, and so are jobs 2 to 4; 4 is delayed. Nobody works."""
    made.call("-A", APP, "start", "letters", "books", "--arg", f"folder={made.texts(a='abc')}")
    for unique in ("anna", "ben"):
        made.call("-A", APP, "enqueue", "greet", "--arg", f"name={unique}", "--unique", unique)
    made.call("-A", APP, "enqueue", "greet", "--arg", "name=later", "--in", "1h")
    return made


@pytest.fixture
def ended(finished_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """What the finished one is, to be changed: run 1 with its jobs, and a job on its own."""
    shutil.copy(finished_folder / "gristmill.db", tmp_path)
    return Cli(tmp_path, monkeypatch, capsys)


def states(cli: Cli) -> list[str]:
    return [job["state"] for job in reversed(cli.call("job", "list", "--json").json)]


def test_a_filter_is_previewed_and_wants_a_yes(waiting: Cli) -> None:
    words = ("job", "cancel", "--queue", "mail", "--state", "queued", "--key", "a*")
    assert waiting.call(*words, "--dry-run").out == "1 job would be cancelled\n"
    asked = waiting.run(*words)  # nobody is there to answer
    assert asked.code == 64
    assert asked.err.startswith("Error: 1 job would be cancelled; nobody is there to be asked: add --yes")
    assert states(waiting) == ["queued"] * 4
    assert waiting.run(*words, "--yes", "--reason", "typo").out == "1 job is cancelled\n"
    assert states(waiting) == ["queued", "cancelled", "queued", "queued"]
    assert waiting.call(*words, "--yes").err == "note: nothing matches; nothing was done\n"


@pytest.mark.parametrize(("answer", "left"), [(True, 0), (False, 4)])
def test_at_a_terminal_one_is_asked(waiting: Cli, monkeypatch: pytest.MonkeyPatch, answer: bool, left: int) -> None:
    asked: list[str] = []

    def ask(text: str, **_: object) -> bool:
        asked.append(text)
        return answer

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", ask)
    result = waiting.call("job", "cancel", "--state", "queued")
    assert asked == ["4 jobs would be cancelled; go on?"]
    assert result.code == (0 if answer else 1)
    assert states(waiting).count("queued") == left


def test_numbers_need_no_yes_and_say_what_stays(waiting: Cli) -> None:
    assert waiting.call("job", "cancel", 2, 3).out == "2 jobs are cancelled\n"
    more = waiting.call("job", "cancel", 2, 3, 4)
    assert more.out == "1 job is cancelled\n"
    assert more.err == "note: 2 of those given stay as they are: only what is queued or in progress can be cancelled\n"
    again = waiting.call("job", "cancel", 2, 3)
    assert (again.code, again.err) == (1, "Error: only what is queued or in progress can be cancelled\n")
    assert waiting.call("job", "cancel", 2, 99).err == "Error: there is no job 99\n"


def test_which_has_to_be_said(waiting: Cli) -> None:
    for words in (["job", "cancel"], ["job", "delete", "--yes"], ["run", "cancel"], ["job", "run-now"], ["run", "delete"]):
        result = waiting.call(*words)
        assert result.code == 64
        assert "their numbers, or at least one of --state" in result.err


def test_json_says_how_many(waiting: Cli) -> None:
    counts = waiting.call("job", "cancel", "--task", "greet", "--dry-run", "--json").json["counts"]
    assert counts == {"cancelled": 3}
    done = waiting.call("job", "cancel", "--task", "greet", "--yes", "--json").json
    assert (done["counts"], done["open"]) == ({"cancelled": 3}, False)
    assert waiting.call("audit", "--json").json[0]["id"] == done["record"]


def test_a_refusal_says_what_the_job_is(waiting: Cli) -> None:
    refused = waiting.call("job", "archive", 4)
    said = "Error: job 4 is queued; only what has ended, and is not archived yet, can be archived\n"
    assert (refused.code, refused.err) == (1, said)


def test_a_delayed_job_runs_now(waiting: Cli) -> None:
    assert waiting.call("job", "run-now", 4, "--dry-run").out == "1 job would be ready\n"
    assert waiting.call("job", "run-now", 4).out == "1 job is ready\n"
    assert waiting.call("job", "show", 4, "--json").json["run_at"] is None
    again = waiting.call("job", "run-now", 4)
    assert (again.code, again.out) == (1, "")
    assert "only what is delayed can be run now" in again.err


def test_arguments_are_edited_and_checked(waiting: Cli) -> None:
    assert waiting.call("-A", APP, "job", "edit", 4, "--arg", "times=2", "--dry-run").code == 0
    assert waiting.call("job", "show", 4, "--json").json["args"] == {"name": "later"}
    said = waiting.call("-A", APP, "job", "edit", 4, "--arg", "times=2", "--arg", "name=007").out
    assert said == "job 4 runs with name=007  times=2\n"
    assert waiting.call("job", "show", 4, "--json").json["args"] == {"name": "007", "times": 2}
    wrong = waiting.call("-A", APP, "job", "edit", 4, "--arg", "nmae=x")
    assert (wrong.code, "did you mean 'name'" in wrong.err) == (64, True)
    assert waiting.call("-A", APP, "job", "edit", 4, "--only", "--arg", "times=2").code == 64  # needs a name
    assert waiting.call("job", "edit", 4, "--only", "--arg", "name=x").code == 0
    assert waiting.call("job", "show", 4, "--json").json["args"] == {"name": "x"}
    waiting.call("job", "cancel", 4)
    assert waiting.call("job", "edit", 4, "--arg", "name=y").err.startswith("Error: job 4 is cancelled already")


def test_edited_arguments_are_checked_wherever_the_application_was_named(waiting: Cli) -> None:
    wrong = waiting.run("job", "edit", 4, "--arg", "nmae=x", GRISTMILL_APP=str(APP))
    assert (wrong.code, "did you mean 'name'" in wrong.err) == (64, True)
    (waiting.folder / "pyproject.toml").write_text(f'[tool.gristmill]\napp = "{APP}"\n')
    assert waiting.call("job", "edit", 4, "--arg", "nmae=x").code == 64
    assert waiting.call("job", "edit", 4, "--arg", "name=007").err == ""
    assert waiting.call("job", "show", 4, "--json").json["args"] == {"name": "007"}
    (waiting.folder / "pyproject.toml").unlink()
    unchecked = waiting.call("job", "edit", 4, "--arg", "nmae=x")
    assert (unchecked.code, unchecked.out) == (0, "job 4 runs with name=007  nmae=x\n")
    assert unchecked.err.startswith("note: the arguments were not checked: no application was given; name one with -A")
    other = waiting.call("-A", APP.parents[1] / "apps" / "probed.py", "job", "edit", 4, "--arg", "name=x")
    assert other.err == "note: the arguments were not checked: the application has no task 'greet'\n"


def test_a_queue_is_purged(waiting: Cli) -> None:
    assert waiting.call("queue", "purge", "mail").code == 64
    assert waiting.call("queue", "purge", "mail", "--dry-run").out == "3 jobs would be cancelled\n"
    assert waiting.call("queue", "purge", "mail", "--yes").out == "3 jobs are cancelled\n"
    assert states(waiting) == ["queued", "cancelled", "cancelled", "cancelled"]
    wrong = waiting.call("queue", "purge", "mial", "--yes")
    assert (wrong.code, wrong.err) == (1, "Error: unknown queue 'mial'; did you mean 'mail'?\n")


def test_runs_are_stopped_by_filter(waiting: Cli) -> None:
    waiting.call("-A", APP, "start", "letters", "others", "--arg", f"folder={waiting.folder}")
    assert waiting.call("run", "cancel", "--pipeline", "letters", "--dry-run").out == "2 runs would be stopped\n"
    assert waiting.call("run", "cancel", "--pipeline", "letters", "--yes").out == "2 runs are stopped\n"
    assert {run["state"] for run in waiting.call("run", "list", "--json").json} == {"cancelled"}
    assert waiting.call("run", "cancel", 1, 5).code == 1


def test_a_subject_is_purged_and_with_history_it_never_was(waiting: Cli) -> None:
    words = ("subject", "purge", "letters", "books")
    assert waiting.call(*words).code == 64
    assert waiting.call(*words, "--dry-run").out == "1 run would be stopped, 1 job would be cancelled\n"
    assert waiting.call(*words, "--yes").out == "1 run is stopped, 1 job is cancelled\n"
    assert waiting.call(*words, "--history", "--yes").out == "1 run is deleted, 1 item is deleted with that, and any parts\n"
    assert waiting.call("subject", "show", "letters", "books", "--json").json["last_run"] is None
    assert waiting.call("run", "list", "--json").json == []
    assert waiting.call("subject", "purge", "letters", "boks", "--yes").code == 1


def test_ended_jobs_are_archived_and_deleted(ended: Cli) -> None:
    alone = next(job["id"] for job in ended.call("job", "list", "--json").json if job["run"] is None)
    assert ended.call("job", "archive", "--state", "failed", "--yes").out == "2 jobs are archived\n"
    assert "failed" not in states(ended)
    archived = ended.call("job", "list", "--archived", "--json").json
    assert [job["state"] for job in archived] == ["failed", "failed"]
    assert "archived" in ended.call("job", "show", archived[0]["id"]).out
    again = ended.call("job", "archive", archived[0]["id"])
    assert (again.code, again.err) == (
        1,
        f"Error: job {archived[0]['id']} is failed and archived;"
        " only what has ended, and is not archived yet, can be archived\n",
    )
    assert ended.call("job", "archive", archived[0]["id"], "--undo").out == "1 job is listed again\n"
    assert ended.call("job", "delete", alone).code == 64  # it cannot be undone, so it wants a yes
    assert ended.call("job", "delete", alone, "--yes").out == "1 job is deleted\n"
    assert ended.call("job", "show", alone).code == 1
    refused = ended.call("job", "delete", archived[0]["id"], "--yes")
    assert (refused.code, "go with it: run delete" in refused.err) == (1, True)


def test_an_ended_run_is_deleted(ended: Cli) -> None:
    jobs = len([job for job in ended.call("job", "list", "--json").json if job["run"] == 1])
    deleted = f"1 run would be deleted, {jobs} items would be deleted with that, and any parts\n"
    assert ended.call("run", "delete", 1, "--dry-run").out == deleted
    assert ended.call("run", "delete", 1, "--yes").code == 0
    assert ended.call("run", "show", 1).err == "Error: there is no run 1\n"


def test_the_audit_says_who_did_what(waiting: Cli) -> None:
    assert waiting.call("audit").err == "note: nobody has done anything yet\n"
    waiting.call("queue", "pause", "mail")
    waiting.call("job", "cancel", "--queue", "mail", "--yes", "--reason", "too many")
    first, second = waiting.call("audit", "--json").json
    assert (first["verb"], first["done"]) == ("job.cancel", {"cancelled": 3, "told to stop": 0})
    assert (second["verb"], second["target"]) == ("queue.pause", "queue mail")
    assert len(waiting.call("audit", "--verb", "queue.*", "--since", "1h", "--json").json) == 1
    assert waiting.call("audit", "--who", "nobody@*").err == "note: no entries match\n"
    shown = waiting.call("audit").out
    assert "jobs: queue mail" in shown
    assert "reason too many, cancelled 3" in shown
    assert waiting.call("audit", "--limit", 1).err == "note: these are the newest 1; --limit N shows more\n"


def test_prune_removes_what_is_not_kept(ended: Cli) -> None:
    kept = ended.call("-A", APP, "prune")
    assert kept.out == "0 runs and 0 jobs are removed\n"
    assert "no retention is set" in kept.err
    assert "GRISTMILL_KEEP_DAYS=30" in kept.err
    words = ("-A", APP, "prune")
    settings = {"GRISTMILL_KEEP_DAYS": "0.0000001"}
    assert ended.run(*words, "--dry-run", **settings).out == "0 runs and 1 job would be removed\n"  # its last run stays
    assert ended.run(*words, "--json", **settings).json == {"runs": 0, "jobs": 1, "workers": 0, "audit": 0, "open": False}
    without = ended.call("prune")
    assert (without.code, "no application was given" in without.err) == (64, True)


def test_a_list_tells_what_is_queued_apart(waiting: Cli) -> None:
    listed = waiting.call("job", "list").out.splitlines()
    assert [line.split("queued")[1].split()[0] for line in listed[1:]] == [",", "0", "0", "0"]
    assert "queued, delayed" in listed[1]
    assert "queued, delayed" in waiting.call("job", "show", 4).out
    assert [job["waits"] for job in waiting.call("job", "list", "--json").json] == ["delayed", None, None, None]


def test_of_several_states_any_will_do(ended: Cli) -> None:
    def listed(what: str, *states: str) -> list[str]:
        options = [word for state in states for word in ("--state", state)]
        return [one["state"] for one in ended.call(what, "list", *options, "--json").json]

    assert set(listed("job", "failed", "completed")) == {"failed", "completed"}
    assert len(listed("job", "failed", "completed")) == len(listed("job", "failed")) + len(listed("job", "completed"))
    assert listed("run", "failed", "completed_with_errors") == ["completed_with_errors"]
    both = ended.call("job", "archive", "--state", "failed", "--state", "completed", "--dry-run").out
    assert both == f"{len(listed('job', 'failed', 'completed'))} jobs would be archived\n"
    assert ended.call("run", "delete", "--state", "failed", "--state", "cancelled", "--yes").err == (
        "note: nothing matches; nothing was done\n"
    )
