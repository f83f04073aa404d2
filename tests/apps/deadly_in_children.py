"""An application that ends its process when a child imports it."""

from __future__ import annotations

import os
import sys

from gristmill import Context, task

if "gristmill.worker" not in sys.modules:
    os._exit(3)


@task
def never(ctx: Context) -> None:
    """No child gets as far as this."""
