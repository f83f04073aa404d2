"""An environment for each peer under bench/.envs, from its lock; made once, and again when the lock changes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / ".envs"
LOCKS = Path(__file__).parent / "peers" / "locks"


def python(program: str) -> str:
    """The Python that runs this program: a peer's own; Gristmill and the raw loops run in ours."""
    lock = LOCKS / f"{program}.txt"
    if not lock.exists():
        return sys.executable
    home = FOLDER / program
    stamp = f"{sys.version}\n{home}\n{lock.read_text()}"
    if not (home / "stamp").exists() or (home / "stamp").read_text() != stamp:
        make(home, lock)
        (home / "stamp").write_text(stamp)  # last: without it, it was left half made
    return str(home / "bin" / "python")


def make(home: Path, lock: Path) -> None:
    print(f"bench: making the environment of {home.name}", flush=True)
    shutil.rmtree(home, ignore_errors=True)
    here = str(home / "bin" / "python")
    if shutil.which("uv"):
        run(["uv", "venv", "--quiet", "--python", sys.executable, str(home)])
        run(["uv", "pip", "install", "--quiet", "--python", here, "--require-hashes", "-r", str(lock)])
        return
    run([sys.executable, "-m", "venv", str(home)])
    pip = [here, "-m", "pip", "--disable-pip-version-check", "install", "-qq", "--no-input"]
    # The lock has all there is: pip would look for "psycopg[pool]" anew, though it has psycopg and the pool.
    run([*pip, "--no-deps", "--require-hashes", "-r", str(lock)])


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = (done.stdout + done.stderr).strip()
        raise SystemExit(
            f"bench: {' '.join(command)} failed:\n{said}\nIs the package index reachable? --only leaves peers out."
        )
