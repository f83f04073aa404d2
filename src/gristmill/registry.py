"""What an application offers, by name: its pipelines and tasks, its own tables, its checks, its schedules, its routes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from gristmill.application import Check, Migrations, Routes
from gristmill.errors import Invalid, did_you_mean
from gristmill.pipeline import Part, Pipeline, Stage, Task
from gristmill.schedule import Schedule

_PROGRAM = {"__main__", "__mp_main__"}  # names of the module that Python was started with
Piece = Pipeline | Task[Any, Any] | Migrations | Check | Schedule | Routes


class Registry:
    """The pieces of an application; tasks are found by their former names too."""

    def __init__(self, *pieces: Piece) -> None:
        self.pipelines: dict[str, Pipeline] = {}
        self.tasks: dict[str, Task[Any, Any]] = {}
        self.migrations: dict[str, Migrations] = {}
        self.checks: dict[str, Check] = {}
        self.schedules: dict[str, Schedule] = {}
        self.routes: dict[str, Routes] = {}
        self._prepared: set[str] = set()
        for piece in pieces:
            self.add(piece)

    def add(self, piece: Piece) -> None:
        if isinstance(piece, Pipeline):
            self._put(self.pipelines, piece.name, piece, "pipeline")
            for stage in piece.ordered():
                self._put_task(stage)
        elif isinstance(piece, Part):
            self.add(piece.of)
        elif isinstance(piece, Stage):
            self.add(piece.pipeline)
        elif isinstance(piece, Task):
            self._put_task(piece)
        elif isinstance(piece, Migrations):
            self._put(self.migrations, piece.name, piece, "folders of migration")
        elif isinstance(piece, Check):
            self._put(self.checks, piece.name, piece, "check")
        elif isinstance(piece, Schedule):
            self._put(self.schedules, piece.name, piece, "schedule")
        elif isinstance(piece, Routes):
            self._put(self.routes, piece.name, piece, "function of routes")
        else:
            raise Invalid(f"an application is made of pipelines and tasks, not of {piece!r}")

    def pieces(self) -> list[Piece]:
        work: list[Piece] = [*self.pipelines.values(), *self.tasks.values()]
        return [*work, *self.migrations.values(), *self.checks.values(), *self.schedules.values(), *self.routes.values()]

    def own(self) -> list[Migrations]:
        """The histories of its own tables."""
        return list(self.migrations.values())

    def _put_task(self, task: Task[Any, Any]) -> None:
        for name in (task.name, *task.formerly):
            self._put(self.tasks, name, task, "task")
        for part in task.parts.values():
            self._put_task(part)

    @staticmethod
    def _put(known: dict[str, Any], name: str, value: Any, what: str) -> None:
        if known.setdefault(name, value) is not value:
            raise Invalid(f"two {what}s are named {name!r}; give one of them another name")

    def pipeline(self, name: str) -> Pipeline:
        if name not in self.pipelines:
            raise Invalid(f"unknown pipeline {name!r}{did_you_mean(name, self.pipelines)}")
        return self.pipelines[name]

    def prepare(self, name: str) -> None:
        """Before a task's first call, whose time is limited: converters of its arguments may have much to import."""
        if name not in self._prepared:
            self._prepared.add(name)
            with contextlib.suppress(Exception):  # the call will say it
                self.task(name).parameters.prepare()

    def task(self, name: str) -> Task[Any, Any]:
        found = self.tasks.get(name)
        if found is None:
            raise Invalid(f"unknown task {name!r}{did_you_mean(name, self.tasks)}")
        return found

    def task_alone(self, name: str) -> Task[Any, Any]:
        """One that can be enqueued."""
        found = self.tasks.get(name)
        if found is None:
            alone = [known for known, task in self.tasks.items() if not isinstance(task, Stage | Part)]
            raise Invalid(f"unknown task {name!r}{did_you_mean(name, alone)}")
        if isinstance(found, Stage):
            raise Invalid(f"{name!r} is a stage: it runs as part of a run; start pipeline {found.pipeline.name!r}")
        if isinstance(found, Part):
            raise Invalid(f"{name!r} is a part: {found.of!r} hands it over, with ctx.parts(…)")
        return found

    def queues(self) -> set[str]:
        return {task.queue for task in self.tasks.values()}

    def sources(self) -> list[str]:
        """The modules (or, for a program run as a script, the file) that a child imports to have the same."""
        found: list[str] = []
        functions: list[Task[Any, Any] | Check] = [*self.tasks.values(), *self.checks.values()]
        for function in functions:
            source = _source(function)
            if source not in found:
                found.append(source)
        return found


def _source(function: Task[Any, Any] | Check) -> str:
    home = _home(function)
    path = getattr(home, "__file__", None)
    if home.__name__ in _PROGRAM or getattr(home, "__gristmill_file__", False):
        if not path:
            raise Invalid(
                f"{function!r} lives in an interactive session; put it into a file, so that children can import it"
            )
        spec = getattr(home, "__spec__", None)
        if home.__name__ == "__main__" and spec is not None and spec.name not in {"__main__", None}:
            return f"module:{spec.name}"
        return f"file:{path}"
    return f"module:{home.__name__}"


def _home(function: Task[Any, Any] | Check) -> ModuleType:
    """The module that a child imports for it: that of its code or, if the code is from elsewhere, one that has it at its top
    level; the program itself last, as it need not be made for being imported."""
    roots = _roots(function)
    own = sys.modules.get(function.fn.__module__)
    if own is not None and _holds(own, roots):
        return own
    loaded = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    for module in sorted(loaded, key=lambda module: module.__name__ in _PROGRAM):
        if _holds(module, roots):
            return module
    raise Invalid(f"{function!r} is not at the top level of a module, where the processes of a worker look; put it there")


def _holds(module: ModuleType, roots: set[int]) -> bool:
    return any(id(value) in roots for value in list(vars(module).values()))


def _roots(function: Task[Any, Any] | Check) -> set[int]:
    """The ids of what brings it along, if a module has it."""
    if isinstance(function, Part):
        return {id(function)} | _roots(function.of)
    if isinstance(function, Stage):
        return {id(function.pipeline), *map(id, function.pipeline.ordered())}
    return {id(function)}


def pieces_of(namespace: Mapping[str, Any]) -> Iterator[Piece]:
    """What of an application a module holds at its top level."""
    seen: set[int] = set()
    for value in namespace.values():
        if isinstance(value, Pipeline | Task | Migrations | Check | Schedule | Routes) and id(value) not in seen:
            seen.add(id(value))
            yield value
