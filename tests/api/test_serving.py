"""A server and those around it: what load balancers ask, proxies with another name, an application's own start and end."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
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
from gristmill.listening import bind
from gristmill.metrics import Family, Sample
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


def test_a_measure_that_fails_takes_nothing_from_the_others(quiet: Mill, caplog: pytest.LogCaptureFixture) -> None:
    shelf = Family("shop_shelf", "gauge", "What is on the shelf.")
    shelf.add(7)
    failing = True

    def sold() -> list[Family]:
        return list[Family]() if not failing else [Family("shop_sold", "gauge", "x", [Sample(1 / 0)])]

    with in_thread(Server(app(quiet, open=True, metrics=[sold, lambda: [shelf]]))) as port:
        for _ in range(2):
            said = asked(port, "/metrics")
            assert (said.status_code, "gristmill_info" in said.text, "shop_shelf 7" in said.text) == (200, True, True)
            assert "gristmill_own_metrics_failed 1" in said.text
        assert caplog.text.count("ZeroDivisionError") == 1
        failing = False
        assert "gristmill_own_metrics_failed 0" in asked(port, "/metrics").text
        failing = True
        asked(port, "/metrics")
    assert caplog.text.count("ZeroDivisionError") == 2


MOUNTED = """
from fastapi import FastAPI
from gristmill import Mill
from gristmill.api import app

site = FastAPI()
site.mount("/mill", app(Mill.open({url!r}), open=True, pages=True))
"""


def test_who_follows_does_not_keep_a_server_that_it_is_mounted_into(quiet: Mill, tmp_path: Path) -> None:
    """uvicorn waits for every answer to end before it stops."""
    (tmp_path / "site_of_others.py").write_text(MOUNTED.format(url=str(quiet.ledger.url)))
    line = [sys.executable, "-m", "uvicorn", "site_of_others:site", "--app-dir", str(tmp_path), "--port", "0"]
    with subprocess.Popen(line, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stderr is not None
            address = next(found[0] for said in process.stderr if (found := re.search(r"http://[0-9.:]+", said)))
            with httpx.stream("GET", f"{address}/mill/api/events", trust_env=False, timeout=60) as stream:
                lines = stream.iter_lines()
                assert next(lines) == "retry: 2000"
                process.terminate()
                assert [said for said in lines if said.startswith("event")] == []
            assert process.wait(60) in (0, -signal.SIGTERM)
        finally:
            process.kill()


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


def test_the_body_of_an_answer_does_not_wait_until_its_head_is_confirmed() -> None:
    with bind("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()), listening.accept()[0] as one:
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
