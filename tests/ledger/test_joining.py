"""A hundred callers who start the same subject at the same moment, each on a connection of its own: what is promised
to each is what is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from gristmill import Mill
from gristmill.clock import FrozenClock
from gristmill.errors import Refused
from gristmill.ledger.finish import Verdict
from gristmill.ledger.store import Ledger
from gristmill.model import Run
from gristmill.priority import Priority
from tests.ledger.conftest import Open
from tests.ledger.play import Play, each, plan, step
from tests.ledger.together import outcomes, together

pytestmark = pytest.mark.slow  # of ./run chaos

CALLERS = 100
LEVELS = ("low", "normal", "high")

Starts = Callable[..., list[Run | None]]


@pytest.fixture
def play(opened: Open) -> Play:
    return opened(plan("site", find=step(), page=each("find"), total=step("page")))


@pytest.fixture
def callers(play: Play, database_url: str, clock: FrozenClock) -> Iterator[list[Mill]]:
    """Mills that share nothing but the database, each with an open connection."""
    with ExitStack() as opened:

        def caller() -> Mill:
            mill = Mill(Ledger(database_url, clock), play.mill.registry)
            opened.callback(mill.close)
            mill._plan(play.mill.registry.pipeline("site"))  # also connects, so that nothing but the start is left to do
            return mill

        yield [caller() for _ in range(CALLERS)]


@pytest.fixture
def start_all(callers: list[Mill]) -> Starts:
    """All callers start the subject at once, each in its own way; None: refused."""

    def start(how: Callable[[int], dict[str, Any]], *others: Callable[[], Any]) -> list[Run | None]:
        calls = [partial(mill.start, "site", "s", **how(n)) for n, mill in enumerate(callers)]
        ended = outcomes(*calls, *others)
        for other in ended[len(calls) :]:
            other()
        return [_unless_refused(result) for result in ended[: len(calls)]]

    return start


def _unless_refused(result: Callable[[], Run]) -> Run | None:
    try:
        return result()
    except Refused:
        return None


def runs(play: Play) -> dict[int, str]:
    return {run.id: run.state for run in play.mill.runs(subject="s", limit=10_000)}


def priorities(play: Play, run: int) -> set[str]:
    """Of the run, and of its queued jobs."""
    rows = play.rows("SELECT DISTINCT priority FROM gm_job WHERE run_id = :run AND state = 0", run=run)
    return {play.mill.run(run).priority} | {Priority(row.priority).word for row in rows}


# ---- join


def test_joins_of_nothing_make_one_run_of_the_highest_priority(play: Play, start_all: Starts) -> None:
    got = start_all(lambda n: {"priority": LEVELS[n % 3]})
    assert (len({run.id for run in got if run}), sum(run.created for run in got if run)) == (1, 1)
    assert None not in got
    assert [priorities(play, run) for run in runs(play)] == [{"high"}]


def test_joins_raise_the_run_and_all_its_queued_jobs(play: Play, start_all: Starts) -> None:
    active = play.mill.start("site", "s", priority="low")
    player = play.player()
    find = player.take_one()
    player.emit(find, *[f"{n:04}" for n in range(3000)])  # more than one caller raises at once
    got = start_all(lambda n: {"priority": LEVELS[n % 3]})
    assert Counter((run.id, run.created) for run in got if run) == {(active.id, False): CALLERS}
    assert priorities(play, active.id) == {"high"}
    player.emit(find, "later")
    assert priorities(play, active.id) == {"high"}


def test_joins_reach_items_that_are_emitted_claimed_and_given_back_meanwhile(play: Play, start_all: Starts) -> None:
    active = play.mill.start("site", "s", priority="low")
    producer, other = play.player(), play.player()
    find = producer.take_one()

    def emit() -> None:
        for n in range(40):
            assert producer.emit(find, *[f"{n}-{k}" for k in range(25)]) == {}

    def claim_and_give_back() -> None:
        for _ in range(40):
            other.finish(*[_released(job) for job in other.take(50)])

    start_all(lambda n: {"priority": LEVELS[n % 3]}, emit, claim_and_give_back)
    assert play.counters(active.id, "page")[0] == 1000
    assert priorities(play, active.id) == {"high"}


def _released(job: Any) -> Any:
    from tests.ledger.play import end

    return end(job, Verdict.RELEASED)


def test_joins_never_lower_a_priority(play: Play, start_all: Starts) -> None:
    active = play.mill.start("site", "s", priority="high")
    start_all(lambda n: {"priority": LEVELS[n % 2]})
    assert priorities(play, active.id) == {"high"}


# ---- wait


def test_waits_make_exactly_one_follow_up(play: Play, start_all: Starts) -> None:
    active = play.mill.start("site", "s")
    got = start_all(lambda n: {"priority": LEVELS[n % 3], "if_active": "wait"})
    ids = {run.id for run in got if run}
    assert (len(ids), sum(run.created for run in got if run)) == (1, 1)
    (waiting,) = ids
    assert runs(play) == {active.id: "queued", waiting: "waiting"}
    play.drain()
    assert runs(play) == {active.id: "completed", waiting: "completed"}
    assert {job.priority for job in play.mill.jobs(run=waiting)} == {"high"}
    assert Counter(play.ran) == {"find": 2, "total": 2}


def test_waits_for_nothing_make_one_active_and_one_waiting_run(play: Play, start_all: Starts) -> None:
    got = start_all(lambda n: {"if_active": "wait"})
    assert sum(run.created for run in got if run) == 2
    assert sorted(runs(play).values()) == ["queued", "waiting"]
    play.drain()
    assert sorted(runs(play).values()) == ["completed", "completed"]


def test_waits_while_the_run_ends_lose_no_follow_up(play: Play, start_all: Starts) -> None:
    """Whoever asked to wait gets a run that began after the call, whatever the active one does meanwhile."""
    active = play.mill.start("site", "s")
    player = play.player()
    find = player.take_one()
    got = start_all(lambda n: {"if_active": "wait"}, partial(player.complete, find), play.drain)
    play.drain()
    ids = {run.id for run in got if run}
    assert None not in got
    assert active.id not in ids
    assert runs(play) == dict.fromkeys([active.id, *ids], "completed")


# ---- refuse


def test_refusals_let_one_through(play: Play, start_all: Starts) -> None:
    got = start_all(lambda n: {"if_active": "refuse"})
    assert Counter(run is not None and run.created for run in got) == {True: 1, False: CALLERS - 1}
    assert list(runs(play).values()) == ["queued"]


def test_refusals_of_an_active_run_change_nothing(play: Play, start_all: Starts) -> None:
    active = play.mill.start("site", "s", priority="low")
    assert set(start_all(lambda n: {"if_active": "refuse", "priority": "high"})) == {None}
    assert runs(play) == {active.id: "queued"}
    assert priorities(play, active.id) == {"low"}


# ---- all at once


def test_every_way_at_once_against_a_cancel(play: Play, start_all: Starts) -> None:
    ways = ("join", "wait", "refuse")
    active = play.mill.start("site", "s", priority="low")
    got = start_all(
        lambda n: {"if_active": ways[n % 3], "priority": LEVELS[n % 2]}, partial(play.mill.cancel_run, active.id)
    )
    assert all(run is not None for n, run in enumerate(got) if n % 3 != 2)
    assert all(run is None or run.created for run in got[2::3])
    assert Counter(runs(play).values())["waiting"] <= 1
    together(*[play.drain] * 2)
    play.drain()
    ended = runs(play)
    assert ended.pop(active.id) == "cancelled"
    assert set(ended.values()) == {"completed"}
    assert {run.id for run in got if run} <= {active.id, *ended}
