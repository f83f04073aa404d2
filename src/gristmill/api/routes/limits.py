"""Limits: how many at once, how many per second, and circuits."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import Field

from gristmill.api.access import Admin, Operator, Viewer
from gristmill.api.asking import WHOLE, Asked, AskedInQuery, Name, Text
from gristmill.api.shapes import answer, items, items_of, shape
from gristmill.model import LimitState
from gristmill.settings import KEY_LIMIT

router = APIRouter(prefix="/limits", tags=["limits"])
_Limit = shape(LimitState)
LimitKey = Annotated[str, Text(KEY_LIMIT, 0)]
Share = Annotated[float, Field(ge=0.001, le=1e9)]


class WhichLimits(AskedInQuery):
    name: Name | None = None
    key: LimitKey | None = None
    most: Annotated[int, Field(ge=1, le=1000), WHOLE] = 1000


@router.get("", response_model=items_of(LimitState))
def limits(call: Viewer, asked: Annotated[WhichLimits, Query()]) -> Response:
    """Limits, and of each the keys that are in use, that were set, or whose circuit is open."""
    return items(call.mill.limits(asked.name, asked.key, most=asked.most))


class LimitNumbers(Asked):
    """What is not given stays; null for no such limit."""

    at_once: Annotated[int, Field(ge=1, le=10**9), WHOLE] | None = None
    per_second: Share | None = None
    breaker: Annotated[int, Field(ge=1, le=10**9), WHOLE] | None = None
    cooldown: Share = 60


class LimitSettings(Asked):
    name: Name
    key: LimitKey = ""
    numbers: LimitNumbers | None = Field(None, description="null: as the application declares it")


@router.post("/set", response_model=_Limit)
def set_limit(call: Admin, asked: LimitSettings) -> Response:
    """Sets numbers of a limit, or of one key of it."""
    numbers = None if asked.numbers is None else asked.numbers.model_dump(exclude_unset=True)
    return answer(call.mill.set_limit(asked.name, asked.key, numbers=numbers, by=call.by))


class Circuit(Asked):
    name: Name
    key: LimitKey


@router.post("/close-circuit", response_model=items_of(LimitState))
def close_circuit(call: Operator, asked: Circuit) -> Response:
    """Lets the jobs of a key go on that were held back after failures."""
    call.mill.close_circuit(asked.name, asked.key, by=call.by)
    return items(call.mill.limits(asked.name, asked.key))
