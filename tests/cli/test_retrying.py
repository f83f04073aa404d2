"""`run retry`, `start --from-stage`, `start --only`, `work --run`."""

from __future__ import annotations

import pytest

from gristmill.cli.starting import _stages
from tests.cli.conftest import APP, Cli


@pytest.fixture
def failed(made: Cli) -> Cli:
    """Run 1, one of whose three files could not be counted and is mended now."""
    texts = made.texts(a="abc", b="", c="de")
    made.call("-A", APP, "start", "letters", "books", "--arg", f"folder={texts}")
    assert made.call("-A", APP, "work", "--drain", "-n", 1).code == 0
    made.texts(b="abcdef")
    return made


def test_only_what_failed_runs_again(failed: Cli) -> None:
    would = failed.call("run", "retry", 1, "--dry-run")
    assert would.out == "run 1: 1 item would be queued again (count: 1 failed)\nafter that: total\n"
    assert failed.call("run", "show", 1, "--json").json["state"] == "completed_with_errors"
    done = failed.run("run", "retry", 1, "--json")
    assert (done.code, done.json) == (
        0,
        {"run": 1, "epoch": 2, "queued": 1, "items": {"count": {"failed": 1}}, "after": ["total"]},
    )
    assert done.err == "note: no worker is running; start one with: gristmill up\n"
    assert failed.call("-A", APP, "work", "--run", 1, "-n", 1).code == 0
    shown = failed.call("run", "show", 1, "--json").json
    assert (shown["state"], shown["epoch"], shown["results"]["total"]) == ("completed", 2, 11)
    again = failed.call("run", "retry", 1)
    assert (again.code, again.err) == (1, "Error: run 1 has no items to retry: none failed\n")


def test_what_failed_of_all_runs_that_match_runs_again(failed: Cli) -> None:
    words = ("run", "retry", "--subject", "BOO*", "--since", "1d")
    assert failed.call(*words, "--dry-run").out == "1 run would be retried\n"
    asked = failed.run(*words)  # nobody is there to answer
    assert (asked.code, asked.err[:52]) == (64, "Error: 1 run would be retried; nobody is there to be")
    done = failed.run(*words, "--yes")
    assert (done.out, done.err) == ("1 run is retried\n", "note: no worker is running; start one with: gristmill up\n")
    assert failed.call("run", "show", 1, "--json").json["epoch"] == 2
    assert failed.call(*words, "--yes").err == "note: nothing matches; nothing was done\n"
    for unclear, said in (
        ([], "say which runs"),
        (["--stage", "count"], "say which runs"),
        (["--subject", "books", "--key", "a*"], "--key is about the items of one RUN"),
    ):
        refused = failed.call("run", "retry", *unclear)
        assert refused.code == 64
        assert said in refused.err


def test_a_worker_for_one_run_says_what_became_of_it(failed: Cli) -> None:
    work = ("-A", APP, "work", "--run", 1, "-n", 1)
    over = failed.call(*work)
    assert over.code == 0
    assert over.err.startswith("note: run 1 is completed_with_errors already: there is nothing to do; run retry 1")
    workers = len(failed.call("worker", "list", "--all", "--json").json)
    failed.texts(b="")
    failed.call("run", "retry", 1)
    again = failed.call(*work)
    assert (again.code, again.err.splitlines()[-1].split(" ", 1)[1]) == (2, "run 1 is completed_with_errors")
    assert len(failed.call("worker", "list", "--all", "--json").json) == workers + 1
    failed.texts(a="", c="")
    failed.call("-A", APP, "start", "letters", "books", "--arg", f"folder={failed.folder / 'texts'}")
    assert failed.call("-A", APP, "work", "--run", 2, "-n", 1).code == 1
    assert failed.call("run", "show", 2, "--json").json["state"] == "failed"
    assert failed.call("-A", APP, "work", "--run", 99).err == "Error: there is no run 99\n"


def test_what_is_chosen_runs_again(failed: Cli) -> None:
    for words, said in [
        (["--stage", "count", "--failed"], "1 item would be queued again (count: 1 failed)"),
        (["--key", "?.txt"], "3 items would be queued again (count: 2 completed, 1 failed)"),
        (["--stage", "find"], "1 item would be queued again (find: 1 completed)"),
    ]:
        assert failed.call("run", "retry", 1, "--dry-run", *words).out.startswith(f"run 1: {said}\n")
    for words, said in [
        (["--stage", "cont"], "run 1 has no stage 'cont'; did you mean 'count'?"),
        (["--error", "abc"], "run 1 has no items to retry: none failed with error 'abc'"),
        (["--version", "v1"], "run 1 has no items to retry: none ended done with version 'v1'"),
    ]:
        refused = failed.call("run", "retry", 1, *words)
        assert (refused.code, refused.err) == (1, f"Error: {said}\n")


def test_a_run_begins_at_a_stage(failed: Cli) -> None:
    assert failed.call("-A", APP, "start", "letters", "books", "--from-stage", "count").out == "2\n"
    assert failed.call("-A", APP, "work", "--run", 2, "-n", 1).code == 0
    shown = failed.call("run", "show", 2)
    assert "from run 1" in shown.out
    assert failed.call("run", "show", 2, "--json").json["results"]["total"] == 11


def test_a_part_run_without_a_run_to_stand_on_says_so(failed: Cli) -> None:
    refused = failed.call("-A", APP, "start", "letters", "films", "--from-stage", "count")
    assert refused.code == 64
    assert "'folder'" in refused.err
    assert refused.err.endswith("the last good run of 'films', and it has none; start a whole run\n")


def test_a_run_of_one_item(failed: Cli) -> None:
    start = ("-A", APP, "start", "letters", "books")
    assert failed.call(*start, "--only", "count:b*", "--only", "total").out == "2\n"
    assert failed.call("-A", APP, "work", "--run", 2, "-n", 1).code == 0
    assert failed.call("run", "show", 2, "--json").json["results"]["total"] == 11
    assert len(failed.call("job", "list", "--run", 2, "--json").json) == 4
    assert failed.call(*start, "--only", "count:x*").err == (
        "Error: no item that stage 'count' had in the last good run has a key like 'x*'\n"
    )
    assert failed.call(*start, "--from-stage", "cont").code == 64
    assert failed.call("-A", APP, "work", "--run", 2, "--drain").code == 64


def test_all_of_a_stage_and_some_of_it_is_all_of_it_in_either_order() -> None:
    assert _stages(("page:a*", "page")) == _stages(("page", "page:a*")) == {"page": None}
    assert _stages(("page:a*", "page:b*", "total")) == {"page": ["a*", "b*"], "total": None}
    assert _stages(()) is None
