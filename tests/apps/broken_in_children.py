"""An application that the supervisor can import and its children cannot."""

from __future__ import annotations

import sys

from gristmill import Context, task

if "gristmill.worker" not in sys.modules:
    raise LookupError("a library that is missing where children run")


@task
def never(ctx: Context) -> None:
    """No child gets as far as this."""
