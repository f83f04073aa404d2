"""What workers need: the settings, the database, services that are installed and workers that are alive, logs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from clerk import services
from clerk.config import Config, dotenv_file, seen_by_others
from clerk.services import sizing

if TYPE_CHECKING:
    from gristmill import Mill


@dataclass(frozen=True)
class Answer:
    ok: bool
    about: str
    said: str


def settings(folder: Path) -> Iterator[Answer]:
    path = dotenv_file(folder)
    if path is None:
        yield Answer(False, ".env", f"none in {folder} or above; services need one")
        return
    wrong = seen_by_others(path)
    yield Answer(wrong is None, ".env", wrong or str(path))


def workers(mill: Mill, config: Config) -> Iterator[Answer]:
    """By type: how many are alive on any machine, and how many this one should have."""
    now = datetime.now(UTC)
    alive = [worker for worker in mill.workers() if worker.lease_until is None or worker.lease_until > now]
    for stage, wanted in sizing.wanted(config).items():
        serving = sum(not worker.queues or stage in worker.queues for worker in alive)
        yield Answer(serving > 0 or not wanted, f"{stage} workers", f"{serving} alive; this machine should have {wanted}")


def installed(folder: Path) -> Iterator[Answer]:
    """Services of this system, by their files."""
    target = services.default_target()
    kind = services.TARGETS[target]
    env = dotenv_file(folder)
    where = kind.folder(env.parent if env else folder)
    found = [path for path in where.glob("*") if kind.names.fullmatch(path.name)] if where.is_dir() else []
    hint = "" if found else "; `clerk install-workers` installs them"
    yield Answer(bool(found), "services", f"{len(found)} files for {target} in {where}{hint}")


def logs(config: Config) -> Iterator[Answer]:
    folder = config.log_dir
    if not folder.is_dir():
        yield Answer(False, "logs", f"LOG_DIR {folder} is not there; the first worker makes it")
        return
    if not os.access(folder, os.W_OK | os.X_OK):
        yield Answer(False, "logs", f"LOG_DIR {folder} cannot be written")
        return
    times = {path: path.stat().st_mtime for path in folder.glob("worker-*.log")}
    if not times:
        yield Answer(False, "logs", f"no worker has written to {folder}")
        return
    newest = max(times, key=lambda path: times[path])
    at = datetime.fromtimestamp(times[newest], UTC)
    yield Answer(True, "logs", f"{len(times)} files in {folder}, last {newest.name} at {at:%Y-%m-%d %H:%M:%S}")
