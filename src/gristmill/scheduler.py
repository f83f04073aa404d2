"""The scheduler: fires what is due. A ticker of every worker; whoever has the leadership for a moment does it for all.

The leadership only saves work: that each fire time starts one thing is the ledger's doing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from gristmill import traces
from gristmill.clock import SECOND
from gristmill.errors import DatabaseError, GristmillError
from gristmill.ledger import schedules, tracing
from gristmill.ledger.schedules import Fired, What
from gristmill.ledger.store import Ledger
from gristmill.schedule import Schedule

log = logging.getLogger("gristmill.scheduler")

_EVERY = 1.0  # seconds: a schedule may be added at any time
_AT_MOST = 0.5  # seconds of a worker's turn
_LEFT_TO_OTHERS = 30 * SECOND
_BACK = 2 * SECOND  # a clock that shows so much less than before was set back

Prepare = Callable[[Schedule], What | None]  # what it starts, made ready; None: this application does not know it


class Scheduler:
    """`tick` for a loop, `run` for a test or a command."""

    def __init__(self, ledger: Ledger, prepare: Prepare) -> None:
        self.ledger = ledger
        self.prepare = prepare
        self._latest: int | None = None  # the latest time that was seen
        self._said: set[tuple[str, str]] = set()  # complaints, once each

    def tick(self, now: float = 0.0) -> float:
        """Fires what is due, by the ledger's clock; says in how many seconds to look again."""
        at, due = self.ledger.glance(schedules.next_due)
        self._mind_the_clock(at)
        if due is None or due > at:
            return _EVERY if due is None else min(_EVERY, (due - at) / SECOND)
        with self.ledger.sole("schedules") as mine:
            fired = self._fire_due() if mine else 0
        return 0.0 if fired else _EVERY

    def run(self) -> int:
        """Fires until nothing is due; says how often something was decided."""
        total = 0
        while fired := self._fire_due():
            total += fired
        return total

    def _fire_due(self) -> int:
        until = time.monotonic() + _AT_MOST
        with self.ledger.reading() as tx:
            rows = schedules.due(tx)
        fired = 0
        for row in rows:
            fired += self._fire(row.id, row.name, row.spec, row.late)
            if time.monotonic() > until:
                break
        return fired

    def _fire(self, number: int, name: str, spec: str, late: int) -> bool:
        """One fire time of one schedule. One that cannot be fired is said, and keeps none of the others up. For a while it
        is left to others: while a new version is rolled out, its workers may take what older ones refuse."""
        what, problem = None, ""
        try:
            what = self.prepare(Schedule.read(name, spec))
            if what is None:
                return False  # another application's: its own workers see to it
        except DatabaseError:
            raise
        except GristmillError as error:
            problem = str(error)
            if late < _LEFT_TO_OTHERS:
                return self._complain(name, problem)
        except TypeError as error:  # a schedule that newer code has written
            return self._complain(name, f"this version cannot read it: {error}")
        try:
            fired = self._in_a_trace(name, number, spec, what, problem)
        except DatabaseError:
            raise
        except GristmillError as error:  # a time zone that this machine does not know, for one
            return self._complain(name, str(error))
        self._say(name, fired)
        return fired is not None and fired.moved

    def _in_a_trace(self, name: str, *asked: Any) -> Fired | None:
        """Where traces are on, what a fire time starts is a part of that fire time's."""
        with traces.asking(f"fire {name}") as span:
            fired = self.ledger.do(tracing.fire, span.traceparent, *asked)
            span.tell(schedule=name, outcome=str(fired.outcome if fired and fired.outcome else "none"))
            return fired

    def _complain(self, name: str, problem: str) -> bool:
        if (name, problem) not in self._said:
            self._said.add((name, problem))
            log.error("schedule %s cannot be fired here: %s", name, problem)
        return False

    def _say(self, name: str, fired: Fired | None) -> None:
        if fired is None or fired.outcome is None:
            return
        if fired.outcome is schedules.Outcome.STARTED:
            started = f"job {fired.job}" if fired.job is not None else f"run {', '.join(map(str, fired.runs[:5]))}"
            log.info("schedule %s: started %s", name, started)
        else:
            level = logging.WARNING if fired.outcome is schedules.Outcome.FAILED else logging.INFO
            log.log(level, "schedule %s: %s: %s", name, fired.outcome, fired.detail)

    def _mind_the_clock(self, at: int) -> None:
        """At first, and when the clock was set back: what it had put far into the future comes back."""
        if self._latest is None or at < self._latest - _BACK:
            with self.ledger.reading() as tx:
                astray = schedules.astray(tx)
            for number, name, fire_at in astray:
                self.ledger.do(schedules.rewind, number, fire_at)
                log.warning("schedule %s: its next time was too far in the future: the clock was set back", name)
            self._latest = at
        self._latest = max(self._latest, at)
