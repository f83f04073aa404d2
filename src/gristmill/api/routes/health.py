"""For load balancers and monitors: two that are open to all and say nothing about what is in the ledger, and the metrics."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel

from gristmill.api.access import Viewer
from gristmill.api.shapes import answer
from gristmill.metrics import CONTENT_TYPE, exposition
from gristmill.settings import VERSION

router = APIRouter(tags=["health"])


class Health(BaseModel):
    status: str
    version: str


@router.get("/health", response_model=Health)
def health() -> Response:
    """This process answers."""
    return answer({"status": "ok", "version": VERSION})


@router.get("/ready", response_model=Health)
def ready(request: Request) -> Response:
    """The database answers too, and has the schema that this needs; 503 otherwise."""
    request.app.state.mill.ledger.check_schema()
    return answer({"status": "ready", "version": VERSION})


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(call: Viewer, request: Request) -> Response:
    """What Prometheus reads, with what the application adds."""
    more = [family for measure in request.app.state.metrics for family in measure()]
    return Response(exposition(call.mill, more), media_type=CONTENT_TYPE)
