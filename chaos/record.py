"""The record outside the database: what really happened, in files that are only ever added to.

A line is one write to a file that everyone appends to, so it is there whole or not at all, whoever is killed meanwhile.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_open: dict[tuple[int, str], int] = {}


def note(folder: str | Path, kind: str, *what: Any) -> None:
    """Adds a line to the file `kind`. Returns once the kernel has it: it survives this process, whatever becomes of it."""
    path = f"{folder}/{kind}"
    file = _open.get((os.getpid(), path))
    if file is None:
        file = _open[os.getpid(), path] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    os.write(file, json.dumps(what).encode() + b"\n")


def noted(folder: str | Path, kind: str) -> Iterator[list[Any]]:
    """The lines of the file `kind`, oldest first."""
    path = Path(folder) / kind
    if path.exists():
        with path.open() as file:
            for line in file:
                yield json.loads(line)
