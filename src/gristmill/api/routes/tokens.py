"""Tokens: who may use this API."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, Field

from gristmill.api.access import Admin, Viewer
from gristmill.api.asking import Asked, AskedInQuery, Name
from gristmill.api.shapes import answer, items, items_of, shape
from gristmill.watched import NewToken, Token

router = APIRouter(tags=["tokens"])
Forever = Annotated[float, Field(ge=1, lt=1e9)]


class Whoami(BaseModel):
    name: str
    role: str


@router.get("/me", response_model=Whoami)
def me(call: Viewer) -> Response:
    """Whom this server takes you for."""
    return answer({"name": call.by, "role": call.role.value})


class WhichTokens(AskedInQuery):
    every: bool = Field(False, description="also those that were revoked")


@router.get("/tokens", response_model=items_of(Token))
def tokens(call: Admin, asked: Annotated[WhichTokens, Query()]) -> Response:
    """Tokens in the order in which they were made; never what their bearers say."""
    return items(call.mill.tokens(every=asked.every))


class AskedToken(Asked):
    name: Name
    role: Literal["viewer", "operator", "admin"] = "viewer"
    expires: Forever | None = Field(None, description="after so many seconds; without it, never")


@router.post("/tokens", response_model=shape(NewToken), status_code=201)
def create(call: Admin, asked: AskedToken) -> Response:
    """Makes a token. Its `text` is said this once: only a hash of it is kept."""
    return answer(call.mill.create_token(asked.name, asked.role, expires=asked.expires, by=call.by), 201)


class Revoked(BaseModel):
    name: str


@router.post("/tokens/{token}/revoke", response_model=Revoked)
def revoke(call: Admin, token: Annotated[Name, Path()], asked: Asked) -> Response:
    """Ends a token at once and for good."""
    call.mill.revoke_token(token, by=call.by)
    return answer({"name": token})
