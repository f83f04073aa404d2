"""What another process sees of a ledger."""

from __future__ import annotations

import subprocess
import sys

from tests.servers import ROOT

_LOOKS = """
import sys
from gristmill import Mill
with Mill.open(sys.argv[1]) as mill:
    print(len(mill.jobs()))
"""


def others_see(url: str) -> int:
    """Jobs that are there for a process that comes, looks and leaves; the last to do so removes what is beside the file."""
    command = [sys.executable, "-c", _LOOKS, url]
    return int(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout)
