"""The child's end of streaming fan-out: checks items, sends them in batches, and waits when the ledger is behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Self

from gristmill.binding import Parameters, check_key, encode
from gristmill.errors import Invalid, Permanent, did_you_mean
from gristmill.execution.context import Context
from gristmill.execution.run import item_args
from gristmill.pipeline import Stage
from gristmill.registry import Registry

_BATCH = 500
_BATCH_BYTES = 256 * 1024
_WINDOW = 8  # batches under way; more would only fill memory
_PATIENCE = 0.05  # seconds that an item waits for company


_SHAPES = 100  # that are remembered; items of one stage have few


class _Plan(NamedTuple):
    """What the arguments of an item must be like, for all the stages that get it."""

    parameters: list[Parameters]
    known: frozenset[str]
    takes_any: bool
    required: frozenset[str]
    plain: set[tuple[Any, ...]]  # names and types of arguments that were looked at before and need no other look

    @classmethod
    def of(cls, parameters: list[Parameters], run_args: Iterable[str]) -> Self:
        by_name = [(name, p.required) for each in parameters for name, p in each.by_name.items()]
        required = {name for name, required in by_name if required} - set(run_args)
        takes_any = any(each.takes_any for each in parameters)
        return cls(parameters, frozenset(name for name, _ in by_name), takes_any, frozenset(required), set())


class Emitter:
    """Items of one running job."""

    def __init__(
        self,
        ctx: Context,
        targets: list[list[str]],
        registry: Registry,
        run_args: Mapping[str, Any],
        send: Callable[..., None],
    ) -> None:
        self._ctx = ctx
        self._targets = {stage: registry.task(task) for stage, task in targets}
        self._run_args = run_args
        self._plans: dict[str | None, _Plan] = {
            stage: _Plan.of([task.parameters], run_args) for stage, task in self._targets.items()
        }
        self._plans[None] = _Plan.of([task.parameters for task in self._targets.values()], run_args)
        self._send = send
        self._limited = {stage: task.limit for stage, task in self._targets.items() if task.limit is not None}
        self._batch: list[tuple[Any, ...]] = []  # as `ledger.emit.Item`
        self._bytes = 0
        self._since = 0.0
        self._sent = 0
        self._under_way = 0
        self._refusal: str | None = None
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    def add(self, item: Any, wait: bool = True) -> None:
        """One yielded item: `key`, `(key, arguments)` or `(key, arguments, stage)`."""
        key, args, stage = _parts(item)
        self._put(check_key(key), args, stage)
        if wait and self.full:
            self.wait()

    def pass_on(self, value: Any) -> None:
        """What a function that is no generator returned goes on as one item, under its own key."""
        for stage, task in self._targets.items():
            where = f"stage {stage!r}"
            try:
                self._put("", dict(item_args(value, task.parameters.first, where)), stage)
            except Invalid as error:
                raise Invalid(f"{error}; what a stage returns is one item, and each that it yields is one") from None

    def _put(self, key: str, args: Mapping[str, Any], stage: str | None) -> None:
        text = self._checked(args, stage)
        keys = self._limit_keys(args, stage) if self._limited else None
        with self._lock:
            self._raise_refusal()
            if not self._batch:
                self._since = time.monotonic()
            self._batch.append((key, text, stage, keys) if keys else (key, text, stage))
            self._bytes += len(key) + len(text or "")
            if len(self._batch) >= _BATCH or self._bytes >= _BATCH_BYTES:
                self._flush()

    def _limit_keys(self, args: Mapping[str, Any], stage: str | None) -> dict[str, str]:
        """An item's key of the limit of each stage that gets it and has one."""
        given = (args, self._run_args, {"subject": self._ctx.subject})
        return {name: limit.key(*given) for name, limit in self._limited.items() if stage is None or stage == name}

    def _checked(self, args: Mapping[str, Any], stage: str | None) -> str | None:
        """An item's arguments, as every stage that gets it wants them."""
        plan = self._plans.get(stage)
        if plan is None:
            raise Invalid(
                f"an item names stage {stage!r}, which gets no items from here{did_you_mean(str(stage), self._targets)}"
            )
        shape = (*args, *map(type, args.values()))
        if shape not in plan.plain:
            given, args = args, self._checked_closely(plan, args, stage)
            if len(plan.plain) < _SHAPES and all(each.takes(given) for each in plan.parameters):
                plan.plain.add(shape)
        return encode(args, "an item's arguments") if args else None

    def _checked_closely(self, plan: _Plan, args: Mapping[str, Any], stage: str | None) -> Mapping[str, Any]:
        if not plan.takes_any and not args.keys() <= plan.known:
            name = next(name for name in args if name not in plan.known)
            where = " or ".join(repr(s) for s in ([stage] if stage else self._targets))
            raise Invalid(f"stage {where} takes no argument {name!r}{did_you_mean(str(name), plan.known)}")
        if not args.keys() >= plan.required:
            for parameters in plan.parameters:
                parameters.refuse_missing(args, self._run_args)
        for parameters in plan.parameters:
            args = parameters.check_named(args)
        return args

    @property
    def full(self) -> bool:
        return self._under_way >= _WINDOW

    def wait(self) -> None:
        """Waits until the ledger has taken enough of what was sent."""
        with self._changed:
            while self.full and self._refusal is None:
                self._changed.wait()
            self._raise_refusal()

    def rest(self, failed: bool = False) -> tuple[int, list[tuple[Any, ...]]] | None:
        """What was not sent yet, and its number: it travels with the report, to be written in one transaction with it."""
        with self._changed:
            if not failed:
                self._raise_refusal()
            batch, self._batch = self._batch, []
            return (self._sent + 1, batch) if batch else None

    def flush_if_old(self) -> None:
        """Called by the listening thread: a slow generator's items must not wait for its next one."""
        if not self._changed.acquire(blocking=False):
            return
        try:
            if self._batch and not self.full and time.monotonic() - self._since > _PATIENCE:
                self._flush()
        finally:
            self._changed.release()

    def close(self) -> None:
        """Its job is over: a thread that still waits for the ledger in its name must not do so for ever."""
        with self._changed:
            self._refusal = self._refusal or "its job is over"
            self._changed.notify_all()

    def acknowledged(self, refusal: str | None) -> None:
        with self._changed:
            self._under_way -= 1
            self._refusal = self._refusal or refusal
            self._changed.notify_all()

    def _flush(self) -> None:
        if self._batch:
            self._under_way += 1
            self._sent += 1
            self._send("emit", self._ctx.job, self._ctx.attempt, self._sent, self._batch)
            self._batch, self._bytes = [], 0

    def _raise_refusal(self) -> None:
        if self._refusal is not None:
            raise Permanent(self._refusal)


def _parts(item: Any) -> tuple[Any, Mapping[str, Any], str | None]:
    if type(item) is tuple and len(item) == 2 and type(item[1]) is dict:  # nearly all are like this
        return item[0], item[1], None
    if isinstance(item, str):
        return item, {}, None
    if isinstance(item, tuple | list) and 2 <= len(item) <= 3:
        key, args, *rest = item
        stage = rest[0] if rest else None
        if isinstance(stage, Stage):
            stage = stage.stage_name
        if args is None:
            args = {}
        if isinstance(args, Mapping) and (stage is None or isinstance(stage, str)):
            return key, args, stage
    raise Invalid(f"a stage yields key, or key and arguments (a dict): not {item!r:.80}")
