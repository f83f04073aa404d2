"""Programs as users write them: the example, run as a script and as a module, and pipelines defined in `__main__`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import ROOT
from tests.worker.helpers import environment

EXAMPLE = ROOT / "examples" / "wordcount.py"


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """An empty folder, but for texts: two with words, one of them deeper down, and an empty one."""
    home = tmp_path / "home"
    (home / "texts" / "deep").mkdir(parents=True)
    (home / "texts" / "a.txt").write_text("one two three")
    (home / "texts" / "deep" / "b.txt").write_text("four\nfive")
    (home / "texts" / "empty.txt").write_text(" \n")
    (home / "texts" / "other.md").write_text("not counted")
    return home


def python(*arguments: str | Path, cwd: Path, path: Path | None = None) -> str:
    """What a program prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment() | ({"PYTHONPATH": str(path)} if path else {}),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


COUNTED = "completed_with_errors 2 1 5\nhello world\n"


def test_the_example_runs_as_it_is_written(texts: Path) -> None:
    assert python(EXAMPLE, cwd=texts) == COUNTED
    assert (texts / "wordcount.db").exists()
    (texts / "texts" / "empty.txt").unlink()
    assert python(EXAMPLE, cwd=texts) == "completed 2 0 5\nhello world\n", "and again, on the same database"


def test_the_example_runs_as_a_module(texts: Path) -> None:
    assert python("-m", "wordcount", cwd=texts, path=EXAMPLE.parent) == COUNTED


def test_the_example_can_be_imported(texts: Path) -> None:
    (texts / "program.py").write_text(
        "from gristmill import Mill\n"
        "import wordcount\n"
        "if __name__ == '__main__':\n"
        "    with Mill.open('sqlite:///w.db', wordcount.wordcount, wordcount.greet) as mill:\n"
        "        run = mill.start(wordcount.wordcount, 'books', args={'folder': 'texts'})\n"
        "        mill.work(until='drained', slots=1)\n"
        "        print(mill.run(run.id).result('total'))\n"
    )
    assert python("program.py", cwd=texts, path=EXAMPLE.parent) == "5\n"


PROGRAM = """
import os, sys
from pathlib import Path
from gristmill import Context, Mill, Pipeline, task

print("imported as", __name__)
flow = Pipeline("flow")

@flow.stage
def first(ctx: Context):
    os.chdir("/")
    yield "a", {"n": 1}
    yield "b", {"n": 2}

@flow.stage(after=first, each=True)
def second(ctx: Context, n: int) -> int:
    os.chdir("/")
    return n

@flow.stage(after=second)
def third(ctx: Context) -> list:
    os.chdir("/")
    return [list(pair) for pair in ctx.results("second")]

@task
def where(ctx: Context) -> list:
    return [__name__, sys.argv, Path(__file__).name]

if __name__ == "__main__":
    with Mill.open("sqlite:///program.db", flow, where) as mill:
        run = mill.start(flow, "x")
        mill.work(until="drained", slots=1)
        job = mill.enqueue(where)
        mill.work(until="drained", slots=1)
        print(mill.run(run.id).state, mill.run(run.id).result("third"))
        print(mill.job(job.id).result[0] != "__main__", mill.job(job.id).result[2])
"""


@pytest.mark.parametrize("name", ["program.py", "odd name-1.py"])
def test_a_pipeline_may_be_defined_in_the_program_itself(tmp_path: Path, name: str) -> None:
    """Children import the file under another name; what it prints at import is theirs, not the program's."""
    (tmp_path / name).write_text(PROGRAM)
    assert python(name, "--some", "arguments", cwd=tmp_path) == (
        f"imported as __main__\ncompleted [['a', 1], ['b', 2]]\nTrue {name}\n"
    )
    found = [path.name for folder in (tmp_path, Path("/")) for path in folder.glob("*.db")]
    assert found == ["program.db"], "jobs that change the folder still read the same database"


def test_a_program_beside_its_modules_is_found_by_children(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from gristmill import task\nfrom words import word\n\n@task\ndef say(ctx) -> str:\n    return word()\n"
    )
    (tmp_path / "words.py").write_text("def word():\n    return 'found'\n")
    (tmp_path / "program.py").write_text(
        "from gristmill import Mill\nfrom mine import say\n"
        "if __name__ == '__main__':\n"
        "    with Mill.open('sqlite:///p.db', say) as mill:\n"
        "        job = mill.enqueue(say)\n"
        "        mill.work(until='drained', slots=1)\n"
        "        print(mill.job(job.id).result)\n"
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert python(tmp_path / "program.py", cwd=elsewhere) == "found\n"


def test_an_interactive_program_is_told_what_to_do(tmp_path: Path) -> None:
    code = (
        "from gristmill import Mill, task, Invalid\n"
        "@task\ndef f(ctx): return 1\n"
        "mill = Mill.open('sqlite:///x.db', f)\n"
        "try: mill.work(until='drained')\n"
        "except Invalid as error: print(error)\n"
    )
    assert "put it into a file" in python("-c", code, cwd=tmp_path)


BORROWED = """
from gristmill import Mill, Pipeline, task
import words

say = task(words.say)
flow = Pipeline("flow")
flow.stage(words.listen)

if __name__ == "__main__":
    with Mill.open("sqlite:///p.db", say, flow) as mill:
        job, run = mill.enqueue(say), mill.start(flow, "x")
        mill.work(until="drained", slots=1)
        print(mill.job(job.id).result, mill.run(run.id).result("listen"))
"""


def test_a_task_may_be_made_of_a_function_from_elsewhere(tmp_path: Path) -> None:
    """Children import the module that has the task, which is not the one that has the function."""
    (tmp_path / "words.py").write_text("def say(ctx): return 'said'\ndef listen(ctx): return 'heard'\n")
    (tmp_path / "mine.py").write_text(BORROWED)
    assert python("mine.py", cwd=tmp_path) == "said heard\n"
    (tmp_path / "unguarded.py").write_text(
        "from gristmill import Mill\nfrom mine import say\n"
        "mill = Mill.open('sqlite:///p.db', say)\n"
        "job = mill.enqueue(say)\n"
        "mill.work(until='drained', slots=1)\n"
        "print(mill.job(job.id).result)\n"
    )
    assert python("unguarded.py", cwd=tmp_path) == "said\n", "rather a module than the program"


def test_a_pipeline_inside_a_function_is_refused_where_processes_could_not_find_it(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "from gristmill import Invalid, Mill, Pipeline\n"
        "def main():\n"
        "    flow = Pipeline('flow')\n"
        "    @flow.stage\n"
        "    def first(ctx): return 1\n"
        "    with Mill.open('sqlite:///p.db', flow) as mill:\n"
        "        try: mill.work(until='drained')\n"
        "        except Invalid as error: print(error)\n"
        "if __name__ == '__main__': main()\n"
    )
    assert "<stage 'flow.first'> is not at the top level of a module" in python("program.py", cwd=tmp_path)
