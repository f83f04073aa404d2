"""Parts on the command line: how many are left, which failed, and why nothing moves."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from gristmill.ledger.finish import Verdict
from tests.cli.conftest import Cli
from tests.ledger.play import Play, each, plan, step


@pytest.fixture
def play(made: Cli) -> Iterator[Play]:
    """Run 1, whose item, job 2, waits for three parts: job 3 is completed, job 4 failed, job 5 is queued."""
    play = Play(f"sqlite:///{made.folder}/gristmill.db", [plan("site", find=step(), page=each("find", need=0))])
    play.mill.start("site", "books")
    player = play.player()
    play.turn(player, {"find": ["emma"]}, {})
    player.split(player.take_one(), "001", "002", "003")
    one, two = player.take(2)
    player.complete(one)
    player.end(two, Verdict.PERMANENT, reason="too dark")
    yield play
    play.close()


def flat(text: str) -> str:
    return re.sub(r" +", " ", text)


def test_a_job_shows_its_parts_and_a_part_its_job(made: Cli, play: Play) -> None:
    shown = flat(made.call("job", "show", 2).out)
    assert "parts waiting for 1 of 3, 1 failed" in shown
    assert "failed parts" in shown
    assert "4 002 too dark" in shown
    document = made.call("job", "show", 2, "--json").json
    assert (document["parts"], document["parts_left"], document["parts_failed"]) == (3, 1, 1)
    assert document["failed_parts"] == [{"id": 4, "key": "002", "error": "too dark"}]
    part = flat(made.call("job", "show", 3).out)
    assert "part of job 2 (emma)\n" in part
    assert "run 1 (subject books)" in part


def test_parts_are_listed_by_their_job_and_by_their_run(made: Cli, play: Play) -> None:
    assert [job["key"] for job in made.call("job", "list", "--part-of", 2, "--json").json] == ["003", "002", "001"]
    of_run = made.call("job", "list", "--run", 1, "--json").json
    assert [job["key"] for job in of_run] == ["003", "002", "001", "emma", None]
    assert [job["waits"] for job in of_run] == [None, None, None, "for parts", None]
    items = made.call("job", "list", "--run", 1, "--stage", "page", "--json").json
    assert [job["key"] for job in items] == ["emma"]
    assert made.call("job", "list", "--part-of", 3).err == "note: no jobs match\n"


def test_a_run_says_what_its_items_wait_for(made: Cli, play: Play) -> None:
    assert "1 item of page waiting for 1 of 3 parts" in made.call("run", "show", 1).out
    assert "page 0/1" in made.call("run", "list").out
    stage = made.call("run", "show", 1, "--json").json["stages"][1]
    assert (stage["total"], stage["items_with_parts"], stage["parts"], stage["parts_left"]) == (1, 1, 3, 1)


def test_a_run_names_the_items_that_completed_with_errors(made: Cli, play: Play) -> None:
    player = play.player()
    player.complete(player.take_one())  # the last part
    player.end(player.take_one(), Verdict.WITH_ERRORS)
    shown = made.call("run", "show", 1)
    assert "items completed with errors" in shown.out
    assert "2 page emma 1 of 3" in flat(shown.out)
    document = made.call("run", "show", 1, "--json").json
    assert document["state"] == "completed_with_errors"
    assert document["failed_items"] == []
    assert [(item["id"], item["key"], item["parts_failed"]) for item in document["items_with_errors"]] == [(2, "emma", 1)]
    refused = made.call("run", "retry", 1)
    assert (refused.code, refused.err) == (
        1,
        "Error: run 1 has no items to retry: none failed, but some of stage 'page' completed with errors;"
        " --stage page runs that stage again\n",
    )
    assert made.call("why", "run", 1).out.splitlines()[-1].endswith("run retry 1 --stage page")
    assert made.call("run", "retry", 1, "--stage", "page").code == 0


def test_watching_says_it_too(made: Cli, play: Play) -> None:
    from gristmill.progress import standing

    assert standing(play.mill.run(1)) == "find 1/1, page 0/1 (waiting for 1 of 3 parts)"


def test_cancelling_says_when_it_ends(made: Cli, play: Play) -> None:
    play.player().take_one()
    assert made.call("job", "cancel", 2).out == "job 2 is told to stop\n"
    assert "cancelled as soon as 1 of 3 have stopped, 1 failed" in flat(made.call("job", "show", 2).out)
    assert "2 parts" not in made.call("run", "show", 1).out
