"""Metrics as Prometheus reads them: what there is to say, and its text.

The text is written here and not by prometheus_client: that keeps its numbers in the memory of a process, and these are in
the database, where any process may read them. Its parser is what the tests read the text with.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Sample:
    """One number. `suffix` is what a histogram adds to its name: `_bucket`, `_sum`, `_count`."""

    value: float
    labels: Labels = ()
    suffix: str = ""


@dataclass
class Family:
    """A metric with all its samples."""

    name: str
    kind: str  #: `gauge`, `counter` or `histogram`
    help: str
    samples: list[Sample] = field(default_factory=list)

    def add(self, value: float, /, **labels: str) -> None:
        self.samples.append(Sample(value, tuple(labels.items())))

    def add_histogram(self, bounds: Iterable[float], counts: Iterable[int], total: float, /, **labels: str) -> None:
        """`counts`: how many in each bucket, of which the last has no bound."""
        so_far = 0
        for bound, count in zip([*bounds, math.inf], counts, strict=True):
            so_far += count
            self.samples.append(Sample(so_far, (*labels.items(), ("le", number(bound))), "_bucket"))
        self.samples.append(Sample(total, tuple(labels.items()), "_sum"))
        self.samples.append(Sample(so_far, tuple(labels.items()), "_count"))


class Measured(Protocol):
    """A mill."""

    def metrics(self) -> list[Family]: ...


def exposition(mill: Measured, more: Iterable[Family] = ()) -> str:
    """All metrics as text. `more`: those of an application."""
    return text([*mill.metrics(), *more])


def text(families: Iterable[Family]) -> str:
    """In Prometheus's text format. A metric without samples is named all the same: it is there, and has nothing to say."""
    return "".join(f"{line}\n" for family in families for line in _lines(family))


def _lines(family: Family) -> Iterable[str]:
    yield f"# HELP {family.name} {_escaped(family.help)}"
    yield f"# TYPE {family.name} {family.kind}"
    for sample in family.samples:
        labels = ",".join(f'{name}="{_escaped(value, quotes=True)}"' for name, value in sample.labels)
        yield f"{family.name}{sample.suffix}{'{' + labels + '}' if labels else ''} {number(sample.value)}"


def number(value: float) -> str:
    """`7`, `0.25`, `+Inf`: whole numbers without a point, so that big counters keep their last digit."""
    if isinstance(value, int) or (math.isfinite(value) and value == int(value)):
        return str(int(value))
    return "+Inf" if value == math.inf else "-Inf" if value == -math.inf else "NaN" if math.isnan(value) else repr(value)


def _escaped(value: str, quotes: bool = False) -> str:
    value = value.replace("\\", "\\\\").replace("\n", "\\n")
    return value.replace('"', '\\"') if quotes else value


def to_json(families: Iterable[Family]) -> dict[str, Any]:
    """The same for programs that do not read Prometheus's text."""
    return {
        family.name: {"kind": family.kind, "help": family.help, "samples": [_plain(sample) for sample in family.samples]}
        for family in families
    }


def _plain(sample: Sample) -> Mapping[str, Any]:
    named = {"name": sample.suffix.removeprefix("_")} if sample.suffix else {}
    return {**named, "labels": dict(sample.labels), "value": sample.value}
