"""Jobs that failed, and queues that are emptied."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import text

from clerk import sites, status
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
_FAILED: Final = 4  # the ledger's state; such jobs have a fingerprint, and so an index

_TOTAL = """
    SELECT count(*) FROM gm_job j JOIN gm_queue q ON q.id = j.queue_id JOIN gm_stage g ON g.id = j.stage_id
        JOIN gm_run r ON r.id = j.run_id JOIN gm_subject u ON u.id = r.subject_id
    WHERE j.fingerprint IS NOT NULL AND j.state = :failed AND u.pipeline = :pipeline"""


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
class Failures:
    queue: str
    total: int
    jobs: list[Failure]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def failures(mill: Mill, config: Config, queue: str, limit: int, subdomain: str | None = None) -> Failures:
    """The newest, and how many there are in all."""
    if (name := queue_named(queue)) == status.HIGH:
        raise Usage(f"no jobs fail in {queue!r}, they do in their stage: {', '.join(STAGES)}")
    found = mill.jobs(pipeline=PIPELINE, queue=name, state="failed", subject=subdomain, parts=False, limit=limit)
    return Failures(name, _total(mill, name, subdomain), [_failure(config, job) for job in found])


def _total(mill: Mill, queue: str, subdomain: str | None) -> int:
    values = {"failed": _FAILED, "pipeline": PIPELINE, "queue": queue}
    sql = f"{_TOTAL} AND q.name = :queue"
    if subdomain is not None:
        sql, values = f"{sql} AND u.name = :subdomain", {**values, "subdomain": subdomain}
    with mill.transaction() as connection:
        return int(connection.execute(text(sql), values).scalar_one())


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
