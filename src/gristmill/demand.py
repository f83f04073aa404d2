"""What a job asks of the machine it runs on: labels, processors, memory. Pure.

Each distinct demand is a class, a row of a small table; jobs carry its number together with the kind of child that they
need, as their pool. Jobs that ask for nothing are of class 0, so they cost nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import orjson

from gristmill.errors import Invalid, quoted
from gristmill.settings import NAME_LIMIT

MOST_CLASSES = 16_000  # pools are small integers
_MOST_CPU = 1024
_UNITS = {"M": 1, "G": 1 << 10, "T": 1 << 20}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([MGT])i?B?", re.IGNORECASE)
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(=[A-Za-z0-9][A-Za-z0-9_.:/-]*)?")

Labels = str | Iterable[str]
Memory = str | Sequence[str] | None


class Demand(NamedTuple):
    """What jobs of a class ask for. Memory is in MiB, and what they may use; 0: they did not say."""

    labels: tuple[str, ...] = ()
    cpu: int = 1
    memory: int = 0

    @property
    def heavy(self) -> bool:
        """Does it take more than a slot, so that a worker must see whether it has room?"""
        return self.cpu > 1 or self.memory > 0

    def words(self) -> list[str]:
        found = [f"label {label}" for label in self.labels] + ([f"{self.cpu} slots"] if self.cpu > 1 else [])
        return found + ([f"{shown(self.memory)} of memory"] if self.memory else [])

    def to_json(self) -> str:
        """Always the same text for the same demand: it is what a class is found by."""
        return orjson.dumps(self._asdict()).decode()

    @classmethod
    def from_json(cls, text: str) -> Demand:
        data = orjson.loads(text)
        return cls(tuple(data["labels"]), data["cpu"], data["memory"])


NOTHING = Demand()


class Offer(NamedTuple):
    """What a worker has for the jobs of a queue."""

    labels: Collection[str]
    slots: int
    memory: int  # MiB

    def lacks(self, demand: Demand) -> list[str]:
        """What of a demand it could never meet, in words."""
        found = [f"label {label}" for label in demand.labels if label not in self.labels]
        found += [f"{demand.cpu} slots (of {self.slots})"] if demand.cpu > self.slots else []
        short = demand.memory > self.memory
        return found + ([f"{shown(demand.memory)} of memory (of {shown(self.memory)})"] if short else [])


def least_lacking(offers: Iterable[Offer], demand: Demand) -> list[str] | None:
    """What is missing where least is, in words; nothing: somebody can run it; None: nobody is there."""
    return min((offer.lacks(demand) for offer in offers), key=len, default=None)


def all_of(demand: Demand, lacks: Sequence[str]) -> str:
    """What is needed; and, where that is several things, what is missing where least is."""
    needs = demand.words()
    return lacks[0] if len(needs) == 1 else f"all of {', '.join(needs)}; the nearest lacks {', '.join(lacks)}"


def options(demand: Demand) -> tuple[str, ...]:
    """For the command that starts a worker which could run such jobs."""
    labels = [word for label in demand.labels for word in ("--label", label)]
    slots = ["-n", str(demand.cpu)] if demand.cpu > 1 else []
    return (*labels, *slots, *(["--memory", f"{demand.memory}MB"] if demand.memory else []))


def pool_of(number: int, is_async: bool = False) -> int:
    return 2 * number + is_async


def class_of(pool: int) -> int:
    return pool >> 1


def shown(mib: int) -> str:
    """`512 MB`, `2 GB`."""
    return f"{mib / 1024:.3g} GB" if mib >= 1024 else f"{mib} MB"


def size(text: object, where: str) -> int:
    """MiB, from `512MB` or `2GB`."""
    match = _SIZE.fullmatch(text.strip()) if isinstance(text, str) else None
    mib = int(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if not 0 < mib < 1 << 30:
        raise Invalid(f"{where} wants a size such as 512MB or 2GB, not {quoted(text)}")
    return mib


def labels_of(given: Labels, where: str) -> tuple[str, ...]:
    """Labels in their order, each `gpu` or `region=eu`."""
    if not isinstance(given, Iterable):
        raise Invalid(f"{where}: labels are words, as gpu or region=eu, not {quoted(given)}")
    found = [given] if isinstance(given, str) else list(given)
    for label in found:
        if not isinstance(label, str) or len(label) > NAME_LIMIT or not _LABEL.fullmatch(label):
            raise Invalid(f"{where}: a label is a word or WORD=VALUE, as gpu or region=eu, not {quoted(label)}")
    return tuple(sorted(set(found)))


def demands(needs: Labels, cpu: int, memory: Memory, where: str) -> tuple[Demand, ...]:
    """What a task declares: one demand, or several that differ in memory, from small to big."""
    if isinstance(cpu, bool) or not isinstance(cpu, int) or not 1 <= cpu <= _MOST_CPU:
        raise Invalid(f"{where}: cpu=… wants a whole number from 1 to {_MOST_CPU}, not {quoted(cpu)}")
    steps = [memory] if isinstance(memory, str) or memory is None else list(memory)
    sizes = [0 if step is None and memory is None else size(step, f"{where}: memory=…") for step in steps]
    if not sizes or sizes != sorted(set(sizes)):
        raise Invalid(f"{where}: memory=… wants a size, or several from small to big, not {quoted(memory)}")
    labels = labels_of(needs, f"{where}, needs=…")
    return tuple(Demand(labels, cpu, mib) for mib in sizes)
