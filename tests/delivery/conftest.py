"""A mill per test for every database and delivery, with real Valkey behind those that need it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from gristmill import Mill
from gristmill.execution.load import load_sources
from tests.valkey import Valkey, running_valkey

DELIVERIES = ("database", "redis", "rq", "arq")
OnRedis = tuple(name for name in DELIVERIES if name != "database")
Opener = Callable[..., AbstractContextManager[Mill]]


@pytest.fixture
def valkey(session_valkey: Valkey) -> Valkey:
    """Empty, and not to be killed."""
    session_valkey.flush()
    return session_valkey


@pytest.fixture
def own_valkey() -> Iterator[Valkey]:
    """To be killed."""
    with running_valkey() as server:
        yield server


@pytest.fixture(params=DELIVERIES)
def delivery(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opened(database_url: str, delivery: str, valkey: Valkey) -> Opener:
    """Opens mills on one ledger, all with the same delivery; `app`: of `tests.apps`."""
    return opener(database_url, delivery, valkey.url)


def opener(database_url: str, delivery: str, redis_url: str) -> Opener:
    @contextlib.contextmanager
    def open_mill(*apps: str) -> Iterator[Mill]:
        pieces = load_sources(f"module:tests.apps.{app}" for app in apps or ("everyday",))
        with Mill.open(database_url, pieces, delivery=delivery, redis_url=redis_url) as mill:
            yield mill

    return open_mill


@pytest.fixture
def mill(opened: Opener) -> Iterator[Mill]:
    with opened() as mill:
        yield mill
