"""One text for both databases: named parameters, and a few fragments where the dialects differ.

{now}                     the database's clock, or the test's, in microseconds
{lock} {share} {exclusive} {skip}   row locks (nothing on SQLite: a transaction that writes is alone there)
{next}                    the next place in the line
{ready} {waits}           for a job that is queued again: `ready` and `run_at`, which is in the line only if it has no limit
{waiting}                 `run_at` of a job that waits for its limit
{place}                   of event `f.nr` of a transaction: given after the commit (SQLite: the next ones)
{in name}                 `= ANY(list)`
{glob}                    compares text with a pattern, which `glob` has translated
{like}                    the same whatever the case, with a pattern that `like` has translated
{newest}                  the job whose number SQLite would give again if it were deleted
{one_of SELECT …}         `= ANY(ARRAY(SELECT …))`: PostgreSQL must run a locking sub-select exactly once
{rows f: id bigint, …}    a list of tuples as a table
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

import orjson

_IN = re.compile(r"\{in (?P<in>\w+)\}")
_FRAGMENT = re.compile(r"\{rows (?P<rows>\w+): (?P<columns>[^}]+)\}|\{one_of (?P<sub>[^}]+)\}")
_LIMIT = re.compile(r"\bLIMIT (:\w+)")  # SQLite looks at such a number when it plans, and so plans again at every use
_PARAMETER = re.compile(r"(?<![:\w]):(\w+)")

WAITING = 1 << 62  # `run_at` of a job that waits for its limit: later than any time
_LIMITED = "CASE WHEN gm_job.limit_id IS NULL THEN %s ELSE %s END"

_WORDS = {
    "postgresql": {
        # A sub-select is evaluated once per statement, the bare expression once per row.
        "{now}": "(SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint))",
        "{lock}": "FOR NO KEY UPDATE",
        "{lock_j}": "FOR NO KEY UPDATE OF j",
        "{lock_p}": "FOR NO KEY UPDATE OF p",
        "{lock_k}": "FOR NO KEY UPDATE OF k",
        "{skip_k}": "FOR NO KEY UPDATE OF k SKIP LOCKED",
        "{share}": "FOR SHARE",
        "{exclusive}": "FOR UPDATE SKIP LOCKED",
        "{skip}": "FOR NO KEY UPDATE SKIP LOCKED",
        "{next}": "nextval('gm_line')",
        "{ready}": _LIMITED % ("nextval('gm_line')", "NULL"),
        "{waits}": _LIMITED % ("NULL", WAITING),
        "{waiting}": str(WAITING),
        "{place}": "NULL::bigint",
        "{by_limit}": "",
        "{glob}": "LIKE",
        "{like}": "ILIKE",
        "{newest}": "false",
        "{true}": "true",
        "{false}": "false",
    },
    "sqlite": {
        "{now}": ":now",
        "{lock}": "",
        "{lock_j}": "",
        "{lock_p}": "",
        "{lock_k}": "",
        "{skip_k}": "",
        "{share}": "",
        "{exclusive}": "",
        "{skip}": "",
        "{place}": "(SELECT coalesce(max(place), 0) FROM gm_event) + f.nr",
        "{ready}": _LIMITED % (":now", "NULL"),
        "{waits}": _LIMITED % ("NULL", WAITING),
        "{waiting}": str(WAITING),
        "{next}": ":now",  # ties go by rowid, and there are no dead index entries to step over
        "{by_limit}": "INDEXED BY gm_job_limited",  # it would rather read all jobs that wait, for each key
        "{glob}": "GLOB",
        "{like}": "LIKE",  # which tells no `a` from an `A`
        "{newest}": "id = (SELECT max(id) FROM gm_job)",
        "{true}": "1",
        "{false}": "0",
    },
}


class Sql:
    """A statement, compiled once per dialect."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._compiled: dict[str, _Compiled] = {}

    def compiled(self, dialect: str) -> _Compiled:
        if dialect not in self._compiled:
            self._compiled[dialect] = _compiled(self.text, dialect)
        return self._compiled[dialect]


@lru_cache(maxsize=500)
def _compiled(text: str, dialect: str) -> _Compiled:
    """Lists put their statements together each time they are asked for, and the same few again and again."""
    return _Compiled(text, dialect)


class _Compiled:
    def __init__(self, text: str, dialect: str) -> None:
        self.lists: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}  # name: its columns and their types
        self.postgres = dialect == "postgresql"
        for word, meaning in _WORDS[dialect].items():
            text = text.replace(word, meaning)
        text = _FRAGMENT.sub(self._fragment, _IN.sub(self._list, text))
        if not self.postgres:
            text = _LIMIT.sub(r"LIMIT \1 + 0", text)
        self.needs_now = bool(re.search(r":now\b", text))
        self.named = _PARAMETER.sub(r":\1 ", text)  # as SQLAlchemy's text() reads it: not before "::"
        self.sql = _PARAMETER.sub(r"%(\1)s", text.replace("%", "%%")) if self.postgres else text

    def _list(self, match: re.Match[str]) -> str:
        name = match["in"]
        if name not in self.lists:
            self.lists.append(name)
        return f"= ANY(:{name}::bigint[])" if self.postgres else f"IN (SELECT value FROM json_each(:{name}))"

    def _fragment(self, match: re.Match[str]) -> str:
        if select := match["sub"]:
            return f"= ANY(ARRAY({select}))" if self.postgres else f"IN ({select})"
        name, columns = match["rows"], [c.split() for c in match["columns"].split(",")]
        self.tables[name] = columns
        if self.postgres:
            arrays = ", ".join(f":{name}__{column}::{kind}[]" for column, kind in columns)
            return f"unnest({arrays}) AS {name}({', '.join(column for column, _ in columns)})"
        values = ", ".join(f"value ->> {n} AS {column}" for n, (column, _) in enumerate(columns))
        return f"(SELECT {values} FROM json_each(:{name})) AS {name}"

    def parameters(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """`given` as the driver wants it: lists and tables become arrays on PostgreSQL, JSON on SQLite."""
        values = dict(given)
        if self.postgres:
            for name in self.lists:
                values[name] = _array(values[name], "bigint")
            for name, columns in self.tables.items():
                rows: Sequence[Sequence[Any]] = values.pop(name)
                # A row may have more than is used.
                for (column, kind), data in zip(columns, zip(*rows, strict=True), strict=False):
                    values[f"{name}__{column}"] = _array(data, kind)
            return values
        for name in (*self.lists, *self.tables):
            values[name] = orjson.dumps(values[name], default=tuple).decode()  # tuple: for named tuples
        return values


def numbers(states: Iterable[int]) -> str:
    """States as a statement lists them: `IN (4, 5, 6)`."""
    return ", ".join(str(int(state)) for state in sorted(states))


def glob(pattern: str, dialect: str) -> str:
    """A pattern with `*` and `?` as the dialect's {glob} reads it. SQLite's LIKE would not tell `a` from `A`."""
    return pattern.replace("[", "[[]") if dialect == "sqlite" else like(pattern)


def like(pattern: str) -> str:
    """A pattern with `*` and `?` as {like} reads it, before `ESCAPE '\\'`."""
    for letter in "\\%_":
        pattern = pattern.replace(letter, f"\\{letter}")
    return pattern.replace("*", "%").replace("?", "_")


def alike(text: str, pattern: str) -> bool:
    """The same comparison for a text that is here: `*` is any text, `?` one letter, and every other sign itself."""
    return fnmatchcase(text, pattern.replace("[", "[[]"))


def _array(values: Iterable[Any], kind: str) -> str:
    """A PostgreSQL array, written out: the driver's own way costs 1 µs an element."""
    if kind == "text":
        items = ["NULL" if v is None else '"' + v.replace("\\", r"\\").replace('"', r"\"") + '"' for v in values]
    elif kind == "boolean":
        items = ["NULL" if v is None else "t" if v else "f" for v in values]
    else:
        number = float if kind == "float8" else int
        items = ["NULL" if v is None else str(number(v)) for v in values]
    return "{" + ",".join(items) + "}"
