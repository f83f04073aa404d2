"""How far runs are and how fast they go, in words."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gristmill import wording
from gristmill.model import Run, Stage

_WINDOW = 10.0  # seconds over which the rate is taken
_FEW = 5  # ends: with fewer, chance decides when they fall into the window


@dataclass
class _Seen:
    """What was seen of a stage lately."""

    samples: deque[tuple[float, int]] = field(default_factory=deque)  # when, and how many were done
    moved: float = 0.0  # when the last end was seen

    def add(self, now: float, done: int) -> None:
        if not self.samples or self.samples[-1][1] != done:
            self.moved = now
        self.samples.append((now, done))
        # What lies before the first progress is waiting, and says nothing about the speed.
        while self.samples[0][0] < now - _WINDOW or (len(self.samples) > 2 and self.samples[1][1] == self.samples[0][1]):
            self.samples.popleft()

    @property
    def ends(self) -> int:
        return self.samples[-1][1] - self.samples[0][1]

    @property
    def seconds(self) -> float:
        return self.samples[-1][0] - self.samples[0][0]

    @property
    def still(self) -> float:
        """Seconds without an end."""
        return self.samples[-1][0] - self.moved


class Pace:
    """How fast stages move, from what was seen of them, and of slow ones from what their rows say."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, str], _Seen] = {}
        self._at: datetime | None = None

    def look(self, runs: Sequence[Run], now: float, at: datetime | None = None) -> None:
        """`now`: on a clock that is never set; `at`: the time of day (without it, that of now)."""
        self._at = at or datetime.now(UTC)
        for run in runs:
            for stage in run.stages:
                self._seen.setdefault((run.id, stage.name), _Seen()).add(now, stage.done)

    def rate(self, run: Run, stage: Stage) -> float | None:
        """Items per second: lately, or of the whole stage once it is closed; None: not known yet."""
        if stage.closed_at and run.retried_at and stage.closed_at > run.retried_at:
            return None  # some of it was done before
        if stage.closed_at and (since := worked_since(run, stage)):
            seconds = (stage.closed_at - since).total_seconds()
            return stage.done / seconds if seconds > 0 else None
        seen = self._seen.get((run.id, stage.name))
        if seen and seen.ends >= _FEW and seen.seconds >= 0.5:
            return seen.ends / seen.seconds
        whole = self._whole(run, stage)
        if seen and whole and whole * seen.still >= _FEW:
            return 0.0  # so many should have ended meanwhile: it stands still
        return whole

    def _whole(self, run: Run, stage: Stage) -> float | None:
        """Since it was begun; None after a retry, since some of it was done before."""
        since = worked_since(run, stage)
        if self._at is None or since is None or run.retried_at or not stage.done:
            return None
        seconds = (self._at - since).total_seconds()
        return stage.done / seconds if seconds > 0 else None

    def left(self, run: Run, stage: Stage) -> float | None:
        """Seconds until the stage is done, if it goes on like this; None while items may still come."""
        rate = self.rate(run, stage)
        return (stage.total - stage.done) / rate if rate and stage.state == "sealed" else None


def worked_since(run: Run, stage: Stage) -> datetime | None:
    """A stage is open from the start of its run, but nothing happens before a worker begins, nor between an end and a
    retry."""
    if stage.opened_at is None:
        return None
    before = run.retried_at is None or (stage.closed_at is not None and stage.closed_at < run.retried_at)
    return max(stage.opened_at, (run.started_at if before else run.began_at) or stage.opened_at)


def name(run: Run) -> str:
    return f"run {run.id} {run.pipeline} {run.subject}"


def standing(run: Run) -> str:
    """`find 1/1, read 40/66+ (1 failed), index waiting`."""
    if run.stopping:
        return f"stopping: {wording.first_line(run.stopping)}"
    if run.state == "waiting":
        return "waiting behind the subject's active run"
    return ", ".join(_stage_standing(stage) for stage in run.stages)


def _stage_standing(stage: Stage) -> str:
    if stage.state == "waiting":
        return f"{stage.name} waiting"
    rest = others(stage)
    return f"{stage.name} {progress(stage)}" + (f" ({rest})" if rest else "")


def ending(run: Run) -> str:
    took = wording.between(run.began_at or run.created_at, run.finished_at)
    words = [f"{run.state} in {took}" if took else run.state]
    words += [run.error or run.reason or ""]
    words += [f"{s.name} {progress(s)}" + (f" ({others(s)})" if others(s) else "") for s in run.stages if s.each]
    return "; ".join(wording.first_line(word) for word in words if word)


def progress(stage: Stage) -> str:
    """Done of all; `+` while more may come."""
    return f"{wording.count(stage.done)}/{wording.count(stage.total)}{'+' if stage.state == 'open' else ''}"


def others(stage: Stage) -> str:
    """What did not simply complete, and the parts that some wait for."""
    counts = {"failed": stage.failed, "skipped": stage.skipped, "cancelled": stage.cancelled}
    words = [f"{wording.count(n)} {word}" for word, n in counts.items() if n]
    return ", ".join(words + ([waiting_for(stage)] if stage.parts_left else []))


def waiting_for(stage: Stage) -> str:
    return f"waiting for {wording.count(stage.parts_left)} of {wording.count(stage.parts)} parts"


def speed(rate: float) -> str:
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s" if rate >= 0.1 else f"{rate * 60:.1f}/min"
