"""What is late is late by the database's clock: that of the server may be wrong by an hour, and nothing changes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gristmill import Mill
from gristmill.api import app
from gristmill.clock import SECOND
from gristmill.ledger import workers
from gristmill.web import verdict
from tests.web.filling import mill_of
from tests.web.test_guarding import here

HOUR = 3600 * SECOND
AWAY = [-HOUR, HOUR]  # how far the database's clock is from the server's


@pytest.fixture(params=AWAY, ids=["behind", "ahead"])
def now(request: pytest.FixtureRequest) -> Callable[[], int]:
    begun = time.time_ns() // 1000 + request.param
    return lambda: begun


@pytest.fixture
def url(tmp_path: Path, sqlite_template: Path) -> str:
    return f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'test.db')}"


@pytest.fixture
def mill(url: str, now: Callable[[], int]) -> Iterator[Mill]:
    with mill_of(url, clock=now) as mill:
        yield mill


def at(url: str, moment: int, act: Callable[[Mill], object]) -> None:
    with mill_of(url, clock=lambda: moment) as then:
        act(then)


def register(mill: Mill) -> None:
    mill.ledger.do(workers.register, workers.Registration("mill-1", 7, "-", (), 1, "-"), 60 * SECOND)


def seen(mill: Mill) -> str:
    with here(app(mill, open=True, pages=True)) as client:
        return client.get("/").text


def test_a_worker_whose_lease_goes_on_is_not_late(mill: Mill) -> None:
    register(mill)
    assert [worker.late for worker in mill.workers()] == [False]
    assert "not heard of" not in seen(mill)


def test_a_worker_whose_lease_has_ended_is_late(url: str, mill: Mill, now: Callable[[], int]) -> None:
    at(url, now() - 61 * SECOND, register)
    assert [worker.late for worker in mill.workers()] == [True]
    assert "worker 1 on mill-1 is not heard of any more." in seen(mill)


def test_a_schedule_is_late_two_minutes_after_it_should_have_fired(url: str, mill: Mill, now: Callable[[], int]) -> None:
    at(url, now() - 3 * 24 * HOUR, lambda then: then.declare_schedules())
    late = [entry for entry in mill.schedules() if entry.late]
    assert [entry.name for entry in late] == [entry.name for entry in mill.schedules() if entry.state == "on"]
    assert any(concern.sentence.endswith("should have fired 3 d ago.") for concern in _concerns(mill))
    next_at = min(entry.next_at for entry in late if entry.next_at)
    with mill_of(url, clock=lambda: round(next_at.timestamp() * SECOND) + 60 * SECOND) as then:
        assert not any(entry.late for entry in then.schedules())


def _concerns(mill: Mill) -> list[verdict.Concern]:
    return verdict.concerns(verdict.Seen(mill.status(), (), (), mill.schedules()))
