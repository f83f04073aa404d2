"""Parts of a running job: checked, handed over in batches, and, once all have ended, read and judged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import orjson

from gristmill.binding import check_key, encode
from gristmill.errors import Invalid, Permanent, Refused, Waiting
from gristmill.pipeline import Part, Stage, Task

if TYPE_CHECKING:
    from gristmill.execution.context import Context
    from gristmill.ledger.parts import PartKind

R = TypeVar("R")
Row = tuple[Any, ...]  # key, arguments as JSON, and if the part has a limit, its key of that

_BATCH = 500
_BATCH_BYTES = 256 * 1024


class Parts(Generic[R]):
    """What became of the parts of a job: iterate over (key, result) of those that completed, by key; streamed."""

    def __init__(self, total: int, failed: Mapping[str, str], results: Iterable[tuple[str, R]]) -> None:
        self.total = total
        self.failed = dict(failed)  #: why, by key, of those that failed or were cancelled
        self._results = results

    def __iter__(self) -> Iterator[tuple[str, R]]:
        return iter(self._results)

    @classmethod
    def of(cls, ctx: Context, part: Part[Any, R] | str, items: Iterable[Any]) -> Parts[R]:
        """Hands the parts over. Ends the attempt while some of them have not ended, or fails it if too many failed."""
        from gristmill.ledger import parts as ledger_parts

        ledger = ctx._open()
        wanted = part_of(ctx, part)
        spec = orjson.dumps(wanted.spec()).decode()
        pool = ledger_parts.pool_beside(ledger, ctx.job, wanted.demands, wanted.is_async)
        how = (wanted.name, wanted.formerly, spec, wanted.queue, pool)
        kind: PartKind = ledger_parts.kind_of(ledger, *how, limit=wanted.limit)
        try:
            for batch in batches(rows(wanted, items, ctx._common.run_args)):
                ledger.do(ledger_parts.hand_over, ctx._worker(), ctx.job, ctx.attempt, kind, batch)
        except Refused:
            wait(ctx)  # the run is being stopped, and this job with it
        which = (ctx.job, ctx.attempt, kind.names)
        with ledger.reading() as tx:
            standing = ledger_parts.standing(tx, *which)
            failed = ledger_parts.failures(tx, *which) if standing.failed and not standing.left else {}
        if standing.left:
            wait(ctx)
        return judged(ctx, wanted, cls(standing.total, failed, _Results(lambda: ledger_parts.results(ledger, *which))))


class _Results(Iterable[tuple[str, Any]]):
    """Read from the start each time."""

    def __init__(self, read: Any) -> None:
        self._read = read

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        found: Iterator[tuple[str, Any]] = self._read()
        return found


def part_of(ctx: Context, part: Part[Any, Any] | str) -> Part[Any, Any]:
    """The part that is meant, if it is one of this job's task."""
    own = ctx._task()
    name = part.part_name if isinstance(part, Part) else part
    found = own.parts.get(name) if isinstance(name, str) else None
    if found is None or (isinstance(part, Part) and part.name != found.name):
        known = ", ".join(map(repr, own.parts)) or "none"
        raise Invalid(f"{part!r} is no part of {own!r}; it has: {known}; declare one with @{_function(own)}.part")
    return found


def _function(task: Task[Any, Any]) -> str:
    return getattr(task.fn, "__name__", task.name)


def rows(part: Part[Any, Any], items: Iterable[Any], run_args: Mapping[str, Any]) -> Iterator[Row]:
    """Each part's key and arguments, as its function wants them."""
    for item in items:
        key, args = _key_and_args(item)
        part.parameters.refuse_unknown(args)
        part.parameters.refuse_missing(args, run_args)
        checked = part.parameters.check_named(args)
        row = check_key(key), encode(checked, "a part's arguments") if checked else None
        yield row if part.limit is None else (*row, part.limit.key(args, run_args))


def _key_and_args(item: Any) -> tuple[Any, Mapping[str, Any]]:
    if isinstance(item, str):
        return item, {}
    if isinstance(item, tuple | list) and len(item) == 2 and (item[1] is None or isinstance(item[1], Mapping)):
        return item[0], item[1] or {}
    raise Invalid(f"a part is a key, or a key and arguments (a dict): not {item!r:.80}")


def batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += len(row[0]) + len(row[1] or "")
        if len(batch) >= _BATCH or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def wait(ctx: Context) -> None:
    """Ends this attempt, whatever its function makes of that."""
    ctx._waits = ctx._finished = True
    raise Waiting


def judged(ctx: Context, part: Part[Any, Any], parts: Parts[R]) -> Parts[R]:
    """Fails the job if too few parts succeeded. Those that failed are its failed items, by name."""
    succeeded = parts.total - len(parts.failed)
    phase = ctx.phase(part.part_name, total=parts.total) if parts.failed else None
    for key, error in parts.failed.items():
        assert phase is not None
        phase.fail(key, error.splitlines()[0][:200] if error.strip() else "it failed")
    if not part.need.met(succeeded, parts.total):
        raise Permanent(f"part {part.part_name!r}: {part.need.words(succeeded, parts.total)}{_first(parts.failed)}")
    return parts


def _first(failed: Mapping[str, str]) -> str:
    """`; failed: 007, 012, …`"""
    names = list(failed)[:5]
    return f"; failed: {', '.join(names)}{', …' if len(failed) > 5 else ''}" if names else ""


def stage_row(task: Task[Any, Any] | None) -> Sequence[Any] | None:
    """What a context of a part knows of its job's stage; None: it is no part of a stage."""
    if isinstance(task, Part) and isinstance(task.of, Stage):
        return (task.of.stage_name, task.of.each, [])
    return None
