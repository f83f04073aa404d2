"""The one folder that everything of the demonstration goes into, with settings for all that is run in it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from clerk.cli.app import PLUGINS_DIR
from clerk.config import VARIABLES
from clerk.errors import ClerkError
from clerk.storage import write

LOCK: Final = ".demo"  # held while a demonstration runs; and the sign that a folder is one's
PROGRAM: Final = "clerk"

# Paths are relative to the folder: it may be moved.
SETTINGS: Final = {
    "DATABASE_URL": "sqlite:///civic.db",
    "STORAGE_DIR": "sites",
    "DEPLOY_TARGET": "published",
    "LOG_DIR": "logs",
    "OCR_LANG": "eng",
    "OCR_SPLIT_PAGES": "20",  # so that the pages of the long document are read by all cores
    "PDF_CHUNK_SIZE": "20",
    "FETCH_ALLOW_PRIVATE": "1",  # the server is on loopback,
    "FETCH_RATE_PER_HOST": "50/s",  # and all municipalities are on it
}


class Folder:
    """Where a demonstration is, and what it is called where it was started."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._start = Path.cwd()

    def shown(self, *names: str) -> str:
        """A path in it as one types it in the place where the demonstration was started."""
        path = self.path.joinpath(*names)
        return shlex.quote(str(path.relative_to(self._start) if path.is_relative_to(self._start) else path))

    @property
    def clerk(self) -> str:
        """The command that has these settings, wherever it is typed."""
        path = self.shown(PROGRAM)
        return path if "/" in path else f"./{path}"

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Made if need be, and nobody else's; from then on this process works in it, and what it starts."""
        try:
            self._make()
            handle = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise ClerkError(
                f"{self.path} cannot be used: {error.strerror or error}; `--folder DIR` names another place"
            ) from error
        try:
            self._lock(handle)
            self._settle()
            yield
        finally:
            os.close(handle)

    def _make(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        if any(self.path.iterdir()) and not (self.path / LOCK).exists():
            raise ClerkError(f"{self.path} has something else in it; `--folder DIR` names an empty or a new folder")

    def _lock(self, handle: int) -> None:
        """It ends with this process, however that ends."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 20, 0).decode(errors="replace").strip()
            raise ClerkError(
                f"a demonstration is at work in {self.path} (process {holder or 'just starting'}); wait for it,"
                " or give this one a place of its own: `--folder DIR`"
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)

    def _settle(self) -> None:
        for name in (*VARIABLES, PLUGINS_DIR):  # those of another clerk
            os.environ.pop(name, None)
        os.chdir(self.path)
        lines = "".join(f"{name}={value}\n" for name, value in SETTINGS.items())
        write(self.path / ".env", f"# Settings of the demonstration, which writes them anew.\n{lines}".encode())
        (self.path / ".env").chmod(0o600)
        write(self.path / PROGRAM, _program().encode())
        (self.path / PROGRAM).chmod(0o755)


def _program() -> str:
    return (
        "#!/bin/sh\n"
        "# clerk with the settings beside it, whatever the environment says.\n"
        f"unset {' '.join((*VARIABLES, PLUGINS_DIR))}\n"
        'cd -- "$(dirname -- "$0")" || exit 1\n'
        f'exec {shlex.quote(sys.executable)} -P -m clerk "$@"\n'
    )
