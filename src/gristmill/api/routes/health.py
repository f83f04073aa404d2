"""For load balancers and monitors: open to all, and they say nothing about what is in the ledger."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from gristmill.api.shapes import answer
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
