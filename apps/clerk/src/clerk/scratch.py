"""Folders for what nobody needs after this process: in the system's temporary folder, and gone whatever ends the process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final, Self

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Scratch:
    """One such folder, for this user only. It is locked until it is closed, and a lock ends with its process: so a folder
    of this name that can be locked was left by one that was killed, and goes when the next one is made."""

    def __init__(self, name: str) -> None:
        prefix = f"clerk-{name}-"
        self.path, self._handle = _made(prefix)
        _sweep(self.path.parent, prefix)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(self._handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _made(prefix: str) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix))
        with contextlib.suppress(FileNotFoundError):
            handle = os.open(path, _FOLDER)
            with contextlib.suppress(OSError):  # a file system without locks: there nobody can sweep either
                fcntl.flock(handle, fcntl.LOCK_EX)
            if path.is_dir():
                return path, handle
            os.close(handle)  # somebody took it for one that was left, in the moment before it was locked


def _sweep(folder: Path, prefix: str) -> None:
    """Best effort. Ours only: anybody may make folders here."""
    for left in folder.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            handle = os.open(left, _FOLDER)
            try:
                if os.fstat(handle).st_uid == os.geteuid():
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(handle)
