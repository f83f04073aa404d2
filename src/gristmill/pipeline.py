"""Pipelines and tasks: plain Python functions, the order between them, and what is promised about them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import update_wrapper
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, cast, overload

from gristmill.application import statements_of
from gristmill.binding import Parameters
from gristmill.demand import Labels, Memory, demands
from gristmill.errors import Invalid, did_you_mean, quoted
from gristmill.limit import Limit
from gristmill.need import Need
from gristmill.retention import Keep, rules
from gristmill.retry import Retries
from gristmill.settings import DEFAULT_QUEUE, NAME_LIMIT

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9][A-Za-z0-9_-]*)*")
_RESERVED = frozenset({"all", "none", "gristmill"})


def check_name(name: Any, what: str) -> str:
    if not isinstance(name, str) or len(name) > NAME_LIMIT or not _NAME.fullmatch(name):
        raise Invalid(
            f"{what} name {quoted(name)} must be letters, digits, '_' and '-', parts joined by '.',"
            f" at most {NAME_LIMIT} long"
        )
    if name.split(".")[0].lower() in _RESERVED:
        raise Invalid(f"{what} name {name!r} is reserved; choose another")
    return name


def check_timeout(timeout: float | None, where: str, what: str = "timeout") -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= 31_536_000:
        raise Invalid(f"{where}: {what} must be a number of seconds above 0, not {quoted(timeout)}")
    return float(timeout)


class Condition(NamedTuple):
    """A function that says whether a job is to be done at all, and what it takes."""

    fn: Callable[..., object]
    parameters: Parameters


def _condition(fn: Callable[..., object], where: str, what: str) -> Condition:
    if not callable(fn) or inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn):
        raise Invalid(f"{where}: {what} wants a plain function of the context and arguments, not {quoted(fn)}")
    return Condition(fn, Parameters(fn, f"{where}, {what.rstrip('=…')}"))


class Task(Generic[P, R]):
    """A function that jobs name. Called directly it is just the function."""

    def __init__(
        self,
        fn: Callable[P, R],
        *,
        name: str,
        queue: str = DEFAULT_QUEUE,
        timeout: float | None = None,
        retries: Retries | int = 0,
        needs: Labels = (),
        cpu: int = 1,
        memory: Memory = None,
        formerly: Sequence[str] = (),
        when: Callable[..., object] | None = None,
        within: float | None = None,
        on_terminal: str | Sequence[str] | None = None,
        keep: Keep = None,
        limit: Limit | None = None,
    ) -> None:
        if not callable(fn):
            raise Invalid(f"a task is made from a function, not from {fn!r}")
        if isinstance(formerly, str):
            raise Invalid(f"task {name!r}: formerly=… wants a list of names, not the text {formerly!r}")
        self.name = check_name(name, "task")
        self.fn = fn
        self.queue = check_name(queue, "queue")
        self.timeout = check_timeout(timeout, f"task {name!r}")
        self.retries = retries if isinstance(retries, Retries) else Retries(retries)
        self.demands = demands(needs, cpu, memory, f"task {name!r}")
        self.formerly = tuple(check_name(former, "former task") for former in formerly)
        self.is_async = inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn)
        if self.is_async and cpu > 1:
            raise Invalid(f"task {name!r} is async, and shares a process with others: it cannot have cpu={cpu}")
        self.streams = inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn)
        self.parameters = Parameters(fn, f"task {name!r}")
        self.when = None if when is None else _condition(when, f"task {name!r}", "when=…")
        self.within = check_timeout(within, f"task {name!r}", "within")
        self.on_terminal = statements_of(on_terminal, f"task {name!r}")
        self.keep = rules(keep, f"task {name!r}")
        if limit is not None and not isinstance(limit, Limit):
            raise Invalid(
                f"task {name!r}: limit=… wants a Limit, as Limit('host', per='url', at_once=2), not {quoted(limit)}"
            )
        self.limit = limit
        update_wrapper(self, fn)
        self.parts: dict[str, Part[Any, Any]] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__.lower()} {self.name!r}>"

    def spec(self, *, timeout: float | None = None, retries: Retries | None = None) -> dict[str, Any]:
        """What a worker must know to run a job of this task without importing it. Stored once, not per job."""
        spec: dict[str, Any] = {
            "timeout": self.timeout if timeout is None else timeout,
            "retries": (self.retries if retries is None else retries).to_json(),
            "async": self.is_async,
        }
        if len(self.demands) > 1:
            spec["memory"] = [demand.memory for demand in self.demands]
        return {**spec, "on_terminal": self.on_terminal} if self.on_terminal else spec

    @overload
    def part(self, fn: Callable[Q, S], /) -> Part[Q, S]: ...

    @overload
    def part(
        self,
        /,
        *,
        need: float | None = None,
        name: str | None = None,
        queue: str | None = None,
        timeout: float | None = None,
        retries: Retries | int = 0,
        needs: Labels = (),
        cpu: int = 1,
        memory: Memory = None,
        formerly: Sequence[str] = (),
        limit: Limit | None = None,
    ) -> Callable[[Callable[Q, S]], Part[Q, S]]: ...

    def part(self, fn: Callable[..., Any] | None = None, /, *, name: str | None = None, **options: Any) -> Any:
        """Makes a function a part of this task or stage: `ctx.parts(page, …)` hands over many of them, as jobs of their own.

        `need`: how many of them must succeed, a count (`2`) or a share (`0.5`); by default one, if there were any.
        `queue`: by default that of the task or stage.
        """

        def decorate(fn: Callable[..., Any]) -> Part[Any, Any]:
            part: Part[Any, Any] = Part(fn, self, name or str(getattr(fn, "__name__", "")), **options)
            if part.part_name in self.parts:
                raise Invalid(f"{self!r} has a part {part.part_name!r} already")
            self.parts[part.part_name] = part
            return part

        return decorate if fn is None else decorate(fn)


class Part(Task[P, R]):
    """What is done with one part of a job: one page of a document."""

    of: Task[Any, Any]

    def __init__(
        self,
        fn: Callable[P, R],
        of: Task[Any, Any],
        part_name: str,
        *,
        need: float | None = None,
        queue: str | None = None,
        **options: Any,
    ) -> None:
        if isinstance(of, Part):
            raise Invalid(f"{of!r} is a part itself, and cannot have parts; let {of.of!r} have both")
        if "." in part_name:
            raise Invalid(f"part name {part_name!r} must not contain '.'")
        super().__init__(fn, name=f"{of.name}.{part_name}", queue=of.queue if queue is None else queue, **options)
        if self.streams:
            raise Invalid(f"part {self.name!r} is a generator; only a pipeline's stage can emit items")
        self.of = of
        self.part_name = part_name
        self.need = Need.of(need, f"part {part_name!r}")


class Stage(Task[P, R]):
    """One step of a pipeline."""

    def __init__(
        self,
        fn: Callable[P, R],
        pipeline: Pipeline,
        stage_name: str,
        *,
        after: Sequence[str],
        each: bool,
        need: float | None,
        gate: bool,
        **options: Any,
    ) -> None:
        if not isinstance(stage_name, str) or "." in stage_name:
            raise Invalid(f"stage name {stage_name!r} must not contain '.'")
        if options.get("keep") is not None:
            raise Invalid(f"stage {stage_name!r}: its jobs are kept as long as their run; say keep=… of the pipeline")
        super().__init__(fn, name=f"{pipeline.name}.{stage_name}", **options)
        self.pipeline = pipeline
        self.stage_name = stage_name
        self.after = tuple(after)
        self.each = each
        self.on_terminal = (*pipeline.on_terminal, *self.on_terminal)
        self.need = Need.of(need, f"stage {stage_name!r}")
        self.gate = gate
        self.there: Condition | None = None

    def probe(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Makes a function this stage's probe: it says whether the output of an item exists, so that reconcile can adopt
        work that was done but not recorded. False or None: it is not there; True: it is; anything else is the result."""
        if self.streams:
            raise Invalid(f"stage {self.stage_name!r} yields items, which no probe could know: it cannot have one")
        if self.there is not None:
            raise Invalid(f"stage {self.stage_name!r} has a probe already")
        self.there = _condition(fn, f"stage {self.stage_name!r}", "a probe")
        return fn


After = Stage[Any, Any] | str


class Pipeline:
    """Named stages and the order between them.

    `keep`: how long its ended runs are kept (`Retention`). `on_terminal`: SQL that runs with the end of each of its jobs.
    """

    def __init__(self, name: str, *, keep: Keep = None, on_terminal: str | Sequence[str] | None = None) -> None:
        self.name = check_name(name, "pipeline")
        self.keep = rules(keep, f"pipeline {name!r}")
        self.on_terminal = statements_of(on_terminal, f"pipeline {name!r}")
        self.stages: dict[str, Stage[Any, Any]] = {}

    def __repr__(self) -> str:
        return f"<pipeline {self.name!r}: {', '.join(self.stages) or 'no stages'}>"

    @overload
    def stage(self, fn: Callable[P, R], /) -> Stage[P, R]: ...

    @overload
    def stage(
        self,
        /,
        *,
        after: After | Iterable[After] = (),
        each: bool = False,
        need: float | None = None,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        timeout: float | None = None,
        retries: Retries | int = 0,
        needs: Labels = (),
        cpu: int = 1,
        memory: Memory = None,
        formerly: Sequence[str] = (),
        when: Callable[..., object] | None = None,
        within: float | None = None,
        on_terminal: str | Sequence[str] | None = None,
        limit: Limit | None = None,
    ) -> Callable[[Callable[P, R]], Stage[P, R]]: ...

    def stage(
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        after: After | Iterable[After] = (),
        each: bool = False,
        need: float | None = None,
        name: str | None = None,
        **options: Any,
    ) -> Any:
        """Makes a function a stage. `each=True`: one job per item that the stages before it emit.

        `need`: how much success it takes for the run to go on: a count (`2`) or a share (`0.5`);
        by default one item, if there were any. `when`: a function of the context and of arguments; where it says no, the
        job ends `skipped`. `within`: skipped too if it was not started within so many seconds. `on_terminal`: SQL about
        the table `jobs`, run in every transaction that ends jobs of it. `limit`: how many of its jobs with the same key
        run at once, or per second.
        """

        def decorate(fn: Callable[..., Any]) -> Stage[Any, Any]:
            return self._add(fn, name, after, each=each, need=need, gate=False, **options)

        return decorate if fn is None else decorate(fn)

    def gate(
        self, fn: None = None, /, *, after: After | Iterable[After] | None = None, name: str | None = None, **options: Any
    ) -> Callable[[Callable[P, R]], Stage[P, R]]:
        """Makes a function a gate: it runs when `after` is closed, and what follows waits for it too.

        Returning lets the run go on, failing fails it, `EndRun` ends it there.
        """
        if after is None:
            raise Invalid(f"a gate of pipeline {self.name!r} has to say what it waits for: @….gate(after=STAGE)")
        if fn is not None:
            raise Invalid("gate(…) makes a decorator; write @….gate(after=STAGE) above the function")

        def decorate(fn: Callable[P, R]) -> Stage[P, R]:
            return self._add(fn, name, after, each=False, need=None, gate=True, **options)

        return decorate

    def _add(
        self, fn: Callable[..., Any], name: str | None, after: After | Iterable[After], **options: Any
    ) -> Stage[Any, Any]:
        name = getattr(fn, "__name__", None) if name is None else name
        stage: Stage[Any, Any] = Stage(fn, self, cast(str, name), after=self._names(after), **options)
        if stage.stage_name in self.stages:
            raise Invalid(f"pipeline {self.name!r} has a stage {name!r} already")
        if stage.each and not stage.after:
            raise Invalid(f"stage {name!r} has each=True but nothing before it that could give it items: add after=…")
        self.stages[stage.stage_name] = stage
        return stage

    def _names(self, after: After | Iterable[After]) -> list[str]:
        names: list[str] = []
        for upstream in [after] if isinstance(after, Stage | str) else after:
            if isinstance(upstream, Stage) and upstream.pipeline is not self:
                raise Invalid(f"{upstream!r} belongs to pipeline {upstream.pipeline.name!r}, not to {self.name!r}")
            if not isinstance(upstream, Stage | str):
                raise Invalid(f"after=… wants a stage or its name, not {quoted(upstream)}")
            name = upstream if isinstance(upstream, str) else upstream.stage_name
            if name not in names:
                names.append(name)
        return names

    def ordered(self) -> list[Stage[Any, Any]]:
        """The stages, each after all that it depends on; refuses unknown names and cycles."""
        if not self.stages:
            raise Invalid(f"pipeline {self.name!r} has no stages")
        for stage in self.stages.values():
            for name in stage.after:
                if name not in self.stages:
                    raise Invalid(
                        f"stage {stage.stage_name!r} of pipeline {self.name!r} is after {name!r}, which is not there"
                        f"{did_you_mean(name, self.stages)}"
                    )
        done: list[Stage[Any, Any]] = []
        left = dict(self.stages)
        while left:
            free = [s for s in left.values() if not any(up in left for up in self.upstreams(s))]
            if not free:
                raise Invalid(f"the stages of pipeline {self.name!r} form a cycle: {' → '.join(self._cycle(left))}")
            done += free
            for stage in free:
                del left[stage.stage_name]
        return done

    def upstreams(self, stage: Stage[Any, Any]) -> list[str]:
        """What must close before `stage` can: what it names, and the gates of that."""
        names = list(stage.after)
        if not stage.gate:
            gates = [g for g in self.stages.values() if g.gate and set(g.after) & set(stage.after)]
            if gates and stage.each:
                raise Invalid(
                    f"stage {stage.stage_name!r} gets items while {gates[0].after[0]!r} still runs, so it cannot wait for"
                    f" its gate {gates[0].stage_name!r}; put a plain stage between"
                )
            names += [g.stage_name for g in gates if g.stage_name not in names]
        return names

    def _cycle(self, left: Mapping[str, Stage[Any, Any]]) -> list[str]:
        path = [next(iter(left))]
        while path[-1] not in path[:-1]:
            path.append(next(up for up in self.upstreams(left[path[-1]]) if up in left))
        return path[path.index(path[-1]) :][::-1]

    def check_args(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """A run's arguments: each named by some stage, each of the type that every such stage wants, none missing."""
        stages = self.ordered()
        takers = [stage.parameters for stage in stages] + [stage.when.parameters for stage in stages if stage.when]
        parts = [part.parameters for stage in stages for part in stage.parts.values()]
        takers += parts
        known = {name for taker in takers for name in taker.by_name}
        checked = dict(args)
        for name in args:
            if name not in known and not any(taker.takes_any for taker in takers):
                raise Invalid(f"pipeline {self.name!r} takes no argument {name!r}{did_you_mean(str(name), known)}")
        for stage in stages:
            checked = stage.parameters.check_named(checked)
            if not stage.each:
                stage.parameters.refuse_missing(checked)
                if stage.when:
                    stage.when.parameters.refuse_missing(checked)
        for part in parts:
            checked = part.check_named(checked)
        return checked


@overload
def task(fn: Callable[P, R], /) -> Task[P, R]: ...


@overload
def task(
    *,
    name: str | None = None,
    queue: str = DEFAULT_QUEUE,
    timeout: float | None = None,
    retries: Retries | int = 0,
    needs: Labels = (),
    cpu: int = 1,
    memory: Memory = None,
    formerly: Sequence[str] = (),
    when: Callable[..., object] | None = None,
    within: float | None = None,
    on_terminal: str | Sequence[str] | None = None,
    keep: Keep = None,
    limit: Limit | None = None,
) -> Callable[[Callable[P, R]], Task[P, R]]: ...


def task(fn: Callable[..., Any] | None = None, /, *, name: str | None = None, **options: Any) -> Any:
    """Makes a function a task: something that a job on its own can run."""

    def decorate(fn: Callable[..., Any]) -> Task[Any, Any]:
        made: Task[Any, Any] = Task(fn, name=name or str(getattr(fn, "__name__", "")), **options)
        if made.streams:
            raise Invalid(f"task {made.name!r} is a generator; only a pipeline's stage can emit items")
        return made

    return decorate if fn is None else decorate(fn)
