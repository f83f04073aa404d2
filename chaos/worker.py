"""A worker as a program: `python -m chaos.worker '{"url": …, "apps": […], "slots": 2, …}'`."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from chaos.doubling import Doubled
from chaos.play import open_mill


def main(order: dict[str, Any]) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(message)s")
    delivery = {name: order.pop(name, None) for name in ("delivery", "redis_url")}
    doubled = order.pop("doubled", None)
    with open_mill(order.pop("url"), *order.pop("apps"), **delivery) as mill:
        if doubled is not None:
            Doubled(mill, *doubled)
        mill.work(**order)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
