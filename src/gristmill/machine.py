"""What this machine has: processors and memory, or what its container may use of them."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

_RESERVE = 0.1  # the share of memory that is for others: the system, the workers themselves
_LEAST_RESERVE = 512  # MiB
_MIB = 1 << 20


class Machine(NamedTuple):
    """`memory` and `reserve` are MiB."""

    cores: int
    memory: int
    reserve: int
    limited: str  # by what it has less than the hardware, in words; empty: by nothing

    @property
    def for_jobs(self) -> int:
        return self.memory - self.reserve


def machine(root: Path = Path("/")) -> Machine:
    """As this process may use it: its processors, and the limits of its control groups."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = psutil.virtual_memory().total // _MIB
    quota = min((limit for group in _groups(root) if (limit := _cpu_limit(group))), default=math.inf)
    most = min((limit for group in _groups(root) if (limit := _memory_limit(group))), default=math.inf)
    words = []
    if quota < cores:
        cores = max(1, math.floor(quota))
        words.append("processors")
    if most // _MIB < memory:
        memory = max(1, int(most // _MIB))
        words.append("memory")
    limited = f"{' and '.join(words)} limited by the control group" if words else ""
    return Machine(cores, memory, min(memory // 2, max(_LEAST_RESERVE, int(memory * _RESERVE))), limited)


def kernel_kills(root: Path = Path("/")) -> int | None:
    """How many processes the kernel has ended for want of memory so far; None: it does not tell."""
    counts = [_numbers(group / "memory.events").get("oom_kill") for group in _groups(root)]
    counts.append(_numbers(root / "proc/vmstat").get("oom_kill"))
    found = [count for count in counts if count is not None]
    return sum(found) if found else None


def _groups(root: Path) -> Iterator[Path]:
    """The control groups that this process is in, innermost first; in a container the mount shows its own at the top."""
    top = root / "sys/fs/cgroup"
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            for base in [top] if not kinds else [top / kind for kind in kinds.split(",") if kind in ("memory", "cpu")]:
                group = base / path.lstrip("/")
                yield from (folder for folder in (group, *group.parents) if folder == base or base in folder.parents)


def _cpu_limit(group: Path) -> float | None:
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = (group / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # version 1
        quota_us = int((group / "cpu.cfs_quota_us").read_text())
        return quota_us / int((group / "cpu.cfs_period_us").read_text()) if quota_us > 0 else None
    return None


def _memory_limit(group: Path) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            return int((group / name).read_text())  # "max" is no number: no limit
    return None


def _numbers(path: Path) -> dict[str, int]:
    with contextlib.suppress(OSError, ValueError):
        return {name: int(number) for name, number in (line.split() for line in path.read_text().splitlines())}
    return {}
