"""clerk as an application of the engine: its database opened, brought up to date, and worked on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from clerk import pipeline
from clerk.config import Config, dotenv_file, load
from clerk.db import migrations, older
from clerk.errors import NoDatabase, OutOfReach, Usage
from clerk.names import STAGES
from clerk.outage import patiently
from clerk.pipeline import critical_errors, failed_runs, silent_runs, site, storage
from clerk.pipeline.working import telling_of_the_killed
from gristmill import Invalid, Mill
from gristmill.errors import DatabaseError, SchemaMismatch, Unavailable

__all__ = ["critical_errors", "database", "failed_runs", "open_mill", "queues_of", "silent_runs", "site", "storage", "work"]

tables: Final = migrations(load().database_url)  # for `gristmill -A clerk.app`


def open_mill(config: Config, *, create: bool = False, importing: bool = False, **how: Any) -> Mill:
    """The database that the settings name. What runs on it reads its settings from the environment: its children must.

    `create`: a new SQLite file is set up. A database that is out of reach or behind is `NoDatabase`. Tables of an older
    clerk where its views should be are refused, unless they are just being imported.
    """
    pipeline.configure(config)
    how.setdefault("delivery", "redis" if config.redis_url else "database")
    own = (site, migrations(config.database_url), failed_runs, silent_runs, critical_errors, storage)
    try:
        mill = Mill.open(config.database_url, *own, create=create, redis_url=config.redis_url, **how)
    except SchemaMismatch as error:  # behind, and it says what to run; or ahead, and nothing that is run here helps
        said, behind, _ = str(error).partition("; run: ")
        raise NoDatabase(f"{said}{_way_out(said, config)}" if behind else said) from error
    except Unavailable as error:
        raise OutOfReach(f"{error}; see DATABASE_URL and its server") from error
    except DatabaseError as error:
        raise NoDatabase(str(error)) from error
    except Invalid as error:
        raise Usage(str(error)) from error
    if not importing:
        _refuse_older(mill)
    return mill


def _way_out(said: str, config: Config) -> str:
    """What to run; but whoever is below the folder of `.env` would make a second database."""
    settings = dotenv_file(Path.cwd())
    if not said.startswith("there is no database"):
        return "; `clerk db upgrade` brings it up to date"
    if settings and settings.parent != Path.cwd() and not config.database_url.startswith("sqlite:////"):
        return f" here, and .env is in {settings.parent}: run clerk there, or name the file in it with its whole path"
    return "; `clerk db upgrade` makes it"


def _refuse_older(mill: Mill) -> None:
    """An import that was broken off after it had made clerk's tables leaves the older ones in place."""
    try:
        with mill.transaction() as connection:
            older.refuse(connection)
    except BaseException:
        mill.close()
        raise


def database(config: Config, *words: str, application: str = __name__) -> subprocess.CompletedProcess[str]:
    """`upgrade`, `current`, `history`, `downgrade`, `grants ROLE`: the engine's command for its tables and clerk's.

    `upgrade` is refused where tables of an older clerk are in the way. Its views are new: what guards them, if there was
    an import, is made again.
    """
    upgrades = words[:1] == ("upgrade",) and application == __name__
    was_imported = False
    if upgrades:
        with older.looking(config.database_url) as connection:
            older.refuse(connection)
            was_imported = connection is not None and older.is_swallowing(connection)
    environ = {**os.environ, "GRISTMILL_DATABASE_URL": config.database_url, "DATABASE_URL": config.database_url}
    command = [sys.executable, "-m", "gristmill", "-A", application, "db", *words]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if was_imported and done.returncode == 0:
        with open_mill(config) as mill, mill.transaction() as connection:
            older.swallow(connection)
    return done


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
    """A worker of this type in this process; `until` and settings are the engine's. One of all stages serves them as one
    line: a job of a high run is next, whichever stage it is of."""
    if until is None:
        patiently(partial(_make_queues, mill))
    else:
        _make_queues(mill)
    with telling_of_the_killed():
        mill.work(until, queues=queues_of(worker), slots=slots, tickers=tickers, one_line=worker == "all", **settings)


def _make_queues(mill: Mill) -> None:
    """Without extraction nothing else names its queue."""
    for queue in STAGES:
        mill.set_queue(queue, create=True)
