"""How much was done in each minute: counted in the transactions that end jobs, so that nothing is lost or counted twice.

Each worker has rows of its own (what nobody's worker ends is 0's), so that workers never wait for each other. A job that
ends itself in its application's transaction, which may stay open for long, has a row to itself (its number, negative).
`tidy` sums up what is older: over workers, then hours, and in the end all that was before. So sums over everything only
grow.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from gristmill.clock import SECOND, to_datetime
from gristmill.ledger.sql import Sql
from gristmill.rollup import BOUNDS, BUCKETS, COUNTS, ENDS, MINUTE, RAN, WAITED
from gristmill.states import NOBODY, State
from gristmill.watched import Ended, Interval, Total

if TYPE_CHECKING:
    from gristmill.ledger.tx import Tx

_ALL = (*COUNTS, *BUCKETS)
_KEY = "minute, worker_id, queue_id, task_id"
_INTO = f"INSERT INTO gm_minute ({_KEY}, {{}})"


def _adding(columns: Iterable[str]) -> str:
    sums = ", ".join(f"{name} = gm_minute.{name} + excluded.{name}" for name in columns)
    return f" ON CONFLICT ({_KEY}) DO UPDATE SET {sums}"


@lru_cache(maxsize=1000)
def _counting(columns: tuple[str, ...]) -> Sql:
    """Only what there is to count: most minutes have one outcome, and two or three buckets of each kind."""
    values = ", ".join(f"CAST(:{name} AS bigint)" for name in columns)
    return Sql(
        f"{_INTO.format(', '.join(columns))} SELECT {{now}} / {MINUTE}, CAST(:worker AS bigint), CAST(:queue AS integer),"
        f" CAST(:task AS integer), {values} WHERE true{_adding(columns)}"
    )


def _within(time: str, names: Sequence[str], also: str = "true") -> list[str]:
    """How many rows have this time (microseconds) in each bucket."""
    bounds = [-1, *(round(bound * SECOND) for bound in BOUNDS), None]
    return [
        f"count(*) FILTER (WHERE {also} AND {time} > {low}{'' if high is None else f' AND {time} <= {high}'}) AS {name}"
        for name, low, high in zip(names, bounds[:-1], bounds[1:], strict=True)
    ]


_STATES = {word: next(state for state in State if state.word == word) for word in ENDS}
_WAITED_FOR, _FIRST = "(j.started_at - j.created_at)", "j.attempt = 1"
# What ends without a worker did not run until then: it was cancelled while it was queued, or waited for its parts.
_RAN_FOR = f"(CASE WHEN %s <> {NOBODY} THEN j.finished_at - j.started_at END)"
_FROM_ROWS = {
    **{word: f"count(*) FILTER (WHERE j.state = {state:d})" for word, state in _STATES.items()},
    "retried": "0",
    "ran": f"CAST(coalesce(sum({_RAN_FOR}), 0) AS bigint)",  # %s: the worker
    "waited": f"CAST(coalesce(sum({_WAITED_FOR}) FILTER (WHERE {_FIRST}), 0) AS bigint)",
    "waits": f"count({_WAITED_FOR}) FILTER (WHERE {_FIRST})",
}


def _counting_rows(worker: str, group: str) -> Sql:
    counts = [f"{value} AS {name}" for name, value in _FROM_ROWS.items()]
    counts[COUNTS.index("ran")] %= worker
    buckets = _within(_RAN_FOR % worker, RAN) + _within(_WAITED_FOR, WAITED, _FIRST)
    return Sql(
        f"{_INTO.format(', '.join(_ALL))} SELECT {{now}} / {MINUTE}, {worker}, j.queue_id, j.task_id,"
        f" {', '.join(counts + buckets)} FROM gm_job j WHERE j.id {{in ids}}"
        f" GROUP BY {group}j.queue_id, j.task_id ORDER BY j.queue_id, j.task_id{_adding(_ALL)}"
    )


_COUNT_ROWS, _COUNT_OWN = _counting_rows("CAST(:worker AS bigint)", ""), _counting_rows("-j.id", "j.id, ")


def write(tx: Tx) -> None:
    """Counts what ended in this transaction. The last that it locks: whoever waits for such a row does not wait long."""
    for (worker, queue, task), tallies in sorted(tx.done.taken().items()):
        values = {name: str(number) for name, number in tallies.values().items()}  # text: psycopg would prepare a statement
        key = {"worker": str(worker), "queue": str(queue), "task": str(task)}  # for each mixture of small and large numbers
        tx.run(_counting(tuple(values)), **key, **values)
    for worker, jobs in sorted(tx.done.jobs_taken().items()):
        tx.run(_COUNT_ROWS, worker=worker, ids=jobs)


def write_guest(tx: Tx) -> None:
    """In a caller's transaction: each job in a row of its own, or others would wait until that ends."""
    tx.done.taken()
    jobs = [job for some in tx.done.jobs_taken().values() for job in some]
    if jobs:
        tx.run(_COUNT_OWN, ids=jobs)


# ---- reading

_SUMS = ", ".join(f"CAST(coalesce(sum(m.{name}), 0) AS bigint) AS {name}" for name in _ALL)
_FROM = "FROM gm_minute m JOIN gm_queue q ON q.id = m.queue_id JOIN gm_task t ON t.id = m.task_id"
_WHERE = (
    "WHERE m.minute >= CAST(:since AS bigint) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)"
    " AND (CAST(:task AS text) IS NULL OR t.name = :task)"
)
_HISTORY = Sql(
    f"SELECT m.minute / CAST(:step AS bigint) * CAST(:step AS bigint) AS at, {_SUMS} {_FROM} {_WHERE}"
    " GROUP BY m.minute / CAST(:step AS bigint) ORDER BY at"
)
_TOTALS = Sql(
    f"SELECT q.name AS queue, t.name AS task, {_SUMS} {_FROM} WHERE m.minute >= CAST(:since AS bigint)"
    " AND m.minute < CAST(:until AS bigint) GROUP BY q.name, t.name"
)
_BOOK = Sql(f"SELECT epoch, {{now}} / {MINUTE} FROM gm_ledger")
_EVER = 1 << 62
_LATE = 60  # minutes after which hardly a transaction is left that will still count in one
Sums = dict[tuple[str, str], list[int]]  # by queue and task, in the order of _ALL
_Sums = namedtuple("_Sums", _ALL)  # type: ignore[misc]  # the names are a tuple that mypy does not read
_ENDED = Sql(
    "SELECT q.name AS queue, m.minute / CAST(:step AS bigint) * CAST(:step AS bigint) AS at,"
    f" CAST(sum({' + '.join(f'm.{name}' for name in ENDS)}) AS bigint) AS ended, CAST(sum(m.failed) AS bigint) AS failed,"
    " CAST(sum(m.skipped + m.cancelled) AS bigint) AS other"
    " FROM gm_minute m JOIN gm_queue q ON q.id = m.queue_id WHERE m.minute >= CAST(:since AS bigint)"
    " GROUP BY q.name, m.minute / CAST(:step AS bigint)"
)
_NOW = Sql(f"SELECT {{now}} / {MINUTE}")


def this_minute(tx: Tx) -> int:
    minute: int = tx.value(_NOW)
    return minute


def history(tx: Tx, queue: str | None, task: str | None, since: int, step: int) -> list[Interval]:
    """Intervals of `step` minutes from that minute on until now; those in which nothing ended too."""
    rows = {row.at: row for row in tx.all(_HISTORY, queue=queue, task=task, since=since // step * step, step=step)}
    return [_interval(at, rows.get(at)) for at in range(since // step * step, this_minute(tx) + 1, step)]


def ended(tx: Tx, since: int, step: int) -> dict[str | None, list[Ended]]:
    """Only how many ended, of every queue in which some did, and (None) of all: for charts, which many look at."""
    first = since // step * step
    found: dict[str, dict[int, tuple[int, int, int]]] = {}
    for row in tx.all(_ENDED, since=first, step=step):
        found.setdefault(row.queue, {})[row.at] = (row.ended, row.failed, row.other)
    every = {at: to_datetime(at * MINUTE) for at in range(first, this_minute(tx) + 1, step)}
    counted: dict[str | None, list[Ended]] = {
        queue: [Ended(moment, *of.get(at, (0, 0, 0))) for at, moment in every.items()] for queue, of in found.items()
    }
    columns = zip(every.values(), *counted.values(), strict=True)
    return counted | {None: [_together(moment, of) for moment, *of in columns]}


def _together(moment: datetime | None, of: Sequence[Ended]) -> Ended:
    return Ended(moment, *(sum(getattr(one, name) for one in of) for name in ("ended", "failed", "other")))


class Settled(NamedTuple):
    """What was counted before some hour, by queue and task. To sum up older minutes moves nothing over that border, so who
    is asked again and again reads it once an hour. (What a transaction writes that was open for longer is seen then.)"""

    epoch: int  # of the ledger: another one, once it was restored from a backup
    until: int
    sums: Sums


def settled(tx: Tx, before: Settled | None = None) -> Settled:
    """As it is now; `before`, if that is still so."""
    epoch, minute = tx.tuples(_BOOK)[0]
    until = (minute - _LATE) // 60 * 60
    if before is not None and (before.epoch, before.until) == (epoch, until):
        return before
    return Settled(epoch, until, _sums(tx, 0, until))


def totals(tx: Tx, since: int = 0, known: Settled | None = None) -> list[Total]:
    """The same in all, by queue and task; from the beginning, these only grow. `known`: what need not be read again."""
    found = _sums(tx, since if known is None else known.until)
    for key, sums in {} if known is None else known.sums.items():
        found[key] = [sum(pair) for pair in zip(sums, found.get(key, (0,) * len(sums)), strict=True)]
    return [Total(*key, _interval(since, _Sums(*sums))) for key, sums in sorted(found.items())]


def _sums(tx: Tx, since: int, until: int = _EVER) -> Sums:
    return {(queue, task): sums for queue, task, *sums in tx.tuples(_TOTALS, since=since, until=until)}


def _interval(minute: int, row: Any) -> Interval:
    numbers = {name: 0 if row is None else getattr(row, name) for name in _ALL}
    return Interval(
        at=to_datetime(minute * MINUTE),
        **{name: numbers[name] for name in (*ENDS, "retried", "waits")},
        ran=numbers["ran"] / SECOND,
        waited=numbers["waited"] / SECOND,
        ran_in=tuple(numbers[name] for name in RAN),
        waited_in=tuple(numbers[name] for name in WAITED),
    )


# ---- what is older is summed up

_MINUTES_OF_WORKERS = 10  # for so long each worker has rows of its own: nobody writes into older ones
_MINUTES = 2 * 1440  # for so long there are minutes; then hours
_HOURS = 400 * 1440  # for so long there are hours; then only what there was in all
_BATCH = 1000
_KEYS = "{rows f: minute bigint, worker bigint, queue int, task int}"
_SAME = "m.minute = f.minute AND m.worker_id = f.worker AND m.queue_id = f.queue AND m.task_id = f.task"
_INTO_ONE = (
    f"{_INTO.format(', '.join(_ALL))} SELECT %s, 0, m.queue_id, m.task_id, {_SUMS} FROM gm_minute m JOIN {_KEYS} ON {_SAME}"
    f" GROUP BY %s, m.queue_id, m.task_id ORDER BY 1, 3, 4{_adding(_ALL)}"
)


def _summing(which: str, into: str) -> tuple[Sql, Sql]:
    """What is summed up, locked; and its sums. Nothing that is summed up is what others are summed up into."""
    chosen = f"SELECT {_KEY} FROM gm_minute WHERE minute < {{now}} / {MINUTE} - :age AND {which}"
    group = into if "minute" in into else "1"
    return Sql(f"{chosen} ORDER BY {_KEY} LIMIT :most {{skip}}"), Sql(_INTO_ONE % (into, group))


LEVELS = (
    (_MINUTES_OF_WORKERS, _summing("worker_id <> 0", "m.minute")),
    (_MINUTES, _summing("worker_id = 0 AND minute % 60 <> 0", "m.minute / 60 * 60")),
    (_HOURS, _summing("worker_id = 0 AND minute % 60 = 0 AND minute > 0", "0")),
)
_REMOVE = Sql(f"DELETE FROM gm_minute WHERE ({_KEY}) IN (SELECT f.minute, f.worker, f.queue, f.task FROM {_KEYS})")


def tidy(tx: Tx, level: int, most: int = _BATCH) -> int:
    """Sums up some of the rows that are old enough, in one transaction: nothing is counted twice or not at all. Says how
    many. Rows that another has in hand are left to that one."""
    age, (choose, add) = LEVELS[level]
    keys = tx.tuples(choose, age=age, most=most)
    if keys:
        tx.run(add, f=keys)
        tx.run(_REMOVE, f=keys)
    return len(keys)
