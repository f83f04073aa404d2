"""`./run`, as far as it can be seen without installing anything: what it hands over to Python, and from where."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import ROOT


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project whose .venv is ready, and whose Python only says how it was called."""
    root = tmp_path / "project"
    (root / ".venv" / "bin").mkdir(parents=True)
    (root / "apps" / "clerk").mkdir(parents=True)
    for name in ("run", "requirements.lock", "pyproject.toml", "apps/clerk/pyproject.toml"):
        shutil.copy(ROOT / name, root / name)
    python = root / ".venv" / "bin" / "python"
    python.write_text('#!/bin/sh\necho "$PWD: $*"\n')
    python.chmod(0o755)
    stamps = 'printf "%s %s\\n" "$(cksum <requirements.lock)" "$PWD" >.venv/.lock-stamp\n'
    stamps += "cat pyproject.toml apps/*/pyproject.toml | cksum >.venv/.project-stamp\n"
    subprocess.run(["sh", "-c", stamps], cwd=root, check=True)
    return root


def run(folder: Path, *words: str) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


def test_the_demonstration_is_clerk_and_begins_where_it_is_called(root: Path) -> None:
    assert run(root, "./run", "demo") == f"{root}: -P -m clerk.demo --called ./run demo\n"
    below = run(root.parent, "project/run", "demo", "--folder", "mine")
    assert below == f"{root.parent}: -P -m clerk.demo --called project/run demo --folder mine\n"


def test_the_engine_alone_has_one_too(root: Path) -> None:
    assert run(root, "./run", "demo", "engine", "--documents", "60") == f"{root}: -P -m gristmill.demo --documents 60\n"


# ---- a browser, where there is none

_TOOLS = ("sh", "cat", "cksum", "dirname", "getconf", "tr", "grep", "chmod")
_INSTALLED = "#!/bin/sh\necho Chromium 1.0\n"


@pytest.fixture
def machine(root: Path) -> Path:
    """Where all programs of a machine without a browser are: an `apt-get` that knows nothing before it was updated, and an
    `id` that says root."""
    tools = root.parent / "bin"
    tools.mkdir()
    for name in _TOOLS:
        (tools / name).symlink_to(str(shutil.which(name)))
    _program(tools / "id", "echo 0")
    known, said = root.parent / "known", root.parent / "said"
    install = f"[ -e {known} ] || exit 100\nprintf '%s' '{_INSTALLED}' >{tools}/chromium\nchmod +x {tools}/chromium"
    _program(tools / "apt-get", f'echo "$*" >>{said}\ncase $1 in update) : >{known} ;; install)\n{install} ;; esac')
    finding = f'[ "$2" = tests.chromium ] && cd {ROOT} && exec {sys.executable} -m tests.chromium'
    _program(root / ".venv" / "bin" / "python", f'{finding}\necho "$*"')
    return tools


def _program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def called(root: Path, machine: Path, *words: str) -> subprocess.CompletedProcess[str]:
    ours = {name: value for name, value in os.environ.items() if name != "GRISTMILL_TEST_BROWSER"}
    ours |= {"PATH": str(machine), "HOME": str(root.parent), "PLAYWRIGHT_BROWSERS_PATH": str(root.parent / "downloaded")}
    return subprocess.run(["./run", *words], cwd=root, env=ours, capture_output=True, text=True)


def asked(root: Path) -> list[str]:
    """What `apt-get` was asked for."""
    said = root.parent / "said"
    return [line.split()[0] for line in said.read_text().splitlines()] if said.exists() else []


def test_a_missing_browser_is_installed_before_the_tests_of_the_pages(root: Path, machine: Path) -> None:
    done = called(root, machine, "test", "tests/web")
    assert "installing chromium with apt-get" in done.stderr
    assert (done.returncode, asked(root)) == (0, ["install", "update", "install"])
    assert done.stdout.startswith("-m pytest -n ")
    assert called(root, machine, "test", "tests/web").stderr == ""
    assert len(asked(root)) == 3


def test_who_may_not_install_is_told_how(root: Path, machine: Path) -> None:
    _program(machine / "id", "echo 1000")
    done = called(root, machine, "test")
    assert (done.returncode, done.stdout, asked(root)) == (69, "", [])
    assert done.stderr.startswith("there is no browser for the tests of the pages. Debian: apt-get install chromium.")
    downloaded = root.parent / "downloaded" / "chromium-1" / "chrome-linux" / "chrome"
    downloaded.parent.mkdir(parents=True)
    _program(downloaded, "echo Chromium 1.0")
    assert called(root, machine, "test").stdout.startswith("-m pytest -n ")


def test_an_installation_that_fails_and_a_browser_that_does_not_start_are_said(root: Path, machine: Path) -> None:
    _program(machine / "apt-get", "exit 100")
    done = called(root, machine, "test")
    assert done.returncode == 69
    assert "that did not work" in done.stderr
    _program(machine / "chromium", "echo 'requires the chromium snap' >&2; exit 10")
    done = called(root, machine, "test")
    assert done.returncode == 69
    assert "chromium does not start: requires the chromium snap" in done.stderr


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        *((words, True) for words in ("", "-k browser", "tests/web/test_live.py", "tests/api tests/web")),
        *(
            (words, False)
            for words in ("tests/api", "--without=browser", "--without browser", "tests/web --without=browser")
        ),
    ],
)
def test_a_browser_is_looked_for_only_where_it_is_needed(root: Path, machine: Path, words: str, wanted: bool) -> None:
    _program(machine / "apt-get", "exit 100")
    assert called(root, machine, "test", *words.split()).returncode == (69 if wanted else 0)


def test_chaos_goes_on_without_a_browser(root: Path, machine: Path) -> None:
    (root / "chaos").mkdir()
    (root / "chaos" / "__main__.py").touch()
    _program(machine / "apt-get", "exit 100")
    done = called(root, machine, "chaos", "R28")
    assert (done.returncode, done.stdout) == (0, "-m chaos R28\n")
    assert called(root, machine, "chaos", "R1").stderr == ""
