"""What changes, as server-sent events."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import Field

from gristmill.api.access import Viewer, caller_of
from gristmill.api.asking import AskedInQuery, Name, Number
from gristmill.api.events import MOST, Hub, Stream
from gristmill.api.problems import Trouble
from gristmill.watched import Event, Role

router = APIRouter(tags=["events"])
Place = Annotated[str | None, Header(alias="Last-Event-ID", pattern=r"^[0-9]{1,18}-[0-9]{1,18}$")]


class WhichEvents(AskedInQuery):
    run: Number | None = Field(None, description="only those of this run")
    name: list[Name] | None = Field(None, description="only these: run, jobs, worker, schedule, audit, …")


@router.get("/events", response_class=Stream, status_code=200)
async def events(
    request: Request, call: Viewer, asked: Annotated[WhichEvents, Query()], last_event_id: Place = None
) -> Response:
    """Every change after it was committed, in that order, until you close it. With `Last-Event-ID` from there on, else
    from now on. An event `reset`: what came before it is not kept any more, so look at everything anew."""
    hub: Hub = request.app.state.hub
    if hub.followers >= MOST:
        raise Trouble(503, f"{MOST} follow the events already", {"Retry-After": "10"})
    names = set(asked.name or ())

    def wanted(event: Event) -> bool:
        return (not names or event.name in names) and (asked.run is None or event.run == asked.run)

    def admitted() -> bool:
        caller = caller_of(request)
        return caller is not None and caller.role.may(Role.VIEWER)

    return Stream(hub, last_event_id or await hub.newest(), wanted, admitted)
