"""Streams of events that last: through trouble with the database, for who wants little, and only for who may look."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy.exc import TimeoutError as NoConnection
from starlette.types import Message

from gristmill import Mill
from gristmill.api import app, events
from gristmill.api.events import Hub, Stream
from gristmill.api.serving import Server
from gristmill.errors import Unavailable
from gristmill.watched import Event
from tests.api.server import in_thread


@pytest.fixture
def quiet(tmp_path: Path, sqlite_template: Path) -> Iterator[Mill]:
    """A mill in whose ledger nothing happens by itself."""
    path = shutil.copy(sqlite_template, tmp_path / "test.db")
    with Mill.open(f"sqlite:///{path}") as mill:
        yield mill


class Client:
    """What a client without a network was sent, block by block."""

    def __init__(self) -> None:
        self.blocks: asyncio.Queue[dict[str, str]] = asyncio.Queue()

    async def send(self, message: Message) -> None:
        for block in message.get("body", b"").decode().split("\n\n")[:-1]:
            self.blocks.put_nowait(dict(line.split(": ", 1) for line in block.split("\n")))

    async def receive(self) -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def next(self, said: str = "id") -> dict[str, str]:
        """The next block with such a line."""
        async with asyncio.timeout(20):
            while said not in (block := await self.blocks.get()):
                pass
        return block


@asynccontextmanager
async def followed(
    hub: Hub, after: str, wanted: Callable[[Event], bool] = lambda event: True, admitted: Callable[[], bool] = lambda: True
) -> AsyncIterator[Client]:
    client = Client()
    stream = asyncio.create_task(Stream(hub, after, wanted, admitted)({}, client.receive, client.send))
    try:
        await client.next("retry")
        yield client
    finally:
        stream.cancel()
        with suppress(asyncio.CancelledError):
            await stream


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not happened():
            await asyncio.sleep(0.01)


def sold(mill: Mill) -> str:
    mill.event("shop.sold", {})
    return mill.last_event()


def test_a_reader_that_fails_goes_on_and_nobody_misses_anything(
    quiet: Mill, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(events, "_EVERY", 0.01)
    caplog.set_level(logging.WARNING, "gristmill.api")
    look, fails = quiet.events, list[str]()
    away = False

    def looked(*words: Any, **options: Any) -> Any:
        if away:
            fails.append("again")
            raise NoConnection("QueuePool limit reached")
        return look(*words, **options)

    monkeypatch.setattr(quiet, "events", looked)

    async def check() -> None:
        nonlocal away
        hub = Hub(quiet)
        last = quiet.last_event()
        async with followed(hub, last):
            await until(lambda: hub._last == last)
            async with followed(hub, last) as first:
                away = True
                await until(lambda: len(fails) > 3)  # a look that had begun before is over
                ids = [sold(quiet)]
                await until(lambda: len(fails) > 6)
                async with followed(hub, last) as second:
                    away = False
                    ids.append(sold(quiet))
                    for client in (first, second):
                        assert [(await client.next("data"))["id"] for _ in ids] == ids

    asyncio.run(check())
    assert caplog.text.count("cannot look for events: TimeoutError: QueuePool limit reached") == 1


def test_those_who_are_there_miss_nothing_when_a_reader_has_ended(quiet: Mill) -> None:
    async def check() -> None:
        hub = Hub(quiet)
        async with followed(hub, quiet.last_event()) as first:
            last = sold(quiet)
            await first.next("data")
            await until(lambda: hub._last == last)
            assert hub._reader is not None
            hub._reader.cancel()
            await asyncio.wait([hub._reader])
            last = sold(quiet)
            async with followed(hub, last):
                assert (await first.next("data"))["id"] == last

    asyncio.run(check())


def test_who_has_just_come_is_told_its_place_at_once(quiet: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_SILENCE", 1000)
    sold(quiet)
    with in_thread(Server(app(quiet, open=True))) as port:
        address = f"http://127.0.0.1:{port}/api/events"
        with httpx.stream("GET", address, trust_env=False, timeout=20) as answer:
            lines = answer.iter_lines()
            assert [next(lines) for _ in range(4)] == ["retry: 2000", "", f"id: {quiet.last_event()}", ""]


def test_what_happens_before_the_first_look_is_told(quiet: Mill) -> None:
    async def check() -> None:
        hub = Hub(quiet)
        place = await hub.newest()
        last = sold(quiet)
        async with followed(hub, place) as client:
            assert (await client.next("data"))["id"] == last

    asyncio.run(check())


def test_after_a_reset_the_place_does_not_go_back(quiet: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_SILENCE", 0.1)
    sold(quiet)

    async def check() -> None:
        async with followed(Hub(quiet), "99-5") as client:
            reset = await client.next("event")
            assert (reset["event"], reset["id"]) == ("reset", quiet.last_event())
            assert await client.next() == {"id": reset["id"]}

    asyncio.run(check())


def test_who_wants_nothing_of_all_that_happens_is_told_its_place(quiet: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_SILENCE", 0.5)
    monkeypatch.setattr(events, "_EVERY", 0.01)

    async def check() -> None:
        async def much() -> None:
            while True:
                await asyncio.to_thread(quiet.event, "shop.sold", {})
                await asyncio.sleep(0.05)

        async with followed(Hub(quiet), quiet.last_event(), wanted=lambda event: False) as client:
            busy = asyncio.create_task(much())
            places = [int((await client.next())["id"].partition("-")[2]) for _ in range(3)]
            assert not busy.done()
            busy.cancel()
            assert places[0] < places[1] < places[2]

    asyncio.run(check())


def test_a_stream_ends_with_its_token(quiet: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_ADMITTED", 0.1)
    monkeypatch.setattr(events, "_SILENCE", 1000)
    headers = {"Authorization": f"Bearer {quiet.create_token('ann', 'viewer').text}"}
    with in_thread(Server(app(quiet))) as port:
        address = f"http://127.0.0.1:{port}/api/events"
        with httpx.stream("GET", address, headers=headers, trust_env=False, timeout=20) as answer:
            lines = answer.iter_lines()
            assert next(lines) == "retry: 2000"
            quiet.revoke_token("ann")
            list(lines)  # there is a last one
        assert httpx.get(address, headers=headers, trust_env=False, timeout=20).status_code == 401


def test_while_the_database_is_away_nobody_is_sent_away(quiet: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_ADMITTED", 0.01)
    asked = list[str]()

    def admitted() -> bool:
        asked.append("again")
        raise Unavailable("it went away")

    async def check() -> None:
        async with followed(Hub(quiet), quiet.last_event(), admitted=admitted) as client:
            await until(lambda: len(asked) > 2)
            assert sold(quiet) == (await client.next("data"))["id"]

    asyncio.run(check())
