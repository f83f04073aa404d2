"""`gristmill serve` as a process of its own; and how its answers are timed."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx

from tests.api.server import Served

APP = Path(__file__).with_name("app.py")
ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def serving(url: str, *, cold: bool = False) -> Iterator[Served]:
    """`cold`: each page reads everything anew."""
    words = ["-A", str(APP), "--database", url, "serve", "--port", "0"]
    line = [sys.executable, "-m", "bench.api.cold" if cold else "gristmill", *words]
    with subprocess.Popen(line, cwd=ROOT, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as process:
        try:
            yield Served(process, url)
        finally:
            process.terminate()
            process.wait(timeout=60)


def asked(client: httpx.Client, path: str) -> float:
    """Milliseconds until the whole answer was there."""
    began = time.perf_counter()
    answer = client.get(path)
    taken = (time.perf_counter() - began) * 1000
    if answer.status_code != 200:
        raise AssertionError(f"{path}: {answer.status_code} {answer.text[:300]}")
    return taken


def p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20, method="inclusive")[-1]
