"""`why run|job|subject`: a word, a sentence, and the command to type."""

from __future__ import annotations

import pytest

from tests.cli.conftest import APP, Cli

NO_WORKER = """\
{target}  no_worker
  job 1 (letters.find) is in queue 'find', which no running worker serves
  do: gristmill up
"""


@pytest.fixture
def waiting(made: Cli) -> Cli:
    """Run 1, whose job 1 is queued, and nobody works."""
    made.call("-A", APP, "start", "letters", "books", "--arg", f"folder={made.texts(a='abc')}")
    return made


@pytest.mark.parametrize(
    ("words", "target"),
    [(["run", "1"], "run 1"), (["job", "1"], "job 1"), (["subject", "letters", "books"], "subject books")],
)
def test_one_reason_one_sentence_one_command(waiting: Cli, words: list[str], target: str) -> None:
    result = waiting.call("why", *words)
    assert (result.code, result.out, result.err) == (0, NO_WORKER.format(target=target), "")
    document = waiting.run("why", *words, "--json").json
    assert document == {
        "target": target,
        "reason": "no_worker",
        "sentence": "job 1 (letters.find) is in queue 'find', which no running worker serves",
        "command": "gristmill up",
        "at": None,
    }


def test_the_command_mends_it(waiting: Cli) -> None:
    waiting.call("queue", "pause", "find")
    command = waiting.call("why", "run", 1, "--json").json["command"]
    assert command == "gristmill queue resume find"
    assert waiting.run(*command.split()[1:]).code == 0
    assert waiting.call("why", "run", 1, "--json").json["reason"] == "no_worker"
    assert waiting.call("-A", APP, "work", "--drain", "-n", 1).code == 0
    ended = waiting.call("why", "subject", "letters", "books").out.splitlines()
    assert ended[0] == "subject books  finished"
    assert ended[1].startswith("  run 1 ended completed at 20")
    assert len(ended) == 2


def test_the_command_has_the_options_that_were_given(waiting: Cli) -> None:
    url = f"sqlite:///{waiting.folder}/gristmill.db"
    out = waiting.call("-A", APP, "--database", url, "why", "job", 1).out
    assert out.splitlines()[-1] == f"  do: gristmill -A {APP} --database {url} up"


def test_what_is_not_there_is_one_line(waiting: Cli) -> None:
    assert waiting.call("why", "run", 7).err == "Error: there is no run 7\n"
    result = waiting.call("why", "subject", "letters", "boks")
    assert (result.code, result.err) == (1, "Error: pipeline 'letters' has no subject 'boks'; did you mean 'books'?\n")
