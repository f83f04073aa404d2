"""What every stage's function stands on: the settings, the site, its files; its milestones in the log; its errors."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from sqlalchemy import select

from clerk import config as settings
from clerk import logs, sentry
from clerk.config import Config
from clerk.db import tables
from clerk.db.views import GATE
from clerk.errors import ClerkError, Crashed, Critical, Transient
from clerk.pipeline.outcomes import outcomes
from clerk.sites import Site, site_of
from clerk.storage import SiteFiles
from gristmill import Context, EndRun, Later, Permanent, Skip, Unspent
from gristmill.errors import DatabaseError

_AFTER_FETCH: Final = ("ocr", "compilation", "extraction", "deploy")
_KILLED: Final = ("timeout", "crash", "memory")


@dataclass(frozen=True)
class Work:
    """One job of a site."""

    ctx: Context
    config: Config

    @property
    def subdomain(self) -> str:
        return str(self.ctx.subject)

    @property
    def run(self) -> int:
        return self.ctx.run or 0

    @cached_property
    def files(self) -> SiteFiles:
        return SiteFiles(self.config.storage, self.subdomain)

    @cached_property
    def site(self) -> Site:
        with self.ctx.transaction() as connection:
            row = connection.execute(select(tables.site).where(tables.site.c.subdomain == self.subdomain)).mappings().first()
        if row is None:
            raise Permanent(f"Site '{self.subdomain}' not found")
        return site_of(row)


@contextlib.contextmanager
def working(ctx: Context, milestones: str | None = None) -> Iterator[Work]:
    """Around a job's work. `milestones`: what they are called in the log, if not as the stage; parts have none."""
    name = milestones or (ctx.stage if ctx.part_of is None else None)
    work = Work(ctx, settings.load())
    began = time.monotonic()
    with logs.about(subdomain=ctx.subject, run_id=ctx.run, stage=ctx.stage, job_id=ctx.job):
        if name:
            logs.milestone(name, "started")
        try:
            with outcomes(ctx):
                _refuse_without_files(work)
                yield work
        except (Later, Unspent):
            raise
        except (Skip, EndRun) as chosen:
            _ended(name, "completed", began, reason=chosen.reason)
            raise
        except Exception as error:
            _failed(work, name, began, error)
            raise
        _ended(name, "completed", began)


def _refuse_without_files(work: Work) -> None:
    """What was fetched is in the folder of its site. Where there is none the storage is not mounted: documents would be
    missing for good, and the next thing to be published would be empty."""
    if work.files.root.is_dir():
        return
    missing = f"the storage is not there: {work.files.root} is missing on this machine; see STORAGE_DIR"
    if work.ctx.stage in _AFTER_FETCH or work.ctx.part_of is not None:
        raise Critical(missing)
    if _is_empty(work.config.storage) and _had_documents(work):  # else it is new, or somebody wants it anew
        raise Critical(f"{missing}. To fetch all of it anew: mkdir {work.files.root}")


def _is_empty(storage: Path) -> bool:
    """As the folder is that something else is usually mounted on. (In use, it has at least the list of all sites.)"""
    return not storage.is_dir() or all(one.name.startswith(".") for one in storage.iterdir())


def _had_documents(work: Work) -> bool:
    document = tables.document
    had = select(document.c.key).where(document.c.subdomain == work.subdomain, document.c.sha256.is_not(None)).limit(1)
    with work.ctx.transaction() as connection:
        return connection.execute(had).first() is not None


def _ended(name: str | None, what: Literal["completed", "failed"], began: float, **fields: Any) -> None:
    if name:
        logs.milestone(name, what, duration=time.monotonic() - began, **fields)


def _failed(work: Work, name: str | None, began: float, error: Exception) -> None:
    """A milestone, for Sentry too, unless it is tried again: then it is only said."""
    text = str(error) if isinstance(error, Permanent | ClerkError) else f"{type(error).__name__}: {error}"
    again = 2 if isinstance(error, Transient | DatabaseError) else 1 if isinstance(error, Crashed) else 0
    if name is None or work.ctx.attempt <= again:
        logs.log.warning("attempt %d of %s failed: %s", work.ctx.attempt, work.ctx.task, text)
    else:
        _ended(name, "failed", began, error=text, error_class=type(error).__name__, **_group(work, error))


class Killed(logging.Handler):
    """Listens to the worker: a process that was killed, at its time limit or by a crash, cannot say that it has failed."""

    def emit(self, record: logging.LogRecord) -> None:
        said = vars(record)
        if said.get("outcome") not in _KILLED or said.get("state") != "failed" or not said.get("stage"):
            return  # it could speak, is tried again, or is a part, which has no milestones
        kind: dict[str, Any] = {"kind": sentry.UNPROCESSED} if said["stage"] == "ocr" else {}
        name = "coordinator" if said["stage"] == GATE else said["stage"]
        with logs.about(subdomain=said["subject"], run_id=said["run"], stage=said["stage"], job_id=said["job"]):
            logs.milestone(name, "failed", error=f"{said['outcome']}: {record.getMessage()}", **kind)


@contextlib.contextmanager
def telling_of_the_killed() -> Iterator[None]:
    """Around a worker's work."""
    worker, listening = logging.getLogger("gristmill.worker"), Killed()
    worker.addHandler(listening)
    try:
        yield
    finally:
        worker.removeHandler(listening)


def _group(work: Work, error: Exception) -> dict[str, Any]:
    """Which failures are one issue: those of a kind, or of a host; not of a path."""
    if work.ctx.stage == "ocr":
        return {"kind": sentry.UNREADABLE if isinstance(error, Permanent) else sentry.UNPROCESSED}
    if work.ctx.stage == "fetch":
        url = next((str(value) for key, value in work.site.extra.items() if key in ("url", "base_url")), "")
        return {"kind": sentry.FETCH, "host": urlsplit(url).hostname or work.site.scraper}
    return {}
