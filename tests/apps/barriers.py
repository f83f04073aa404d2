"""How a job and the test that watches it meet: files, since they are in different processes."""

from __future__ import annotations

import os
import time
from pathlib import Path

_LOOK_EVERY = 0.005


def mark(path: Path, word: str = "") -> None:
    """Adds a line to a file. One write to an O_APPEND file is whole, whoever else writes."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, f"{word}\n".encode())
    finally:
        os.close(file)


def wait_for(path: Path) -> None:
    """Blocks until the test makes the file."""
    while not path.exists():
        time.sleep(_LOOK_EVERY)


async def wait_for_async(path: Path) -> None:
    import asyncio  # not above: the child of a plain function is spared it

    while not path.exists():
        await asyncio.sleep(_LOOK_EVERY)
