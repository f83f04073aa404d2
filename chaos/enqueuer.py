"""Whoever asks for work while things break, as a program: `python -m chaos.enqueuer '{"url": …, "apps": […], …}'`.

It asks for jobs, batches of jobs and runs, one after the other, until the file `enough` is there; and writes down what it
tried, what was acknowledged, and what was refused. What it asks for has a name, so that it is known if it is there twice.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from chaos.play import ROOT, Play, open_mill
from chaos.record import note
from gristmill import Mill
from gristmill.errors import DatabaseError

UNCLEAR = "it is unclear whether it holds"
ITEMS = 5  # of a run


class Asker:
    """One that asks by the dice. What was acknowledged is written down as soon as the call is back."""

    def __init__(self, mill: Mill, folder: Path, dice: random.Random, seconds: float = 0.0) -> None:
        self.mill, self.folder, self.dice, self.seconds = mill, folder, dice, seconds
        self.asked = 0

    def ask(self, kind: str = "") -> bool:
        """Was it acknowledged?"""
        self.asked += 1
        kind = kind or self.dice.choice(["job", "job", "job", "many", "run"])
        names = [f"{kind}-{os.getpid()}-{self.asked}-{n}" for n in range(10 if kind == "many" else 1)]
        try:
            numbers = self._ask(kind, names)
        except DatabaseError as error:
            for name in names:
                note(self.folder, "unclear" if UNCLEAR in str(error) else "refused", name, str(error))
            return False
        for name, number in zip(names, numbers, strict=True):
            note(self.folder, "named", name, number)
            if kind == "run":
                note(self.folder, "acknowledged", "run", number, ITEMS)
            else:
                note(self.folder, "acknowledged", "job", number)
        note(self.folder, "heard", kind, time.monotonic())
        return True

    def _ask(self, kind: str, names: list[str]) -> list[int]:
        given = {"folder": str(self.folder), "seconds": self.seconds}
        if kind == "run":
            return [self.mill.start("fan", names[0], args={**given, "items": ITEMS}).id]
        if kind == "many":
            return self.mill.enqueue_many("named", [{**given, "name": name} for name in names])
        return [self.mill.enqueue("named", args={**given, "name": names[0]}).id]


class Enqueuer:
    """The program, as whoever plays sees it."""

    def __init__(self, play: Play, pause: float, **more: Any) -> None:
        order = {"url": play.url, "apps": play.apps, "folder": str(play.folder), "seed": play.seed, "pause": pause, **more}
        with (play.folder / "enqueuer.log").open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "chaos.enqueuer", json.dumps(order)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._enough = play.folder / "enough"
        play.stack.callback(self._kill)

    def stop(self) -> None:
        """It ends what it is about, and goes."""
        self._enough.touch()
        if self._process.wait(60):
            raise RuntimeError("the enqueuer failed; see enqueuer.log")

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()


def main(order: dict[str, Any]) -> None:
    folder, dice = Path(order["folder"]), random.Random(order["seed"])
    with open_mill(order["url"], *order["apps"]) as mill:
        asker = Asker(mill, folder, dice, order.get("seconds", 0.0))
        while not (folder / "enough").exists():
            asker.ask()
            time.sleep(order["pause"] * dice.uniform(0.5, 1.5))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
