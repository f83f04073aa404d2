"""A run in this process: a whole one, or one stage of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clerk import names, sites
from clerk.db import terminal
from clerk.db.views import PIPELINE
from clerk.errors import ClerkError, Usage
from clerk.storage import Document, SiteFiles

if TYPE_CHECKING:
    from clerk.config import Config
    from clerk.sites import Enqueued
    from gristmill import Mill
    from gristmill.model import Run, Stage

_GOOD = {"completed", "completed_with_errors"}


@dataclass(frozen=True)
class Ended:
    """How a run ended, in a line for people."""

    run: Run
    text: str


def run_to_end(mill: Mill, asked: Enqueued) -> Ended:
    """Works on a run until it ends, and on the one that follows it. A run that fails is an error."""
    for run in (asked.run, asked.follow_up):
        if run is not None:
            _work(mill, run)
    return _judged(mill, asked.subdomain, asked.run if asked.follow_up is None else asked.follow_up)


def _work(mill: Mill, run: int) -> None:
    for queue in names.STAGES:
        mill.set_queue(queue, create=True)
    mill.work(run=run)


def _judged(mill: Mill, subdomain: str, number: int) -> Ended:
    sites.catch_up(mill)
    run = mill.run(number)
    if not run.terminal:
        raise ClerkError(f"{subdomain} was stopped; `clerk update -s {subdomain} --local` goes on with it")
    if run.state not in _GOOD:
        site = sites.find(mill, subdomain)
        why = site.last_error_message or run.error or run.state
        raise ClerkError(f"the run of {subdomain} {run.state} in {site.current_stage}: {why}")
    read = run.stage("ocr")
    failed = f", {read.failed} failed" if read.failed else ""
    return Ended(run, f"{subdomain}: {run.reason or 'completed'} ({read.completed} of {read.total} documents read{failed})")


# ---- one stage


def run_stage(mill: Mill, stage: str, subdomain: str, proceed: bool = False) -> Ended:
    """This stage alone, on what those before it left; with `proceed` also what comes after it."""
    sites.find(mill, subdomain)
    how: dict[str, Any] = {}
    if stage == "ocr":  # what is to be read is known only to fetch, which then asks no source
        how["args"] = {"skip_fetch": True}
    if stage in ("fetch", "ocr"):
        how["only"] = None if proceed else names.STAGES[: names.STAGES.index(stage) + 1]
    else:
        how |= {"from_stage": stage, "only": None if proceed else [stage]}
    with mill.transaction() as connection:
        run = mill.start(PIPELINE, subdomain, priority="high", if_active="refuse", connection=connection, **how)
        terminal.started(connection, subdomain, run.id)
    _work(mill, run.id)
    _refuse_failed(subdomain, mill.run(run.id), [stage])
    ended = _judged(mill, subdomain, run.id)
    done = ended.run.stage(stage)
    return Ended(ended.run, f"{subdomain}: {stage} {_said(done)}")


def _refuse_failed(subdomain: str, run: Run, stages: Sequence[str]) -> None:
    for name in stages:
        stage = run.stage(name)
        if stage.failed and not stage.completed:
            raise ClerkError(f"{name} of {subdomain} failed; `clerk check-failed --queue {name} -s {subdomain}` says why")


def _said(stage: Stage) -> str:
    if stage.outcome == "skipped":
        return "skipped"
    failed = f", {stage.failed} failed" if stage.failed else ""
    return f"done ({stage.completed} of {stage.total}{failed})"


def read_one(config: Config, subdomain: str, path: Path, backend: Any) -> str:
    """Reads one document that is in the storage already; says what became of it. The next run finds its text."""
    from clerk.reading.documents import Long, finish_document, read_document, read_part

    files = SiteFiles(config.storage, subdomain)
    document = document_at(files, path)
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    came = read_document(files, document, sha256, config, backend, html=path.suffix == ".html")
    if isinstance(came, Long):
        for part in came.parts:
            read_part(files, document, sha256, part, config, backend)
        came = finish_document(files, document, sha256, came.parts, backend)
    without = f", {len(came.errors)} without text" if came.errors else ""
    return f"{document.key}: {came.pages} pages{without}"


def document_at(files: SiteFiles, path: Path) -> Document:
    """The document of this site that is kept there."""
    given = path.resolve()
    for kind in names.KINDS:
        for document in files.documents(kind, under="pdfs"):
            if given in (files.pdf(document).resolve(), files.html(document).resolve()) and given.is_file():
                return document
    raise Usage(f"{path} is no document of {files.subdomain}; those are in {files.root / 'pdfs'} and below _agendas")
