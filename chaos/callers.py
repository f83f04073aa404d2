"""Callers who all want the same, at once: `python -m chaos.callers '{"url": …, "callers": 20, "subjects": 1000, …}'`.

Each is a thread. They go from subject to subject together, and write down what each was told.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from typing import Any

from chaos.play import open_mill
from chaos.record import note
from gristmill import Mill
from gristmill.errors import Refused


def main(order: dict[str, Any]) -> int:
    at_once = threading.Barrier(order["callers"])
    failed: list[BaseException] = []
    with open_mill(order["url"], *order["apps"]) as mill:

        def call(number: int) -> None:
            try:
                _call(mill, order, random.Random(order["seed"] * 1000 + number), at_once)
            except BaseException as error:
                at_once.abort()
                failed.append(error)

        first = order["first"]
        threads = [threading.Thread(target=call, args=(number,)) for number in range(first, first + order["callers"])]
        time.sleep(max(0.0, order["begin"] - time.monotonic()))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for error in failed:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return 1 if failed else 0


def _call(mill: Mill, order: dict[str, Any], dice: random.Random, at_once: threading.Barrier) -> None:
    folder = order["folder"]
    for n in range(order["subjects"]):
        subject, how = f"subject-{n}", dice.choice(("join", "join", "refuse"))
        at_once.wait(60)
        try:
            run = mill.start("fan", subject, args={"folder": folder, "items": order["items"]}, if_active=how)
        except Refused:
            note(folder, "told", subject, None, False)
        else:
            note(folder, "told", subject, run.id, run.created)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
