"""Schedules: what starts at set times."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, Field

from gristmill.api.access import Admin, Operator, Viewer
from gristmill.api.asking import WHOLE, Args, Asked, Key, Lately, Name, Priority, Seconds, TaskName, Text, WantedLabel
from gristmill.api.shapes import answer, items, items_of, shape
from gristmill.errors import Refused
from gristmill.model import Firing, ScheduleEntry
from gristmill.schedule import Schedule

router = APIRouter(prefix="/schedules", tags=["schedules"])
firings = APIRouter(tags=["schedules"])  # of all: below the others, it could be the name of one
_Schedule = shape(ScheduleEntry)
ScheduleName = Annotated[Name, Path()]


@router.get("", response_model=items_of(ScheduleEntry))
def schedules(call: Viewer) -> Response:
    """All schedules, by name."""
    return items(call.mill.schedules())


@router.get("/{schedule}", response_model=_Schedule)
def schedule(call: Viewer, schedule: ScheduleName) -> Response:
    return answer(call.mill.schedule(schedule))


@router.get("/{schedule}/history", response_model=items_of(Firing))
def history(call: Viewer, schedule: ScheduleName, asked: Annotated[Lately, Query()]) -> Response:
    """What became of its fire times, newest first; the last thousand are kept."""
    return items(call.mill.schedule_history(schedule, limit=asked.limit))


@firings.get("/firings", response_model=items_of(Firing))
def every(call: Viewer, asked: Annotated[Lately, Query()]) -> Response:
    """What became of the fire times of all schedules, newest first."""
    return items(call.mill.schedule_history(limit=asked.limit))


class NewSchedule(Asked):
    """With a `task` it adds a job, with a `pipeline` and a `subject` it starts a run, with a `pipeline` alone the stalest
    of its subjects."""

    name: Name
    cron: Annotated[str, Text(200)] = Field(description="`0 3 * * *`, `@daily`, or `off`")
    tz: Name = "UTC"
    task: TaskName | None = None
    pipeline: Name | None = None
    subject: Key | None = None
    args: Args | None = None
    priority: Priority = "normal"
    catch_up: Literal["none", "one", "all"] = "one"
    jitter: Seconds = 0
    windows: list[Name] = Field([])
    overlap: bool = False
    labels: list[WantedLabel] = Field([])
    not_within: Seconds | None = None
    batch: Annotated[int, Field(ge=1, le=200), WHOLE] | None = None
    spread: Seconds = 0
    replace: bool = Field(False, description="instead of the one of this name")


@router.post("", response_model=_Schedule, status_code=201, responses={200: {"model": _Schedule}})
def add(call: Admin, asked: NewSchedule) -> Response:
    """Adds a schedule that the code does not declare. 201: it is new; 200: with `replace`, it is instead of another."""
    made = Schedule(**asked.model_dump(exclude={"replace"}))
    there = any(entry.name == asked.name for entry in call.mill.schedules())
    try:
        return answer(call.mill.add_schedule(made, replace=asked.replace, by=call.by), 200 if there else 201)
    except Refused as refused:  # it names the option of the command line
        raise Refused(str(refused).replace("--replace", "`replace`")) from None


@router.post("/{schedule}/pause", response_model=_Schedule)
def pause(call: Operator, schedule: ScheduleName, asked: Asked) -> Response:
    """Nothing fires until it is resumed."""
    call.mill.pause_schedule(schedule, by=call.by)
    return answer(call.mill.schedule(schedule))


@router.post("/{schedule}/resume", response_model=_Schedule)
def resume(call: Operator, schedule: ScheduleName, asked: Asked) -> Response:
    """Goes on with the next time; those during the pause are not caught up."""
    call.mill.resume_schedule(schedule, by=call.by)
    return answer(call.mill.schedule(schedule))


@router.post("/{schedule}/run", response_model=shape(Firing))
def run(call: Operator, schedule: ScheduleName, asked: Asked) -> Response:
    """Starts now what it starts, out of turn; its times stay as they are."""
    return answer(call.mill.run_schedule(schedule, by=call.by))


class Removed(BaseModel):
    name: str
    declared: bool = Field(description="in code: a worker that starts puts it back")


@router.post("/{schedule}/remove", response_model=Removed)
def remove(call: Admin, schedule: ScheduleName, asked: Asked) -> Response:
    """Removes a schedule with its history; what it started stays."""
    return answer({"name": schedule, "declared": call.mill.remove_schedule(schedule, by=call.by)})
