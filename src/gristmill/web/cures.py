"""What mends something, as a button: where these pages can do what `why` says that one should."""

from __future__ import annotations

from dataclasses import dataclass

from gristmill.model import Reason, Why
from gristmill.web.phrases import part


@dataclass(frozen=True)
class Cure:
    label: str
    path: str  #: where its form goes
    role: str = "operator"


def cure(why: Why | None, run: int | None) -> Cure | None:
    """None: there is no button for it, or nothing has to be done. `run`: the run that it is about, or belongs to."""
    match why.command if why else ():
        case ("queue", "resume", queue):
            return Cure(f"Resume queue {queue}", f"/queues/{part(queue)}/resume")
        case ("run", "retry", number):
            return Cure("Retry what failed", f"/runs/{number}/retry")
        case ("reconcile",) if run is not None and why and why.reason is Reason.INCONSISTENT:
            return Cure("Reconcile", f"/runs/{run}/reconcile", "admin")
    return None
