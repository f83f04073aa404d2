"""A run in this process: a whole one, or one stage of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clerk import logs, names, sentry, sites
from clerk.db import terminal
from clerk.db.views import PIPELINE
from clerk.errors import ClerkError, Usage
from clerk.pipeline.working import telling_of_the_killed
from clerk.storage import Document, SiteFiles, sha256_of

if TYPE_CHECKING:
    from clerk.config import Config
    from clerk.reading.documents import Read
    from clerk.sites import Enqueued
    from gristmill import Mill
    from gristmill.model import Run, Stage

_GOOD = {"completed", "completed_with_errors"}


@dataclass(frozen=True)
class Ended:
    """How a run ended, in a line for people, and what they may type next."""

    run: Run
    text: str
    hints: tuple[str, ...] = ()


def run_to_end(mill: Mill, config: Config, asked: Enqueued) -> list[Ended]:
    """Works on a run until it ends, and on the one that follows it. If the last one fails, that is an error. One that was
    asked for before is left to workers."""
    runs = [run for run in (asked.run, asked.follow_up) if run is not None]
    with _telling(config):
        for run in runs:
            _work(mill, run)
    earlier = [Ended(run, f"{asked.subdomain}: {_outcome(mill, run)}") for run in map(mill.run, runs[:-1]) if run.terminal]
    return [*earlier, _judged(mill, asked.subdomain, runs[-1]), *_left(mill, asked.subdomain, runs)]


def _left(mill: Mill, subdomain: str, done: Sequence[int]) -> Iterator[Ended]:
    for run in mill.runs(pipeline=PIPELINE, subject=subdomain, limit=2):
        if not run.terminal and run.id not in done:
            here = f"`clerk run-local {subdomain}` does it here"
            yield Ended(run, f"Run {run.id} of {subdomain} was asked for before and is left to workers; {here}")


@contextmanager
def _telling(config: Config) -> Iterator[None]:
    """What is done here is in the log, in Loki and in Sentry as what workers do; the command says only how it ended."""
    logs.configure(config, logs.worker_name("local"), typed=True)
    sentry.configure(config)
    try:
        with telling_of_the_killed():
            yield
    finally:
        logs.configure(config)


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
    read, missing = run.stage("ocr").failed, _missing(mill, run)
    hints = [f"clerk check-failed -s {subdomain}"] * bool(read)
    hints += [f"clerk check-failed -s {subdomain} --queue fetch"] * bool(missing)
    return Ended(run, f"{subdomain}: {_outcome(mill, run)}", tuple(hints))


def _outcome(mill: Mill, run: Run) -> str:
    if run.state not in _GOOD:
        return f"{run.state}: {run.error or run.reason}"
    read, missing = run.stage("ocr"), _missing(mill, run)
    failed = f", {read.failed} failed" if read.failed else ""
    away = f"; {missing} could not be downloaded" if missing else ""
    return f"{run.reason or 'completed'} ({read.completed} of {read.total} documents read{failed}{away})"


def _missing(mill: Mill, run: Run) -> int:
    """How many documents its source lists that could not be had."""
    return sum(int(job.result["missing"]) for job in mill.jobs(run=run.id, stage="fetch") if job.result)


# ---- one stage


def run_stage(mill: Mill, config: Config, stage: str, subdomain: str, proceed: bool = False) -> Ended:
    """This stage alone, on what those before it left; with `proceed` also what comes after it."""
    sites.find(mill, subdomain)
    # What is to be read is known only to fetch, which asks no source then. All options are said: those that are not
    # would be those of the last run.
    how: dict[str, Any] = {"args": sites.Options(skip_fetch=stage == "ocr").args()}
    if stage in ("fetch", "ocr"):
        how["only"] = None if proceed else names.STAGES[: names.STAGES.index(stage) + 1]
    else:
        how |= {"from_stage": stage, "only": None if proceed else [stage]}
    with mill.transaction() as connection:
        run = mill.start(PIPELINE, subdomain, priority="high", if_active="refuse", connection=connection, **how)
        terminal.started(connection, subdomain, run.id)
    with _telling(config):
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


def read_one(mill: Mill, config: Config, subdomain: str, path: Path, backend: Any) -> str:
    """Reads one document that is in the storage already; says what became of it. The next run finds its text."""
    files = SiteFiles(config.storage, subdomain)
    document = document_at(files, path)
    with _telling(config), logs.about(subdomain=subdomain, stage="ocr"):
        logs.milestone("ocr", "started", document=document.key)
        try:
            sha256, came = _read(config, files, document, path, backend)
        except ClerkError as error:
            logs.milestone("ocr", "failed", error=str(error), kind=sentry.UNREADABLE)
            raise
        logs.milestone("ocr", "completed", document=document.key)
    _note(mill, subdomain, document, sha256, came, backend)
    without = f", {len(came.errors)} without text" if came.errors else ""
    return f"{document.key}: {came.pages} page{'' if came.pages == 1 else 's'}{without}"


def _read(config: Config, files: SiteFiles, document: Document, path: Path, backend: Any) -> tuple[str, Read]:
    """And what it was read from."""
    from clerk.reading.documents import Long, finish_document, read_document, read_part

    sha256 = sha256_of(path)
    came = read_document(files, document, sha256, config, backend, html=path.suffix == ".html")
    if isinstance(came, Long):
        for part in came.parts:
            read_part(files, document, sha256, part, config, backend)
        came = finish_document(files, document, sha256, came.parts, backend)
    return sha256, came


def _note(mill: Mill, subdomain: str, document: Document, sha256: str, came: Read, backend: Any) -> None:
    """In its row, if that is about this very file: one that failed before has been read now."""
    from clerk.pipeline.documents import note

    done = {"state": "read", "error": None, "backend": backend.label, "read_at": datetime.now(UTC)}
    with mill.transaction() as connection:
        note(connection, subdomain, document, came, sha256, **done)


def document_at(files: SiteFiles, path: Path) -> Document:
    """The document of this site that is kept there."""
    given = path.resolve()
    for kind in names.KINDS:
        for document in files.documents(kind, under="pdfs"):
            if given in (files.pdf(document).resolve(), files.html(document).resolve()) and given.is_file():
                return document
    raise Usage(f"{path} is no document of {files.subdomain}; those are in {files.root / 'pdfs'} and below _agendas")
