"""The overall picture, and what belongs to no single thing."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from gristmill.api.access import Admin, Call, Viewer
from gristmill.api.asking import (
    AskedInQuery,
    Confirmed,
    Key,
    Listing,
    Moment,
    Name,
    Seconds,
    TaskName,
    given,
)
from gristmill.api.shapes import answer, extended, items, items_of, list_of, page, page_of, shape
from gristmill.errors import NotFound, did_you_mean, quoted
from gristmill.model import AuditEntry, Diagnosis, Lock, Pruned, Repair, Status, Worker
from gristmill.reconciler import tally
from gristmill.watched import Interval, Total

router = APIRouter(tags=["overview"])
_Pruned = extended(Pruned, "PrunedAnswer", dry_run=bool, count=int)
_PATIENCE = 10.0  # seconds that somebody waits for an answer: retention rests forty times as long as it works


@router.get("/overview", response_model=shape(Status))
def overview(call: Viewer) -> Response:
    """Runs by state, those that are active, queues and workers."""
    return answer(call.mill.status())


class WhatWasDone(AskedInQuery):
    queue: Name | None = None
    task: TaskName | None = None
    since: Moment | None = Field(None, description="without it, an hour ago")
    step: Annotated[int, Field(ge=60, le=31_536_000, multiple_of=60)] | None = Field(
        None, description="seconds, whole minutes; without it 60, or as many as it takes for at most 10,000 intervals"
    )


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


class WhatToMend(Confirmed):
    pipeline: Name | None = None
    subject: Key | None = None
    threshold: Seconds = 0


class Mended(BaseModel):
    """What was mended, or (without `confirm`) would be; and what is left to a person."""

    dry_run: bool
    count: int = Field(description="how many are mended: those that are left to a person are not among them")
    items: list_of(Repair)  # type: ignore[valid-type]


@router.post("/reconcile", response_model=Mended)
def reconcile(call: Admin, asked: WhatToMend) -> Response:
    """Looks for what should not be and mends it, also what turns up meanwhile."""
    _check_there(call, asked.pipeline, asked.subject)
    found = call.mill.reconcile(**given(asked), confirm=asked.confirm, dry_run=asked.confirm is None, by=call.by)
    return answer({"dry_run": asked.confirm is None, "count": tally(found)[0], "items": found})


def _check_there(call: Call, pipeline: str | None, subject: str | None) -> None:
    """Nothing is wrong with what is not there: somebody means another."""
    mill = call.mill
    if pipeline is not None and subject is not None:
        mill.subject(pipeline, subject)
    elif pipeline is not None and pipeline not in mill.registry.pipelines and not mill.subjects(pipeline=pipeline, limit=1):
        raise NotFound(f"there is no pipeline {quoted(pipeline)}{did_you_mean(pipeline, mill.registry.pipelines)}")
    elif subject is not None and not any(one.name == subject for one in mill.subjects(name=subject)):
        raise NotFound(f"there is no subject {quoted(subject)}")


@router.post("/prune", response_model=_Pruned)
def prune(call: Admin, asked: Confirmed) -> Response:
    """Removes what no retention keeps. `count`: runs and jobs. `open`: it had ten seconds, and there is more of it."""
    dry_run = asked.confirm is None
    done = call.mill.prune(dry_run=dry_run, confirm=asked.confirm, by=call.by, **({} if dry_run else {"within": _PATIENCE}))
    return answer({**vars(done), "dry_run": dry_run, "count": done.runs + done.jobs})
