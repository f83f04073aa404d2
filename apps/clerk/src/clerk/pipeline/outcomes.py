"""What an error of a part makes of the job that met it, and what of a run is written down between the ends of its jobs.

Transient   raised as it is: three attempts, 2 s and 10 s apart; an error of the database too
Crashed     raised as it is: one more attempt
Unreadable  the job fails at once
Critical    the job goes back unspent and its worker rests; after five such rests in a row the run fails
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import Connection, select, update

from clerk.db import tables, terminal
from clerk.errors import Crashed, Critical, Transient, Unreadable
from gristmill import Context, Permanent, Retries, Unspent

RETURNS: Final = 5  # so often nobody could work here; then a person has to look
REST: Final = 60.0  # seconds that a worker rests for, where nobody can work
_SAME_REST: Final = timedelta(seconds=0.9 * REST)  # many workers meet the same full disk: that is one return, not many
_LONGEST = 500  # characters of an error

# 2 s and 10 s are the least: a delay may be an eleventh shorter or longer than it says.
PASSING: Final = Retries(2, delays=[2.2, 11.0], jitter=1 / 11)
RETRIES: Final = Retries(
    0,
    crashes=1,
    timeouts=1,
    losses=2,
    by_error={Transient: PASSING, "gristmill.errors.DatabaseError": PASSING, Crashed: Retries(1, delays=[2.0])},
)


def now() -> datetime:
    return datetime.now(UTC)


@contextlib.contextmanager
def outcomes(ctx: Context) -> Iterator[None]:
    """Around the work of a job."""
    try:
        yield
    except Critical as error:
        raise _returned(ctx, str(error)) from error
    except Unreadable as error:
        raise Permanent(str(error)) from error
    except Transient as error:
        raise _exactly(error) from error
    except (ConnectionError, TimeoutError) as error:
        raise Transient(f"{type(error).__name__}: {error}") from error


def _exactly(error: Transient) -> Transient:
    """Its own class, since what is stored with a failed job is the name of that."""
    return error if type(error) is Transient else Transient(str(error))


def _returned(ctx: Context, why: str) -> Exception:
    """Back in the queue, if the run may still do that; else the end of it."""
    with ctx.transaction() as connection:
        returns = _count_return(connection, ctx)
        note_error(connection, ctx, ctx.stage or "", why)
    if returns > RETURNS:
        return Critical(f"{why}; given up after {RETURNS} returns")
    return Unspent(why, pause=REST)


def _count_return(connection: Connection, ctx: Context) -> int:
    """The returns in a row, one for all workers that rest at the same time. Where others can work, it begins anew: one
    machine that lacks a program does not end what the rest of them do."""
    run, site = tables.run, tables.site
    mine = run.c.run_id == ctx.run
    held = update(run).where(mine).values(returns=run.c.returns).returning(run.c.returns)  # one at a time
    before = connection.execute(held).scalar()
    if before is None:  # somebody else than clerk has started this run
        terminal.started(connection, str(ctx.subject), ctx.run or 0)
        before = connection.execute(held).scalar_one()
    last = select(site.c.last_error_at, site.c.updated_at).where(site.c.run_id == ctx.run)
    row = connection.execute(last).one_or_none()
    if before == 0 or row is None or row.last_error_at is None:
        returns = int(before) + 1
    elif row.updated_at > row.last_error_at and before <= RETURNS:
        returns = 1
    else:
        returns = int(before) + (now() - row.last_error_at >= _SAME_REST)
    connection.execute(update(run).where(mine).values(returns=returns))
    return returns


def refuse_if_given_up(ctx: Context) -> None:
    """What comes after items that nobody could work on must not go on as if they had just failed."""
    with ctx.transaction() as connection:
        returns = connection.execute(select(tables.run.c.returns).where(tables.run.c.run_id == ctx.run)).scalar()
        why = connection.execute(select(tables.site.c.last_error_message).where(tables.site.c.run_id == ctx.run)).scalar()
    if returns is not None and returns > RETURNS:
        raise Permanent(f"nobody could work on it: {why}")


def kept(error: str) -> str:
    """What a row has room for. A plugin may quote what came: no database takes half a character, nor PostgreSQL a NUL."""
    return error.encode(errors="replace").decode().replace("\0", "?")[:_LONGEST]


def note_error(connection: Connection, ctx: Context, stage: str, message: str) -> None:
    """An error that does not fail the job, for whoever looks at the site."""
    at = now()
    said = {"last_error_stage": stage, "last_error_message": kept(message), "last_error_at": at, "updated_at": at}
    _of_run(connection, ctx, **said)


def note_change(connection: Connection, ctx: Context, **values: object) -> None:
    """Something of the site's run has moved: without this, a long job looks as if it were stuck."""
    _of_run(connection, ctx, updated_at=now(), **values)


def _of_run(connection: Connection, ctx: Context, **values: object) -> None:
    """Only while this run is the site's: a late writer changes nothing of the next one."""
    site = tables.site
    mine = (site.c.subdomain == ctx.subject) & (site.c.run_id == ctx.run) & site.c.outcome.is_(None)
    connection.execute(update(site).where(mine).values(values))
