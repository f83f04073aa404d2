"""What a transaction changes, noted on the way for those who follow: one event for each run, however much of it changes."""

from __future__ import annotations

from typing import Any

import orjson

_NAMED = 10  # jobs that failed for good and are named; of the others only the number

Row = tuple[int, str, int | None, str]  # which of this transaction, name, run, data as JSON


class Notes:
    """Kept in memory until the transaction is about to commit."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._runs: dict[int, dict[str, Any]] = {}
        self._failed: dict[int | None, list[int]] = {}
        self._others: list[tuple[str, int | None, str]] = []

    def __bool__(self) -> bool:
        return bool(self._runs or self._failed or self._others)

    def run(self, run: int, **what: Any) -> None:
        """Something about a run; said twice, the later counts."""
        self._runs.setdefault(run, {}).update(what)

    def stage(self, run: int, name: str, state: str) -> None:
        self._runs.setdefault(run, {}).setdefault("stages", {})[name] = state

    def failed(self, run: int | None, job: int) -> None:
        """A job failed for good."""
        self._failed.setdefault(run, []).append(job)

    def add(self, event: str, /, **what: Any) -> None:
        """Anything else."""
        self.own(event, None, orjson.dumps(what).decode())

    def own(self, name: str, run: int | None, data: str) -> None:
        """An application's; `data` is JSON."""
        self._others.append((name, run, data))

    def taken(self) -> list[Row]:
        """The rows to write; nothing is left."""
        for run, jobs in self._failed.items():
            told = {"failed": len(jobs), "jobs": sorted(jobs)[:_NAMED]}
            if run is None:
                self.add("jobs", **told)
            else:
                self.run(run, **told)
        found = [("run", run, orjson.dumps(what).decode()) for run, what in self._runs.items()] + self._others
        self._clear()
        return [(number, *row) for number, row in enumerate(found, 1)]
