"""Why a job is not moving that its limit holds back: what `why` says of it, and what would let it go on."""

from __future__ import annotations

from typing import Any

from gristmill.ledger import limiting
from gristmill.ledger.sql import WAITING
from gristmill.ledger.tx import Tx
from gristmill.limit import OF_QUEUES
from gristmill.model import LimitState, Reason, Why


def look(tx: Tx, row: Any) -> LimitState | None:
    """What a queued job waits for; or what its queue lets run, if it is in the line of one with limits."""
    waits = row.run_at == WAITING
    if not waits and (row.queue_limit is None or row.ready is None):
        return None
    which = (row.limit_name, row.limit_key) if waits else (OF_QUEUES, row.queue)
    return next(iter(limiting.all_limits(tx, *which)), None)


def of_job(target: str, job: str, limit: LimitState | None) -> Why | None:
    """Of a job that its limit keeps out of the line, or that of its queue from being claimed; None: it does not."""
    if limit is None:
        return None
    if limit.name == OF_QUEUES:
        if not _is_full(limit):
            return None
        said = f"{job} is in queue {limit.key!r}, of which {_let(limit)}: {_in_use(limit)}"
        return Why(target, Reason.LIMITED, said, ("queue", "set", limit.key, *_wider(limit)))
    of = f"{limit.name} {limit.key!r}" if limit.key else limit.name
    if limit.circuit == "open":
        said = f"{job} waits: the circuit of {of} is open after {_times(limit.failures, 'failure')} in a row"
        until = f", and is tried again at {limit.open_until:%Y-%m-%d %H:%M:%S} UTC" if limit.open_until else ""
        return Why(target, Reason.LIMITED, said + until, ("limit", "close", limit.name, limit.key), limit.open_until)
    if limit.circuit == "half-open":
        said = f"{job} waits: {of} failed {_times(limit.failures, 'time')} in a row, and one job at a time tries it now"
        return Why(target, Reason.LIMITED, said, ("limit", "list", limit.name))
    if limit.at_once is None and limit.per_second is None:
        said = f"{job} waits behind others of {of}, which take turns with those of other keys: {_in_use(limit)}"
        return Why(target, Reason.IN_LINE, said)
    said = f"{job} waits for its limit, {of}, of which {_let(limit)}: {_in_use(limit)}"
    which = (limit.name, limit.key) if limit.key else (limit.name,)
    return Why(target, Reason.LIMITED, said, ("limit", "set", *which, *_wider(limit)))


def _let(limit: LimitState) -> str:
    """`2 may run at once and 5 start per second`"""
    at_once = [] if limit.at_once is None else [f"{limit.at_once:,} may run at once"]
    return " and ".join([*at_once, *([] if limit.per_second is None else [f"{limit.per_second:g} start per second"])])


def _in_use(limit: LimitState) -> str:
    return f"{limit.running:,} in progress, {limit.ready:,} ready, {limit.waiting:,} waiting"


def _is_full(limit: LimitState) -> bool:
    return (limit.at_once is not None and limit.running >= limit.at_once) or limit.per_second is not None


def _wider(limit: LimitState) -> list[str]:
    """Options that let twice as many."""
    if limit.at_once is not None and (limit.per_second is None or limit.running + limit.ready >= limit.at_once):
        return ["--at-once", str(2 * limit.at_once)]
    return ["--per-second", f"{2 * (limit.per_second or 1):g}"]


def _times(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
