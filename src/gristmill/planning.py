"""How many jobs of which kind fit this machine: what `worker plan` says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gristmill.demand import Demand
from gristmill.machine import Machine, machine
from gristmill.registry import Registry

_SMALL = 256  # MiB that a job is thought to take which does not say


@dataclass(frozen=True)
class PlannedClass:
    """Jobs of a queue that ask for the same, and how many of them a machine can run at once."""

    queue: str
    tasks: tuple[str, ...]
    needs: tuple[str, ...]
    cpu: int
    memory_mib: int  # 0: they do not say
    at_once: int  # 0: they do not fit


@dataclass(frozen=True)
class WorkerPlan:
    """What this machine has, and the worker that makes use of it."""

    cores: int
    memory_mib: int
    reserve_mib: int  # of it, for others
    limited: str  # by what it has less than the hardware, in words
    slots: int
    classes: tuple[PlannedClass, ...]
    labels: tuple[str, ...]  # that some jobs need
    command: tuple[str, ...]


def plan(registry: Registry, here: Machine | None = None) -> WorkerPlan:
    """A slot for each processor, unless there is too little memory for so many; then what fits of each class."""
    here = here or machine()
    slots = max(1, min(here.cores, here.for_jobs // _SMALL))
    wanted: dict[tuple[str, Demand], set[str]] = {}
    for task in registry.tasks.values():
        for demand in task.demands:
            wanted.setdefault((task.queue, demand), set()).add(task.name)
    classes = [_class(queue, demand, names, slots, here) for (queue, demand), names in sorted(wanted.items())]
    labels = sorted({label for planned in classes for label in planned.needs})
    command = ("work", "-n", str(slots), *(("--memory", f"{here.for_jobs}MB") if any(c.memory_mib for c in classes) else ()))
    return WorkerPlan(here.cores, here.memory, here.reserve, here.limited, slots, tuple(classes), tuple(labels), command)


def _class(queue: str, demand: Demand, names: Iterable[str], slots: int, here: Machine) -> PlannedClass:
    at_once = slots // demand.cpu
    if demand.memory:
        at_once = min(at_once, here.for_jobs // demand.memory)
    return PlannedClass(queue, tuple(sorted(names)), demand.labels, demand.cpu, demand.memory, at_once)
