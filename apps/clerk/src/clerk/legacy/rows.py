"""The rows of the older designs, whichever columns they have, as what they say of a site."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import Connection

from clerk import names
from clerk.db import older
from clerk.errors import Usage
from clerk.sites import Description

STATUS: Final = {
    "deployed": "completed",
    "no_documents": "completed",
    "needs_ocr": "ocr",
    "needs_extraction": "compilation",
    "needs_compilation": "compilation",
    "needs_deploy": "deploy",
    "fetching": "fetch",
}
_STAGE: Final = {**dict.fromkeys(("fetch", "ocr", "compilation", "deploy", "completed")), "extraction": "compilation"}

Row = Mapping[str, Any]


@dataclass(frozen=True)
class OldSite:
    """A site as the older tables have it, wherever they contradict each other."""

    description: Description
    stages: frozenset[str]  # what each of them says that it is in; none: it was never run
    no_documents: bool
    stage_total: int
    pages: int
    started_at: datetime | None
    updated_at: datetime | None
    last_updated: datetime | None
    last_deployed: datetime | None
    last_extracted: datetime | None
    jobs: int  # of the older queue
    odd: tuple[str, ...]  # what could not be taken as it is

    @property
    def subdomain(self) -> str:
        return self.description.subdomain


@dataclass(frozen=True)
class OldClerk:
    sites: list[OldSite]
    unfinished: int  # rows of site_progress
    jobs: int
    skipped: list[str]  # rows that are of no site that clerk can have, and why


def read(connection: Connection) -> OldClerk:
    """All that the older tables say, under their own names or put aside."""
    progress = {_key(row): row for row in _rows(connection, "site_progress")}
    jobs: dict[str, int] = {}
    for row in _rows(connection, "job_tracking"):
        jobs[_key(row)] = jobs.get(_key(row), 0) + 1
    sites: list[OldSite] = []
    skipped: list[str] = []
    for row in sorted(_rows(connection, "sites"), key=_key):
        try:
            names.subdomain(_key(row))
            sites.append(_site(row, progress.get(_key(row), {}), jobs.get(_key(row), 0)))
        except Usage as error:
            skipped.append(str(error))
    known = {site.subdomain for site in sites}
    skipped += [f"{key!r} is in site_progress, but not in sites" for key in sorted(progress) if key not in known]
    unfinished = sum(row["current_stage"] != "completed" for row in progress.values())
    return OldClerk(sites, unfinished, sum(jobs.values()), skipped)


def stage_totals(connection: Connection) -> dict[str, int]:
    """How many documents its fetch had counted, by site, where that is known."""
    return {_key(row): _number(row["stage_total"]) or 0 for row in _rows(connection, "site_progress")}


def _rows(connection: Connection, name: str) -> Iterator[Row]:
    for table in older.tables(connection, [name, older.aside(name)])[:1]:
        for row in connection.exec_driver_sql(f"SELECT * FROM {table}").mappings():  # noqa: S608 - one of six names
            yield dict(row)


def _key(row: Row) -> str:
    """Both columns were used for the same."""
    return str(row.get("subdomain") or row.get("site_id") or "")


def _site(row: Row, progress: Row, jobs: int) -> OldSite:
    odd: list[str] = []
    said = [STATUS.get(str(row.get("status"))), _stage(row.get("current_stage")), _stage(progress.get("current_stage"))]
    return OldSite(
        description=_description(row, odd),
        stages=frozenset(stage for stage in said if stage is not None),
        no_documents=row.get("status") == "no_documents",
        stage_total=_number(progress.get("stage_total")) or _number(row.get("ocr_total")) or 0,
        pages=_number(row.get("pages")) or 0,
        started_at=_moment(progress.get("started_at") or row.get("started_at")),
        updated_at=_moment(progress.get("updated_at") or row.get("updated_at")),
        last_updated=_moment(row.get("last_updated"), local=True),
        last_deployed=_moment(row.get("last_deployed"), local=True),
        last_extracted=_moment(row.get("last_extracted"), local=True),
        jobs=jobs,
        odd=tuple(odd),
    )


def _stage(text: object) -> str | None:
    return (_STAGE[text] or text) if isinstance(text, str) and text in _STAGE else None


def _description(row: Row, odd: list[str]) -> Description:
    subdomain = _key(row)
    if not row.get("scraper"):
        odd.append(f"{subdomain} has no scraper: its next fetch will fail until it gets one")
    return Description(
        subdomain=subdomain,
        name=str(row.get("name") or subdomain),
        scraper=str(row.get("scraper") or "unknown"),
        state=row.get("state"),
        country=row.get("country"),
        kind=row.get("kind"),
        start_year=_number(row.get("start_year")),
        extra=_extra(subdomain, row.get("extra"), odd),
        lat=_text(row.get("lat")),
        lng=_text(row.get("lng")),
    )


def _extra(subdomain: str, given: object, odd: list[str]) -> Mapping[str, Any]:
    """A fetcher's settings are a JSON object. What is not is kept as it is, under a name that none of them reads."""
    if given in (None, ""):
        return {}
    try:
        value = json.loads(given) if isinstance(given, str | bytes) else given
    except ValueError:
        value = given
    if isinstance(value, Mapping):
        return value
    odd.append(f"{subdomain} has settings that are no JSON object: kept as extra.legacy")
    return {"legacy": value}


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _number(value: object) -> int | None:
    """Counters were floating numbers at times."""
    try:
        return None if value is None else max(0, int(float(str(value))))
    except (ValueError, OverflowError):
        return None


def _moment(value: object, local: bool = False) -> datetime | None:
    """`last_*` were written as this machine's local time, the other columns as UTC; none is later than now."""
    try:
        moment = datetime.fromisoformat(str(value)) if not isinstance(value, datetime) else value
    except ValueError:
        return None
    if moment.tzinfo is None and not local:
        moment = moment.replace(tzinfo=UTC)
    return min(moment.astimezone(UTC), datetime.now(UTC))
