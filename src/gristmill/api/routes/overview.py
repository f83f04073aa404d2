"""The overall picture, and what belongs to no single thing."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import Field

from gristmill.api.access import Admin, Viewer
from gristmill.api.asking import (
    Asked,
    AskedInQuery,
    Confirmed,
    Key,
    Listing,
    Moment,
    Name,
    Seconds,
    TaskName,
    check_confirmed,
    given,
)
from gristmill.api.shapes import answer, extended, items, items_of, page, page_of, shape
from gristmill.model import AuditEntry, Diagnosis, Lock, Pruned, Repair, Status, Worker
from gristmill.watched import Interval, Total

router = APIRouter(tags=["overview"])
_Pruned = extended(Pruned, "PrunedAnswer", dry_run=bool, count=int)


@router.get("/overview", response_model=shape(Status))
def overview(call: Viewer) -> Response:
    """Runs by state, those that are active, queues and workers."""
    return answer(call.mill.status())


class WhatWasDone(AskedInQuery):
    queue: Name | None = None
    task: TaskName | None = None
    since: Moment | None = Field(None, description="without it, an hour ago")
    step: Annotated[int, Field(ge=60, le=31_536_000, multiple_of=60)] = Field(60, description="seconds, whole minutes")


@router.get("/history", response_model=items_of(Interval))
def history(call: Viewer, asked: Annotated[WhatWasDone, Query()]) -> Response:
    """How many jobs ended, how, and how long they took, by interval: minutes for two days, hours before."""
    return items(call.mill.history(**{"since": 3600, **given(asked)}))


class SinceWhen(AskedInQuery):
    since: Moment | None = Field(None, description="without it, since ever")


@router.get("/totals", response_model=items_of(Total))
def totals(call: Viewer, asked: Annotated[SinceWhen, Query()]) -> Response:
    """The same in all, by queue and task."""
    return items(call.mill.totals(since=asked.since))


class WhichWorkers(AskedInQuery):
    every: bool = False


@router.get("/workers", response_model=items_of(Worker))
def workers(call: Viewer, asked: Annotated[WhichWorkers, Query()]) -> Response:
    """Active workers, newest first; `every`: also those that stopped or were lost."""
    return items(call.mill.workers(every=asked.every))


@router.get("/locks", response_model=items_of(Lock))
def locks(call: Viewer) -> Response:
    """The locks that are held, with those who wait for them."""
    return items(call.mill.locks())


class WhatPeopleDid(Listing):
    who: Key | None = None
    verb: Name | None = None
    target: Key | None = None
    since: Moment | None = None


@router.get("/audit", response_model=page_of(AuditEntry))
def audit(call: Viewer, asked: Annotated[WhatPeopleDid, Query()]) -> Response:
    """What people did, newest first. `who`, `verb` and `target` are patterns with * and ?."""
    patterns = {"who": asked.who, "verb": asked.verb, "target": asked.target}
    return page(call.mill.audit(**patterns, since=asked.since, limit=asked.limit + 1, after=asked.after), asked.limit)


@router.get("/doctor", response_model=items_of(Diagnosis))
def doctor(call: Viewer) -> Response:
    """What is well with the database and this machine and what is not, each with what mends it."""
    return items(call.mill.doctor())


class WhatToMend(Asked):
    dry_run: bool = False
    pipeline: Name | None = None
    subject: Key | None = None
    threshold: Seconds = 0


@router.post("/reconcile", response_model=items_of(Repair))
def reconcile(call: Admin, asked: WhatToMend) -> Response:
    """Looks for what should not be and mends it; `dry_run` only says what it would do."""
    return items(call.mill.reconcile(**asked.model_dump()))


@router.post("/prune", response_model=_Pruned)
def prune(call: Admin, asked: Confirmed) -> Response:
    """Removes what no retention keeps. `count`: runs and jobs."""
    would = call.mill.prune(dry_run=True)
    if asked.confirm is not None:
        check_confirmed(asked.confirm, would.runs + would.jobs)
        would = call.mill.prune(by=call.by)
    return answer({**vars(would), "dry_run": asked.confirm is None, "count": would.runs + would.jobs})
