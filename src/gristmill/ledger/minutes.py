"""How much was done in each minute: counted in the transactions that end jobs, so that nothing is lost or counted twice.

Each worker has rows of its own (what nobody's worker ends is 0's), so that workers never wait for each other. A job that
ends itself in its application's transaction, which may stay open for long, has a row to itself (its number, negative).
`tidy` sums up what is older: over workers, then hours, and in the end all that was before. So sums over everything only
grow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gristmill.clock import SECOND, to_datetime
from gristmill.ledger.sql import Sql
from gristmill.rollup import BOUNDS, BUCKETS, COUNTS, ENDS, MINUTE, RAN, WAITED
from gristmill.states import NOBODY, State
from gristmill.watched import Interval, Total

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
_TOTALS = Sql(f"SELECT q.name AS queue, t.name AS task, {_SUMS} {_FROM} {_WHERE} GROUP BY q.name, t.name ORDER BY 1, 2")
_NOW = Sql(f"SELECT {{now}} / {MINUTE}")


def this_minute(tx: Tx) -> int:
    minute: int = tx.value(_NOW)
    return minute


def history(tx: Tx, queue: str | None, task: str | None, since: int, step: int) -> list[Interval]:
    """Intervals of `step` minutes from that minute on until now; those in which nothing ended too."""
    rows = {row.at: row for row in tx.all(_HISTORY, queue=queue, task=task, since=since // step * step, step=step)}
    return [_interval(at, rows.get(at)) for at in range(since // step * step, this_minute(tx) + 1, step)]


def totals(tx: Tx, since: int = 0) -> list[Total]:
    """The same in all, by queue and task; from the beginning, these only grow."""
    rows = tx.all(_TOTALS, queue=None, task=None, since=since)
    return [Total(row.queue, row.task, _interval(since, row)) for row in rows]


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
