"""RQ and Arq as delivery: what is in Redis, what is claimed by it, and that nothing is lost with it."""

from __future__ import annotations

import zlib
from contextlib import closing
from pathlib import Path

import pytest

from gristmill import Mill
from gristmill.delivery import broker as brokers
from gristmill.delivery.broker import BrokerBell, BrokerDelivery
from gristmill.delivery.offers import Offers
from gristmill.delivery.protocol import Bell
from gristmill.ledger import outbox
from gristmill.ledger.tx import Tx
from tests.apps import everyday
from tests.delivery.conftest import Opener, opener
from tests.delivery.test_conformance import is_quiet, listening
from tests.valkey import Valkey, running_valkey
from tests.worker.helpers import all_end, drain, eventually, lines, worker_process, working

BROKERS = ("rq", "arq")


@pytest.fixture(params=BROKERS)
def delivery(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def carrier(mill: Mill) -> BrokerDelivery:
    assert isinstance(mill.delivery, BrokerDelivery)
    return mill.delivery


def queued_there(valkey: Valkey, delivery: str, queue: str = "default") -> int:
    """How many messages wait in the broker's own queues."""
    with valkey.client as client:
        if delivery == "arq":
            return int(client.zcard(f"arq:queue:{queue}"))
        return sum(int(client.llen(f"rq:queue:{queue}{level}")) for level in ("", ":high", ":low"))


def published(mill: Mill) -> set[int]:
    with mill.ledger.engine.connect() as connection:
        return {row[0] for row in connection.exec_driver_sql("SELECT job_id FROM gm_message")}


# ---- publishing


def test_a_job_is_published_under_a_name_that_is_recorded(mill: Mill, valkey: Valkey, delivery: str) -> None:
    job = mill.enqueue(everyday.add, args={"a": 1})
    assert queued_there(valkey, delivery) == 1
    assert mill.backend_job_id(job.id) == {"rq": f"{job.id}-1", "arq": f"{job.id}:1"}[delivery]
    later = mill.enqueue(everyday.add, args={"a": 1}, delay=60)
    assert mill.backend_job_id(later.id) is None
    assert queued_there(valkey, delivery) == 1, "only what is ready is published"


def test_everything_in_redis_can_be_read_without_pickle(mill: Mill, valkey: Valkey) -> None:
    with working(mill, slots=2):
        all_end(mill, *mill.enqueue_many(everyday.add, [{"a": n} for n in range(3)]))
        mill.enqueue_many(everyday.add, [{"a": n} for n in range(3)])
        seen = 0
        with valkey.client as client:
            for key in client.scan_iter():
                values = client.hvals(key) if client.type(key) == b"hash" else []
                values += [client.get(key)] if client.type(key) == b"string" else []
                for value in filter(None, values):
                    seen += 1
                    assert not value.startswith(b"\x80"), f"{key!r} is a pickle"
                    if value.startswith(b"x\x9c"):
                        assert zlib.decompress(value).startswith(b"[")
    assert seen


def test_what_an_enqueuer_could_not_publish_the_relay_does(
    mill: Mill, carrier: BrokerDelivery, valkey: Valkey, delivery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as dead:
        dead.setattr(BrokerDelivery, "after_commit", lambda *_: None)  # it died after its commit
        job = mill.enqueue(everyday.add, args={"a": 1})
    assert queued_there(valkey, delivery) == 0
    mill.relay().tick(0.0)
    assert queued_there(valkey, delivery) == 1
    assert published(mill) == {job.id}
    mill.relay().tick(0.0)
    assert queued_there(valkey, delivery) == 1, "what is published is not published again"


def test_what_could_not_be_recorded_is_published_again_under_the_same_name(
    mill: Mill, valkey: Valkey, delivery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as dead:
        dead.setattr(outbox, "record", lambda *_: None)
        job = mill.enqueue(everyday.add, args={"a": 1})
    assert mill.backend_job_id(job.id) is None
    mill.relay().tick(0.0)
    assert mill.backend_job_id(job.id) is not None
    assert queued_there(valkey, delivery) == {"rq": 2, "arq": 1}[delivery]
    drain(mill, slots=1)
    assert mill.job(job.id).attempt == 1


def test_a_paused_queue_is_not_published_until_it_goes_on(mill: Mill, valkey: Valkey, delivery: str) -> None:
    mill.enqueue(everyday.add, args={"a": 0})
    valkey.flush()
    mill.pause("default")
    mill.enqueue(everyday.add, args={"a": 1})
    mill.relay().tick(0.0)
    assert queued_there(valkey, delivery) == 0
    mill.resume("default")
    mill.relay().tick(0.0)
    assert queued_there(valkey, delivery) == 2


def test_a_retry_is_published_anew(mill: Mill, delivery: str) -> None:
    job = mill.enqueue(everyday.permanent)
    drain(mill, slots=1)
    mill.retry_job(job.id)
    assert mill.backend_job_id(job.id) == {"rq": f"{job.id}-2", "arq": f"{job.id}:2"}[delivery]


@pytest.mark.slow  # of ./run chaos suites
def test_a_million_ready_jobs_do_not_fill_redis(
    mill: Mill, valkey: Valkey, delivery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "WINDOW", 10)
    monkeypatch.setattr(brokers, "_BATCH", 4)
    mill.enqueue_many(everyday.add, [{"a": n} for n in range(25)])
    mill.relay().tick(0.0)
    assert 10 <= queued_there(valkey, delivery) <= 14
    for n in range(10):  # those that come one by one stand behind them
        mill.enqueue(everyday.add, args={"a": n})
    mill.relay().tick(0.0)
    assert 10 <= queued_there(valkey, delivery) <= 14
    drain(mill, slots=1)
    assert len(mill.jobs(state="completed")) == 35


# ---- Redis loses things


def test_after_flushall_everything_is_published_again(mill: Mill, valkey: Valkey, delivery: str) -> None:
    mill.enqueue_many(everyday.add, [{"a": n} for n in range(5)])
    for _ in range(3):
        valkey.flush()
        mill.enqueue(everyday.add, args={"a": 1})  # the new data must not hide that the old are gone
        mill.relay().tick(0.0)
        assert queued_there(valkey, delivery) == len(mill.jobs(state="queued"))


def test_after_a_crash_with_old_data_on_disk_the_rest_is_published_again(sqlite_url: str, delivery: str) -> None:
    with running_valkey(keeps=True) as server, opener(sqlite_url, delivery, server.url)() as mill:
        mill.enqueue(everyday.add, args={"a": 0})
        with server.client as client:
            client.save()
        lost = mill.enqueue(everyday.add, args={"a": 1})
        server.kill()
        server.start()
        assert queued_there(server, delivery) == 1
        mill.enqueue(everyday.add, args={"a": 2}, queue="tools")  # as many batches as before, but not the same
        mill.relay().tick(0.0)
        with server.client as client:
            there = client.zrange("arq:queue:default", 0, -1) + client.lrange("rq:queue:default", 0, -1)
        assert str(mill.backend_job_id(lost.id)).encode() in there
        assert lost.id in published(mill)


# ---- taking


def offers(bell: Bell, offered: list[int], number: int) -> None:
    """Until so many were offered in all."""

    def enough() -> bool:
        offered.extend(bell.heard().jobs)
        return len(offered) == number

    eventually(enough, f"{number} are offered")


def test_jobs_are_offered_by_their_numbers_as_many_as_there_is_room_for(mill: Mill) -> None:
    with closing(listening(mill)) as bell:
        bell.want(2)
        jobs = mill.enqueue_many(everyday.add, [{"a": n} for n in range(4)])
        offered: list[int] = []
        offers(bell, offered, 2)
        assert is_quiet(bell)
        bell.done(offered)
        bell.want(4)
        offers(bell, offered, 4)
        assert sorted(offered) == jobs


def test_high_priority_comes_first_and_low_last(mill: Mill) -> None:
    with closing(listening(mill)) as bell:
        bell.want(0)
        jobs = [mill.enqueue(everyday.add, args={"a": 0}, priority=level).id for level in ("low", "normal", "high")]
        offered: list[int] = []
        bell.want(1)
        for n in range(1, 4):
            offers(bell, offered, n)
            bell.want(1)
        assert offered == jobs[::-1]


def test_doubled_and_stale_messages_are_dropped_by_the_claim(
    mill: Mill, carrier: BrokerDelivery, valkey: Valkey, delivery: str, tmp_path: Path
) -> None:
    jobs = [mill.enqueue(everyday.write_down, args={"folder": str(tmp_path), "name": str(n)}) for n in range(3)]
    due = [outbox.Due(job.id, 1, 1, 1) for job in jobs]
    for _ in range(3):
        carrier._send("default", due)
    carrier._send("default", [outbox.Due(10**6, 1, 1, 1)])  # a job that is not there
    with working(mill, slots=2, poll=0.2):
        all_end(mill, *(job.id for job in jobs))
        eventually(lambda: queued_there(valkey, delivery) == 0, "all messages are taken")
        carrier._send("default", due)  # of jobs that have ended
        eventually(lambda: queued_there(valkey, delivery) == 0, "all messages are taken")
        eventually(lambda: in_hand(valkey, delivery) == 0, "and over")
    assert [mill.job(job.id).attempt for job in jobs] == [1, 1, 1]


def in_hand(valkey: Valkey, delivery: str) -> int:
    with valkey.client as client:
        if delivery == "arq":
            return len(list(client.scan_iter("arq:in-progress:*")))
        return len(list(client.scan_iter("rq:job:*")))


def test_a_message_that_came_while_its_queue_was_paused_rings_again(mill: Mill, valkey: Valkey, delivery: str) -> None:
    with working(mill, slots=1, poll=0.2):
        all_end(mill, mill.enqueue(everyday.add, args={"a": 0}).id)
        mill.ledger.do(pause_silently)
        job = mill.enqueue(everyday.add, args={"a": 1})
        mill.delivery._send("default", [outbox.Due(job.id, 1, 1, 1)])  # type: ignore[attr-defined]
        eventually(lambda: queued_there(valkey, delivery) == 0)
        assert mill.job(job.id).state == "queued"
        mill.resume("default")
        all_end(mill, job.id)


def pause_silently(tx: Tx) -> None:
    tx.script("UPDATE gm_queue SET paused = true")


def test_a_stopped_worker_leaves_nothing_behind(mill: Mill, valkey: Valkey, delivery: str, tmp_path: Path) -> None:
    folder = tmp_path / "meet"
    folder.mkdir()
    with working(mill, slots=2, poll=60.0, lease=600.0):
        jobs = [mill.enqueue(everyday.hold, args={"folder": str(folder), "name": str(n)}).id for n in range(6)]
        eventually(lambda: len(lines(folder / "started")) == 2)
        assert {mill.job(job).state for job in jobs} == {"queued", "in_progress"}
    assert in_hand(valkey, delivery) <= 6  # at most a message for each, and nobody is on any
    (folder / "go").touch()
    with working(mill, slots=2, poll=0.2):
        assert {job.state for job in all_end(mill, *jobs)} == {"completed"}
        eventually(lambda: queued_there(valkey, delivery) + in_hand(valkey, delivery) == 0, "no message stays")


def test_a_limited_queue_is_worked_off(mill: Mill) -> None:
    """Its jobs are not offered, since most of them could not be had: the worker is rung for, and looks."""
    mill.set_queue("default", limits={"at_once": 1}, create=True)
    with working(mill, slots=2, poll=0.2):
        jobs = mill.enqueue_many(everyday.add, [{"a": n} for n in range(6)])
        assert {job.state for job in all_end(mill, *jobs)} == {"completed"}
    assert not published(mill)


def test_a_job_that_ends_itself_gives_its_message_back(mill: Mill, valkey: Valkey, delivery: str) -> None:
    with working(mill, slots=2, poll=0.2):
        jobs = mill.enqueue_many(everyday.end_itself, [{}] * 3)
        assert {job.state for job in all_end(mill, *jobs)} == {"completed"}
        eventually(lambda: queued_there(valkey, delivery) + in_hand(valkey, delivery) == 0, "no message stays")


def test_offers_that_are_dropped_are_given_back(mill: Mill, valkey: Valkey, delivery: str) -> None:
    with closing(listening(mill)) as bell:
        bell.want(2)
        mill.enqueue_many(everyday.add, [{"a": n} for n in range(2)])
        offered: list[int] = []
        offers(bell, offered, 2)
        dropped = Offers(mill.ledger)
        dropped.hear(tuple(offered))
        bell.done(dropped.drop())
        eventually(lambda: in_hand(valkey, delivery) == 0, "and over")


def test_what_was_on_its_way_when_redis_went_leaves_no_place_taken(sqlite_url: str, delivery: str) -> None:
    with running_valkey() as server, opener(sqlite_url, delivery, server.url)() as mill, closing(listening(mill)) as bell:
        assert isinstance(bell, BrokerBell)
        bell.want(1)
        assert bell.reserve()  # what it was for goes down with Redis
        server.kill()
        eventually(lambda: not bell.feeds)
        server.start()
        eventually(lambda: bell.feeds)
        bell.want(1)
        job = mill.enqueue(everyday.add, args={"a": 1})
        offered: list[int] = []
        offers(bell, offered, 1)
        assert offered == [job.id]


def test_messages_that_others_are_on_hide_no_others(
    mill: Mill, delivery: str, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arq leaves those that run in its queue, and reads a queue from its front."""
    monkeypatch.setattr("gristmill.delivery.arq._READ", 2)
    jobs = mill.enqueue_many(everyday.add, [{"a": n} for n in range(6)])
    with opened() as other, closing(mill.delivery.bell()) as first, closing(other.delivery.bell()) as second:
        first.want(5)
        offered: list[int] = []
        offers(first, offered, 5)
        second.want(1)
        offers(second, offered, 6)
        assert sorted(offered) == jobs


def test_a_killed_worker_takes_no_job_with_it(mill: Mill, database_url: str, valkey: Valkey, tmp_path: Path) -> None:
    """It holds messages that nobody else gets, and jobs that it never ends."""
    folder = tmp_path / "meet"
    folder.mkdir()
    how = {"delivery": mill.delivery.name, "redis_url": valkey.url, "slots": 2, "poll": 0.2}
    with worker_process(database_url, "everyday", log=tmp_path / "log", **how) as worker:
        jobs = [mill.enqueue(everyday.hold, args={"folder": str(folder), "name": str(n)}).id for n in range(5)]
        eventually(lambda: len(lines(folder / "started")) == 2)
        worker.kill()
    (folder / "go").touch()
    with working(mill, slots=2, poll=0.2):
        assert {job.state for job in all_end(mill, *jobs)} == {"completed"}
