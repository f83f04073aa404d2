"""A worker as a program: `python -m tests.worker.program '{"url": …, "apps": […], "until": …, "slots": 1, …}'`."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from typing import Any

from gristmill import Mill
from gristmill.execution.load import load_sources
from gristmill.ledger.store import Ledger


def open_mill(url: str, *apps: str, **how: Any) -> Mill:
    """A mill with everything in these modules of `tests.apps`."""
    return Mill.open(url, load_sources(f"module:tests.apps.{app}" for app in apps), **how)


def freeze_in_claim() -> None:
    """This process stops like one whose machine was paused, between a claim and its commit, once."""
    do: Any = Ledger.do

    def freezing(ledger: Ledger, verb: Any, *arguments: Any, **options: Any) -> Any:
        def frozen(*inside: Any, **more: Any) -> Any:
            result = verb(*inside, **more)
            if getattr(getattr(result, "taken", None), "jobs", None):
                Ledger.do = do  # type: ignore[method-assign]
                os.kill(os.getpid(), signal.SIGSTOP)
            return result

        return do(ledger, frozen, *arguments, **options)

    Ledger.do = freezing  # type: ignore[method-assign, assignment]


def main(order: dict[str, Any]) -> None:
    if order.pop("freeze_in_claim", False):
        freeze_in_claim()
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(name)s %(message)s")
    delivery = {name: order.pop(name, None) for name in ("delivery", "redis_url")}
    with open_mill(order.pop("url"), *order.pop("apps"), **delivery) as mill:
        mill.work(**order)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
