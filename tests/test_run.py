"""`./run`, as far as it can be seen without installing anything: what it hands over to Python, and from where."""

from __future__ import annotations

import shutil
import subprocess
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
