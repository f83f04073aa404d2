"""Runs: start, look, cancel, retry, delete."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from gristmill.api.access import Admin, Operator, Viewer
from gristmill.api.asking import (
    WHOLE,
    Args,
    Asked,
    AskedInQuery,
    Confirmed,
    Done,
    Id,
    Key,
    Lately,
    Listing,
    ManyRuns,
    Moment,
    Name,
    Priority,
    Reason,
    RunFilter,
    Seconds,
    Text,
    WantedLabel,
    given,
    perform,
)
from gristmill.api.routes.subjects import known_pipeline
from gristmill.api.shapes import answer, extended, items, items_of, list_of, page, page_of, shape
from gristmill.model import Recovery, RetriedRun, Run, Stage, Why, to_json
from gristmill.settings import KEY_LIMIT

router = APIRouter(prefix="/runs", tags=["runs"])
_Run = shape(Run)
_RunDetail = extended(Run, "RunDetail", results=dict[str, Any], order=dict[str, list[str]], recoveries=list_of(Recovery))
_Started = extended(Run, "StartedRun", created=bool)
_Retried = extended(RetriedRun, "RetriedRunAnswer", dry_run=bool, count=int)
StageName = Annotated[Name, Path()]


class WhichRuns(Listing, RunFilter):
    model_config = ConfigDict(strict=False)
    since: Moment | None = Field(None, description="created then or later")


@router.get("", response_model=page_of(Run))
def runs(call: Viewer, asked: Annotated[WhichRuns, Query()]) -> Response:
    """Runs, newest first, with their stages."""
    return page(call.mill.runs(**given(asked), limit=asked.limit + 1, after=asked.after), asked.limit)


class Stuck(AskedInQuery):
    limit: Annotated[int, Field(ge=1, le=500, description="more are not looked for"), WHOLE] = 50


@router.get("/stuck", response_model=items_of(Run))
def stuck(call: Viewer, asked: Annotated[Stuck, Query()]) -> Response:
    """Active runs, newest first, that have no job left which could move them on; `/api/reconcile` mends them."""
    return items(call.mill.stuck(limit=asked.limit))


@router.get("/{run:id}", response_model=_RunDetail)
def run(call: Viewer, run: Id) -> Response:
    """A run with its stages, what its plain stages returned, after which each comes, and what reconcile did for it."""
    found = call.mill.run(run)
    more = {"order": call.mill.stage_order(run), "recoveries": call.mill.recoveries(run=run)}
    return answer({**to_json(found), "results": found.results, **more})


@router.get("/{run:id}/recoveries", response_model=items_of(Recovery))
def recoveries(call: Viewer, run: Id, asked: Annotated[Lately, Query()]) -> Response:
    """What reconcile did for it, newest first: more than a run comes with, which is the last twenty."""
    return items(call.mill.recoveries(run=call.mill.run(run).id, limit=asked.limit))


@router.get("/{run:id}/stages", response_model=items_of(Stage))
def stages(call: Viewer, run: Id) -> Response:
    """Its stages in their order, with counters."""
    return items(call.mill.run(run).stages)


@router.get("/{run:id}/why", response_model=shape(Why))
def why(call: Viewer, run: Id) -> Response:
    """The one reason that it is not moving, and the command that mends it."""
    return answer(call.mill.why(run=run))


class Result(BaseModel):
    key: str
    result: Any


class Results(BaseModel):
    items: list[Result]
    next: str | None


class WhichResults(AskedInQuery):
    limit: Annotated[int, Field(ge=1, le=1000), WHOLE] = 50
    cursor: Annotated[str, Text(KEY_LIMIT, 0)] | None = Field(None, description="`next` of the page before")


@router.get("/{run:id}/stages/{stage}/results", response_model=Results)
def results(call: Viewer, run: Id, stage: StageName, asked: Annotated[WhichResults, Query()]) -> Response:
    """What the items of a stage returned that completed, by key."""
    call.mill.run(run)
    found = list(islice(call.mill.results(run, stage, after=asked.cursor), asked.limit + 1))
    shown = found[: asked.limit]
    after = shown[-1][0] if len(found) > asked.limit else None
    return answer({"items": [{"key": key, "result": result} for key, result in shown], "next": after})


# ---- asking for one


class NewRun(Asked):
    pipeline: Name
    subject: Key
    args: Args | None = None
    priority: Priority = "normal"
    if_active: Literal["join", "wait", "refuse"] = "join"
    from_stage: Name | None = Field(None, description="only this stage and what depends on it")
    only: dict[Name, list[Key] | None] | None = Field(None, description="only these stages; of the first, keys like these")
    needs: list[Key] | None = Field(None, description="labels that its workers must have")
    once: Key | None = Field(None, description="whoever asks with this key again, within a week, gets the same run")


@router.post("", response_model=_Started, status_code=201, responses={200: {"model": _Started}})
def start(call: Operator, asked: NewRun) -> Response:
    """Starts a run. 201: it is new; 200: the subject has one already, and joined it."""
    known_pipeline(call, asked.pipeline, *filter(None, [asked.from_stage]), *(asked.only or ()))
    started = call.mill.start(**asked.model_dump(exclude_none=True), by=call.by)
    return answer({**to_json(started), "created": started.created}, 201 if started.created else 200)


class Stalest(Confirmed):
    pipeline: Name
    args: Args | None = None
    priority: Priority = "normal"
    labels: list[WantedLabel] = Field([], description="`key=value` or `key`; all must hold")
    not_within: Seconds = Field(23 * 3600, description="of its last end, where it has no interval of its own")
    batch: Annotated[int, Field(ge=1, le=200), WHOLE] = 1


class StartedStalest(BaseModel):
    """The runs that were started, or (without `confirm`) the subjects that would be."""

    dry_run: bool
    count: int
    subjects: list[str]
    items: list_of(Run)  # type: ignore[valid-type]


@router.post("/stalest", response_model=StartedStalest)
def start_stalest(call: Operator, asked: Stalest) -> Response:
    """Starts runs of the subjects whose last run ended longest ago."""
    known_pipeline(call, asked.pipeline)
    dry_run = asked.confirm is None
    runs = call.mill.start_stalest(**given(asked), confirm=asked.confirm, dry_run=dry_run, by=call.by)
    subjects = [run.subject for run in runs]
    return answer({"dry_run": dry_run, "count": len(runs), "subjects": subjects, "items": [] if dry_run else runs})


# ---- acting on one


class Cancel(Asked):
    reason: Reason | None = None
    dry_run: bool = False


@router.post("/{run:id}/cancel", response_model=_Run)
def cancel(call: Operator, run: Id, asked: Cancel) -> Response:
    """Stops a run: what waits is cancelled, what is in progress is told to stop."""
    return answer(call.mill.cancel_run(run, reason=asked.reason, by=call.by, dry_run=asked.dry_run))


class RetryRun(Confirmed):
    """Without conditions: the items that failed. Otherwise those that meet every condition, whatever became of them."""

    failed: bool = False
    stage: Name | None = None
    error: Name | None = Field(None, description="a fingerprint")
    key: Key | None = Field(None, description="a pattern with * and ?")
    version: Key | None = Field(None, description="of the function that did it, as `ctx.skip_unchanged` was told")


@router.post("/{run:id}/retry", response_model=_Retried)
def retry(call: Operator, run: Id, asked: RetryRun) -> Response:
    """Queues items of a run again; then what depends on them runs again, and nothing else."""
    done = call.mill.retry_run(run, **given(asked), by=call.by, confirm=asked.confirm, dry_run=asked.confirm is None)
    return answer({**to_json(done), "dry_run": asked.confirm is None, "count": done.queued})


# ---- acting on many


class CancelRuns(ManyRuns):
    reason: Reason | None = None


@router.post("/cancel", response_model=Done)
def cancel_many(call: Operator, asked: CancelRuns) -> Response:
    """Stops runs."""
    act = partial(call.mill.cancel_runs, reason=asked.reason, by=call.by)
    return answer(perform(act, asked.confirm, **given(asked.which)))


@router.post("/retry", response_model=Done)
def retry_many(call: Operator, asked: ManyRuns) -> Response:
    """Queues what failed of ended runs again; of those that failed or completed with errors, unless `state` says which."""
    act = partial(call.mill.retry_runs, by=call.by)
    return answer(perform(act, asked.confirm, **given(asked.which)))


@router.post("/delete", response_model=Done)
def delete(call: Admin, asked: ManyRuns) -> Response:
    """Deletes ended runs with all their jobs, for good."""
    act = partial(call.mill.delete_runs, by=call.by)
    return answer(perform(act, asked.confirm, **given(asked.which)))
