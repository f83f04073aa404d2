"""The `clerk` command: parse, call what does it, print."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    """The entry point. Everything is imported inside, so that Ctrl-C is answered quietly from the first moment."""
    gc.set_threshold(50_000)  # to look for cycles while modules are imported takes a tenth of a command's time
    try:
        from clerk.cli.exits import run

        code = run(argv)
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
