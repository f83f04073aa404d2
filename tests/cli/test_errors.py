"""`error list|show|retry|ignore`, on what real workers left behind."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import APP, Cli


@pytest.fixture
def failed(finished_folder: Path, made: Cli) -> Cli:
    """A copy of the finished folder, to change; and two jobs on their own that failed alike, whatever their names."""
    for file in finished_folder.glob("gristmill.db*"):
        if file.is_file():
            shutil.copy(file, made.folder / file.name)
    for name in ("one", "two"):
        made.call("-A", APP, "enqueue", "hold", "--arg", f"started=/nowhere/{name}", "--arg", "release=x")
    assert made.call("-A", APP, "work", "--drain", "-n", 1).code == 0
    return made


def by_class(cli: Cli, *options: str) -> dict[str, dict[str, object]]:
    return {error["error_class"]: error for error in cli.call("error", "list", "--json", *options).json}


def test_errors_are_listed_with_what_they_hit(failed: Cli) -> None:
    found = by_class(failed)
    assert {kind: (error["failed"], error["subjects"]) for kind, error in found.items()} == {
        "FileNotFoundError": (2, 0),
        "Permanent": (1, 1),
        "ValueError": (1, 1),
    }
    first, *rows = failed.run("error", "list").out.splitlines()
    assert first.split()[:4] == ["FINGERPRINT", "FAILED", "ATTEMPTS", "SUBJECTS"]
    assert rows[0].split()[:4] == [found["FileNotFoundError"]["fingerprint"], "2", "2", "0"]


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        (["--queue", "slow"], {"FileNotFoundError"}),
        (["--stage", "count"], {"Permanent", "ValueError"}),
        (["--pipeline", "letters", "--since", "1d"], {"Permanent", "ValueError"}),
        (["--since", "0s"], set()),
    ],
)
def test_error_list_filters(failed: Cli, options: list[str], kinds: set[str]) -> None:
    assert by_class(failed, *options).keys() == kinds


def test_an_error_is_shown_with_an_example_and_where_it_happens(failed: Cli) -> None:
    number = by_class(failed)["ValueError"]["fingerprint"]
    out = failed.call("error", "show", number).out
    assert out.startswith(f"error {number}  ValueError\n")
    for said in ("letters.count", "books", "in count", "printed before the end", "failed now  1 job"):
        assert said in out
    assert out.endswith(f"to queue them again: gristmill error retry {number}\n")
    shown = failed.call("error", "show", str(number).upper(), "--json").json
    assert shown["signature"]["fingerprint"] == number
    assert shown["jobs"] == [shown["example"]["job"]]
    assert [place["stage"] for place in shown["places"]] == ["count"]


def test_an_error_is_retried_as_one(failed: Cli) -> None:
    number = by_class(failed)["FileNotFoundError"]["fingerprint"]
    assert failed.call("error", "retry", number, "--dry-run").out == "2 jobs would be queued again\n"
    done = failed.run("error", "retry", number)
    nobody = "note: no worker is running; start one with: gristmill up\n"
    assert (done.out, done.err) == ("2 jobs are queued again\n", nobody)
    assert len(failed.call("job", "list", "--state", "queued", "--json").json) == 2
    again = failed.call("error", "retry", number)
    assert (again.out, again.err) == ("0 jobs are queued again\n", "")


def test_what_cannot_be_retried_is_said(failed: Cli) -> None:
    number = by_class(failed)["Permanent"]["fingerprint"]
    failed.call("-A", APP, "start", "letters", "books", "--arg", "folder=/nowhere")
    result = failed.call("error", "retry", number)
    assert (result.code, result.out) == (0, "0 jobs are queued again\n")
    assert result.err.startswith("note: 1 job cannot be: run 1: its subject has another active run, 2")


def test_a_run_that_has_ended_is_retried_for_its_error(failed: Cli) -> None:
    number = by_class(failed)["Permanent"]["fingerprint"]
    assert failed.call("error", "retry", number).out == "1 job is queued again\n"
    assert failed.call("run", "show", 1, "--json").json["epoch"] == 2


def test_an_error_is_ignored_until_that_is_undone(failed: Cli) -> None:
    number = by_class(failed)["ValueError"]["fingerprint"]
    assert failed.call("error", "ignore", number).code == 0
    assert "ValueError" not in by_class(failed)
    assert by_class(failed, "--all")["ValueError"]["ignored"] is True
    assert "(ignored) ValueError: bad text" in failed.call("error", "list", "--all").out
    assert failed.call("error", "ignore", number, "--undo").out == f"error {number} is listed again\n"
    assert "ValueError" in by_class(failed)


def test_an_unknown_error_is_one_line(failed: Cli) -> None:
    for command in ("show", "retry", "ignore"):
        result = failed.call("error", command, "nonsense")
        assert (result.code, result.out) == (1, "")
        assert result.err.startswith("Error: there is no error 'nonsense'; ")


def test_no_errors_is_a_note(made: Cli) -> None:
    result = made.call("error", "list")
    assert (result.code, result.out, result.err) == (0, "", "note: there are no errors\n")
