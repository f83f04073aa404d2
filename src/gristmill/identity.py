"""Who this process is, so that others on the same machine can tell whether it is still there."""

from __future__ import annotations

import socket
from pathlib import Path

import psutil


def host() -> str:
    return socket.gethostname()


def born(pid: int) -> str | None:
    """When, in which boot and in which PID namespace a process started; None: there is no such process.

    The start tells a process from a later one with the same number; boot and namespace keep machines and containers
    apart that share a host name. In ticks since the boot where there is /proc: a clock may be set, ticks may not.
    """
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return f"{_namespace()}:{_ticks(pid) or process.create_time():.2f}"
    except psutil.NoSuchProcess:
        return None


def gone(pid: int, birth: str) -> bool:
    """Is the process that said this of itself certainly not there any more?"""
    return near(birth) and born(pid) != birth


def near(birth: str) -> bool:
    """Can it be seen from here whether the process that said this of itself is there?"""
    return birth.rpartition(":")[0] == _namespace()


def _ticks(pid: int) -> float | None:
    try:
        return float(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def _namespace() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return "-"
