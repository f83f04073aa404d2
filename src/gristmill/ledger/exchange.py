"""A worker's whole turn in one transaction: what its children emitted and finished, and new jobs for them.

One commit instead of three: on both databases the commit is what costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from gristmill.ledger.claim import Taken, Want, claim
from gristmill.ledger.emit import Emission, emit
from gristmill.ledger.finish import Outcome, Verdict, finish
from gristmill.ledger.store import Tx


class Exchanged(NamedTuple):
    refused_items: dict[int, str]  # producers that must stop, and why
    refused: list[int]  # jobs that were not this worker's any more
    taken: Taken


def exchange(
    tx: Tx,
    worker: int,
    emissions: Sequence[Emission] = (),
    outcomes: Sequence[Outcome] = (),
    ended_claims: Sequence[int] = (),
    wants: Sequence[Want] = (),
    room: Mapping[int, int] = MappingProxyType({}),
) -> Exchanged:
    refused_items = emit(tx, worker, emissions) if emissions else {}
    if refused_items:
        outcomes = [_refused(o, refused_items[o.job]) if o.job in refused_items else o for o in outcomes]
    refused = finish(tx, worker, outcomes, ended_claims) if outcomes or ended_claims else []
    taken = claim(tx, worker, wants, room) if wants else Taken(None, [], [])
    return Exchanged(refused_items, refused, taken)


def _refused(outcome: Outcome, reason: str) -> Outcome:
    """A job whose last items were refused did not complete."""
    return outcome._replace(verdict=Verdict.PERMANENT, reason=reason, result=None, error_class="Invalid")
