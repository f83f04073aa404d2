"""The pipeline of a site: fetch, ocr (one item per document), then compilation and extraction side by side, then deploy.

What each stage does is in its own module; here is the order, and what becomes of their errors.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

from clerk import config as settings
from clerk import logs, sentry
from clerk.config import Config
from clerk.db import terminal
from clerk.db.views import GATE, PIPELINE
from clerk.pipeline.outcomes import RETRIES
from gristmill import Context, Pipeline, Retention

KEPT_RUNS: Final = 30  # of each site; of those that failed, all of the last FAILED_RETENTION_DAYS

_settings = settings.load()  # children import this, too

site = Pipeline(
    PIPELINE,
    keep=[Retention(count=KEPT_RUNS), Retention(state="failed", age=_settings.failed_retention_days * 86_400)],
    on_terminal=terminal.ENDED,
)


@site.stage(queue="fetch", retries=RETRIES, formerly=["site.fetch-site"])
def fetch(
    ctx: Context,
    all_years: bool = False,
    all_agendas: bool = False,
    skip_fetch: bool = False,
    retry_failed: bool = False,
    ocr_backend: str | None = None,
) -> Generator[tuple[str, dict[str, Any]], None, dict[str, int]]:
    from clerk.pipeline.fetching import documents
    from clerk.sites import Options

    options = Options(all_years, all_agendas, skip_fetch, retry_failed, ocr_backend)
    return (yield from documents(ctx, options))


@site.stage(
    after=fetch, each=True, need=0, queue="ocr", retries=RETRIES, on_terminal=terminal.READ, formerly=["site.ocr-page"]
)
def ocr(ctx: Context, sha256: str, backend: str, content_type: str = "application/pdf") -> dict[str, Any]:
    from clerk.pipeline.documents import read

    return read(ctx, sha256, backend, content_type)


@ocr.part(retries=RETRIES, need=0)
def chunk(ctx: Context, document: str, sha256: str, backend: str, first: int, last: int) -> None:
    """Some pages of a document that is too long for one job."""
    from clerk.pipeline.documents import read_chunk

    read_chunk(ctx, document, sha256, backend, first, last)


@ocr.probe
def has_been_read(ctx: Context, sha256: str) -> bool:
    from clerk.pipeline.documents import has_been_read

    return has_been_read(ctx, sha256)


@site.gate(after=ocr, name=GATE, queue="compilation", retries=RETRIES)
def gate(ctx: Context) -> None:
    """In a queue that is never long: it would otherwise wait behind the documents of all other sites."""
    from clerk.pipeline.gate import decide

    decide(ctx)


@site.stage(after=ocr, queue="compilation", retries=RETRIES, on_terminal=terminal.COMPILED, formerly=["site.db-compilation"])
def compilation(ctx: Context) -> int:
    from clerk.pipeline.publishing import compile_text

    return compile_text(ctx)


def _is_wanted(ctx: Context) -> bool:
    return settings.load().extraction


@site.stage(
    after=ocr,
    need=0,
    queue="extraction",
    retries=RETRIES,
    when=_is_wanted,
    on_terminal=terminal.EXTRACTED,
    formerly=["site.extract-site"],
)
def extraction(ctx: Context) -> int:
    from clerk.pipeline.extracting import extract

    return extract(ctx)


@site.stage(
    after=[compilation, extraction],
    queue="deploy",
    retries=RETRIES,
    on_terminal=terminal.DEPLOYED,
    formerly=["site.deploy-site"],
)
def deploy(ctx: Context) -> str:
    from clerk.pipeline.publishing import publish

    return publish(ctx)


def configure(config: Config) -> None:
    """What the settings say of stages is written with a run when it starts; of parts, when they are handed over."""
    fetch.timeout = config.fetch_timeout
    ocr.timeout = chunk.timeout = config.ocr_timeout
    gate.timeout = compilation.timeout = config.compilation_timeout
    extraction.timeout = config.extraction_timeout
    deploy.timeout = config.deploy_timeout
    # Nobody may serve its queue then. Whoever takes the job only sees that it is not wanted.
    extraction.queue = "extraction" if config.extraction else "compilation"


configure(_settings)
if logs.in_child():
    logs.configure(_settings)
    sentry.configure(_settings)
