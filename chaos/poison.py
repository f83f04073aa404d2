"""Jobs whose process dies, eats all memory or multiplies: each must be an outcome of that job alone."""

from __future__ import annotations

import ctypes
import mmap
import os
import time

import psutil

from chaos.apps import begin
from chaos.record import note
from gristmill import Context, Retries, task

QUICK = Retries(0, delays=[0.01])  # crashes are still tried again: twice
KINDS = ("segfault", "leave", "eat", "multiply")
_FORKS = 4  # doublings: sixteen processes, so that the machine survives a bomb that nobody stops


@task(retries=QUICK)
def segfault(ctx: Context, folder: str) -> None:
    begin(ctx, folder)
    ctypes.string_at(0)


@task(retries=QUICK)
def leave(ctx: Context, folder: str) -> None:
    begin(ctx, folder)
    os._exit(3)


@task(memory="200MB", retries=QUICK, timeout=20)
def eat(ctx: Context, folder: str) -> None:
    """Shared memory, which no limit of the kernel stops."""
    begin(ctx, folder)
    block = mmap.mmap(-1, 400 << 20)
    for start in range(0, 400 << 20, 1 << 20):
        block[start : start + (1 << 20)] = b"x" * (1 << 20)
    time.sleep(3600)


@task(retries=QUICK, timeout=1)
def multiply(ctx: Context, folder: str) -> None:
    """A fork bomb, a small one; the processes write down who they are, so that one can see whether they are gone."""
    begin(ctx, folder)
    for _ in range(_FORKS):
        if os.fork() == 0:
            note(folder, "forked", os.getpid(), psutil.Process().create_time())
    time.sleep(3600)
