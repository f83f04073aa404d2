"""Who is over his time or memory, or was asked to stop and goes on: such jobs are stopped, if need be with their process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.execution.children import Child, Held
from gristmill.execution.room import STUCK
from gristmill.ledger.finish import Verdict

if TYPE_CHECKING:
    from gristmill.execution.crew import Crew

_ASYNC_GRACE = 2.0  # seconds that a cancelled coroutine gets before its whole process is killed
_MEMORY_EVERY = 0.25


def timeout_words(limit: float) -> str:
    return f"it was stopped at its time limit of {limit:g} s"


class Stopping:
    """Looks at what the children of a crew do, and for how long."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._settings = crew.settings
        self._memory_at = 0.0

    def tick(self, now: float) -> float:
        """Stops what is over its time or memory; says when to look again."""
        due = [now + 3600.0]
        check_memory = now >= self._memory_at
        if check_memory:
            self._memory_at = now + _MEMORY_EVERY
        for child in list(self._crew.children):
            if not child.alive:
                self._crew.hear(child)
                if child in self._crew.children:
                    self._crew.bury(child)  # a process that it left behind keeps the socket open
                continue
            due.append(self._tick_async(child, now) if child.is_async else self._tick_sync(child, now))
            if child not in self._crew.children:
                continue  # it was just heard that it is gone
            due += [self._kill_at(child, job, at, now) for job, at in list(child.cancelling.items())]
            if check_memory and child.held:
                self._check_memory(child)
                child.bound_output()
            if self._settings.recycle and child.finished >= self._settings.recycle and not child.held:
                child.retire()
        if self._settings.memory_mib or any(child.bounded for child in self._crew.children):
            due.append(self._memory_at)
        return max(0.0, min(due) - now)

    def _tick_sync(self, child: Child, now: float) -> float:
        if not child.held:
            return now + 3600.0
        current = child.current()
        if current is None:
            return self._crew.wait_to_begin(child, now)
        job, started = current
        held = child.held[job]
        if len(child.held) > 1 and not child.recalled:
            stuck = now - started > STUCK
            if not stuck and not self._crew.room.overfull(child):
                return started + STUCK
            child.recall()
            if stuck:
                self._crew.room.learn_slow(held[0].kind.queue_id, now - started)
        deadline = self._deadline(child, held, started)
        if now >= deadline:
            self._crew.hear(child)  # it may just have begun to wait for a lock
            if child not in self._crew.children:
                return now
            deadline = self._deadline(child, held, started)
            if now >= deadline and child.current() == current:
                child.doom(job, Verdict.TIMEOUT, timeout_words(self._time_limit(held)))
        return deadline

    def _tick_async(self, child: Child, now: float) -> float:
        if not child.ready:
            return self._crew.wait_to_begin(child, now) if child.held else now + 3600.0
        if now >= child.late_at:
            child.late_at = self._stop_late(child, now)
        if child.recalled:
            return child.late_at
        if not child.ahead:
            return min(child.late_at, child.fetch_at(self._crew.room.soon, now))
        stuck_at = child.waits_since() + STUCK
        if now >= stuck_at:  # others may have room for what waits there
            child.recall()
        return min(child.late_at, stuck_at)

    def _stop_late(self, child: Child, now: float) -> float:
        """Cancels an event loop's jobs that are over their time; says when the next one may be. (Not at every tick: there
        may be thousands.)"""
        due = now + 3600.0
        running = child.held.keys() - set(child.ahead)
        if any(now >= self._deadline(child, child.held[job], child.held[job][2]) for job in running):
            self._crew.hear(child)  # it may just have begun to wait for a lock
        for job in running & child.held.keys():
            held = child.held[job]
            if job in self._crew.timed_out:
                continue
            deadline = self._deadline(child, held, held[2])
            if now >= deadline:
                self._crew.timed_out.add(job)
                child.cancelling[job] = now + _ASYNC_GRACE
                child.send(["cancel", job, held[0].attempt])
                due = min(due, now + _ASYNC_GRACE)
            else:
                due = min(due, deadline)
        return due

    def _kill_at(self, child: Child, job: int, at: float, now: float) -> float:
        if job not in child.held:
            del child.cancelling[job]
            return now + 3600.0
        if now >= at:
            held = child.held[job]
            timed_out = job in self._crew.timed_out
            reason = timeout_words(self._time_limit(held)) if timed_out else "it was cancelled, and did not stop by itself"
            child.doom(job, Verdict.TIMEOUT if timed_out else Verdict.CANCELLED, reason)
        return at

    def _deadline(self, child: Child, held: Held, began: float) -> float:
        return began + self._time_limit(held) + child.waited(held[0].id)

    def _time_limit(self, held: Held) -> float:
        return self._crew.known.time_limit(held[0].kind)

    def _check_memory(self, child: Child) -> None:
        limits = [self._settings.memory_mib] if self._settings.memory_mib else []
        if child.bounded:
            limits += [memory for held in child.held.values() if (memory := self._crew.demand(held[0].kind.pool).memory)]
        if limits and (used := child.mib()) > min(limits):
            current = child.current()
            job = current[0] if current else (next(iter(child.held)) if len(child.held) == 1 else None)
            child.doom(job, Verdict.MEMORY, f"it used {used} MiB of memory; the limit is {min(limits)} MiB")
