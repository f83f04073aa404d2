"""Mending: what should not be is looked for, and made right."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from gristmill.application import VERBS
from gristmill.errors import Invalid, NotConfirmed, Refused
from gristmill.mill.acting import Acting
from gristmill.mill.asking import Asking
from gristmill.mill.lazy import lazy
from gristmill.mill.values import checked_id, delay_of, name_of, who
from gristmill.model import Recovery, Repair
from gristmill.pipeline import Pipeline, Stage

if TYPE_CHECKING:
    from gristmill import reconciler as reconciling
    from gristmill.ledger import recover, stop
else:
    (reconciling,) = lazy("gristmill", "reconciler")
    recover, stop = lazy("gristmill.ledger", "recover", "stop")


class Mending(Asking, Acting):
    def reconcile(
        self,
        *,
        dry_run: bool = False,
        subject: str | None = None,
        pipeline: Pipeline | str | None = None,
        threshold: float | timedelta = 0,
        confirm: int | None = None,
        by: str | None = None,
    ) -> list[Repair]:
        """Looks for what should not be and mends it; `dry_run` only says what it would do, `confirm`: only if it would mend
        so many; `by`: who asks, for the audit. What turns up between the two looks is mended too.

        `threshold`: leaves alone what has changed within so many seconds. Nothing, while another reconciler is at work; with
        `confirm` it is refused then.
        """
        made = partial(self.reconciler, subject=subject, pipeline=pipeline, threshold=threshold)
        if confirm is not None:
            would = made(dry_run=True).run() or []
            if confirm != reconciling.tally(would)[0]:
                raise NotConfirmed(reconciling.tally(would)[0], confirm)
        found = made(dry_run=dry_run).run()
        if found is None:  # what the other one finds, it mends in its own name
            if confirm is not None:
                raise Refused("another reconciler is at work, and mends what it finds; nothing was changed here, look again")
            return []
        if by is not None and not dry_run:
            mended, left = reconciling.tally(found)
            names = [None if pipeline is None else name_of(pipeline), subject]
            about = " ".join(filter(None, names)) or "everything"
            self.ledger.do(lambda tx: stop.audit(tx, by, "reconcile", about, mended=mended, left=left))
        return found

    def reconciler(
        self,
        *,
        dry_run: bool = False,
        subject: str | None = None,
        pipeline: Pipeline | str | None = None,
        threshold: float | timedelta = 0,
    ) -> reconciling.Reconciler:
        """The same as an object: `run()` says None if it stepped aside, `loop(event)` goes on until that is set."""
        flow = None if pipeline is None else name_of(pipeline)
        scope = reconciling.Scope(not dry_run, subject, flow, delay_of(threshold, "threshold"))
        stages = [task for task in self.registry.tasks.values() if isinstance(task, Stage)]
        asks = bool(self.registry.checks) or any(stage.there for stage in stages)
        return reconciling.Reconciler(self.ledger, scope, self.registry.sources() if asks else (), self._mend_by, who())

    def recoveries(
        self, *, run: int | None = None, pipeline: Pipeline | str | None = None, subject: str | None = None, limit: int = 20
    ) -> list[Recovery]:
        """What reconcile did for a run, or for a subject of a pipeline, newest first."""
        flow = None if pipeline is None else name_of(pipeline)
        if run is not None:
            checked_id(run, "run")
        return self._read(recover.recoveries, run=run, pipeline=flow, subject=subject, most=limit)

    def _mend_by(self, verb: str, arguments: dict[str, Any]) -> None:
        if verb not in VERBS:
            raise Invalid(f"a finding cannot be mended by {verb!r}")
        getattr(self, verb)(**arguments)
