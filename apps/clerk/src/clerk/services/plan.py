"""What is to be installed, whatever installs it."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from clerk.config import Config
from clerk.errors import ClerkError
from clerk.services import sizing
from clerk.services.sizing import Need

MARK: Final = "made by clerk install-workers"  # in the first line of every file: those may be overwritten and removed
GRACE: Final = 45  # seconds from SIGTERM to SIGKILL; a worker takes up to 30 to finish its item


class Tick(NamedTuple):
    """A command that runs again and again."""

    name: str
    words: tuple[str, ...]
    minutes: int

    @property
    def cron(self) -> str:
        return "* * * * *" if self.minutes == 1 else f"*/{self.minutes} * * * *"


@dataclass(frozen=True)
class Plan:
    config: Config
    env_file: Path  # it holds the secrets, so the services read it themselves
    program: Path
    counts: Mapping[str, int]
    needs: Mapping[str, Need]
    ticks: Sequence[Tick]

    @property
    def folder(self) -> Path:
        """Where everything runs: `.env` is found there, and relative paths mean the same as for who wrote them."""
        return self.env_file.parent

    @property
    def user(self) -> str:
        """Who may read `.env`: its owner."""
        number = self.env_file.stat().st_uid
        with contextlib.suppress(KeyError):
            return pwd.getpwuid(number).pw_name
        return str(number)

    @property
    def publishes_here(self) -> bool:
        """Into a folder: else it says where, as in s3://bucket or host:folder."""
        return ":" not in self.config.deploy_target

    def path(self, given: Path) -> Path:
        return Path(os.path.normpath(self.folder / given))

    def workers(self) -> list[tuple[str, int]]:
        return [(stage, number) for stage, count in self.counts.items() for number in range(1, count + 1)]


def ticks(batch_size: int = 1) -> tuple[Tick, Tick]:
    next_sites = ("update", "--next", "--batch-size", str(batch_size))
    return Tick("scheduler", next_sites, 1), Tick("reconcile", ("reconcile",), 15)


def cron_lines(folder: Path, program: Path, batch_size: int = 1) -> list[str]:
    """For who has cron instead of services."""
    return [f"{tick.cron} cd {folder} && {program} {' '.join(tick.words)}" for tick in ticks(batch_size)]


def plan(config: Config, env_file: Path | None) -> Plan:
    if env_file is None or not env_file.is_file():
        raise ClerkError("there is no .env here or above: write one (DATABASE_URL, STORAGE_DIR), then install again")
    env_file = env_file.absolute()
    program = _program()
    for path in (env_file, program, config.storage, config.log_dir, config.deploy_target):
        if not str(path).isprintable():
            raise ClerkError(f"{str(path)!r} has characters that no service file can hold: move it")
    return Plan(config, env_file, program, sizing.wanted(config), sizing.needs(config), ticks(config.sites_per_minute))


def _program() -> Path:
    """The one beside this Python, so that services run what was installed here."""
    beside = Path(sys.executable).parent / "clerk"
    found = str(beside) if beside.is_file() else shutil.which("clerk")
    if found is None:
        raise ClerkError("the program 'clerk' is not on PATH: install it, for example with pip install gristmill-clerk")
    return Path(found).absolute()
