"""Python's search for cycles, of which a busy worker makes none."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def few_collections() -> Iterator[None]:
    """Thousands of jobs pass through a worker, none of them in a cycle; to look for cycles took a sixth of the time."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(200_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
