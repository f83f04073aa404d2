"""A server and those around it: what load balancers ask, proxies with another name, an application's own start and end."""

from __future__ import annotations

import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from fastapi import APIRouter, FastAPI

from gristmill import Mill
from gristmill.api import app, serving
from gristmill.api.serving import Server, check_place
from gristmill.errors import DatabaseError, SchemaMismatch, Unavailable
from tests.api.server import in_thread


@pytest.fixture
def quiet(tmp_path: Path, sqlite_template: Path) -> Iterator[Mill]:
    path = shutil.copy(sqlite_template, tmp_path / "test.db")
    with Mill.open(f"sqlite:///{path}") as mill:
        yield mill


def asked(port: int, path: str, **headers: str) -> httpx.Response:
    return httpx.get(f"http://127.0.0.1:{port}{path}", headers=headers, trust_env=False, timeout=20)


def test_health_does_not_wait_for_a_database_that_hangs(quiet: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting, answered = threading.Semaphore(0), threading.Event()

    def hang() -> None:
        waiting.release()
        assert answered.wait(60)

    monkeypatch.setattr(quiet.ledger, "check_schema", hang)
    many = serving._THREADS
    with in_thread(Server(app(quiet, open=True))) as port, ThreadPoolExecutor(many) as pool:
        try:
            stuck = [pool.submit(asked, port, "/ready") for _ in range(many)]
            assert all(waiting.acquire(timeout=20) for _ in range(many))
            assert asked(port, "/health").json()["status"] == "ok"
        finally:
            answered.set()
        assert {each.result().status_code for each in stuck} == {200}


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Unavailable("cannot reach postgresql://db.secret: no route"), "is out of reach"),
        (SchemaMismatch("the database postgresql://db.secret is at schema 0001"), "has another schema"),
        (DatabaseError("postgresql://db.secret: permission denied"), "is out of reach"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_who_is_not_ready_says_so_to_all_and_why_to_its_log(
    quiet: Mill, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: DatabaseError, said: str
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(quiet.ledger, "check_schema", fail)
    with in_thread(Server(app(quiet, open=True))) as port:
        answer = asked(port, "/ready")
    assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
    assert f"the database {said}" in answer.json()["detail"]
    assert "secret" not in answer.text
    assert "db.secret" in caplog.text


def test_what_an_application_does_at_the_start_and_the_end_is_done(quiet: Mill) -> None:
    done = list[str]()

    @asynccontextmanager
    async def lasting(made: FastAPI) -> AsyncIterator[None]:
        done.append("begun")
        yield
        done.append("ended")

    made = app(quiet, open=True)
    made.include_router(APIRouter(lifespan=lasting))
    with in_thread(Server(made)) as port:
        assert asked(port, "/health").status_code == 200
        assert done == ["begun"]
    assert done == ["begun", "ended"]


def test_where_there_are_tokens_a_good_one_gets_in_by_any_name(quiet: Mill) -> None:
    with in_thread(Server(app(quiet, open=True))) as port:
        assert asked(port, "/api/me", Host="mill.example").status_code == 403
        token = quiet.create_token("ann", "viewer").text
        answer = asked(port, "/api/me", Host="mill.example", Authorization=f"Bearer {token}")
        assert answer.json()["role"] == "viewer"
        assert asked(port, "/api/me", Host="mill.example").status_code == 401
        assert asked(port, "/api/me").status_code == 401


def test_a_server_of_this_machine_is_open_only_if_there_was_never_a_token(quiet: Mill) -> None:
    assert check_place(quiet, "127.0.0.1")
    quiet.create_token("ann", "viewer")
    assert not check_place(quiet, "127.0.0.1")
    quiet.revoke_token("ann")
    assert not check_place(quiet, "localhost")
