"""Jobs: add, look, cancel, retry, run now, archive, delete, edit."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from gristmill.api.access import Admin, Call, Operator, Viewer
from gristmill.api.asking import (
    WHOLE,
    Args,
    Asked,
    Done,
    Id,
    JobFilter,
    Key,
    Listing,
    ManyJobs,
    Moment,
    Name,
    Priority,
    Reason,
    Seconds,
    TaskName,
    given,
    perform,
)
from gristmill.api.shapes import answer, extended, items, items_of, list_of, page, page_of, shape
from gristmill.errors import Invalid, NotFound
from gristmill.model import Attempt, Job, Why, to_json

router = APIRouter(prefix="/jobs", tags=["jobs"])
_Job = shape(Job)
_JobDetail = extended(Job, "JobDetail", backend_job_id=str | None, attempts=list_of(Attempt))
_Added = extended(Job, "AddedJob", created=bool)


class WhichJobs(Listing, JobFilter):
    model_config = ConfigDict(strict=False)
    since: Moment | None = Field(None, description="created then or later")
    archived: bool = Field(False, description="only archived ones, which are left out otherwise")
    parts: bool = Field(True, description="of a run or a subject, parts of items too")


@router.get("", response_model=page_of(Job))
def jobs(call: Viewer, asked: Annotated[WhichJobs, Query()]) -> Response:
    """Jobs, newest first."""
    return page(call.mill.jobs(**given(asked), limit=asked.limit + 1, after=asked.after), asked.limit)


@router.get("/{job:id}", response_model=_JobDetail)
def job(call: Viewer, job: Id) -> Response:
    """A job with the attempts that did not succeed, newest first, with traceback and log."""
    found = call.mill.job(job)
    more = {"backend_job_id": call.mill.backend_job_id(job), "attempts": call.mill.attempts(job)}
    return answer({**to_json(found), **more})


@router.get("/{job:id}/attempts", response_model=items_of(Attempt))
def attempts(call: Viewer, job: Id) -> Response:
    """The attempts of a job that did not succeed, newest first, with traceback and log."""
    return items(call.mill.attempts(job))


@router.get("/{job:id}/why", response_model=shape(Why))
def why(call: Viewer, job: Id) -> Response:
    """The one reason that it is not moving, and the command that mends it."""
    return answer(call.mill.why(job=job))


# ---- asking for some


class NewJob(Asked):
    task: TaskName
    args: Args | None = None
    queue: Name | None = None
    priority: Priority = "normal"
    at: Moment | None = Field(None, description="not before then")
    delay: Seconds | None = Field(None, description="or not before so many seconds have passed")
    unique: Key | None = Field(None, description="the job of this task that has this key, if there is one")
    unique_scope: Literal["unfinished", "queued"] = "unfinished"
    once: Key | None = Field(None, description="whoever asks with this key again, within a week, gets the same job")
    timeout: Annotated[float, Field(gt=0, le=31_536_000)] | None = None
    retries: Annotated[int, Field(ge=0, le=10_000), WHOLE] | None = None
    needs: list[Key] | None = Field(None, description="labels that its worker must have")
    limit_key: Key | None = None


@router.post("", response_model=_Added, status_code=201, responses={200: {"model": _Added}})
def enqueue(call: Operator, asked: NewJob) -> Response:
    """Adds a job on its own. 201: it is new; 200: one with the same `unique` or `once` was there."""
    _known_task(call, asked.task)
    added = call.mill.enqueue(**asked.model_dump(exclude_none=True), by=call.by)
    return answer({**to_json(added), "created": added.created}, 201 if added.created else 200)


class NewJobs(Asked):
    task: TaskName
    args: Annotated[list[Args], Field(min_length=1, max_length=1000)]
    queue: Name | None = None
    priority: Priority = "normal"


class Numbers(BaseModel):
    ids: list[int]


@router.post("/many", response_model=Numbers, status_code=201)
def enqueue_many(call: Operator, asked: NewJobs) -> Response:
    """Adds many jobs of one task, all or none."""
    _known_task(call, asked.task)
    return answer({"ids": call.mill.enqueue_many(**asked.model_dump(exclude_none=True), by=call.by)}, 201)


# ---- acting on one


class Cancel(Asked):
    reason: Reason | None = None
    dry_run: bool = False


@router.post("/{job:id}/cancel", response_model=_Job)
def cancel(call: Operator, job: Id, asked: Cancel) -> Response:
    """Cancels a queued job; one in progress is told to stop."""
    return answer(call.mill.cancel_job(job, reason=asked.reason, by=call.by, dry_run=asked.dry_run))


class Rehearsed(Asked):
    dry_run: bool = False


@router.post("/{job:id}/retry", response_model=_Job)
def retry(call: Operator, job: Id, asked: Rehearsed) -> Response:
    """Queues an ended job again with a fresh budget; one that waits for its retry runs now."""
    return answer(call.mill.retry_job(job, by=call.by, dry_run=asked.dry_run))


class NewArguments(Asked):
    args: Args
    dry_run: bool = False


@router.patch("/{job:id}", response_model=_Job)
def edit(call: Operator, job: Id, asked: NewArguments) -> Response:
    """Changes the arguments of a job that waits: these, and no others."""
    return answer(call.mill.edit_job(job, asked.args, by=call.by, dry_run=asked.dry_run))


# ---- acting on many


class CancelJobs(ManyJobs):
    reason: Reason | None = None


@router.post("/cancel", response_model=Done)
def cancel_many(call: Operator, asked: CancelJobs) -> Response:
    """Cancels queued jobs; those in progress are told to stop."""
    act = partial(call.mill.cancel_jobs, reason=asked.reason, by=call.by)
    return answer(perform(act, asked.confirm, **given(asked.which)))


@router.post("/retry", response_model=Done)
def retry_many(call: Operator, asked: ManyJobs) -> Response:
    """Queues failed jobs again; where their stage is closed or their run has ended, that run is retried for them."""
    return answer(perform(partial(call.mill.retry_jobs, by=call.by), asked.confirm, **given(asked.which)))


@router.post("/run-now", response_model=Done)
def run_now(call: Operator, asked: ManyJobs) -> Response:
    """Makes delayed and retrying jobs ready."""
    return answer(perform(partial(call.mill.run_jobs_now, by=call.by), asked.confirm, **given(asked.which)))


class Archive(ManyJobs):
    undo: bool = Field(False, description="list them again")


@router.post("/archive", response_model=Done)
def archive(call: Operator, asked: Archive) -> Response:
    """Leaves ended jobs out of lists, and keeps them."""
    act = partial(call.mill.archive_jobs, undo=asked.undo, by=call.by)
    return answer(perform(act, asked.confirm, **given(asked.which)))


@router.post("/delete", response_model=Done)
def delete(call: Admin, asked: ManyJobs) -> Response:
    """Deletes jobs on their own that have ended, for good."""
    return answer(perform(partial(call.mill.delete_jobs, by=call.by), asked.confirm, **given(asked.which)))


def _known_task(call: Call, name: str) -> Any:
    """What this server's application does not have cannot be asked of it."""
    try:
        return call.mill.registry.task(name)
    except Invalid as unknown:
        hint = "" if call.mill.registry.tasks else "; this server was started without an application (-A)"
        raise NotFound(f"{unknown}{hint}") from None
