"""Failures by their cause."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, Field

from gristmill.api.access import Operator, Viewer
from gristmill.api.asking import Asked, AskedInQuery, Confirmed, Moment, Name, Text
from gristmill.api.shapes import answer, extended, page_of, shape
from gristmill.model import ErrorDetail, RetriedError, Signature, to_json

router = APIRouter(prefix="/errors", tags=["errors"])
_Retried = extended(RetriedError, "RetriedErrorAnswer", dry_run=bool, count=int)
Fingerprint = Annotated[Name, Path()]


class WhichErrors(AskedInQuery):
    queue: Name | None = None
    stage: Name | None = None
    pipeline: Name | None = None
    since: Moment | None = None
    every: bool = Field(False, description="also those that are ignored")
    limit: Annotated[int, Field(ge=1, le=100, description="the jobs of each have to be counted")] = 50
    cursor: Annotated[str, Text(200, pattern=r"^[0-9]{1,18}-[0-9]{1,18}-[^\x00-\x1f]{1,100}$")] | None = Field(
        None, description="`next` of the page before"
    )


@router.get("", response_model=page_of(Signature))
def errors(call: Viewer, asked: Annotated[WhichErrors, Query()]) -> Response:
    """Errors by fingerprint, what fails the most jobs now first: what fails more or less meanwhile moves."""
    found = call.mill.errors(**asked.model_dump(exclude={"limit", "cursor"}), limit=asked.limit + 1, after=asked.cursor)
    shown = found[: asked.limit]
    return answer({"items": shown, "next": shown[-1].place if len(found) > asked.limit else None})


@router.get("/{fingerprint}", response_model=shape(ErrorDetail))
def error(call: Viewer, fingerprint: Fingerprint) -> Response:
    """One error: an example with traceback and log, the stages, subjects and jobs that it happens to."""
    return answer(call.mill.error(fingerprint))


@router.post("/{fingerprint}/retry", response_model=_Retried)
def retry(call: Operator, fingerprint: Fingerprint, asked: Confirmed) -> Response:
    """Queues all jobs again that are failed now by this error. `count`: how many can be."""
    done = call.mill.retry_error(fingerprint, by=call.by, confirm=asked.confirm, dry_run=asked.confirm is None)
    return answer({**to_json(done), "dry_run": asked.confirm is None, "count": done.queued})


class Ignore(Asked):
    undo: bool = Field(False, description="heed it again")


class Ignored(BaseModel):
    fingerprint: str
    ignored: bool


@router.post("/{fingerprint}/ignore", response_model=Ignored)
def ignore(call: Operator, fingerprint: Fingerprint, asked: Ignore) -> Response:
    """Leaves an error out of the list; its jobs stay as they are."""
    call.mill.ignore_error(fingerprint, undo=asked.undo, by=call.by)
    return answer({"fingerprint": fingerprint, "ignored": not asked.undo})
