"""For load balancers and monitors: two that are open to all and say nothing about what is in the ledger, and the metrics."""

from __future__ import annotations

import logging

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel
from starlette.datastructures import State

from gristmill.api.access import Viewer
from gristmill.api.asking import KNOWN
from gristmill.api.problems import Trouble
from gristmill.api.shapes import answer
from gristmill.errors import DatabaseError, SchemaMismatch
from gristmill.metrics import CONTENT_TYPE, Family, exposition, text
from gristmill.settings import VERSION

log = logging.getLogger("gristmill.api")
router = APIRouter(tags=["health"])


class Health(BaseModel):
    status: str
    version: str


@router.head("/health", include_in_schema=False)
@router.get("/health", response_model=Health)
async def health() -> Response:
    """This process answers, whatever its threads wait for."""
    return answer({"status": "ok", "version": VERSION})


@router.head("/ready", include_in_schema=False)
@router.get("/ready", response_model=Health)
def ready(request: Request) -> Response:
    """The database answers too, and has the schema that this needs; 503 otherwise."""
    try:
        request.app.state.mill.ledger.check_schema()
    except DatabaseError as error:  # which says where the database is; that is not for all
        log.error("GET /ready: %s", error)
        other = isinstance(error, SchemaMismatch)
        said = "the database has another schema than this needs" if other else "the database is out of reach"
        raise Trouble(503, f"{said}; the log of this server says more", {"Retry-After": "5"}) from None
    return answer({"status": "ready", "version": VERSION})


@router.head("/metrics", include_in_schema=False)
@router.get("/metrics", response_class=PlainTextResponse, dependencies=[KNOWN])
def metrics(call: Viewer, request: Request) -> Response:
    """What Prometheus reads, with what the application adds."""
    return Response(exposition(call.mill) + _own(request.app.state), media_type=CONTENT_TYPE)


def _own(state: State) -> str:
    """What an application's functions measure. One that fails takes nothing from the others: it is logged, once until it
    does well again, and counted."""
    failed = Family(
        "gristmill_own_metrics_failed", "gauge", "Functions of the application that failed to measure, just now."
    )
    said, failing = list[str](), set[int]()
    for number, measure in enumerate(state.metrics):
        try:
            said.append(text(measure()))
        except Exception as error:
            failing.add(number)
            if number not in state.unmeasured:
                log.error("GET /metrics: %s", getattr(measure, "__qualname__", measure), exc_info=error)
    state.unmeasured = failing
    failed.add(len(failing))
    return "".join([*said, text([failed]) if state.metrics else ""])
