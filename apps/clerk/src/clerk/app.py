"""clerk as an application of the engine: its database opened, brought up to date, and worked on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from clerk import pipeline
from clerk.config import Config, load
from clerk.db import migrations
from clerk.errors import NoDatabase, Usage
from clerk.names import STAGES
from clerk.pipeline import critical_errors, failed_runs, silent_runs, site, storage
from gristmill import GristmillError, Mill

__all__ = ["critical_errors", "database", "failed_runs", "open_mill", "queues_of", "silent_runs", "site", "storage", "work"]

tables: Final = migrations(load().database_url)  # for `gristmill -A clerk.app`


def open_mill(config: Config, *, create: bool = False, **how: Any) -> Mill:
    """The database that the settings name. What runs on it reads its settings from the environment: its children must.

    `create`: a new SQLite file is set up. A database that is out of reach or behind is `NoDatabase`.
    """
    pipeline.configure(config)
    how.setdefault("delivery", "redis" if config.redis_url else "database")
    own = (site, migrations(config.database_url), failed_runs, silent_runs, critical_errors, storage)
    try:
        return Mill.open(config.database_url, *own, create=create, redis_url=config.redis_url, **how)
    except GristmillError as error:
        raise NoDatabase(f"{str(error).partition('; run: ')[0]}; `clerk db upgrade` brings it up to date") from error


def database(config: Config, *words: str) -> subprocess.CompletedProcess[str]:
    """`upgrade`, `current`, `history`, `downgrade`, `grants ROLE`: the engine's command for its tables and clerk's."""
    environ = {**os.environ, "GRISTMILL_DATABASE_URL": config.database_url, "DATABASE_URL": config.database_url}
    command = [sys.executable, "-m", "gristmill", "-A", __name__, "db", *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


def queues_of(worker: str) -> list[str]:
    """What a worker of this type serves: its stage, or all of them."""
    if worker != "all" and worker not in STAGES:
        raise Usage(f"there is no worker type {worker!r}: {', '.join(STAGES)}, all")
    return list(STAGES) if worker == "all" else [worker]


def work(
    mill: Mill,
    worker: str = "all",
    slots: int = 1,
    *,
    until: Literal["idle", "drained"] | None = None,
    tickers: Sequence[Callable[[float], float]] = (),
    **settings: Any,
) -> None:
    """A worker of this type in this process; `until` and settings are the engine's."""
    for queue in STAGES:
        mill.set_queue(queue, create=True)  # without extraction nothing else names its queue
    mill.work(until, queues=queues_of(worker), slots=slots, tickers=tickers, **settings)
