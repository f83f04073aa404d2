"""`python -m tests.clerk.killing (steps | moments) FOLDER [ROUNDS]`: compiles, merges and publishes a site in children that
are killed, and looks at what is left. It has one thread and imports once, so that a child is a fork away.

Every build has one generation in all its pages: what is left must be of one, and whole.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clerk.compiling import compile_site, merge_extractions
from clerk.deploying import FolderDeployer, publication
from clerk.storage import SiteFiles
from tests.clerk.site import AGENDA, COUNCIL, assert_sound, query, search, write_cache, write_pages, write_pdf

SITE = "alameda.ca"
STEPS = {"fcntl.flock", "sqlite3.connect", "shutil.copyfile"}
STEPS |= {f"os.{name}" for name in ("rename", "link", "remove", "rmdir", "mkdir", "symlink", "chmod")}
WORD = "generation"
PAGES = {"steps": 2, "moments": 60}  # of each document


def site(root: Path) -> SiteFiles:
    return SiteFiles(root / "sites", SITE)


def write(files: SiteFiles, generation: int, pages: int) -> None:
    """All pages anew; caches come later, as they do."""
    for document in (COUNCIL, AGENDA):
        for cache in files.text(document).glob("*.json"):
            cache.unlink()
        write_pages(files, document, *[f"{WORD}{generation} {n} " + "more words " * 100 for n in range(pages)])
        write_pdf(files, document)


def work(root: Path, generation: int) -> None:
    files = site(root)
    compile_site(files, generation)
    for document in (COUNCIL, AGENDA):
        write_cache(files, document, 1)
    assert merge_extractions(files, generation) == 2
    FolderDeployer(root / "published").deploy(publication(files, {}, generation))


def look(root: Path) -> None:
    """What others see: the databases are whole, of one generation, and searchable."""
    files, published = site(root), root / "published" / SITE
    assert query(published / "meetings.db", "SELECT count(*) FROM votes") == [(2,)], "published after it was merged"
    assert (published / "metadata.json").stat().st_size
    assert (published / "pdfs" / COUNCIL.meeting / f"{COUNCIL.date}.pdf").stat().st_size
    for database in (files.database, files.root / "meetings.db.bk", published / "meetings.db"):
        assert_sound(database)
        words = query(database, "SELECT DISTINCT substr(text, 1, instr(text, ' ') - 1) FROM minutes")
        assert len(words) == 1, f"{database} has {words}"
        pages = query(database, "SELECT count(*) FROM minutes")[0][0]
        assert len(search(database, words[0][0])) == len(search(database, words[0][0], "agendas")) == pages > 0


def dies_at(step: int) -> Callable[[str, tuple[Any, ...]], None]:
    """Before it does something to a file for the nth time."""
    left = [step]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in STEPS or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

    return hook


def child(do: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        do()
        code = 0
    finally:
        os._exit(code)


def each_step(root: Path) -> int:
    """Dies at each step in turn, until there is none left to die at. After each death the next one does the whole work."""
    step = 0
    while True:
        step += 1

        def do(step: int = step) -> None:
            write(site(root), step, PAGES["steps"])
            sys.addaudithook(dies_at(step))
            work(root, step)

        _, status = os.waitpid(child(do), 0)
        look(root)
        recover(root, step)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            return step - 1


def recover(root: Path, generation: int, pages: int = PAGES["steps"]) -> None:
    """What the dead left half done is in nobody's way, and goes."""
    write(site(root), generation, pages)
    work(root, generation)
    look(root)
    kept = {path.name for path in site(root).root.iterdir()}
    assert kept == {"txt", "pdfs", "_agendas", "meetings.db", "meetings.db.bk", ".meetings.db.lock", "metadata.json"}
    assert len(list((root / "published" / ".versions" / SITE).iterdir())) == 3, "two versions and the lock"


def any_moment(root: Path, rounds: int) -> None:
    """Dies after some time, of which most is inside SQLite; until then what others open is always there."""
    chance, generation, always = random.Random(), 0, (site(root).database, root / "published" / SITE / "meetings.db")

    def forever() -> None:
        nonlocal generation
        while True:
            generation += 1
            write(site(root), generation, PAGES["moments"])
            work(root, generation)

    began = time.monotonic()
    write(site(root), 0, PAGES["moments"])
    work(root, 0)
    once = time.monotonic() - began
    for _ in range(rounds):
        generation += 100_000
        pid, until = child(forever), time.monotonic() + chance.uniform(0, 3 * once)
        while time.monotonic() < until:
            assert all(path.exists() for path in always)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status), "it went on until it was killed"
        look(root)
    recover(root, 1, PAGES["moments"])


def main() -> None:
    how, root = sys.argv[1], Path(sys.argv[2])
    for _ in range(2):  # so that there is one before
        write(site(root), 0, PAGES[how])
        work(root, 0)
    if how == "steps":
        print(each_step(root))
    else:
        any_moment(root, int(sys.argv[3]))


if __name__ == "__main__":
    main()
