"""What the demonstration ends with: what could be read and what not, a search, and where to look next."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clerk import names
from clerk.demo import show
from clerk.demo.documents import Made, Truth
from clerk.demo.finding import Hit, search
from clerk.demo.show import UNCHANGED, Found, Step
from clerk.demo.towns import TOWNS
from clerk.errors import ClerkError

if TYPE_CHECKING:
    from rich.console import Console

    from clerk.demo.folder import Folder
    from gristmill import Mill
    from gristmill.model import Run


def report(mill: Mill, truth: Truth, runs: Sequence[Run], seconds: float, asked: Counter[int], to: Console) -> None:
    """How it went, and what could not be read, in this pass or before. A site that failed as a whole is an error."""
    from sqlalchemy import select

    from clerk.db.tables import document

    with mill.transaction() as connection:
        rows = connection.execute(select(document).order_by(document.c.subdomain, document.c.key)).mappings().all()
    read = [row for row in rows if row["state"] == "read"]
    pages = sum(row["pages"] for row in read)
    show.say(to, f"\n{len(read)} documents with {pages} pages are published, after {seconds:.0f} s")
    if all(run.reason == UNCHANGED for run in runs):
        show.asked_again(to, asked)
    show.unread(to, [_unread(truth, row) for row in rows if row["state"] in ("failed", "missing")])
    if failed := [f"{run.subject}: {run.error or run.state}" for run in runs if run.state in ("failed", "cancelled")]:
        raise ClerkError(f"not all sites came through: {'; '.join(failed)}")


def _unread(truth: Truth, row: Mapping[Any, Any]) -> tuple[str, str, str]:
    made = _made(truth, row["subdomain"], row["kind"], row["meeting"], row["date"])
    meeting = made.meeting if made else row["meeting"]
    why = str(row["error"]).rpartition(".pdf: ")[2]  # its name is said already
    return row["subdomain"], f"{meeting} {row['kind']}, {row['date']}", why


def _made(truth: Truth, *of: str) -> Made | None:
    """The document as it was made; somebody may have added others."""
    for one in truth.documents:
        if (one.subdomain, one.kind, names.meeting(one.meeting), one.date) == of:
            return one
    return None


# ---- the search


def find(published: Path, truth: Truth, to: Console) -> None:
    """The word in what is published of every site, and the votes on the page that has it."""
    found = [
        _found(truth, town.subdomain, hit)
        for town in TOWNS
        for hit in search(published / town.subdomain / "meetings.db", truth.word)
    ]
    show.hits(to, truth.word, found)
    show.votes(to, [vote for one in found[:1] for vote in one.hit.votes])


def _found(truth: Truth, subdomain: str, hit: Hit) -> Found:
    made = _made(truth, subdomain, hit.kind, hit.meeting, hit.date)
    if made is None:
        return Found(subdomain, hit, "a document of your own")
    return Found(subdomain, replace(hit, meeting=made.meeting), "a scan" if hit.page in made.scanned else "a text layer")


# ---- where to look next


def steps(place: Folder, truth: Truth, again: str) -> list[Step]:
    """All of them work when they are pasted."""
    site = TOWNS[0]
    has_datasette = shutil.which("datasette") or Path(sys.executable).with_name("datasette").exists()
    browse = "Browse and search it" + ("" if has_datasette else ", with Datasette (pip install datasette)")
    more = f"Once more, with a PDF of yours in {place.shown(truth.folder.name)}: only what is new is read"
    return [
        Step("Every run, document and failure, live, on pages (Ctrl-C ends it)", f"{place.clerk} dashboard"),
        Step("How a site is", f"{place.clerk} status -s {site.subdomain}"),
        Step("What could not be read", f"{place.clerk} check-failed"),
        Step(browse, f"datasette {place.shown('published', site.subdomain, 'meetings.db')}"),
        Step("All that is published: databases, PDFs, metadata", f"ls {place.shown('published')}/*"),
        Step(more, again),
    ]
