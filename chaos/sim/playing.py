"""One database for many seeds, emptied in between: to make a new one each time would take longer than to play."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import event

from chaos import oracle
from chaos.sim import checks
from chaos.sim.simulation import Simulation, Told
from gristmill import Mill
from gristmill.ledger.migrate import upgrade
from gristmill.ledger.store import Ledger
from gristmill.registry import Registry
from tests.ledger.conftest import EMPTY, empty


class Player:
    def __init__(self, folder: Path) -> None:
        url = f"sqlite:///{folder}/sim.db"
        upgrade(url)
        self.ledger = Ledger(url)

        @event.listens_for(self.ledger.engine, "do_connect")
        def remember(dialect: Any, record: Any, arguments: Any, options: dict[str, Any]) -> None:
            options["cached_statements"] = 2000  # all that there are

        @event.listens_for(self.ledger.engine, "connect")
        def hurry(driver: Any, _: Any) -> None:
            """No machine crashes here: nothing is tested less by not waiting for a disk."""
            driver.execute("PRAGMA synchronous = OFF")

        oracle.watch(Mill(self.ledger, Registry()))
        with self.ledger.alone() as driver:
            driver.executescript(checks.LATE)

    def play(self, seed: int, keep_trace: bool = False, reconciled: bool = False) -> Told:
        empty(self.ledger, f"{EMPTY};DELETE FROM chaos_change;DELETE FROM sqlite_sequence")
        return Simulation(seed, self.ledger, keep_trace, reconciled).play()

    def close(self) -> None:
        self.ledger.close()
