"""An older clerk as it was found on 2026-01-18: its tables in either design, its files, and what it left in RQ."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Connection, create_engine, make_url, text

from clerk import names
from clerk.storage import Document, SiteFiles
from gristmill.ledger.engines import sqlite_module

Design = Literal["2026-01-06", "2026-01-18"]

_SITES = """CREATE TABLE sites (subdomain VARCHAR PRIMARY KEY, name VARCHAR, state VARCHAR, kind VARCHAR, scraper VARCHAR,
    pages INT, start_year INT, extra VARCHAR, country VARCHAR, lat VARCHAR, lng VARCHAR{more}, status VARCHAR,
    extraction_status VARCHAR, last_updated VARCHAR, last_deployed VARCHAR, last_extracted VARCHAR)"""
_STAGES = ("fetch", "ocr", "compilation", "extraction", "deploy")
_MORE = (
    ", current_stage VARCHAR, started_at TIMESTAMP, updated_at TIMESTAMP, "
    + ", ".join(f"{stage}_{what} INT DEFAULT 0" for stage in _STAGES for what in ("total", "completed", "failed"))
    + ", coordinator_enqueued BOOLEAN DEFAULT FALSE"
    + ", last_error_stage VARCHAR, last_error_message TEXT, last_error_at TIMESTAMP"
)
_PROGRESS = """CREATE TABLE site_progress ({key} VARCHAR PRIMARY KEY, current_stage VARCHAR, stage_total INTEGER DEFAULT 0,
    stage_completed INTEGER DEFAULT 0, started_at TIMESTAMP, updated_at TIMESTAMP)"""
_JOBS = """CREATE TABLE job_tracking (rq_job_id VARCHAR PRIMARY KEY, {key} VARCHAR NOT NULL, job_type VARCHAR NOT NULL,
    stage VARCHAR, created_at TIMESTAMP)"""
_INDEXES = {
    "2026-01-06": ["CREATE INDEX idx_job_tracking_site_id ON job_tracking (site_id)"],
    "2026-01-18": [
        "CREATE INDEX idx_job_tracking_site_id ON job_tracking (subdomain)",
        "CREATE INDEX idx_sites_current_stage ON sites (current_stage)",
        "CREATE INDEX idx_sites_updated_at ON sites (updated_at)",
    ],
}
FOUND = {"empty": 2, "partly": 80, "done": 10, "agendas": 10, "unread": 3}  # of the 105 in ocr
_DISAGREE = 14  # of which status says something else
STUCK_SINCE = datetime(2026, 1, 17, 8, 30, 15)  # as it was written, without a zone


def engine_of(url: str) -> Any:
    where = make_url(url)
    if where.get_backend_name() == "sqlite":
        return create_engine(where, module=sqlite_module())  # two libraries in a process undo each other's locks
    return create_engine(where.set(drivername="postgresql+psycopg"))


@dataclass
class OlderClerk:
    """Fills a database that has no tables, and a folder."""

    url: str
    storage: Path
    design: Design
    scraper: str = "played"
    stuck: dict[str, str] = field(default_factory=dict)  # what kind of the 105 each is

    @property
    def key(self) -> str:
        return "site_id" if self.design == "2026-01-06" else "subdomain"

    def make_tables(self) -> None:
        more = _MORE if self.design == "2026-01-18" else ""
        engine = engine_of(self.url)
        with engine.begin() as connection:
            for sql in (_SITES.format(more=more), _PROGRESS.format(key=self.key), _JOBS.format(key=self.key)):
                connection.execute(text(sql))
            for sql in _INDEXES[self.design]:
                connection.execute(text(sql))
        engine.dispose()

    def add(self, rows: list[tuple[str, str | None, str | None]], **more: Any) -> None:
        """Sites, each with its status and, unless that is None, its stage in site_progress."""
        engine = engine_of(self.url)
        with engine.begin() as connection:
            for subdomain, status, stage in rows:
                self._add(connection, subdomain, status, stage, more)
        engine.dispose()

    def _add(
        self, connection: Connection, subdomain: str, status: str | None, stage: str | None, more: dict[str, Any]
    ) -> None:
        said = {
            "subdomain": subdomain,
            "name": subdomain.title(),
            "scraper": self.scraper,
            "start_year": 2020,
            "extra": "{}",
            "status": status,
            "last_updated": "2026-01-17T08:00:00",
            "last_deployed": "2026-01-16T10:00:00" if status == "deployed" else None,
            **more,
        }
        _insert(connection, "sites", said)
        if stage is None:
            return
        counted = {"stage_total": 3, "stage_completed": 1, "started_at": STUCK_SINCE, "updated_at": STUCK_SINCE}
        _insert(connection, "site_progress", {self.key: subdomain, "current_stage": stage, **counted})
        job = {"rq_job_id": f"job-{subdomain}", self.key: subdomain, "job_type": "ocr-page", "stage": "ocr"}
        _insert(connection, "job_tracking", {**job, "created_at": STUCK_SINCE})

    def document(self, subdomain: str, key: str, *, pdf: bool = True, text: bool = True, marker: bool | str = True) -> None:
        """A document with what is left of it. The PDF is one that the played reader reads."""
        files, document = SiteFiles(self.storage, subdomain), Document.of_key(key)
        if pdf:
            _write(files.pdf(document), json.dumps({"key": key}))
        if text:
            _write(files.text(document) / "1.txt", f"the older text of {key}")
        if marker:
            _write(files.marker(document), marker if isinstance(marker, str) else "")

    # ---- the fixture

    def as_found(self, counts: dict[str, int] = FOUND) -> None:
        """108 unfinished rows, 105 of them in ocr; 91 sites with needs_ocr; and some that are done, or new."""
        self.make_tables()
        kinds = [kind for kind, count in counts.items() for _ in range(count)]
        rows: list[tuple[str, str | None, str | None]] = []
        for number, kind in enumerate(kinds):
            subdomain = names.subdomain(f"{kind}{number:03}.example")
            self.stuck[subdomain] = kind
            disagrees = kind == "partly" and sum(row[1] != "needs_ocr" for row in rows) < _DISAGREE
            rows.append((subdomain, ("deployed" if number % 2 else "fetching") if disagrees else "needs_ocr", "ocr"))
            self._files(subdomain, kind)
        self.add(rows)
        self.add([("fetching.example", "fetching", "fetch"), ("extracting.example", "needs_extraction", "extraction")])
        self.add([("deploying.example", "needs_deploy", "deploy")])
        self.add([(f"deployed{number:02}.example", "deployed", "completed") for number in range(12)])
        self.add([("new.example", None, None)], last_updated=None)
        for subdomain in ("extracting.example", "deploying.example", "deployed00.example"):
            self.document(subdomain, "minutes/Council/2025-03-04")

    def _files(self, subdomain: str, kind: str) -> None:
        (self.storage / subdomain).mkdir(parents=True)
        if kind == "partly":
            self.document(subdomain, "minutes/Council/2025-01-07")
            self.document(subdomain, "minutes/Council/2025-02-04", pdf=False)
            self.document(subdomain, "agendas/Council/2025-02-04", marker=False)
            self.document(subdomain, "minutes/Council/2025-03-04", text=False, marker=False)
        elif kind == "done":
            self.document(subdomain, "minutes/Council/2025-01-07", pdf=False, marker=False)
            self.document(subdomain, "minutes/Council/2025-02-04")
        elif kind == "agendas":
            self.document(subdomain, "agendas/Planning/2025-01-07", pdf=False)
        elif kind == "unread":
            self.document(subdomain, "minutes/Council/2025-01-07", text=False, marker=False)
            self.document(subdomain, "minutes/Council/2025-02-04", text=False, marker=False)


def _insert(connection: Connection, table: str, row: dict[str, Any]) -> None:
    values = {name: value.isoformat(" ") if isinstance(value, datetime) else value for name, value in row.items()}
    columns, marks = ", ".join(values), ", ".join(f":{name}" for name in values)
    connection.execute(text(f"INSERT INTO {table} ({columns}) VALUES ({marks})"), values)


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def leave_jobs(client: Any, deferred: int = 82, failed: int = 2695) -> None:
    """By RQ's own hand: OCR jobs that failed, coordinators that wait for them, and one that has nothing to do with it."""
    from rq import Queue
    from rq.job import Job
    from rq.registry import FailedJobRegistry

    ocr, compilation = Queue("ocr", connection=client), Queue("compilation", connection=client)
    registry = FailedJobRegistry(queue=ocr)
    jobs = []
    for first in range(0, failed, 500):
        with client.pipeline() as pipeline:
            for number in range(first, min(first + 500, failed)):
                job = Job.create("clerk.workers.ocr_page_job", [f"site{number}"], connection=client, origin="ocr")
                job.save(pipeline=pipeline)
                registry.add(job, pipeline=pipeline)
                jobs.append(job)
            pipeline.execute()
    for number in range(deferred):
        compilation.enqueue("clerk.workers.ocr_complete_coordinator", f"site{number}", depends_on=[jobs[number]])
    Queue("fetch", connection=client).enqueue("clerk.workers.fetch_site_job", "another.example")
