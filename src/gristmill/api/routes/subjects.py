"""Subjects, by their number: names may hold anything, and would not fit into an address."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from gristmill.api.access import Admin, Call, Operator, Viewer
from gristmill.api.asking import (
    NAMED,
    Args,
    Asked,
    Confirmed,
    Done,
    Id,
    Key,
    Label,
    Lately,
    Listing,
    Name,
    Number,
    Priority,
    Reason,
    RunState,
    Seconds,
    WantedLabel,
    given,
    perform,
)
from gristmill.api.shapes import answer, items, items_of, page, page_of, shape
from gristmill.errors import Invalid, NotFound, did_you_mean
from gristmill.model import Recovery, Subject, Why

router = APIRouter(prefix="/subjects", tags=["subjects"])
_Subject = shape(Subject)


class WhichSubjects(Listing):
    pipeline: Name | None = None
    subject: Key | None = Field(None, description=NAMED)
    label: list[WantedLabel] | None = Field(None, description="`key=value` or `key`; all must hold")
    stale_for: Seconds | None = Field(None, description="without a good run for so many seconds, or ever")
    state: RunState | None = Field(None, description="of the active run, or of the last one that ended")


@router.get("", response_model=page_of(Subject))
def subjects(call: Viewer, asked: Annotated[WhichSubjects, Query()]) -> Response:
    """Subjects, in the order in which they came."""
    found = call.mill.subjects(
        pipeline=asked.pipeline,
        name=asked.subject,
        label=asked.label or (),
        stale_for=asked.stale_for,
        state=asked.state,
        limit=asked.limit + 1,
        after=asked.after,
    )
    return page(found, asked.limit)


@router.get("/{subject:id}/why", response_model=shape(Why))
def why(call: Viewer, subject: Id) -> Response:
    """The one reason that it is not moving, and the command that mends it."""
    found = _found(call, subject)
    return answer(call.mill.why(pipeline=found.pipeline, subject=found.name))


class SubjectSettings(Asked):
    """What is not given stays."""

    interval: Seconds | None = Field(None, description="seconds wanted between two runs; 0: none of its own")
    labels: dict[Label, Label | None] | None = Field(None, description="null: away with it")


class NewSubject(SubjectSettings):
    pipeline: Name
    subject: Key


@router.post("", response_model=_Subject)
def add_subject(call: Operator, asked: NewSubject) -> Response:
    """Makes a subject, or sets what is given of one that is there."""
    known_pipeline(call, asked.pipeline)
    return _set(call, asked.pipeline, asked.subject, asked)


@router.get("/{subject:id}", response_model=_Subject)
def subject(call: Viewer, subject: Id) -> Response:
    return answer(_found(call, subject))


@router.get("/{subject:id}/recoveries", response_model=items_of(Recovery))
def recoveries(call: Viewer, subject: Id, asked: Annotated[Lately, Query()]) -> Response:
    """What reconcile did for it, newest first."""
    found = _found(call, subject)
    return items(call.mill.recoveries(pipeline=found.pipeline, subject=found.name, limit=asked.limit))


@router.patch("/{subject:id}", response_model=_Subject)
def set_subject(call: Operator, subject: Id, asked: SubjectSettings) -> Response:
    found = _found(call, subject)
    return _set(call, found.pipeline, found.name, asked)


def _set(call: Call, pipeline: str, name: str, asked: SubjectSettings) -> Response:
    found = call.mill.set_subject(pipeline, name, interval=asked.interval, labels=asked.labels, by=call.by)
    return answer(found)


class ChosenSubjects(Asked):
    """By number, or by what they have in common; at least one of these."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"minProperties": 1})
    ids: Annotated[list[Number], Field(min_length=1, max_length=10_000)] | None = None
    pipeline: Name | None = None
    subject: Key | None = Field(None, description=NAMED)
    label: Annotated[list[WantedLabel], Field(min_length=1)] | None = Field(None, description="all must hold")
    stale_for: Seconds | None = Field(None, description="without a good run for so many seconds, or ever")
    state: RunState | None = Field(None, description="of the active run, or of the last one that ended")


class StartSubjects(Confirmed):
    which: ChosenSubjects
    args: Args | None = Field(None, description="without them, each starts with those of its last run")
    priority: Priority = "normal"


@router.post("/start", response_model=Done)
def start_subjects(call: Operator, asked: StartSubjects) -> Response:
    """Starts a run of each of these subjects that has none under way."""
    which = given(asked.which)
    if "subject" in which:
        which["name"] = which.pop("subject")
    act = partial(call.mill.start_subjects, args=asked.args, priority=asked.priority, by=call.by)
    return answer(perform(act, asked.confirm, **which))


class PurgeSubject(Confirmed):
    history: bool = Field(False, description="all its runs go too, once they have ended")
    reason: Reason | None = None


@router.post("/{subject:id}/purge", response_model=Done)
def purge(call: Admin, subject: Id, asked: PurgeSubject) -> Response:
    """Stops its active run and drops the one that waits."""
    found = _found(call, subject)
    which = {"pipeline": found.pipeline, "subject": found.name, "by": call.by}
    return answer(perform(call.mill.purge_subject, asked.confirm, **which, **given(asked)))


class Forget(Confirmed):
    stage: Name | None = None


class Forgotten(BaseModel):
    dry_run: bool
    count: int = Field(description="of how many items")


@router.post("/{subject:id}/forget", response_model=Forgotten)
def forget(call: Admin, subject: Id, asked: Forget) -> Response:
    """Forgets what was done before, so that its next run skips nothing as unchanged."""
    found, dry_run = _found(call, subject), asked.confirm is None
    known_pipeline(call, found.pipeline, *filter(None, [asked.stage]))
    how: dict[str, Any] = {"by": call.by, "dry_run": dry_run, "confirm": asked.confirm}
    return answer({"dry_run": dry_run, "count": call.mill.forget(found.pipeline, found.name, asked.stage, **how)})


def _found(call: Call, number: int) -> Subject:
    found = call.mill.subjects(after=number - 1, limit=1)
    if not found or found[0].id != number:
        raise NotFound(f"there is no subject {number}")
    return found[0]


def known_pipeline(call: Call, name: str, *stages: str) -> None:
    """What this server's application does not have cannot be asked of it."""
    try:
        known = call.mill.registry.pipeline(name).stages
    except Invalid as unknown:
        hint = "" if call.mill.registry.pipelines else "; this server was started without an application (-A)"
        raise NotFound(f"{unknown}{hint}") from None
    for stage in stages:
        if stage not in known:
            raise NotFound(f"pipeline {name!r} has no stage {stage!r}{did_you_mean(stage, known)}")
