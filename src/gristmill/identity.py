"""Who this process is, so that others on the same machine can tell whether it is still there."""

from __future__ import annotations

import socket
from pathlib import Path

import psutil


def host() -> str:
    return socket.gethostname()


def born(pid: int) -> str | None:
    """When and in which PID namespace a process started; None: there is no such process.

    The start time tells a process from a later one with the same number, the namespace keeps containers apart that
    share a host name.
    """
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return f"{_namespace()}:{process.create_time():.2f}"
    except psutil.NoSuchProcess:
        return None


def gone(pid: int, birth: str) -> bool:
    """Is the process that said this of itself certainly not there any more?"""
    namespace = birth.rpartition(":")[0]
    return namespace == _namespace() and born(pid) != birth


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return "-"
