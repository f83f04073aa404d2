"""Queues: pause, resume, set, purge."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from pydantic import Field

from gristmill.api.access import Admin, Call, Operator, Viewer
from gristmill.api.asking import WHOLE, Asked, Confirmed, Done, Name, Priority, Reason, given, perform
from gristmill.api.shapes import answer, items, items_of, shape
from gristmill.errors import NotFound, did_you_mean
from gristmill.model import Queue

router = APIRouter(prefix="/queues", tags=["queues"])
_Queue = shape(Queue)
QueueName = Annotated[Name, Path()]


@router.get("", response_model=items_of(Queue))
def queues(call: Viewer) -> Response:
    """All queues, with what is in them now."""
    return items(call.mill.queues())


@router.get("/{queue}", response_model=_Queue)
def queue(call: Viewer, queue: QueueName) -> Response:
    return _answer(call, queue)


@router.post("/{queue}/pause", response_model=_Queue)
def pause(call: Operator, queue: QueueName, asked: Asked) -> Response:
    """Nothing of this queue starts until it is resumed."""
    call.mill.pause(queue, by=call.by)
    return _answer(call, queue)


@router.post("/{queue}/resume", response_model=_Queue)
def resume(call: Operator, queue: QueueName, asked: Asked) -> Response:
    call.mill.resume(queue, by=call.by)
    return _answer(call, queue)


class QueueSettings(Asked):
    """What is not given stays; null for no such limit."""

    weight: Annotated[float, Field(gt=0, le=1e6)] | None = None
    at_once: Annotated[int, Field(ge=1, le=10**6), WHOLE] | None = None
    per_second: Annotated[float, Field(ge=0.001, le=10**6)] | None = None
    create: bool = Field(False, description="make it, if no task names it")


@router.patch("/{queue}", response_model=_Queue)
def set_queue(call: Admin, queue: QueueName, asked: QueueSettings) -> Response:
    """Changes a queue's weight, and how many of its jobs may run at once or start per second."""
    limits: dict[str, Any] = {name: getattr(asked, name) for name in asked.model_fields_set & {"at_once", "per_second"}}
    if not asked.create:
        _found(call, queue)
    call.mill.set_queue(queue, weight=asked.weight, limits=limits, create=asked.create, by=call.by)
    return _answer(call, queue)


class Purge(Confirmed):
    priority: Priority | None = None
    reason: Reason | None = None


@router.post("/{queue}/purge", response_model=Done)
def purge(call: Admin, queue: QueueName, asked: Purge) -> Response:
    """Cancels all that waits in a queue, or that of one priority."""
    act = partial(call.mill.purge_queue, queue, by=call.by)
    return answer(perform(act, asked.confirm, **given(asked)))


def _found(call: Call, name: str) -> Any:
    known = {queue.name: queue for queue in call.mill.queues()}
    if name not in known:
        raise NotFound(f"there is no queue {name!r}{did_you_mean(name, known)}")
    return known[name]


def _answer(call: Call, name: str) -> Response:
    return answer(_found(call, name))
