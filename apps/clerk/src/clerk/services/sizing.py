"""How many workers a machine can have, and how much each may use."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Final, NamedTuple

from clerk.config import Config
from clerk.errors import Usage
from clerk.names import STAGES

_GB_PER_EXTRACTION = 8
_KEPT_BY_THE_KERNEL = 0.05  # a machine that was sold with 32 GB says 31.3


class Need(NamedTuple):
    """Of one worker: what it wants to have, what it should not exceed, and where it is stopped. MiB and processors."""

    memory: int
    high: int
    cpu: float

    @property
    def most(self) -> int:
        """Half as much again: a peak is slowed down before it is fatal."""
        return self.high * 3 // 2


def needs(config: Config) -> dict[str, Need]:
    """OCR has a little more than the one processor that it computes on, for the process that hands it its work."""
    return {
        "fetch": Need(100, 200, 1),
        "ocr": Need(500, 500, 1.25),
        "compilation": Need(500, 500, 1),
        "extraction": Need(5000, 8000, max(1, config.spacy_processes)),
        "deploy": Need(100, 200, 1),
    }


TICK: Final = Need(100, 200, 1)  # the commands that run every few minutes


def variable(stage: str) -> str:
    return f"{stage.upper()}_WORKERS"


def counts(cores: int, ram_gb: float) -> dict[str, int]:
    """By the variable that sets it. Fetching waits for others, OCR computes, extraction holds a model in memory."""
    if cores < 1 or not 0 < ram_gb < math.inf:
        raise Usage(f"no machine has {cores} cores and {ram_gb:g} GB")
    numbers = (2 * cores, cores, 2, max(1, math.floor(ram_gb / _GB_PER_EXTRACTION)), 2)
    return {variable(stage): number for stage, number in zip(STAGES, numbers, strict=True)}


def machine() -> tuple[int, float]:
    """The cores that this process may use, and the memory that the machine was built with, in GB."""
    import psutil

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores, built_with(psutil.virtual_memory().total / 2**30)


def built_with(seen_gb: float) -> float:
    """The kernel keeps some to itself; what is that close to a whole step is one, so that 31.3 is 32."""
    step = math.ceil(seen_gb / _GB_PER_EXTRACTION) * _GB_PER_EXTRACTION
    return float(step) if seen_gb >= step * (1 - _KEPT_BY_THE_KERNEL) else seen_gb


def count_text(cores: int | None = None, ram_gb: float | None = None) -> str:
    """What `clerk worker-count` prints; without a number, that of this machine."""
    have = machine()
    cores = have[0] if cores is None else cores
    ram_gb = have[1] if ram_gb is None else ram_gb
    lines = [f"  {name}={value}" for name, value in counts(cores, ram_gb).items()]
    return "\n".join([f"System: {cores} cores, {ram_gb:.1f}GB RAM", "Recommended worker counts:", *lines])


def wanted(config: Config) -> Mapping[str, int]:
    """By stage: what is configured, else what this machine can do."""
    given = {stage: getattr(config, f"{stage}_workers") for stage in STAGES}
    usual = counts(*machine()) if None in given.values() else {}
    return {stage: usual[variable(stage)] if count is None else count for stage, count in given.items()}
