"""Following what changes: nothing twice, nothing missed, nothing before its commit, whoever comes back goes on."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from gristmill import Mill
from tests.api.server import At, serving


class Followed:
    """A stream of events, read one by one."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self._lines = answer.iter_lines()
        assert next(self._lines) == "retry: 2000"  # it has begun: what changes from now on will come
        assert next(self._lines) == ""

    def next(self) -> dict[str, str]:
        """The next event that says something."""
        found: dict[str, str] = {}
        for line in self._lines:
            name, _, value = line.partition(": ")
            if line and name:
                found[name] = value
            elif not line and "data" in found:
                return found
            elif not line:
                found = {}
        raise EOFError

    def named(self, name: str) -> Any:
        while (event := self.next())["event"] != name:
            pass
        return json.loads(event["data"])


@contextlib.contextmanager
def following(client: httpx.Client, after: str | None = None, query: str = "") -> Iterator[Followed]:
    headers = {"Last-Event-ID": after} if after else {}
    with client.stream("GET", f"/api/events{query}", headers=headers) as answer:
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        yield Followed(answer)


def test_what_happens_is_told(client: httpx.Client, mill: Mill) -> None:
    with following(client, mill.last_event()) as stream:
        mill.event("shop.sold", {"what": "tea"})
        told = stream.named("shop.sold")
        assert told["data"] == {"what": "tea"}
        run = mill.start("letters", "new", args={"folder": "nowhere"})
        assert stream.named("run")["run"] == run.id


def test_who_comes_back_goes_on_where_they_were(client: httpx.Client, mill: Mill) -> None:
    last = mill.last_event()
    for n in range(5):
        mill.event("shop.sold", {"n": n})
    with following(client, last, "?name=shop.sold") as stream:
        first = [stream.next() for _ in range(2)]
    for n in range(5, 8):
        mill.event("shop.sold", {"n": n})
    with following(client, first[-1]["id"], "?name=shop.sold") as stream:
        rest = [stream.next() for _ in range(6)]
        mill.event("shop.sold", {"n": 8})
        rest.append(stream.next())
    assert [json.loads(event["data"])["data"]["n"] for event in first + rest] == list(range(9))


def test_nothing_is_told_before_its_commit(client: httpx.Client, mill: Mill) -> None:
    with following(client, mill.last_event(), "?name=shop.sold") as stream:
        with contextlib.suppress(ZeroDivisionError), mill.transaction() as connection:
            mill.event("shop.sold", {"n": "never"}, connection=connection)
            raise ZeroDivisionError
        with mill.transaction() as connection:
            mill.event("shop.sold", {"n": "later"}, connection=connection)
            if mill.ledger.is_sqlite:  # where one writes at a time
                assert mill.events(mill.last_event()).events == ()
            else:
                mill.event("shop.sold", {"n": "before"})
                assert json.loads(stream.next()["data"])["data"]["n"] == "before"
        mill.event("shop.sold", {"n": "last"})
        assert [json.loads(stream.next()["data"])["data"]["n"] for _ in range(2)] == ["later", "last"]


def test_a_place_that_is_not_kept_any_more_is_told(client: httpx.Client, mill: Mill) -> None:
    with following(client, "99-5") as stream:
        reset = stream.next()
        assert (reset["event"], reset["id"]) == ("reset", mill.last_event())
    answer = client.get("/api/events", headers={"Last-Event-ID": "nonsense"})
    assert answer.status_code == 422


def test_only_what_is_wanted_is_told(client: httpx.Client, mill: Mill) -> None:
    last = mill.last_event()
    one, two = (mill.start("letters", name, args={"folder": "x"}).id for name in ("one", "two"))
    mill.cancel_run(one)
    mill.cancel_run(two)
    with following(client, last, f"?run={two}") as stream:
        assert {json.loads(stream.next()["data"])["run"] for _ in range(2)} == {two}


def test_many_follow_with_one_reader(served: At, mill: Mill) -> None:
    """200 clients, and one of them comes late: all get the same, in the same order."""
    last = mill.last_event()

    def follow(n: int) -> list[str]:
        with served.client() as client, following(client, last, "?name=shop.sold") as stream:
            return [stream.next()["id"] for _ in range(20)]

    with ThreadPoolExecutor(200) as pool:
        followers = [pool.submit(follow, n) for n in range(200)]
        for n in range(20):
            mill.event("shop.sold", {"n": n})
        found = [follower.result(timeout=100) for follower in followers]
    assert len(set(map(tuple, found))) == 1
    assert len(set(found[0])) == 20
    with served.client() as client:
        assert client.get("/api/me").status_code == 200


def test_a_server_that_is_told_to_stop_does_not_wait_for_followers(filled_url: str) -> None:
    with serving(filled_url) as server, server.client() as client, following(client) as stream:
        server.process.terminate()
        with pytest.raises(EOFError):
            stream.next()
        assert server.process.wait(timeout=30) == 0


def test_who_follows_a_server_that_is_killed_goes_on_at_the_next(filled_url: str, mill: Mill) -> None:
    last = mill.last_event()
    mill.event("shop.sold", {"n": 1})
    with serving(filled_url) as server, server.client() as client, following(client, last, "?name=shop.sold") as stream:
        last = stream.next()["id"]
        server.process.kill()
        with pytest.raises((EOFError, httpx.HTTPError)):
            stream.next()
    mill.event("shop.sold", {"n": 2})
    with serving(filled_url) as server, server.client() as client, following(client, last, "?name=shop.sold") as stream:
        assert json.loads(stream.next()["data"])["data"] == {"n": 2}


def test_the_command_line_loads_nothing_of_the_server() -> None:
    code = "import sys; from gristmill.cli.exits import run; run(['serve', '--help']); print(*sys.modules, file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not {"fastapi", "uvicorn", "starlette", "anyio"} & set(result.stderr.split())
