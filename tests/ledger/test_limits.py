"""Limits: how many of a key are in the line or in progress, and what lets the next go on."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any

import orjson
import pytest

from gristmill import Limit, Pipeline, task
from gristmill.clock import micros
from gristmill.errors import Invalid, NotFound, Refused
from gristmill.housekeeping import Housekeeping, go_on_where_forgotten, go_on_within_limits, prefer_run
from gristmill.ledger import limiting, limits, parts, stop, workers
from gristmill.ledger.claim import Claimed, Lane, Want, claim
from gristmill.ledger.duties import duties
from gristmill.ledger.emit import Item
from gristmill.ledger.exchange import Batch, exchange
from gristmill.ledger.finish import Verdict
from gristmill.ledger.own import finish_own, lock_own
from gristmill.ledger.sql import Sql
from gristmill.ledger.tx import Tx
from gristmill.model import Reason
from tests.ledger.conftest import Open
from tests.ledger.play import LEASE, Play, Player, each, end, plain, plan, solo, step
from tests.ledger.together import together

HOST = Limit("host", per="host", at_once=2)


@task(name="fetch", limit=HOST)
def fetch(ctx: Any, host: str) -> None:
    """A job with a key."""


@task(name="slowly", limit=Limit("pace", per="host", per_second=5))
def slowly(ctx: Any, host: str) -> None:
    """A job with a rate."""


@task(name="shaky", limit=Limit("door", per="host", at_once=3, breaker=2, cooldown=30), retries=10)
def shaky(ctx: Any, host: str) -> None:
    """A job whose key is left alone after failures."""


@task(name="tenant", limit=Limit("tenant", per="who"))
def of_tenant(ctx: Any, who: str) -> None:
    """A job that only takes turns."""


@task(name="book", limit=Limit("site", at_once=1))
def book(ctx: Any) -> None:
    """A job with parts, and a limit that all such share."""


@book.part(name="page", limit=HOST)
def page(ctx: Any, host: str) -> None:
    """A part with a limit."""


CRAWL = plan(
    "crawl", find=step(), page=each("find", limit=HOST), sum=step("page", limit=Limit("who", per="subject", at_once=1))
)


@pytest.fixture
def play(opened: Open) -> Play:
    return opened(fetch, slowly, shaky, of_tenant, book, CRAWL)


def add(play: Play, kind: Any, number: int, **args: Any) -> list[int]:
    return play.mill.enqueue_many(kind, [args] * number)


def waiting(play: Play) -> int:
    return sum(queue.limited for queue in play.mill.queues())


def held(play: Play) -> dict[str, int]:
    """How many of each key are in the line or in progress."""
    rows = play.rows(
        "SELECT l.key, count(*) AS n FROM gm_job j JOIN gm_limit l ON l.id = j.limit_id"
        " WHERE j.ready IS NOT NULL OR j.state = 1 GROUP BY l.key"
    )
    return {row.key: row.n for row in rows}


def on(play: Play, seconds: float) -> None:
    """Time goes by, and a worker does what is due."""
    play.clock.advance(seconds)
    go_on_within_limits(play.ledger)


def turn(player: Player, batch: Batch, most: int = 100) -> list[Claimed]:
    """What a worker does in one transaction: it says what came of its jobs, and takes others."""
    wants = [Want(0, most, (Lane(player.play.queue_ids()["default"], 0),))]
    taken = player.ledger.do(exchange, player.id, batch, wants, {0: most}).taken
    assert taken is not None
    return taken.jobs


# ---- how many at once


def test_of_a_key_only_so_many_are_taken_and_the_end_of_one_lets_the_next_go_on(play: Play) -> None:
    add(play, fetch, 5, host="a")
    add(play, fetch, 1, host="b")
    player = play.player()
    jobs = player.take()
    assert len(jobs) == 3
    assert held(play) == {"a": 2, "b": 1}
    assert player.take() == []
    assert player.end(jobs[0]) == []
    assert len(player.take()) == 1
    assert held(play) == {"a": 2, "b": 1}
    assert waiting(play) == 2


def test_a_limited_job_waits_without_an_attempt(play: Play) -> None:
    ids = add(play, fetch, 3, host="a")
    play.player().take()
    assert [play.mill.job(number).attempt for number in ids] == [1, 1, 0]
    assert play.mill.job(ids[2]).state == "queued"


@pytest.mark.parametrize("verdict", list(Verdict))
def test_every_outcome_gives_the_permit_back(play: Play, verdict: Verdict) -> None:
    add(play, fetch, 4, host="a")
    player = play.player()
    first, _ = player.take()
    assert player.end(first, verdict, **({"delay": 5.0} if verdict is Verdict.LATER else {})) == []
    assert held(play) == {"a": 2}
    assert len(player.take()) == 1


def test_plain_completions_of_many_keys_let_the_next_of_each_go_on(play: Play) -> None:
    for n in range(10):
        add(play, fetch, 4, host=f"h{n}")
    player = play.player()
    jobs = player.take()
    assert len(jobs) == 20
    assert len(turn(player, Batch(completed=plain(*jobs)))) == 20
    assert set(held(play).values()) == {2}


def test_a_rescue_gives_permits_back(play: Play) -> None:
    add(play, fetch, 4, host="a")
    lost = play.player()
    lost.take()
    play.clock.advance(LEASE + 1)
    assert play.ledger.do(workers.rescue, lost.id) == 2
    assert held(play) == {"a": 2}
    assert len(play.player().take()) == 2


@pytest.mark.parametrize("how", ["one", "many", "purge", "retry"])
def test_what_is_cancelled_in_the_line_or_outside_makes_room(play: Play, how: str) -> None:
    ids = add(play, fetch, 5, host="a")
    if how == "one":
        play.mill.cancel_job(ids[0])
    elif how == "many":
        play.mill.cancel_jobs(ids=ids[:2])
    elif how == "purge":
        play.mill.purge_queue("default")
        add(play, fetch, 3, host="a")
    else:
        play.mill.cancel_jobs(ids=ids)
        for number in ids:
            play.mill.retry_job(number)
    assert held(play) == {"a": 2}
    assert len(play.player().take()) == 2


def test_a_delayed_job_takes_its_place_when_it_is_due(play: Play) -> None:
    add(play, fetch, 2, host="a")
    late = play.mill.enqueue(fetch, args={"host": "a"}, delay=10, priority="high")
    player = play.player()
    one, _ = player.take()
    play.clock.advance(11)
    player.heartbeat()
    play.drain(play.player())  # nothing: it is due, but there is no room
    assert play.mill.job(late.id).state == "queued"
    assert player.end(one) == []
    play.drain_later(player=player)
    assert play.mill.job(late.id).state == "completed"


def test_the_urgent_of_a_key_go_first(play: Play) -> None:
    add(play, fetch, 3, host="a")
    urgent = play.mill.enqueue(fetch, args={"host": "a"}, priority="high")
    player = play.player()
    first, _ = player.take()
    player.end(first)
    assert [job.id for job in player.take()] == [urgent.id]


def test_a_queue_that_is_paused_holds_no_permits(play: Play) -> None:
    play.mill.set_queue("other", create=True)
    add(play, fetch, 2, host="a")
    play.mill.enqueue_many(fetch, [{"host": "a"}] * 2, queue="other")
    play.mill.pause("default")
    go_on_within_limits(play.ledger, everything=True)
    player = play.player()
    jobs = player.take()
    assert [play.mill.job(job.id).queue for job in jobs] == ["other", "other"]
    play.mill.resume("default")
    player.report(Batch(completed=plain(*jobs)))
    go_on_within_limits(play.ledger, everything=True)
    assert len(player.take()) == 2


# ---- items and parts


def items(*hosts: str) -> list[Item]:
    return [Item(f"{n}", f'{{"host": "{host}"}}', None, {"page": host}) for n, host in enumerate(hosts)]


@pytest.mark.parametrize("many", [1, 10])
def test_items_have_the_keys_that_their_producer_gives_them(play: Play, many: int) -> None:
    run = play.mill.start(CRAWL, "s")
    player = play.player()
    (find,) = player.take()
    assert player.emit(find, *items(*["a", "a", "a", "b"] * many)) == {}
    assert held(play) == {"a": 2, "b": min(many, 2)}
    player.end(find)
    play.drain(player)
    assert play.run(run).state == "completed"
    assert play.counters(run.id, "page") == (4 * many, 4 * many, 0, 0, 0)


def test_items_with_limits_are_not_started_past_their_line(play: Play) -> None:
    """A worker that has room writes items as in progress at once, but not those that must wait for others."""
    play.mill.start(CRAWL, "s")
    player = play.player()
    (find,) = player.take()
    assert len(turn(player, Batch([player.batch_of(find, *items(*["a"] * 30))]))) == 2
    assert held(play) == {"a": 2}


def test_a_plain_stage_has_the_key_that_its_run_gives(play: Play) -> None:
    runs = [play.mill.start(CRAWL, name) for name in ("s", "t")]
    play.drain(items={"find": items("a")})
    keys = play.rows(
        "SELECT l.key FROM gm_job j JOIN gm_stage g ON g.id = j.stage_id JOIN gm_limit l ON l.id = j.limit_id"
        " WHERE g.name = 'sum' ORDER BY l.key"
    )
    assert [row.key for row in keys] == ["s", "t"]
    assert {play.run(run).state for run in runs} == {"completed"}


def test_items_that_are_retried_keep_to_the_limit(play: Play) -> None:
    run = play.mill.start(CRAWL, "s")
    play.drain(items={"find": items(*"aaaaa")}, verdicts={"page": Verdict.PERMANENT})
    assert play.run(run).state == "failed"
    play.retry(run)
    assert held(play) == {"a": 2}
    play.drain()
    assert play.run(run).state == "completed"


def test_an_item_whose_key_is_another_after_a_retry_counts_there(play: Play) -> None:
    run = play.mill.start(CRAWL, "s")
    player = play.player()
    (find,) = player.take()
    player.emit(find, *items("a", "a"))
    pages = player.take()
    player.end(find)
    assert len(pages) == 2
    play.retry(run, stage="find")
    (find,) = [job for job in player.take() if play.stage_name(job) == "find"]
    player.emit(find, *items("b", "a"))
    assert held(play) == {"a": 1, "b": 1}


def test_the_items_of_an_earlier_run_keep_their_keys(play: Play) -> None:
    play.mill.start(CRAWL, "s")
    play.drain(items={"find": items(*"aaab")})
    again = play.mill.start(CRAWL, "s", from_stage="page")
    assert held(play) == {"a": 2, "b": 1}
    play.drain()
    assert play.run(again).state == "completed"


def test_a_job_that_waits_for_its_parts_lets_another_go_on(play: Play) -> None:
    add(play, book, 2)
    player = play.player()
    (first,) = player.take()
    kind = player.part_kind()._replace(limit_id=play.mill._limit_id(HOST))
    play.ledger.do(parts.hand_over, player.id, first.id, first.attempt, kind, [(f"{n}", None, "a") for n in range(3)])
    assert player.end(first, Verdict.WAITING) == []
    jobs = player.take()
    assert len(jobs) == 3  # the other book, and two pages of the first
    assert held(play) == {"": 1, "a": 2}
    player.report(Batch(completed=plain(*jobs)))
    last = player.take()
    assert len(last) == 1
    player.report(Batch(completed=plain(*last)))
    (first_again,) = player.take()
    assert first_again.id == first.id


def test_a_worker_for_one_run_does_not_wait_for_jobs_that_it_does_not_take(play: Play) -> None:
    first, second = play.mill.start(CRAWL, "s"), play.mill.start(CRAWL, "t")
    player = play.player()
    for find in player.take():
        player.emit(find, *items(*"aaa"))
        player.end(find)
    lane = Lane(play.queue_ids()["default"], 0, run=second.id)
    assert play.ledger.do(claim, player.id, [Want(0, 9, (lane,))], {0: 9}).jobs == []
    prefer_run(play.ledger, second.id)
    jobs = play.ledger.do(claim, player.id, [Want(0, 9, (lane,))], {0: 9}).jobs
    assert [job.run_id for job in jobs] == [second.id] * 2
    prefer_run(play.ledger, second.id)
    assert held(play) == {"a": 2}
    player.report(Batch(completed=plain(*jobs)))
    play.drain(player)
    assert {play.run(run).state for run in (first, second)} == {"completed"}


def test_a_worker_for_one_run_does_not_push_others_aside_for_a_paused_queue(play: Play) -> None:
    run = play.mill.start(CRAWL, "s")
    player = play.player()
    (find,) = player.take()
    play.mill.set_queue("other", create=True)
    others = play.mill.enqueue_many(fetch, [{"host": "a"}] * 2, queue="other")
    player.emit(find, *items(*"aaa"))
    play.mill.pause("default")
    prefer_run(play.ledger, run.id)
    assert [job.id for job in player.take()] == others


# ---- how many per second


def test_a_rate_lets_one_go_on_as_time_goes_by(play: Play) -> None:
    add(play, slowly, 10, host="a")
    player = play.player()
    assert len(player.take()) == 1
    assert player.take() == []
    on(play, 0.19)
    assert player.take() == []
    on(play, 0.02)
    assert len(player.take()) == 1
    on(play, 0.21)
    assert len(player.take()) == 1


def test_a_line_that_nobody_served_does_not_double_the_rate(play: Play) -> None:
    add(play, slowly, 10, host="a")
    player = play.player(lease=10_000)
    started: list[float] = []
    play.clock.advance(60)
    for _ in range(500):  # nobody looked for a minute; then somebody does, all the time
        go_on_within_limits(play.ledger, everything=True)
        started += [play.clock.at] * len(player.take())
        play.clock.advance(0.01)
    assert len(started) == 10
    for first in started:
        assert sum(first <= at < first + micros(1) for at in started) <= 5 + 1


def test_what_was_cancelled_in_the_line_did_not_start(play: Play) -> None:
    first, *_ = add(play, slowly, 3, host="a")
    play.mill.cancel_job(first)
    assert len(play.player().take()) == 1  # at once: the other one used nothing up


def test_rates_of_keys_are_their_own(play: Play) -> None:
    for host in "abc":
        add(play, slowly, 2, host=host)
    assert len(play.player().take()) == 3


# ---- circuits


def broken(play: Play, player: Player, host: str = "a") -> None:
    for job in player.take()[:2]:
        player.end(job, Verdict.ERROR, reason="no answer", delay=0.0)


def circuit(play: Play, key: str = "a") -> str | None:
    (found,) = play.mill.limits("door", key)
    return found.circuit


def test_a_circuit_opens_after_failures_in_a_row_and_nothing_of_its_key_runs(play: Play) -> None:
    ids = add(play, shaky, 8, host="a")
    add(play, shaky, 1, host="b")
    player = play.player()
    jobs = [job for job in player.take() if job.id in ids]
    assert circuit(play) == "closed"
    player.end(jobs[0], Verdict.ERROR)
    assert circuit(play) == "closed"
    player.end(jobs[1], Verdict.TIMEOUT)
    assert circuit(play) == "open"
    assert play.mill.open_circuits() == play.mill.limits("door", "a")
    assert player.take() == []
    found = play.mill.why(job=ids[-1])
    assert found.reason is Reason.LIMITED
    assert "circuit of door 'a' is open after 2 failures" in found.sentence
    assert found.command == ("limit", "close", "door", "a")
    assert any(not d.ok and d.check == "limits" for d in play.mill.doctor())


def test_a_success_between_failures_keeps_it_closed(play: Play) -> None:
    add(play, shaky, 3, host="a")
    player = play.player()
    one, two, three = player.take()
    player.end(one, Verdict.ERROR)
    player.end(two)
    player.end(three, Verdict.ERROR)
    assert circuit(play) == "closed"
    assert play.mill.open_circuits() == []


@pytest.mark.parametrize("verdict", [Verdict.SKIPPED, Verdict.PERMANENT, Verdict.CRASH, Verdict.LOST])
def test_what_says_nothing_about_a_host_neither_counts_nor_clears(play: Play, verdict: Verdict) -> None:
    add(play, shaky, 3, host="a")
    player = play.player()
    one, two, three = player.take()
    player.end(one, Verdict.ERROR)
    player.end(two, verdict)
    assert play.mill.limits("door", "a")[0].failures == 1
    player.end(three, Verdict.ERROR)
    assert circuit(play) == "open"


def end_own(play: Play, player: Player, job: Claimed) -> None:
    """What `ctx.finish` does in an application's own transaction."""
    with play.ledger.transaction() as connection:
        assert play.ledger.join(connection, lock_own, player.id, job.id, job.attempt)
        play.ledger.join(connection, finish_own, player.id, end(job))


def test_a_success_in_an_applications_own_transaction_keeps_it_closed(play: Play) -> None:
    add(play, shaky, 3, host="a")
    player = play.player()
    one, two, three = player.take()
    player.end(one, Verdict.ERROR)
    end_own(play, player, two)
    player.end(three, Verdict.ERROR)
    assert circuit(play) == "closed"
    assert play.mill.limits("door", "a")[0].failures == 1


def test_a_success_in_an_applications_own_transaction_counts_once(play: Play) -> None:
    add(play, shaky, 6, host="a")
    player = play.player()
    one, two, three = player.take()
    player.end(one, Verdict.ERROR)
    end_own(play, player, two)
    go_on_within_limits(play.ledger, everything=True)
    assert play.mill.limits("door", "a")[0].failures == 0
    for job in (three, *player.take()[:1]):
        player.end(job, Verdict.ERROR)
    assert circuit(play) == "open"


def test_a_probe_that_ends_in_an_applications_own_transaction_closes_the_circuit(play: Play) -> None:
    add(play, shaky, 9, host="a")
    player = play.player(lease=10_000)
    for job in player.take():
        player.end(job, Verdict.ERROR)
    on(play, 31)
    (probe,) = player.take()
    end_own(play, player, probe)
    go_on_within_limits(play.ledger, everything=True)
    assert circuit(play) == "closed"
    assert len(player.take()) == 3


def test_what_ends_while_a_key_is_looked_at_is_counted_by_the_next(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its permit was read as one in progress, and must not go with those that are over. (SQLite's writers are alone.)"""
    with closing(Play(pg_url, [shaky])) as play:
        add(play, shaky, 3, host="a")
        player = play.player()
        one, two, three = player.take()
        player.end(one, Verdict.ERROR)
        step_back = limits._step_back

        def meanwhile(tx: Tx, keys: Any) -> None:
            monkeypatch.setattr(limits, "_step_back", step_back)
            end_own(play, player, two)
            step_back(tx, keys)

        monkeypatch.setattr(limits, "_step_back", meanwhile)
        player.end(three, Verdict.RELEASED)
        player.end(player.take_one(), Verdict.ERROR)
        assert circuit(play) == "closed"


@pytest.mark.parametrize("well", [True, False])
def test_an_open_circuit_is_tried_by_one_job_at_a_time(play: Play, well: bool) -> None:
    add(play, shaky, 9, host="a")
    player = play.player(lease=10_000)
    jobs = player.take()
    for job in jobs[:2]:
        player.end(job, Verdict.PERMANENT)  # says nothing about the host
    assert circuit(play) == "closed"
    for job in player.take():
        player.end(job, Verdict.ERROR)
    player.end(jobs[2], Verdict.RELEASED)
    assert circuit(play) == "open"
    on(play, 31)
    assert circuit(play) == "half-open"
    (probe,) = player.take()
    assert player.take() == []
    player.end(probe, Verdict.COMPLETED if well else Verdict.ERROR)
    assert circuit(play) == ("closed" if well else "open")
    assert len(player.take()) == (3 if well else 0)
    on(play, 31)
    assert len(player.take()) == (0 if well else 1)


def test_an_open_circuit_that_nobody_waits_for_is_no_trouble(play: Play) -> None:
    ids = add(play, shaky, 5, host="a")
    player = play.player(lease=10_000)
    for job in player.take():
        player.end(job, Verdict.ERROR)

    def trouble() -> bool:
        return any(not found.ok and found.check == "limits" for found in play.mill.doctor())

    assert trouble()
    play.clock.advance(31)
    assert trouble()
    play.mill.cancel_jobs(ids=ids)
    assert circuit(play) == "half-open"
    assert not trouble()


def test_limits_are_a_duty_only_while_something_waits_or_is_due(play: Play) -> None:
    """Their keys stay: workers must not read them every second for that."""

    def duty() -> bool:
        return play.ledger.glance(duties, 0, 0).limits

    add(play, fetch, 3, host="a")
    assert duty()
    play.drain()
    assert not duty()
    add(play, slowly, 2, host="a")
    assert duty()
    play.drain_later()
    assert not duty()


def test_a_probe_that_is_given_back_lets_another_try(play: Play) -> None:
    add(play, shaky, 5, host="a")
    player = play.player(lease=10_000)
    for job in player.take():
        player.end(job, Verdict.ERROR)
    on(play, 31)
    (probe,) = player.take()
    player.end(probe, Verdict.RELEASED)
    assert len(player.take()) == 1


def test_a_person_closes_a_circuit(play: Play) -> None:
    add(play, shaky, 5, host="a")
    player = play.player()
    for job in player.take()[:2]:
        player.end(job, Verdict.ERROR)
    play.mill.close_circuit("door", "a", by="me")
    assert circuit(play) == "closed"
    assert len(player.take()) == 2
    with pytest.raises(Refused, match="closed already"):
        play.mill.close_circuit("door", "a")
    with pytest.raises(NotFound, match="no key 'z'"):
        play.mill.close_circuit("door", "z")


# ---- turns


def test_a_tenant_with_many_does_not_starve_another(play: Play) -> None:
    add(play, of_tenant, 2000, who="big")
    add(play, of_tenant, 10, who="small")
    player = play.player()
    order: list[str] = []
    while order.count("small") < 10:
        (job,) = player.take(1)
        order.append(orjson.loads(job.args or "{}")["who"])
        play.clock.advance(0.001)
        player.end(job)
    assert len(order) < 40


def test_a_tenant_alone_gets_all_there_is(play: Play) -> None:
    add(play, of_tenant, 500, who="big")
    player = play.player()
    jobs, turns = turn(player, Batch()), 1
    while jobs:
        jobs, turns = turn(player, Batch(completed=plain(*jobs))), turns + 1
    assert not play.unfinished()
    assert turns < 15


# ---- queues


def test_a_queue_lets_so_many_run_at_once_whoever_asks(play: Play) -> None:
    ids = play.mill.enqueue_many(solo, [{}] * 10)
    early = play.player()
    (first,) = early.take(1)
    play.mill.set_queue("default", limits={"at_once": 3})
    assert len(early.take()) == 2
    late = play.player()
    assert late.take() == []
    found = play.mill.why(job=ids[-1])
    assert found.reason is Reason.LIMITED
    assert found.command == ("queue", "set", "default", "--at-once", "6")
    early.end(first)
    assert len(late.take()) == 1
    play.mill.set_queue("default", limits={"at_once": None})
    assert len(late.take()) == 6


def test_a_worker_that_does_not_know_of_the_limit_takes_nothing(play: Play) -> None:
    play.mill.enqueue_many(solo, [{}] * 3)
    play.mill.set_queue("default", limits={"at_once": 1})
    player = play.player()
    wants = [Want(0, 10, (Lane(play.queue_ids()["default"], 0),))]
    assert play.ledger.do(claim, player.id, wants, {0: 10}).jobs == []
    assert len(player.take()) == 1


def test_what_is_claimed_while_a_queue_gets_its_limit_is_counted_when_its_worker_sees_that(pg_url: str) -> None:
    """(SQLite's writers are alone.)"""
    with closing(Play(pg_url, [])) as play:
        play.mill.enqueue_many(solo, [{}] * 3)
        early = play.player()

        def claiming(tx: Tx) -> list[Claimed]:
            taken = claim(tx, early.id, [Want(0, 2, (Lane(play.queue_ids()["default"], 0),))], {0: 2}).jobs
            play.mill.set_queue("default", limits={"at_once": 2})
            return taken

        jobs = play.ledger.do(claiming)
        assert len(jobs) == 2
        assert play.value("SELECT count(*) FROM gm_permit") == 0
        Housekeeping(play.ledger).tick(0.0, early.id, lambda: {job.id for job in jobs}, [])
        assert play.player().take() == []
        early.end(jobs[0])
        assert len(play.player().take()) == 1


def test_reconcile_counts_what_runs_in_a_limited_queue(play: Play) -> None:
    add(play, fetch, 2, host="a")
    play.mill.enqueue(solo)
    play.mill.set_queue("default", limits={"at_once": 3})
    play.player().take()
    play.change("DELETE FROM gm_permit")
    assert len(play.ledger.do(limiting.repair_permits, False)) == 5  # two have two limits

    def poked(tx: Tx) -> list[str]:
        limiting.repair_permits(tx, True)
        return [row.name for row in tx.all(Sql("SELECT name FROM gm_limit WHERE id {in ids}"), ids=sorted(tx.poked))]

    assert play.ledger.do(poked) == ["host"]  # a queue's limit lets nothing into the line
    assert play.ledger.do(limiting.repair_permits, True) == []
    assert play.value("SELECT count(*) FROM gm_permit") == 5


def test_a_queue_has_a_rate(play: Play) -> None:
    play.mill.enqueue_many(solo, [{}] * 10)
    play.mill.set_queue("default", limits={"per_second": 2})
    player = play.player()
    assert len(player.take()) == 1
    play.clock.advance(0.4)
    assert player.take() == []
    play.clock.advance(0.11)
    assert len(player.take()) == 1


def test_a_job_keeps_to_its_own_limit_and_that_of_its_queue(play: Play) -> None:
    for host in "abc":
        add(play, fetch, 3, host=host)
    play.mill.set_queue("default", limits={"at_once": 5})
    player = play.player()
    jobs = player.take()
    assert len(jobs) == 5
    player.report(Batch(completed=plain(*jobs)))
    assert len(player.take()) == 4


# ---- what operators set


def test_what_an_operator_sets_counts_more_and_a_key_more_than_its_limit(play: Play) -> None:
    add(play, fetch, 9, host="a")
    add(play, fetch, 9, host="b")
    play.mill.set_limit("host", numbers={"at_once": 3}, by="me")
    play.mill.set_limit("host", "b", numbers={"at_once": 1}, by="me")
    go_on_within_limits(play.ledger, everything=True)
    assert held(play) == {"a": 3, "b": 1}
    add(play, fetch, 1, host="a")  # declaring it again changes nothing
    assert held(play) == {"a": 3, "b": 1}
    limit = {(found.key, found.at_once, found.set_by) for found in play.mill.limits("host")}
    assert limit == {("", 3, "operator"), ("a", 3, "operator"), ("b", 1, "operator")}
    play.mill.set_limit("host", "b", numbers=None)
    play.mill.set_limit("host", numbers=None)
    go_on_within_limits(play.ledger, everything=True)
    assert held(play) == {"a": 2, "b": 2}
    assert [entry.verb for entry in play.mill.audit()] == ["limit.set"] * 4


def test_a_lowered_limit_takes_jobs_out_of_the_line_but_not_from_workers(play: Play) -> None:
    add(play, fetch, 5, host="a")
    play.mill.set_limit("host", numbers={"at_once": 4})
    player = play.player()
    jobs = player.take(3)
    assert held(play) == {"a": 4}
    play.mill.set_limit("host", numbers={"at_once": 1})
    assert held(play) == {"a": 3}
    for job in jobs[:2]:
        player.end(job)
    assert player.take() == []
    player.end(jobs[2])
    assert len(player.take()) == 1


def test_who_sets_one_key_locks_no_other(play: Play) -> None:
    """Keys are locked in the order of their numbers; whoever has one already cannot begin with an earlier one."""
    for host in "abc":
        add(play, fetch, 3, host=host)

    def setting(tx: Tx, key: str) -> int:
        limiting.set_limit(tx, "host", key, {"at_once": 1}, by="me")
        return len(tx.poked)

    assert play.ledger.do(setting, "b") == 1
    assert held(play) == {"a": 2, "b": 1, "c": 2}
    assert play.ledger.do(setting, "") == 4
    assert held(play) == {"a": 1, "b": 1, "c": 1}


def test_wrong_names_and_numbers_are_refused(play: Play) -> None:
    add(play, fetch, 1, host="a")
    with pytest.raises(NotFound, match="did you mean 'host'"):
        play.mill.set_limit("hosts", numbers={"at_once": 1})
    with pytest.raises(Invalid, match="at_once must be a whole number"):
        play.mill.set_limit("host", numbers={"at_once": 0})
    with pytest.raises(Invalid, match="did you mean 'at_once'"):
        play.mill.set_limit("host", numbers={"at_one": 1})
    play.mill.set_queue("default", limits={"at_once": 1})
    with pytest.raises(Refused, match="queue set default"):
        play.mill.set_limit("queue", "default", numbers={"at_once": 1})
    with pytest.raises(Invalid, match="has no limit"):
        play.mill.enqueue(solo, limit_key="a")
    with pytest.raises(Invalid, match="cannot be had"):
        Limit("host", per=lambda host: host.upper()).key({"host": 3})


def test_a_key_can_be_given(play: Play) -> None:
    for _ in range(3):
        play.mill.enqueue(fetch, args={"host": "a"}, limit_key="b")
    assert held(play) == {"b": 2}


# ---- the same in an application's transaction, and after damage


def key_of(play: Play, job: int) -> str:
    return str(play.value(f"SELECT l.key FROM gm_job j JOIN gm_limit l ON l.id = j.limit_id WHERE j.id = {job:d}"))


def test_a_job_with_other_arguments_counts_under_the_key_that_they_give(play: Play) -> None:
    first, *_ = add(play, fetch, 3, host="a")
    add(play, fetch, 2, host="b")
    assert held(play) == {"a": 2, "b": 2}
    play.mill.edit_job(first, {"host": "b"}, dry_run=True)
    assert (key_of(play, first), held(play)) == ("a", {"a": 2, "b": 2})
    play.mill.edit_job(first, {"host": "b"})
    assert (key_of(play, first), held(play)) == ("b", {"a": 2, "b": 2})  # the next of a has its place; b is full
    assert waiting(play) == 1
    player = play.player()
    jobs = player.take()
    assert first not in [job.id for job in jobs]
    player.end(next(job for job in jobs if key_of(play, job.id) == "b"))
    assert [job.id for job in player.take()] == [first]


def test_a_job_that_waits_for_its_key_goes_on_at_once_where_another_has_room(play: Play) -> None:
    *_, last = add(play, fetch, 3, host="a")
    assert waiting(play) == 1
    play.mill.edit_job(last, {"host": "b"})
    assert (held(play), waiting(play)) == ({"a": 2, "b": 1}, 0)


def test_a_delayed_job_with_another_key_is_as_late_as_before(play: Play) -> None:
    job = play.mill.enqueue(fetch, args={"host": "a"}, delay=60).id
    play.mill.edit_job(job, {"host": "b"})
    assert (key_of(play, job), held(play)) == ("b", {})
    assert play.player().take() == []
    play.drain_later()
    assert play.mill.job(job).state == "completed"


def test_the_rate_of_the_key_that_a_job_leaves_is_not_spent(play: Play) -> None:
    first, second = add(play, slowly, 2, host="a")
    assert held(play) == {"a": 1}
    play.mill.edit_job(first, {"host": "b"})
    assert held(play) == {"a": 1, "b": 1}
    assert {job.id for job in play.player().take()} == {first, second}


def test_an_item_with_other_arguments_counts_under_their_key(opened: Open) -> None:
    crawl = Pipeline("crawl")
    crawl.stage(name="find")(lambda ctx: None)
    crawl.stage(name="page", after="find", each=True, limit=HOST)(lambda ctx, host: None)
    play = opened(crawl)
    play.mill.start(crawl, "s")
    player = play.player()
    (find,) = player.take()
    player.emit(find, *items(*"aaa"))
    first, *_ = sorted(job.id for job in play.mill.jobs(stage="page"))
    play.mill.edit_job(first, {"host": "b"})
    assert held(play) == {"a": 2, "b": 1}


def test_a_key_that_was_given_stays_with_other_arguments(play: Play) -> None:
    job = play.mill.enqueue(fetch, args={"host": "a"}, limit_key="own").id
    play.mill.edit_job(job, {"host": "b"})
    assert (key_of(play, job), held(play)) == ("own", {"own": 1})


def test_who_does_not_know_the_task_cannot_edit_a_job_that_has_a_key(opened: Open) -> None:
    job, free = (opened(fetch, book).mill.enqueue(kind, args=args).id for kind, args in ((fetch, {"host": "a"}), (book, {})))
    elsewhere = opened()
    with pytest.raises(Refused, match=r"counts against a limit by its arguments.*edit it with the application"):
        elsewhere.mill.edit_job(job, {"host": "b"})
    assert elsewhere.mill.job(job).args == {"host": "a"}
    assert elsewhere.mill.edit_job(free, {"n": 1}).args == {"n": 1}  # all of its limit have one key


def test_of_two_who_edit_a_job_the_one_who_saw_it_before_is_refused(play: Play) -> None:
    job = play.mill.enqueue(fetch, args={"host": "a"}).id
    moves = play.mill._moves(play.mill.job(job), {"host": "b"})
    play.mill.edit_job(job, {"host": "c"})
    with pytest.raises(Refused, match="has just got other arguments"):
        play.ledger.do(stop.edit_job, job, '{"host":"b"}', moves, by="me")
    assert (key_of(play, job), play.mill.job(job).args) == ("c", {"host": "c"})


def test_what_an_application_adds_in_its_own_transaction_goes_on_by_housekeeping(play: Play) -> None:
    with play.mill.transaction() as connection:
        play.mill.enqueue(fetch, args={"host": "a"}, connection=connection)
    go_on_within_limits(play.ledger, everything=True)
    assert len(play.player().take()) == 1


def test_reconcile_counts_again(play: Play) -> None:
    add(play, fetch, 5, host="a")
    (running,) = play.player().take(1)
    play.change("DELETE FROM gm_permit")
    assert len(play.ledger.do(limiting.repair_permits, False)) == 2
    assert {r.what for r in play.ledger.do(limiting.repair_permits, True)} == {"step back", "count"}
    assert held(play) == {"a": 2}
    assert play.ledger.do(limiting.repair_permits, True) == []
    assert play.mill.job(running.id).state == "in_progress"


# ---- at the same time


def test_many_at_once_never_let_one_too_many_through(play: Play) -> None:
    """Six workers, an enqueuer and an operator on real connections, and somebody who counts all the time."""
    hosts = "abcdefgh"
    over: list[dict[str, int]] = []
    done = threading.Event()
    left = [6]

    def work() -> None:
        player = play.player(lease=10_000)
        for n in range(25):
            jobs = player.take(4)
            for job in jobs:
                player.end(job, Verdict.RELEASED if n % 5 == 0 else Verdict.COMPLETED)
        left[0] -= 1
        if not left[0]:
            done.set()

    def ask() -> None:
        for _ in range(10):
            play.mill.enqueue_many(fetch, [{"host": host} for host in hosts] * 3)
            go_on_within_limits(play.ledger, everything=True)

    def count() -> None:
        while not done.is_set():
            found = held(play)
            if any(number > 2 for number in found.values()):
                over.append(found)

    together(*[work] * 6, ask, count)
    assert over == []
    play.drain(play.player(lease=10_000))
    assert play.unfinished() == 0


def test_circuits_and_limits_of_queues_do_not_wait_for_each_other(play: Play) -> None:
    """Locks are taken in one order: keys by number, then queues."""
    play.mill.set_queue("other", create=True, limits={"at_once": 5})
    play.mill.set_queue("default", create=True, limits={"at_once": 5})

    def work(first: str, second: str) -> None:
        player = play.player(lease=10_000)
        for n in range(20):
            play.mill.enqueue_many(shaky, [{"host": host} for host in "abc"], queue=first if n % 2 else second)
            for job in player.take(3, queues=[first, second]):
                player.end(job, Verdict.ERROR if n % 3 else Verdict.COMPLETED)

    together(*[lambda: work("default", "other"), lambda: work("other", "default")] * 2)


def test_a_look_at_many_keys_goes_on_where_the_last_one_ended(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger may have 100,000 keys: no worker looks at all of them at once, and none is left out."""
    with play.mill.transaction() as connection:
        for n in range(9):
            play.mill.enqueue(fetch, args={"host": f"h{n}"}, connection=connection)
    monkeypatch.setattr(limits.to_promote, "__defaults__", (0, 4))
    found: list[int] = []
    after = 0
    for _ in range(3):
        after = go_on_where_forgotten(play.ledger, after, until=0.0)
        found.append(len(held(play)))
    assert (found, after) == ([4, 8, 9], 0)
    assert len(play.player().take()) == 9


def test_keys_of_which_jobs_wait_are_found_from_key_to_key(opened: Open) -> None:
    """However many jobs of a key there are: reading them all for each of 1,000 keys took a third of a worker's time."""
    play = opened(fetch)
    play.mill.enqueue_many(fetch, [{"host": f"h{n % 40}"} for n in range(400)])
    with play.ledger.reading() as tx:
        tx.by_key()
        word = "EXPLAIN QUERY PLAN" if tx.dialect == "sqlite" else "EXPLAIN"
        with tx.in_order():
            told = " ".join(str(row) for row in tx.tuples(Sql(f"{word} {limits._WAITING_KEYS.text}"), after=0, most=100))
        keys = limits.waiting_keys(tx)
        assert len(keys) == 40
        assert limits.waiting_keys(tx, most=15) + limits.waiting_keys(tx, keys[14]) == keys
    assert "gm_job_limited" in told, told
    assert "gm_job_later" not in told


# ---- in part runs


def limited(opened: Open, limit: Limit | None) -> Play:
    """The same pipeline, as it was or is now."""
    return opened(plan("crawl", find=step(), page=each("find", limit=limit) if limit else each("find")))


def taken_over(play: Play, **part: Any) -> list[tuple[str, str] | None]:
    """The limits, with their keys, of what a part run takes over."""
    run = play.mill.start("crawl", "s", **part)
    rows = play.rows(
        "SELECT l.name, l.key FROM gm_job j LEFT JOIN gm_limit l ON l.id = j.limit_id WHERE j.run_id = :run ORDER BY j.key",
        run=run.id,
    )
    return [None if row.name is None else (row.name, row.key) for row in rows]


def crawled(play: Play) -> None:
    play.mill.start("crawl", "s")
    items = [Item(key, None, None, {"page": f"{key}.org"}) for key in ("a", "b", "c")]
    play.drain(items={"find": items})


def test_items_of_a_part_run_keep_the_keys_of_their_limit(opened: Open) -> None:
    play = limited(opened, HOST)
    crawled(play)
    assert taken_over(play, from_stage="page") == [("host", "a.org"), ("host", "b.org"), ("host", "c.org")]


@pytest.mark.parametrize("before", [None, Limit("tenant", per="who")])
def test_a_limit_that_is_new_holds_for_a_part_run_too(opened: Open, before: Limit | None) -> None:
    """What its keys would be, nobody has asked these items: they have one together."""
    crawled(limited(opened, before))
    play = limited(opened, HOST)
    assert taken_over(play, from_stage="page") == [("host", "")] * 3
    player = play.player()
    held = player.take()
    assert (len(held), waiting(play)) == (2, 1)
    player.complete(*held)
    assert len(player.take()) == 1


def test_a_limit_that_is_no_more_does_not_hold_for_a_part_run(opened: Open) -> None:
    crawled(limited(opened, HOST))
    play = limited(opened, None)
    assert taken_over(play, only={"page": "a*"}) == [None] * 3
    assert (len(play.player().take()), waiting(play)) == (1, 0)
