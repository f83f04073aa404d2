"""Between ocr and what follows: is there something to compile, and if not, how does the run end?"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

from clerk.deploying import is_gone
from clerk.names import KINDS
from clerk.pipeline import wiring
from clerk.pipeline.documents import note_adopted
from clerk.pipeline.outcomes import note_error, refuse_if_given_up
from clerk.pipeline.working import Work, working
from clerk.storage import SiteFiles
from gristmill import Context, EndRun, Permanent

NO_DOCUMENTS = "no_documents"
UNCHANGED = "unchanged"


def has_text(files: SiteFiles) -> bool:
    """Of any kind and any age: only agendas, or only minutes, will do."""
    return any(files.pages(document) for kind in KINDS for document in files.documents(kind))


def is_behind(files: SiteFiles) -> bool:
    """Is there text that is newer than meetings.db, or no meetings.db?"""
    try:
        made = files.database.stat().st_mtime_ns
    except FileNotFoundError:
        return True
    return any(mtime > made for mtime in _times(files))


def _times(files: SiteFiles) -> Iterator[int]:
    """When each document was read: its marker is written last. Text from before there were markers has only its pages."""
    for kind in KINDS:
        for document in files.documents(kind):
            pages = files.pages(document)
            if pages:
                yield _mtime(files.marker(document)) or _mtime(pages[-1]) or 0


def _mtime(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _is_owed(work: Work) -> bool:
    """Is what was compiled not published, not any more, or not where it should be now?"""
    if work.config.dev_mode:
        return False
    if work.site.unpublished:
        return True
    if work.site.last_deployed is None or wiring.hooks().deploys:
        return False
    target, host = _noted(work)
    if target != work.config.deploy_target:
        return True
    return host in (None, socket.gethostname()) and is_gone(target, work.subdomain)


def _noted(work: Work) -> tuple[str, str | None]:
    """Where it was published, and by which machine: a folder is one of that machine, and only there it can be missed.
    Nobody has noted it for sites that were published by an older clerk: they are taken to be where they should."""
    try:
        target, _, host = work.files.published.read_text().partition("\n")
    except FileNotFoundError:
        return work.config.deploy_target, None
    return target, host.strip() or None


def decide(ctx: Context) -> None:
    """Goes on, ends the run as it is, or fails it."""
    with working(ctx, "coordinator") as work:
        refuse_if_given_up(ctx)
        read = ctx.counts("ocr")
        if read.completed:
            note_adopted(work)
            return
        if has_text(work.files):
            if is_behind(work.files) or _is_owed(work):
                return
            raise EndRun(UNCHANGED)
        before = sum(found["failed_before"] for _, found in ctx.results("fetch") if found)
        if unread := read.total + before:
            raise Permanent(f"none of {unread} documents could be read, and there is no text from before")
        said = f"No PDFs found for {work.subdomain} ({work.site.scraper})"
        with ctx.transaction() as connection:
            note_error(connection, ctx, "fetch", said)
        raise EndRun(NO_DOCUMENTS)
