"""The command line as tests use it: `call` is the command in this process, `run` a real one."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from clerk.cli.exits import run


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class Cli:
    """A folder, and the command run there."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capture = capture

    def call(self, *words: object) -> Result:
        self._capture.readouterr()
        code = run([str(word) for word in words])
        said = self._capture.readouterr()
        return Result(code, said.out, said.err)

    def spawn(self, *words: object, **environ: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "clerk", *map(str, words)],
            cwd=self.folder,
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def typed(self, *words: object, answers: str) -> Result:
        """On a terminal, where these lines are typed."""
        master, slave = pty.openpty()
        with os.fdopen(master, "wb", buffering=0) as keys, os.fdopen(slave) as terminal:
            keys.write(answers.encode())
            done = subprocess.run(
                [sys.executable, "-m", "clerk", *map(str, words)],
                cwd=self.folder,
                stdin=terminal,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        return Result(done.returncode, done.stdout, done.stderr)

    def run(self, *words: object, **environ: str) -> Result:
        with self.spawn(*words, **environ) as process:
            out, err = process.communicate(timeout=300)
        return Result(process.returncode, out, err)
