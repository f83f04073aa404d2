"""An application that takes a while to import, in children at least."""

from __future__ import annotations

import sys
import time

from gristmill import Context, task

if "gristmill.worker" not in sys.modules:
    time.sleep(1.2)


@task
async def quick_async(ctx: Context) -> str:
    return "done"


@task
def quick(ctx: Context) -> str:
    return "done"
