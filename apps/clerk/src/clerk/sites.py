"""Sites: what an operator says of them, and the runs that are asked for.

Choosing a site, starting its run and saying so in its row are one transaction. In it the ledger comes first: whoever ends
jobs locks a run and then the row of its site, so the other order could lock each other out.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import Boolean, Connection, bindparam, insert, select, text
from sqlalchemy import update as set_row

from clerk import names
from clerk.db import tables, terminal
from clerk.db.tables import Moment
from clerk.db.views import PIPELINE
from clerk.errors import ClerkError
from gristmill import NotFound, Refused

if TYPE_CHECKING:
    from gristmill import Mill
    from gristmill.model import Run

Priority = Literal["high", "normal", "low"]

_DUE = text("""
    SELECT s.subdomain FROM clerk_site s WHERE (s.last_updated IS NULL OR s.last_updated < :cutoff)
        AND s.subdomain NOT IN :besides AND NOT EXISTS (
            SELECT 1 FROM gristmill_runs r WHERE r.pipeline = 'site' AND r.subject = s.subdomain
            AND r.state IN ('queued', 'in_progress'))
    ORDER BY s.last_updated NULLS FIRST, s.subdomain LIMIT 1
    """).bindparams(bindparam("cutoff", type_=Moment), bindparam("besides", expanding=True))  # fmt: skip
_ASKED = text("""
    SELECT r.state, r.args FROM gristmill_runs r WHERE r.pipeline = 'site' AND r.subject = :subdomain
        AND r.state IN ('queued', 'in_progress', 'waiting')""")
# Of two who ask for the same site the second sees what the first has asked for; SQLite has one writer at a time anyway.
_IN_TURN = text("SELECT pg_advisory_xact_lock(1668048235, hashtext(:subdomain))")  # "clerk" has the first number to itself
_MOVE = text("""
    UPDATE clerk_document SET url = :now || substr(url, length(:before) + 1)
    WHERE subdomain = :subdomain AND substr(url, 1, length(:before)) = :before""")


_TIMES = ("started_at", "updated_at", "last_error_at", "last_updated", "last_deployed", "last_extracted")
_SEEN = text("SELECT * FROM sites WHERE subdomain = :subdomain").columns(
    **dict.fromkeys(_TIMES, Moment), coordinator_enqueued=Boolean
)
LISTED = (
    *("subdomain", "name", "state", "country", "kind", "scraper", "pages", "start_year", "lat", "lng"),
    *("last_updated", "last_deployed"),
)


class SiteNotFound(ClerkError):
    def __init__(self, subdomain: str) -> None:
        super().__init__(f"Site '{subdomain}' not found")
        self.subdomain = subdomain


@dataclass(frozen=True)
class Description:
    """What an operator says of a site."""

    subdomain: str
    name: str
    scraper: str
    state: str | None = None
    country: str | None = None
    kind: str | None = None
    start_year: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    lat: str | None = None
    lng: str | None = None


@dataclass(frozen=True)
class Site(Description):
    """And where it is."""

    created_at: datetime | None = None
    run_id: int | None = None
    current_stage: str | None = None
    outcome: str | None = None  # of the latest run; None: it is active, or there was none
    started_at: datetime | None = None
    updated_at: datetime | None = None
    last_error_stage: str | None = None
    last_error_message: str | None = None
    last_error_at: datetime | None = None
    pages: int = 0
    unpublished: bool = False
    last_updated: datetime | None = None
    last_deployed: datetime | None = None
    last_extracted: datetime | None = None


@dataclass(frozen=True)
class Options:
    """How a run differs from the daily one."""

    all_years: bool = False
    all_agendas: bool = False
    skip_fetch: bool = False
    retry_failed: bool = False
    ocr_backend: str | None = None

    @classmethod
    def of(cls, args: Mapping[str, Any]) -> Options:
        return cls(**{one.name: args[one.name] for one in fields(cls) if one.name in args})

    def args(self) -> dict[str, Any]:
        return asdict(self)

    def with_later(self, later: Options) -> Options:
        """What both ask for: what looks at more, and the later one's reader if it names one."""
        return Options(
            all_years=self.all_years or later.all_years,
            all_agendas=self.all_agendas or later.all_agendas,
            skip_fetch=self.skip_fetch and later.skip_fetch,
            retry_failed=self.retry_failed or later.retry_failed,
            ocr_backend=later.ocr_backend or self.ocr_backend,
        )


@dataclass(frozen=True)
class Enqueued:
    """What became of asking for a run."""

    subdomain: str
    run: int
    priority: str
    created: bool  # False: this run was there already
    follow_up: int | None = None  # the run that waits behind it, with the options that were asked for now
    was_waiting: bool = False  # that one was there already, and does what it was asked for before, too


@dataclass(frozen=True)
class Progress:
    """A site as `status` shows it."""

    site_id: str
    current_stage: str
    stage_total: int
    stage_completed: int
    started_at: datetime | None
    updated_at: datetime | None


@dataclass(frozen=True)
class Purged:
    found: int  # jobs that were queued or in progress
    purged: int


# ---- what an operator says


def create(mill: Mill, new: Description) -> Site:
    """A new site, which was never run. Refused if it is there already."""
    with mill.transaction() as connection:
        return _create(connection, new)


def create_and_run(mill: Mill, new: Description, options: Options) -> Enqueued:
    """And its first run, before all others: both are there, or neither."""
    with mill.transaction() as connection:
        _create(connection, new)
        return _ask(mill, connection, new.subdomain, options, "high")


def _create(connection: Connection, new: Description) -> Site:
    if _row(connection, names.subdomain(new.subdomain)) is not None:
        raise ClerkError(
            f"Site '{new.subdomain}' already exists; `clerk update -s {new.subdomain}` runs it,"
            f" `clerk change {new.subdomain}` says something else of it"
        )
    connection.execute(insert(tables.site).values({**_values(new), "created_at": datetime.now(UTC)}))
    return _found(connection, new.subdomain)


def find(mill: Mill, subdomain: str) -> Site:
    with mill.transaction() as connection:
        return _found(connection, names.subdomain(subdomain))


def known(mill: Mill) -> list[Site]:
    """All sites, by subdomain."""
    with mill.transaction() as connection:
        rows = connection.execute(select(tables.site).order_by(tables.site.c.subdomain))
        return [site_of(row) for row in rows.mappings()]


def listed(connection: Connection) -> list[dict[str, Any]]:
    """All sites, by subdomain, as `sites.db` has them."""
    rows = connection.execute(select(tables.site).order_by(tables.site.c.subdomain))
    return [_listed(site_of(row)) for row in rows.mappings()]


def _listed(site: Site) -> dict[str, Any]:
    """What is published in a run is the last thing that run does: the site is listed as if it had ended."""
    row = {name: getattr(site, name) for name in LISTED}
    ends = site.last_deployed if site.outcome is None else None
    if ends is not None and (site.last_updated is None or site.last_updated < ends):
        row["last_updated"] = ends
    return row


def seen(connection: Connection, subdomain: str) -> dict[str, Any]:
    """A site as the view `sites` has it; its times and settings as Python has them."""
    row = connection.execute(_SEEN, {"subdomain": subdomain}).mappings().one()
    return {**row, "extra": json.loads(row["extra"])}


def change(mill: Mill, description: Description, moved: tuple[str, str] | None = None) -> Site:
    """Replaces what is said of a site; where it is stays.

    `moved`: how its addresses began, and how they begin now. A document is known by its address: without that, all that
    a source has at its new place would come once more, as others of the same day.
    """
    values = _values(description)
    subdomain = values.pop("subdomain")
    with mill.transaction() as connection:
        _found(connection, subdomain)
        connection.execute(set_row(tables.site).where(tables.site.c.subdomain == subdomain).values(values))
        if moved is not None:
            connection.execute(_MOVE, {"subdomain": subdomain, "before": moved[0], "now": moved[1]})
        return _found(connection, subdomain)


def _values(description: Description) -> dict[str, Any]:
    values = {one.name: getattr(description, one.name) for one in fields(Description)}
    return {**values, "extra": json.dumps(dict(description.extra), sort_keys=True)}


def _row(connection: Connection, subdomain: str) -> Mapping[Any, Any] | None:
    return connection.execute(select(tables.site).where(tables.site.c.subdomain == subdomain)).mappings().one_or_none()


def _found(connection: Connection, subdomain: str) -> Site:
    row = _row(connection, subdomain)
    if row is None:
        raise SiteNotFound(subdomain)
    return site_of(row)


def site_of(row: Mapping[Any, Any]) -> Site:
    values = {one.name: row[one.name] for one in fields(Site)}
    return Site(**{**values, "extra": json.loads(row["extra"])})


# ---- runs


def update(mill: Mill, subdomain: str, options: Options | None = None) -> Enqueued:
    """A run of this site, before all others. One that is active is raised; if it was asked for otherwise, or is of some
    stages only, one follows it."""
    with mill.transaction() as connection:
        _found(connection, names.subdomain(subdomain))
        return _ask(mill, connection, subdomain, options or Options(), "high")


def enqueue(
    mill: Mill, subdomains: Sequence[str], priority: Priority = "normal", options: Options | None = None
) -> tuple[list[Enqueued], list[str]]:
    """Runs of these sites, each in a transaction of its own; and the names that no site has."""
    asked: list[Enqueued] = []
    unknown: list[str] = []
    for subdomain in dict.fromkeys(subdomains):
        with mill.transaction() as connection:
            if _row(connection, subdomain) is None:
                unknown.append(subdomain)
            else:
                asked.append(_ask(mill, connection, subdomain, options or Options(), priority))
    return asked, unknown


def next_sites(mill: Mill, batch: int = 1, lookback_hours: float = 23) -> list[Enqueued]:
    """Starts the sites whose turn it is: never run, then those whose last run ended longest ago, none within the lookback.

    Who else does so at the same time chooses others: the ledger has one active run per site, and of two who start it
    the second is refused, and takes the next one. Each is chosen and started in a transaction of its own: two who hold
    sites and wait for those of the other would wait for ever.
    """
    cutoff = datetime.now(UTC) - timedelta(hours=lookback_hours)
    chosen: list[Enqueued] = []
    tried = {""}
    while len(chosen) < batch and (subdomain := _start_next(mill, cutoff, tried, chosen)) is not None:
        tried.add(subdomain)
    return chosen


def _start_next(mill: Mill, cutoff: datetime, tried: set[str], chosen: list[Enqueued]) -> str | None:
    """The site whose turn it is, started unless somebody just did; None: it is nobody's turn."""
    subdomain = ""
    try:
        with mill.transaction() as connection:
            found = connection.execute(_DUE, {"cutoff": cutoff, "besides": list(tried)}).scalar()
            if found is None:
                return None
            subdomain = str(found)
            run = mill.start(PIPELINE, subdomain, args=Options().args(), if_active="refuse", connection=connection)
            terminal.started(connection, subdomain, run.id)
    except Refused:
        return subdomain
    chosen.append(Enqueued(subdomain, run.id, "normal", created=True))
    return subdomain


def _ask(mill: Mill, connection: Connection, subdomain: str, options: Options, priority: Priority) -> Enqueued:
    level = "normal" if priority == "low" else priority  # accepted, and ordered as normal
    if connection.dialect.name == "postgresql":
        connection.execute(_IN_TURN, {"subdomain": subdomain})
    asked = {row.state: json.loads(row.args) for row in connection.execute(_ASKED, {"subdomain": subdomain})}
    waiting = asked.pop("waiting", None)
    own = next(iter(asked.values()), options.args())
    run = mill.start(PIPELINE, subdomain, args=own, priority=level, connection=connection)
    if run.created:  # the active one may have ended just now
        terminal.started(connection, subdomain, run.id)
    joined = run.state != "waiting" and _is_whole(run)  # one that is being stopped cannot be joined
    if joined and run.args == options.args():
        return Enqueued(subdomain, run.id, run.priority, run.created)
    all_of_it = options if waiting is None else Options.of(waiting).with_later(options)
    how: dict[str, Any] = {"args": all_of_it.args(), "priority": level, "connection": connection}
    follow_up = mill.start(PIPELINE, subdomain, if_active="wait", **how)
    was_waiting = waiting is not None and not follow_up.created
    return Enqueued(subdomain, run.id, run.priority, run.created, follow_up.id, was_waiting)


def _is_whole(run: Run) -> bool:
    """One that is active; `run-stage` leaves out what comes before its stage, or after it."""
    return all(run.stage(name).outcome != "skipped" for name in (names.STAGES[0], names.STAGES[-1]))


# ---- where they are


def progress(mill: Mill, subdomain: str | None = None) -> list[Progress]:
    """Of one site, or of all that have a run, as `site_progress` has it."""
    return _progress(mill, "WHERE p.site_id = :subdomain", subdomain=subdomain) if subdomain else _progress(mill, "")


def active(mill: Mill) -> list[Progress]:
    """Of the sites whose run has not ended, by subdomain."""
    return _progress(mill, "JOIN clerk_site s ON s.subdomain = p.site_id WHERE s.outcome IS NULL")


def _progress(mill: Mill, which: str, **values: object) -> list[Progress]:
    columns = "p.site_id, p.current_stage, p.stage_total, p.stage_completed, p.started_at, p.updated_at"
    sql = text(f"SELECT {columns} FROM site_progress p {which} ORDER BY p.site_id")  # noqa: S608 - constants
    typed = sql.columns(started_at=Moment, updated_at=Moment)
    with mill.transaction() as connection:
        return [Progress(**row) for row in connection.execute(typed, values).mappings()]


def purge(mill: Mill, subdomain: str, patience: float = 30.0) -> Purged:
    """Cancels what is queued of a site and stops what runs; then it has no run any more. Files and history stay.

    A run that somebody asks for meanwhile is not meant. What does not stop within `patience` (seconds) is purged all the
    same: it ends sometime, and nobody will say so in the site's row, so that its turn is counted from now on.
    """
    find(mill, subdomain)
    newest = max((run.id for run in mill.runs(pipeline=PIPELINE, subject=subdomain, limit=1)), default=0)
    found = _unfinished(mill, subdomain, newest)
    with contextlib.suppress(NotFound):  # it never ran, so the ledger does not know it
        mill.purge_subject(PIPELINE, subdomain, reason="purged")
    deadline = time.monotonic() + patience
    while (left := _unfinished(mill, subdomain, newest)) and time.monotonic() < deadline:
        time.sleep(0.1)
    with mill.transaction() as connection:
        _forget(connection, subdomain, newest, {"last_updated": datetime.now(UTC)} if left else {})
    return Purged(found, found - left)


def _forget(connection: Connection, subdomain: str, newest: int, ended: Mapping[str, datetime]) -> None:
    """The runs of a site up to the newest that was meant; those rows of it that are about a later one stay."""
    run, site = tables.run, tables.site
    connection.execute(set_row(run).where(run.c.subdomain == subdomain, run.c.run_id <= newest).values(purged=True))
    forgotten = dict.fromkeys(["run_id", "current_stage", "outcome", "started_at"])
    errors = dict.fromkeys(["last_error_stage", "last_error_message", "last_error_at"])
    meant = (site.c.subdomain == subdomain) & (site.c.run_id.is_(None) | (site.c.run_id <= newest))
    connection.execute(set_row(site).where(meant).values(**forgotten, **errors, **ended))


def _unfinished(mill: Mill, subdomain: str, newest: int) -> int:
    """Its jobs that are queued or in progress, without parts, in runs up to this one."""
    with mill.transaction() as connection:
        sql = text("""
            SELECT coalesce(sum(g.total - g.completed - g.failed - g.skipped - g.cancelled), 0)
            FROM gristmill_runs r JOIN gristmill_stages g ON g.run_id = r.id
            WHERE r.pipeline = 'site' AND r.subject = :subdomain AND r.state IN ('queued', 'in_progress')
                AND r.id <= :newest""")
        return int(connection.execute(sql, {"subdomain": subdomain, "newest": newest}).scalar_one())


def catch_up(mill: Mill) -> int:
    """Brings the rows of sites in step with the ledger, where something else than the end of a job has moved that.

    One at a time: who ends jobs may hold several sites, and could wait for one of ours while we wait for one of theirs.
    """
    with mill.transaction() as connection:
        differing = terminal.differing(connection)
    moved = 0
    for subdomain in differing:
        with mill.transaction() as connection:
            moved += terminal.catch_up(connection, subdomain)
    return moved
