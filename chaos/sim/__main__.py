"""`python -m chaos.sim SEED …`: plays seeds; `--trace` prints what happened. One line of JSON per failure, one at the end.

A seed plays the same again in any process: this one starts itself once more without random hashes and addresses, since the
order of sets is theirs.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path

_FIXED_ADDRESSES = 0x0040000  # ADDR_NO_RANDOMIZE: before Python 3.12 the hash of None is an address
_MARK = "GRISTMILL_SIMULATED"


def settle_hashes() -> None:
    """Comes back in a process in which hashes are the same each time."""
    if os.environ.get(_MARK) == "1":
        return
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).personality(_FIXED_ADDRESSES)
    environ = {**os.environ, "PYTHONHASHSEED": "0", _MARK: "1"}
    os.execve(sys.executable, [sys.executable, "-m", "chaos.sim", *sys.argv[1:]], environ)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos.sim", description=__doc__)
    parser.add_argument("seed", type=int, help="the first one")
    parser.add_argument("--count", type=int, default=1, help="so many, one after another")
    parser.add_argument("--seconds", type=float, help="no new one after so long")
    parser.add_argument("--least", type=int, default=0, help="but so many in any case")
    parser.add_argument("--digests", action="store_true", help="one line per seed")
    parser.add_argument("--reconciled", action="store_true", help="a world in which reconcilers meet workers often")
    parser.add_argument("--meetings", type=int, help="until there were so many of these")
    parser.add_argument("--trace", action="store_true", help="what happened, line by line")
    options = parser.parse_args()
    settle_hashes()
    from chaos.sim.playing import Player

    logging.disable(logging.CRITICAL)
    gc.disable()
    began, played, failed = time.perf_counter(), 0, 0
    totals = {"steps": 0, "jobs": 0, "attempts": 0, "meetings": 0, "longest": 0.0}
    shm = "/dev/shm"
    with tempfile.TemporaryDirectory(prefix="gristmill-sim-", dir=shm if Path(shm).is_dir() else None) as folder:
        player = Player(Path(folder))
        for seed in range(options.seed, options.seed + options.count):
            if options.seconds and played >= options.least and time.perf_counter() - began > options.seconds:
                break
            if options.meetings and totals["meetings"] >= options.meetings:
                break
            told = player.play(seed, options.trace, options.reconciled)
            played += 1
            for line in told.lines:
                print(line)
            if told.broken:
                failed += 1
            if told.broken or options.digests or options.trace:
                print(json.dumps({"seed": seed, "digest": told.digest, "broken": told.broken}), flush=True)
            totals = {
                "steps": totals["steps"] + told.steps,
                "jobs": totals["jobs"] + told.jobs,
                "attempts": totals["attempts"] + told.attempts,
                "meetings": totals["meetings"] + told.meetings,
                "longest": max(totals["longest"], told.longest),
            }
            if played % 50 == 0:
                gc.collect()
        player.close()
    took = time.perf_counter() - began
    print(json.dumps({"played": played, "failed": failed, "seconds": round(took, 2), **totals}), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
