"""Jobs that failed, and queues that are emptied."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import func, select, text, true

from clerk import sites, status
from clerk.db import tables
from clerk.db.views import PIPELINE
from clerk.errors import Usage
from clerk.names import STAGES
from clerk.storage import Document, SiteFiles

if TYPE_CHECKING:
    from clerk.config import Config
    from gristmill import Mill
    from gristmill.model import Job

QUEUES: Final = (*STAGES, status.HIGH)
_ALIASES: Final = {"express": status.HIGH}
_PURGED: Final = "purged"  # the class of the error; for the ledger such jobs are cancelled, for people they have failed
_PAGE: Final = 500  # jobs that are looked at in one go

# By the ledger's numbers of states. Those that failed have a fingerprint, and so an index; those cancelled are `odd`.
_TOTAL = """
    SELECT count(*) FROM gm_job j JOIN gm_queue q ON q.id = j.queue_id JOIN gm_stage g ON g.id = j.stage_id
        JOIN gm_run r ON r.id = j.run_id JOIN gm_subject u ON u.id = r.subject_id
    WHERE {ended} AND u.pipeline = :pipeline AND q.name = :queue"""
_ENDED: Final = ("j.fingerprint IS NOT NULL AND j.state = 4", f"j.odd = 5 AND j.error_class = '{_PURGED}'")


@dataclass(frozen=True)
class Failure:
    job_id: int
    site: str
    stage: str
    file: str | None
    created_at: datetime | None
    started_at: datetime | None
    failed_at: datetime | None
    attempts: int
    error_class: str | None
    error: str


@dataclass(frozen=True)
class Missing:
    """A document that its source lists, and that could not be had."""

    site: str
    document: str
    url: str
    error: str


@dataclass(frozen=True)
class Failures:
    queue: str
    total: int
    jobs: list[Failure]
    missing: list[Missing] = field(default_factory=list)  # of fetch: it goes on without single documents
    missing_total: int = 0
    elsewhere: dict[str, int] = field(default_factory=dict)  # how many failed in other stages

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def failures(mill: Mill, config: Config, queue: str, limit: int, subdomain: str | None = None) -> Failures:
    """The newest that failed or were purged, and how many there are in all."""
    if (name := queue_named(queue)) == status.HIGH:
        raise Usage(f"no jobs fail in {queue!r}, they do in their stage: {', '.join(STAGES)}")
    found = islice(_newest(mill, name, subdomain), limit)
    missing, of = _missing(mill, limit, subdomain) if name == "fetch" else ([], 0)
    totals = {stage: _total(mill, stage, subdomain) for stage in STAGES}
    elsewhere = {stage: total for stage, total in totals.items() if total and stage != name}
    return Failures(name, totals[name], [_failure(config, job) for job in found], missing, of, elsewhere)


def _missing(mill: Mill, limit: int, subdomain: str | None) -> tuple[list[Missing], int]:
    table = tables.document
    here = (table.c.state == "missing") & (true() if subdomain is None else table.c.subdomain == subdomain)
    columns = table.c.subdomain, table.c.key, table.c.url, table.c.error
    listed = select(*columns).where(here).order_by(table.c.subdomain, table.c.key).limit(limit)
    with mill.transaction() as connection:
        total = connection.execute(select(func.count()).select_from(table).where(here)).scalar_one()
        return [Missing(*row) for row in connection.execute(listed)], int(total)


def _newest(mill: Mill, queue: str, subdomain: str | None) -> Iterator[Job]:
    """Others that were cancelled, with their run, are passed over."""
    ended, after = ("failed", "cancelled"), None
    about: dict[str, Any] = {"pipeline": PIPELINE, "queue": queue, "state": ended, "subject": subdomain, "parts": False}
    while page := mill.jobs(**about, limit=_PAGE, after=after):
        yield from (job for job in page if job.state == "failed" or job.error_class == _PURGED)
        after = page[-1].id


def _total(mill: Mill, queue: str, subdomain: str | None) -> int:
    values = {"pipeline": PIPELINE, "queue": queue}
    one = ""
    if subdomain is not None:
        one, values["subdomain"] = " AND u.name = :subdomain", subdomain
    with mill.transaction() as connection:
        return sum(int(connection.execute(text(_TOTAL.format(ended=how) + one), values).scalar_one()) for how in _ENDED)


def _failure(config: Config, job: Job) -> Failure:
    site = str(job.subject)
    return Failure(
        job.id,
        site,
        str(job.stage),
        str(SiteFiles(config.storage, site).pdf(Document.of_key(job.key))) if job.key and job.stage == "ocr" else None,
        job.created_at,
        job.started_at,
        job.finished_at,
        job.attempt,
        job.error_class,
        job.error or "",
    )


# ---- emptying a queue


def queue_named(name: str) -> str:
    found = _ALIASES.get(name, name)
    if found not in QUEUES:
        raise Usage(f"there is no queue {name[:40]!r}; there are: {', '.join(QUEUES)}")
    return found


def queued(mill: Mill, queue: str) -> int:
    """As the line of `status` says."""
    with mill.transaction() as connection:
        return status.depths(connection).lines()[queue]


def purge_queue(mill: Mill, queue: str) -> int:
    """Ends what is queued there; what follows is handed over as after any other end. Says how many it was."""
    high = queue == status.HIGH
    before = queued(mill, queue)
    for stage in STAGES if high else (queue,):
        mill.set_queue(stage, create=True)
        mill.purge_queue(stage, priority="high" if high else "normal", reason="purged by an operator")
    sites.catch_up(mill)
    return before
