"""The end of the demonstration on a terminal: the dashboard, open to click, with a worker that does what is clicked."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clerk.demo import show
from gristmill import Invalid

if TYPE_CHECKING:
    from rich.console import Console

    from gristmill import Mill

_PORT: Final = 9181  # that of `clerk dashboard`; another, if somebody has it


def somebody_is_there() -> bool:
    """At a terminal that this process may read: one in the background would be stopped if it did."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:  # it is nobody's terminal, so nobody is stopped
        return True


def serve(documents: Path, to: Console) -> None:
    """Until Enter or Ctrl-C. Another demonstration may be asked for in the same folder meanwhile, and is seen."""
    from clerk import app, config
    from clerk.demo import passing
    from clerk.demo.server import serving

    keys = somebody_is_there()
    with app.open_mill(config.load()) as mill, serving(documents, passing.former_port(mill)), passing.working(mill):
        try:
            with _dashboard(mill) as address, contextlib.suppress(KeyboardInterrupt):
                show.open_to_click(to, address, keys)
                _wait(keys)
        except Invalid as error:  # what it needs is not installed
            return show.say(to, f"\nNo dashboard: {error}")
    return show.say(to, "Stopped; nothing is running any more.")


@contextlib.contextmanager
def _dashboard(mill: Mill) -> Iterator[str]:
    from gristmill.api.serving import in_thread

    with contextlib.ExitStack() as opened:
        try:
            address = opened.enter_context(in_thread(mill, "127.0.0.1", _PORT))
        except Invalid:
            address = opened.enter_context(in_thread(mill, "127.0.0.1", 0))
        yield address


def _wait(keys: bool) -> None:
    """For Enter, where there is somebody to press it; a signal interrupts it."""
    if keys:
        sys.stdin.readline()
        return
    while True:
        signal.pause()
