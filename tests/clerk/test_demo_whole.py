"""The demonstration as people run it: a real process, what it prints, what it leaves; and in bad surroundings.

What a first run leaves is made once for all tests, and each has a copy of it: reading scans takes long.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pty
import re
import shlex
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from clerk import names
from clerk.demo import documents, search
from clerk.demo.documents import Scale, Truth
from clerk.demo.towns import TOWNS
from tests import servers
from tests.cli.conftest import clean_environment
from tests.conftest import TestRun
from tests.docs.pages import PAGES, blocks
from tests.worker.helpers import eventually

pytestmark = pytest.mark.timeout(600)  # a pass takes half a minute of both cores; a busy machine may give less

README = PAGES[0]
_STEERING = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
SITES = [town.subdomain for town in TOWNS]
BEND = SITES[0]
# What another clerk would be told: nothing of it may matter here.
ELSEWHERE = {"DATABASE_URL": "postgresql://nobody@127.0.0.1:9/x", "STORAGE_DIR": "/dev/null", "ENABLE_EXTRACTION": "0"}


Terminal = tuple[subprocess.Popen[str], int]  # what runs on it, and where keys are pressed


def _plain(screen: bytes) -> str:
    return "\n".join(line.rstrip() for line in _STEERING.sub("", screen.decode(errors="replace")).splitlines())


class Demo:
    """A demonstration in a folder called `demo`, started beside it."""

    def __init__(self, beside: Path, scale: Scale = "small") -> None:
        self.beside = beside
        self.folder = beside / "demo"
        self.scale = scale
        self.documents = self.folder / ("documents" if scale == "small" else f"documents-{scale}")

    def start(self, *more: str, **how: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "clerk.demo", *(["--tiny"] if self.scale == "tiny" else []), *more]
        environ = clean_environment() | ELSEWHERE | {"COLUMNS": "80", "TERM": "xterm-256color"}
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, cwd=self.beside, env=environ, text=True, **{**streams, **how})  # type: ignore[call-overload,no-any-return]

    def run(self, *more: str, code: int = 0, **how: object) -> str:
        """What it says: on stdout if all is well, else on stderr."""
        with self.start(*more, **how) as process:
            out, err = process.communicate(timeout=500)
        assert process.returncode == code, err
        assert (err == "") == (code == 0), err
        return out if code == 0 else err

    def on_terminal(self, *more: str, at: str = "", then: Callable[[Terminal, str], None] | None = None) -> str:
        """What a terminal gets to see, without what steers it: all pictures one after another. `at` these words, `then`."""
        ours, theirs = pty.openpty()
        process = self.start(*more, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        screen = b""
        with contextlib.suppress(OSError):  # so Linux says that the other side has closed
            while part := os.read(ours, 4096):
                screen += part
                if then and at in (seen := _plain(screen)):
                    then((process, ours), seen)
                    then = None
        os.close(ours)
        assert process.wait(30) == 0, _plain(screen)
        return _plain(screen)

    @property
    def truth(self) -> Truth:
        return documents.make(self.documents, scale=self.scale)

    def published(self, site: str) -> Path:
        return self.folder / "published" / site / "meetings.db"

    def pages(self) -> dict[str, list[tuple[str, str, str, int]]]:
        """Of each site: kind, meeting, date and number of every page that is published."""
        found = {}
        for site in SITES:
            with contextlib.closing(sqlite3.connect(self.published(site))) as db:
                sql = " UNION ALL ".join(f"SELECT '{kind}', meeting, date, page FROM {kind}" for kind in names.KINDS)
                found[site] = sorted(db.execute(sql).fetchall())
        return found

    def expected(self) -> dict[str, list[tuple[str, str, str, int]]]:
        """The same, from what was written in the documents."""
        return {
            site: sorted(
                (made.kind, names.meeting(made.meeting), made.date, number)
                for made in self.truth.wanted(site)
                if made.readable
                for number in range(1, len(made.pages) + 1)
            )
            for site in SITES
        }


@pytest.fixture(scope="session")
def first(test_run: TestRun) -> tuple[Path, str]:
    """Where a first run was, and what it said; one for all processes of a test run."""
    beside = test_run.directory / "demo-of-clerk"
    with servers.locked(test_run.directory / "demo-of-clerk.lock"):
        said = beside.with_suffix(".txt")
        if not said.exists():
            shutil.rmtree(beside, ignore_errors=True)
            beside.mkdir()
            said.write_text(Demo(beside).on_terminal("--no-serve"))
        return beside, said.read_text()


@pytest.fixture
def demo(first: tuple[Path, str], tmp_path: Path) -> Demo:
    """One that has been run once. Its folder may be moved."""
    shutil.copytree(first[0], tmp_path, symlinks=True, dirs_exist_ok=True)
    return Demo(tmp_path)


@pytest.fixture
def shown(first: tuple[Path, str]) -> str:
    return first[1]


# ---- all is well


def test_a_terminal_sees_bars_that_grow(shown: str) -> None:
    assert shown.splitlines()[0] == "Everything goes into the folder demo"
    assert re.search(r"^Making 18 documents of 4 municipalities ━+ 18/18$", shown, re.MULTILINE)
    for site in SITES:
        done = re.findall(rf"^{site} +✓ \d +[━─]+ (\d)/\d ", shown, re.MULTILINE)
        assert done
        assert done == sorted(done)
    last = shown.rpartition("site              fetch")[2].splitlines()[1:5]
    assert [line.split()[0] for line in last] == SITES
    assert all(line.endswith("✓ 1") for line in last)
    assert max(map(len, shown.partition("Where to look next")[0].splitlines())) <= 80


def test_it_shows_what_the_readme_says(shown: str) -> None:
    [block] = blocks(README, "text")
    assert [line for line in block.text.splitlines() if line not in shown.splitlines()] == []


def test_it_shows_kindly_what_could_not_be_read(shown: str) -> None:
    failed = shown.split("What could not be read; the rest went on without it\n")[1].split("\n\n")[0].splitlines()
    assert failed[0] == "  larkspurbend.ca  City Council minutes, 2026-02-24"
    assert failed[1].startswith("    the PDF is truncated: its end is missing")
    assert failed[2] == "  portellery.me  Select Board minutes, 2026-02-02"
    assert failed[3:] == ["    the PDF is encrypted: it opens only with a password"]


def test_it_finds_a_word_inside_a_scan_with_its_page_and_votes(shown: str, demo: Demo) -> None:
    [(made, page)] = demo.truth.pages_with(demo.truth.word)
    assert page in made.scanned
    where = f"  {made.subdomain}  {made.meeting} {made.kind}, {made.date}, page {page}, read from a scan"
    assert where in shown.splitlines()
    votes = shown.split("The votes on that page\n")[1]
    for vote in made.pages[page - 1].votes:
        tally = f"{vote['tally']['ayes']}-{vote['tally']['nays']}"
        assert f"  {vote['result']} {tally}  moved by {vote['motion_by']}, seconded by {vote['seconded_by']}" in votes


def test_what_is_published_has_every_page_that_can_be_read(demo: Demo) -> None:
    assert demo.pages() == demo.expected()
    for word, site in (("culvert", BEND), ("breakwater", "portellery.me"), ("beekeeping", "kestrelfalls.ny")):
        [(made, page)] = demo.truth.pages_with(word)
        [hit] = search(demo.published(site), word)
        assert (made.subdomain, hit.date, hit.page) == (site, made.date, page)
    for site in SITES:
        with contextlib.closing(sqlite3.connect(demo.published(site))) as db:
            assert db.execute("SELECT count(*) FROM votes").fetchone()[0] > 3
            assert db.execute("SELECT count(*) FROM entities").fetchone()[0] > 3


def test_its_commands_work_when_they_are_pasted(shown: str, demo: Demo) -> None:
    commands = re.findall(r"^    (\S.*)$", shown.split("Where to look next")[1], re.MULTILINE)
    programs = [shlex.split(command)[0] for command in commands]
    assert programs == ["demo/clerk", "demo/clerk", "demo/clerk", "datasette", "ls", "python"]
    assert commands[0] == "demo/clerk dashboard"  # which has tests of its own
    assert (demo.beside / shlex.split(commands[3])[1]).is_file()
    for command in (*commands[1:3], commands[4]):
        done = subprocess.run(
            ["sh", "-c", command], cwd=demo.beside, env=clean_environment() | ELSEWHERE, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, ""), command
        assert BEND in done.stdout


def test_everything_is_in_its_folder(first: tuple[Path, str]) -> None:
    assert [path.name for path in first[0].iterdir()] == ["demo"]


# ---- again


def test_the_second_time_nothing_is_done_since_nothing_changed(demo: Demo) -> None:
    before = {site: demo.published(site).stat().st_mtime_ns for site in SITES}
    said = demo.run()
    assert "of 16 documents 16 were answered with 304 Not Modified, 0 were sent." in said
    assert [f"{site}: ocr unchanged" in said for site in SITES] == [True] * 4
    assert ": deploy" not in said
    assert "the PDF is encrypted" in said
    assert "page 3, read from a scan" in said
    assert "\x1b" not in said
    assert {site: demo.published(site).stat().st_mtime_ns for site in SITES} == before


def test_a_document_that_somebody_adds_is_the_only_one_that_is_read(demo: Demo) -> None:
    folder = demo.documents / BEND / "minutes" / "City Council"
    shutil.copy(demo.documents / BEND / "agendas" / "City Council" / "2026-01-13.pdf", folder / "2026-06-09.pdf")
    said = demo.run()
    assert f"{BEND}: ocr completed" in said.splitlines()  # one of one
    assert said.count(": ocr unchanged") == 3
    assert demo.pages()[BEND] == sorted([*demo.expected()[BEND], ("minutes", "CityCouncil", "2026-06-09", 1)])


def test_its_settings_are_as_private_as_clerk_wants_settings_to_be(demo: Demo, shown: str) -> None:
    assert (demo.folder / ".env").stat().st_mode & 0o777 == 0o600


def test_a_publication_that_is_gone_is_made_again(demo: Demo) -> None:
    shutil.rmtree(demo.folder / "published")
    said = demo.run()
    assert said.count(": deploy completed") == 4
    assert "of 16 documents 16 were answered with 304 Not Modified, 0 were sent." not in said  # something was done
    assert demo.pages() == demo.expected()


# ---- the dashboard at its end


def _press_enter(terminal: Terminal) -> None:
    os.write(terminal[1], b"\n")


def _interrupt(terminal: Terminal) -> None:
    terminal[0].send_signal(signal.SIGINT)


@pytest.mark.parametrize("stop", [_press_enter, _interrupt])
def test_on_a_terminal_it_ends_with_the_dashboard_open_to_click(demo: Demo, stop: Callable[[Terminal], None]) -> None:
    processes: list[psutil.Process] = []

    def click(terminal: Terminal, seen: str) -> None:
        address = re.findall(r"^    (http://127\.0\.0\.1:\d+)/$", seen, re.MULTILINE)[0]
        with httpx.Client(base_url=address, trust_env=False, timeout=60) as client:
            assert BEND in client.get("/subjects").text
            failed = client.post("/api/runs", json={"pipeline": "site", "subject": BEND, "args": {"retry_failed": True}})
            run = failed.raise_for_status().json()["id"]
            eventually(lambda: client.get(f"/api/runs/{run}").json()["state"] not in ("queued", "in_progress"), "it is done")
        processes.extend(psutil.Process(terminal[0].pid).children(recursive=True))
        stop(terminal)

    seen = demo.on_terminal(at="Enter or Ctrl-C ends it", then=click)
    assert seen.splitlines()[-1] == "Stopped; nothing is running any more."
    all_gone(processes)


def test_a_second_one_beside_an_open_dashboard_has_a_port_of_its_own(demo: Demo) -> None:
    def again(terminal: Terminal, seen: str) -> None:
        other = demo.on_terminal(at="Enter or Ctrl-C ends it", then=lambda own, _: _press_enter(own))
        addresses = [re.findall(r"^    (http://\S+)$", text, re.MULTILINE)[0] for text in (seen, other)]
        assert len(set(addresses)) == 2
        _press_enter(terminal)

    demo.on_terminal(at="Enter or Ctrl-C ends it", then=again)


def test_without_a_terminal_it_serves_only_if_asked_to(demo: Demo) -> None:
    with at_work(demo, "  Ctrl-C ends it", "--serve") as (process, children):
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "Stopped; nothing is running any more.\n", "")
    all_gone(children)


# ---- bad surroundings


def test_a_port_that_somebody_else_has_by_now_is_no_matter(demo: Demo, shown: str) -> None:
    before = re.findall(r"http://127\.0\.0\.1:\d+", shown)[0]
    with socket.socket() as other, contextlib.closing(sqlite3.connect(demo.folder / "civic.db")) as db:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        for column in ("clerk_site SET extra", "clerk_document SET url"):  # as if it had been on this one
            name = column.rpartition(" ")[2]
            db.execute(f"UPDATE {column} = replace({name}, ?, ?)", (before, f"http://127.0.0.1:{port}"))
        db.commit()
        said = demo.run()
    assert f":{port}" not in said
    assert "of 16 documents 16 were answered with 304 Not Modified, 0 were sent." in said
    assert demo.pages() == demo.expected()  # none of them twice


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    demo = Demo(tmp_path)
    demo.folder.mkdir()
    (demo.folder / ".env").write_text("DATABASE_URL=mine\n")
    said = demo.run(code=1)
    assert said == f"Error: {demo.folder} has something else in it; `--folder DIR` names an empty or a new folder\n"
    assert [(path.name, path.read_text()) for path in demo.folder.iterdir()] == [(".env", "DATABASE_URL=mine\n")]


def test_what_cannot_be_mended_is_said_with_a_way_out(demo: Demo) -> None:
    demo.published(BEND).write_text("no database at all")
    said = demo.run(code=1)
    assert said.startswith(f"Error: {demo.published(BEND)} cannot be searched: ")
    assert said.endswith("; to begin afresh: rm -r demo\n")
    for file in demo.folder.glob("civic.db*"):
        file.rename(file.with_name(f"old-{file.name}"))
    (demo.folder / "civic.db").write_text("no database at all, but long enough to be taken for one\n" * 100)
    said = demo.run(code=3)
    assert (said.count("\n"), said.endswith("; to begin afresh: rm -r demo\n")) == (1, True)


def test_a_file_in_its_place_is_said(tmp_path: Path) -> None:
    demo = Demo(tmp_path)
    demo.folder.write_text("")
    assert "cannot be used: File exists; `--folder DIR` names another place" in demo.run(code=1)
    assert "cannot be used: Not a directory; `--folder DIR`" in demo.run("--folder", "demo/below", code=1)


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        said = Demo(tmp_path).run(code=1, preexec_fn=without_the_right_of_root)
    finally:
        tmp_path.chmod(0o700)
    assert said == f"Error: {tmp_path}/demo cannot be used: Permission denied; `--folder DIR` names another place\n"


def without_the_right_of_root() -> None:
    """To write anywhere: CAP_DAC_OVERRIDE, which is gone when the program starts. Others than root do not have it."""
    if os.geteuid() == 0:
        ctypes.CDLL(None).prctl(24, 1)  # PR_CAPBSET_DROP


def listening() -> None:
    """The tests themselves may have been started by nohup, whose children do not hear of a terminal that closes."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@contextlib.contextmanager
def at_work(demo: Demo, until: str, *more: str) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """A demonstration that has just said this, and the processes that it has started."""
    with demo.start(*more, preexec_fn=listening) as process:
        assert process.stdout is not None
        assert any(until in line for line in process.stdout), f"it never said {until!r}"
        children = eventually(lambda: psutil.Process(process.pid).children(recursive=True), "it has children")
        try:
            yield process, children
        finally:
            process.kill()


def all_gone(children: list[psutil.Process]) -> None:
    eventually(lambda: not any(child.is_running() and child.status() != "zombie" for child in children), "all have ended")


def test_it_is_stopped_and_killed_and_asked_for_twice_and_still_comes_to_its_end(tmp_path: Path) -> None:
    demo = Demo(tmp_path, "tiny")
    with at_work(demo, ": ocr 0/") as (process, children):
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert out.endswith("Stopped; nothing is running any more. It goes on where it was:\n  python -m clerk.demo --tiny\n")
    all_gone(children)

    with at_work(demo, ": ocr ") as (process, children):
        other = demo.run(code=1)
        assert other.startswith(f"Error: a demonstration is at work in {demo.folder} (process {process.pid}); wait for it")
        process.kill()
    all_gone(children)

    said = demo.run()
    assert said.count(": deploy completed") == 4
    for site in SITES:
        assert re.search(rf"^{site}: ocr \d/\d completed$", said, re.MULTILINE)
    assert "page 2, read from a scan" in said
    assert demo.pages() == demo.expected()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_it_stops_as_well_when_it_is_told_to_or_its_terminal_closes(demo: Demo, number: signal.Signals) -> None:
    for site in SITES:
        shutil.rmtree(demo.folder / "sites" / site)  # so that there is something to do
    with at_work(demo, ": ocr ") as (process, children):
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Stopped; nothing is running any more" in out
    all_gone(children)


def test_who_reads_only_the_beginning_of_it_leaves_nothing_running(demo: Demo) -> None:
    with demo.start() as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode == 141
