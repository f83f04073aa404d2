"""What is published of a site, and what it is called there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

import orjson

from clerk import names, storage
from clerk.errors import ClerkError, Usage
from clerk.names import KINDS
from clerk.parts import Publication
from clerk.storage import SiteFiles

_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def publication(files: SiteFiles, site: Mapping[str, Any], run: int) -> Publication:
    """All of a site as it is now: its database, what Datasette says of it, its PDFs."""
    if not files.database.is_file():
        raise ClerkError(f"there is no {files.database} to publish; compile {files.subdomain} first")
    described = files.root / "metadata.json"
    text = orjson.dumps(metadata(files.subdomain, site), option=orjson.OPT_INDENT_2)
    if not described.is_file() or described.read_bytes() != text:
        storage.write(described, text)
    pdfs = (files.pdf(document) for kind in KINDS for document in files.documents(kind, "pdfs"))
    published = [files.database, described, *(pdf for pdf in pdfs if pdf.is_file())]
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")  # and not the run's number, which a new database begins anew
    return Publication(files.subdomain, f"{now}-{run}", {str(path.relative_to(files.root)): path for path in published})


def metadata(subdomain: str, site: Mapping[str, Any]) -> dict[str, Any]:
    """What Datasette shows beside the tables: titles, what rows are called, and how they are sorted."""
    name = str(site.get("name") or subdomain)
    place = ", ".join(str(site[key]) for key in ("name", "state", "country") if site.get(key)) or subdomain
    pages = {"label_column": "meeting", "sort_desc": "date", "facets": ["meeting"]}
    return {
        "title": f"{name}: minutes and agendas",
        "description": f"The meeting documents of {place}, page by page, with full-text search",
        "databases": {
            "meetings": {
                "title": name,
                "tables": {
                    "minutes": {"title": "Minutes", "description": "One row for each page of minutes", **pages},
                    "agendas": {"title": "Agendas", "description": "One row for each page of an agenda", **pages},
                    "entities": {
                        "title": "Names",
                        "description": "Persons, organisations and places that a page names",
                        "label_column": "text",
                        "facets": ["kind"],
                    },
                    "votes": {
                        "title": "Votes",
                        "description": "Motions, who made them, and how they went",
                        "label_column": "raw_text",
                        "facets": ["result"],
                    },
                    "vote_members": {
                        "title": "Members' votes",
                        "description": "Who voted how",
                        "label_column": "name",
                        "facets": ["vote"],
                    },
                },
            }
        },
    }


def checked(publication: Publication) -> Publication:
    """Names become paths, keys and arguments elsewhere: what could leave its place is refused before anything is done."""
    names.subdomain(publication.subdomain)
    if not _VERSION.fullmatch(publication.version):
        raise Usage(f"no publication is called {publication.version[:120]!r}")
    for name in publication.files:
        parts = PurePosixPath(name).parts
        if not parts or name != "/".join(parts) or name.startswith("/") or ".." in parts or not name.isprintable():
            raise Usage(f"no file of a publication is called {name[:120]!r}")
    return publication


def refuse_older(publication: Publication, current: str | None, where: str) -> None:
    """A process that slept while others went on does not take back what they published."""
    if current is not None and current > publication.version:
        raise ClerkError(
            f"{where} has a later publication of {publication.subdomain} ({current}) than this one ({publication.version});"
            " it stays. If that is wrong, look at the clocks"
        )


def content_type(name: str) -> str:
    types = {".pdf": "application/pdf", ".json": "application/json", ".db": "application/vnd.sqlite3"}
    return types.get(Path(name).suffix, "application/octet-stream")
