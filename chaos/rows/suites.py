"""The suites that try every crash point, every meeting of two transactions, every mishap of a delivery: marked slow."""

from __future__ import annotations

import re
import subprocess
import sys

from chaos.play import ROOT, Play, Violation

TITLE = "crash points, meetings, races, random walks, faulty deliveries, two versions at once"
DATABASES = ("none",)


def play(play: Play) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "3", "-m", "slow", "tests"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    said = re.search(r"\d+ passed.*", done.stdout)
    if done.returncode or said is None:
        raise Violation(f"{done.stdout[-6000:]}{done.stderr[-2000:]}")
    return said.group()
