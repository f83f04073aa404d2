"""The suites that try every meeting of two transactions and every mishap of a delivery: marked slow. Crash points are R5."""

from __future__ import annotations

import re
import subprocess
import sys

from chaos.play import ROOT, Play, Violation

TITLE = "meetings, races, random walks, faulty deliveries, two versions at once"
DATABASES = ("none",)
CRASHES = "tests/ledger/test_crash.py"


def play(play: Play) -> str:
    return slow_tests("tests", f"--ignore={CRASHES}", "--ignore=tests/clerk")


def slow_tests(*which: str) -> str:
    """What pytest says in its last line."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "3", "-m", "slow", *which]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    said = re.search(r"\d+ passed.*", done.stdout)
    if done.returncode or said is None:
        raise Violation(f"{done.stdout[-6000:]}{done.stderr[-2000:]}")
    return said.group()
