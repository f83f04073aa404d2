"""Never half-published: processes that are killed or that meet leave the old or the new database, complete."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clerk.compiling import compile_site
from clerk.storage import SiteFiles
from tests.clerk import targets
from tests.clerk.site import COUNCIL, assert_sound, search, write_pages, write_pdf
from tests.servers import ROOT

SITE = "alameda.ca"
pytestmark = pytest.mark.timeout(600)  # many processes, on machines that may have other things to do

DEPLOY = """
import sys
from pathlib import Path
from clerk.deploying import deployer
from clerk.errors import Transient
from clerk.parts import Publication
target, source, version, times = sys.argv[1:]
files = {path.name: path for path in Path(source).iterdir()}
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(times)):
    try:
        deployer(target).deploy(Publication("alameda.ca", f"{version}-{number:06}", files))
    except Transient as error:  # what those that were killed had begun on the other machine still goes on there
        print(error, file=sys.stderr)
"""

COMPILE = """
import sys
from pathlib import Path
from clerk.compiling import compile_site
from clerk.storage import SiteFiles
print("ready", flush=True)
sys.stdin.readline()
for _ in range(5):
    assert compile_site(SiteFiles(Path(sys.argv[1]), "alameda.ca"), 1).pages == 40
"""


def killing(*arguments: object) -> str:
    command = [sys.executable, "-m", "tests.clerk.killing", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def started(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.communicate()
    return process


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def test_case_14_kill_9_before_each_step_leaves_the_old_or_the_new_one(tmp_path: Path) -> None:
    assert int(killing("steps", tmp_path)) > 40, "so many steps were died at"


def test_kill_9_at_any_moment_leaves_the_old_or_the_new_one(tmp_path: Path) -> None:
    killing("moments", tmp_path, 15)


@pytest.mark.slow
def test_acceptance_15_kill_9_fifty_times_leaves_the_old_or_the_new_one(tmp_path: Path) -> None:
    killing("moments", tmp_path, 50)


def test_compiles_of_one_run_that_meet_do_not_mix(tmp_path: Path) -> None:
    """A worker that lost its lease may still be at work when another begins the same run again."""
    files = SiteFiles(tmp_path, SITE)
    write_pages(files, COUNCIL, *[f"word{n} " * 50 for n in range(40)])
    workers = [started(COMPILE, tmp_path) for _ in range(3)]
    for worker in workers:
        go(worker)
    for worker in workers:
        _, said = worker.communicate()
        assert worker.returncode == 0, said
    assert_sound(files.database)
    assert_sound(files.root / "meetings.db.bk")
    assert list(files.root.glob("*.tmp-*")) == []


@contextmanager
def two_sources(folder: Path) -> Iterator[list[Path]]:
    """Two publications whose files belong together: a name in the database, the same one in the PDF."""
    sources = []
    for word in ("first", "second"):
        source = folder / word
        files = SiteFiles(source / "sites", SITE)
        write_pages(files, COUNCIL, *[f"{word} page {n} " + "x " * 500 for n in range(50)])
        compile_site(files, 1)
        (source / "out").mkdir()
        files.database.rename(source / "out" / "meetings.db")
        write_pdf(files, COUNCIL, word.encode()).rename(source / "out" / "a.pdf")
        sources.append(source / "out")
    yield sources


def assert_whole(target: targets.Target, scratch: Path) -> str:
    """What is published is one of the two, and all of its files are of that one."""
    seen = target.look(SITE)
    scratch.write_bytes(seen["meetings.db"])
    assert_sound(scratch)
    word = seen["a.pdf"].decode()
    assert len(search(scratch, word)) == 50
    return word


@pytest.mark.parametrize("where", ["folder", *targets.RSYNCS])
def test_deploys_that_meet_publish_one_or_the_other(tmp_path: Path, where: str) -> None:
    with two_sources(tmp_path) as sources, there(tmp_path, where) as (address, target):
        workers = [started(DEPLOY, address, sources[n % 2], "v1", 3) for n in range(3)]
        for worker in workers:
            go(worker)
        for worker, (_, said) in [(worker, worker.communicate()) for worker in workers]:  # all end, whatever they say
            assert worker.returncode == 0 or "has a later publication" in said, said
        assert_whole(target, tmp_path / "x.db")
        assert len(target.versions(SITE)) <= 2


@contextmanager
def there(folder: Path, where: str) -> Iterator[tuple[str, targets.Target]]:
    if where == "folder":
        yield str(folder / "published"), targets.folder(folder)
    else:
        with targets.other_machine(folder, where) as target:
            assert isinstance(target, targets.Tree)
            yield f"clerk@other.example:{target.root}", target


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the processes that are started here: what they leave behind is seen."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))


def kill_some(address: str, target: targets.Target, folder: Path, rounds: int) -> None:
    chance = random.Random()
    with two_sources(folder) as sources:
        for number in range(rounds):
            worker = started(DEPLOY, address, sources[number % 2], f"v{number:03}", 10_000)
            if number == 0:
                go(worker)
                while not target.look(SITE):
                    assert worker.poll() is None, worker.communicate()
            else:
                go(worker)
            time.sleep(chance.uniform(0, 0.5))  # any moment
            worker.kill()
            _, said = worker.communicate()
            assert worker.returncode == -signal.SIGKILL, said
            assert_whole(target, folder / "x.db")
        last = started(DEPLOY, address, sources[0], f"v{rounds:03}", 1)
        go(last)
        _, said = last.communicate()
        assert last.returncode == 0, said
        assert not list((folder / "temporary").iterdir()), "what those that were killed left on this machine is gone"


@pytest.mark.parametrize("where", targets.RSYNCS)
def test_kill_9_while_another_machine_is_published_to(tmp_path: Path, where: str) -> None:
    with there(tmp_path, where) as (address, target):
        kill_some(address, target, tmp_path, 5)


def test_kill_9_while_a_store_is_published_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with targets.s3_server() as environment:
        for name, value in environment.items():
            monkeypatch.setitem(os.environ, name, value)
        kill_some(f"s3://{targets.BUCKET}/k", targets.Store("k"), tmp_path, 4)


@pytest.mark.slow
@pytest.mark.parametrize("where", targets.RSYNCS)
def test_kill_9_fifty_times_while_another_machine_is_published_to(tmp_path: Path, where: str) -> None:
    with there(tmp_path, where) as (address, target):
        kill_some(address, target, tmp_path, 50)
