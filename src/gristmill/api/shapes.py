"""Answers: the mill's read models as JSON, and as the OpenAPI document describes them."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Generic, TypeVar

import orjson
from fastapi import Response
from pydantic import BaseModel, ConfigDict, create_model

from gristmill.model import to_json

T = TypeVar("T")
_LEFT_OUT = {"created", "results"}  # by `to_json`


class Items(BaseModel, Generic[T]):
    """A list."""

    items: list[T]


class Page(BaseModel, Generic[T]):
    """A part of a list; `next` is the `cursor` of the part that follows, null at the end."""

    items: list[T]
    next: str | None


@cache
def shape(kind: type) -> type[BaseModel]:
    """What `to_json` makes of a dataclass, as a model: all that it has is always there."""
    hints = typing.get_type_hints(kind)
    found: dict[str, Any] = {f.name: (_shape_of(hints[f.name]), ...) for f in fields(kind) if f.name not in _LEFT_OUT}
    config = ConfigDict(extra="forbid")
    return create_model(kind.__name__, __config__=config, __doc__=kind.__doc__, **found)


def extended(kind: type, name: str, **more: Any) -> type[BaseModel]:
    """The same with more in it."""
    fields_of: dict[str, Any] = {key: (hint, ...) for key, hint in more.items()}
    return create_model(name, __base__=shape(kind), __doc__=kind.__doc__, **fields_of)


def items_of(kind: type) -> Any:
    return Items[shape(kind)]  # type: ignore[misc]


def page_of(kind: type) -> Any:
    return Page[shape(kind)]  # type: ignore[misc]


def list_of(kind: type) -> Any:
    return list[shape(kind)]  # type: ignore[misc]


def _shape_of(hint: Any) -> Any:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if is_dataclass(hint):
        return shape(typing.cast(type, hint))
    if origin is tuple:
        return list[_shape_of(inner[0])]  # type: ignore[misc]
    if origin in (types.UnionType, typing.Union):
        return typing.Union[tuple(_shape_of(kind) for kind in inner)]  # noqa: UP007
    if origin is not None:
        return origin[tuple(_shape_of(kind) for kind in inner)]
    return hint


def answer(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(to_json(value)), status, media_type="application/json")


def items(found: Iterable[Any]) -> Response:
    return answer({"items": list(found)})


def page(found: Sequence[Any], limit: int) -> Response:
    """Of `limit + 1` that were looked for, the page and where it goes on."""
    shown = found[:limit]
    return answer({"items": shown, "next": str(shown[-1].id) if len(found) > limit else None})
