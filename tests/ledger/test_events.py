"""Events: in the order of their commits, none is ever missed, and hardly anything is written for them."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection

from gristmill import Mill
from gristmill.errors import Invalid
from gristmill.ledger import backup as backups
from gristmill.ledger import events, workers
from gristmill.ledger.finish import Verdict
from gristmill.ledger.store import Ledger
from gristmill.watched import Event
from tests import servers
from tests.ledger.conftest import Open
from tests.ledger.play import Play, each, end, plan, solo, step
from tests.ledger.together import together

SITE = plan("site", find=step(), page=each("find", need=0), total=step("page"))


def told(mill: Mill, after: str | None = None) -> list[Event]:
    """All that is there, read in small portions as a follower does."""
    found: list[Event] = []
    while True:
        page = mill.events(after, limit=3)
        assert not page.reset
        if not page.events:
            return found
        found += page.events
        after = page.last


def names(mill: Mill) -> list[str]:
    return [event.name for event in told(mill)]


# ---- what is told


def test_a_run_is_told_of_from_its_start_to_its_end(opened: Open) -> None:
    play = opened(SITE)
    run = play.mill.start("site", "s").id
    play.drain(items={"find": ["a", "b", "c"]}, verdicts={"page/a": Verdict.PERMANENT})
    mine = [event.data for event in told(play.mill) if event.run == run]
    assert mine[0] == {"state": "queued", "pipeline": "site", "stages": {"find": "sealed", "page": "open"}}
    assert mine[-1]["state"] == "completed_with_errors"
    states = [data["state"] for data in mine if "state" in data]
    assert states == ["queued", "in_progress", "completed_with_errors"]
    (failed,) = [data for data in mine if "failed" in data]
    assert (failed["failed"], len(failed["jobs"])) == (1, 1)
    stages: dict[str, str] = {}
    for data in mine:
        stages |= data.get("stages", {})
    assert stages == dict.fromkeys(["find", "page", "total"], "closed")


def test_a_transaction_tells_at_most_one_event_of_each_run(opened: Open) -> None:
    play = opened(SITE)
    for subject in "abc":
        play.mill.start("site", subject)
    play.drain(items={"find": [str(n) for n in range(50)]})
    by_run = [event.run for event in told(play.mill) if event.run]
    assert all(by_run.count(run) <= 5 for run in set(by_run))  # 52 jobs each


def test_jobs_that_end_well_tell_nothing(play: Play) -> None:
    play.mill.enqueue_many(solo, [{}] * 20)
    player = play.player()
    before = len(told(play.mill))
    player.complete(*player.take())
    assert len(told(play.mill)) == before


def test_jobs_on_their_own_that_fail_for_good_are_one_event_of_a_batch(play: Play) -> None:
    jobs = play.mill.enqueue_many(solo, [{}] * 20)
    player = play.player()
    player.finish(*[end(job, Verdict.PERMANENT) for job in player.take()])
    (event,) = [event for event in told(play.mill) if event.name == "jobs"]
    assert event.data == {"failed": 20, "jobs": sorted(jobs)[:10]}


def test_workers_that_come_leave_and_are_lost_are_told_of(play: Play) -> None:
    first, second = play.player(), play.player()
    play.ledger.do(workers.leave, first.id)
    play.ledger.do(workers.rescue, second.id, gone=True)
    states = [(event.data["id"], event.data["state"]) for event in told(play.mill) if event.name == "worker"]
    assert states == [(first.id, "active"), (second.id, "active"), (first.id, "stopped"), (second.id, "lost")]


def test_what_people_do_is_told(play: Play) -> None:
    play.player()
    play.mill.set_queue("default", create=True)
    play.mill.pause("default", by="anna")
    told_of = [event.data for event in told(play.mill) if event.name == "audit"]
    assert [(data["who"], data["verb"], data["target"]) for data in told_of] == [("anna", "queue.pause", "queue default")]


def test_a_rehearsal_tells_nothing(opened: Open) -> None:
    play = opened(SITE)
    run = play.mill.start("site", "s").id
    before = told(play.mill)
    play.mill.cancel_run(run, dry_run=True)
    assert told(play.mill) == before


# ---- an application's own


def test_an_application_adds_its_own_in_its_transaction(play: Play) -> None:
    play.mill.event("library.lent", {"book": "Ulysses"})
    with play.mill.transaction() as connection:
        play.mill.event("library.returned", run=None, connection=connection)
    with suppress(RuntimeError), play.mill.transaction() as connection:
        play.mill.event("library.lost", connection=connection)
        raise RuntimeError
    assert [(event.name, event.data) for event in told(play.mill)] == [
        ("library.lent", {"book": "Ulysses"}),
        ("library.returned", {}),
    ]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("run", {}),
        ("lent", {}),
        ("", {}),
        ("a.\0", {}),
        (f"a.{'b' * 200}", {}),
        (7, {}),
        ("a.b", [1]),
        ("a.b", {"x": float("nan")}),
        ("a.b", {"x": object()}),
        ("a.b", {"x": "y" * 70_000}),
    ],
)
def test_nonsense_is_refused(play: Play, name: Any, data: Any) -> None:
    with pytest.raises(Invalid):
        play.mill.event(name, data)
    assert told(play.mill) == []


# ---- none is missed


def test_a_follower_goes_on_where_it_was(play: Play) -> None:
    play.mill.event("a.one")
    last = play.mill.last_event()
    assert play.mill.events(last).events == ()
    play.mill.event("a.two")
    (event,) = play.mill.events(last).events
    assert event.name == "a.two"
    assert play.mill.events(event.id).events == ()


def guest(url: str) -> tuple[Ledger, Connection]:
    """A connection of an application with a transaction that is open."""
    ledger = Ledger(url)
    connection = ledger.engine.connect()
    return ledger, connection


def test_one_that_begins_first_and_commits_last_is_not_missed(pg_url: str) -> None:
    play = Play(pg_url, ())
    ledger, slow = guest(pg_url)
    play.mill.event("a.slow", connection=slow)  # it has its number in the table now
    seen: list[Event] = []
    for n in range(3):
        play.mill.event(f"a.fast{n}")
        seen += told(play.mill, seen[-1].id if seen else None)
    assert [event.name for event in seen] == ["a.fast0", "a.fast1", "a.fast2"]  # an open transaction holds up nobody
    slow.commit()
    play.mill.event("a.after")
    seen += told(play.mill, seen[-1].id)
    assert [event.name for event in seen[3:]] == ["a.slow", "a.after"]
    assert seen == told(play.mill)  # and it is the same order for everybody, for ever
    slow.close()
    ledger.close()
    play.close()


def test_one_that_is_rolled_back_leaves_no_hole(pg_url: str) -> None:
    play = Play(pg_url, ())
    ledger, other = guest(pg_url)
    play.mill.event("a.one")
    play.mill.event("a.undone", connection=other)
    other.rollback()
    play.mill.event("a.two")
    found = told(play.mill)
    assert [event.name for event in found] == ["a.one", "a.two"]
    places = [int(event.id.split("-")[1]) for event in found]
    assert places == [places[0], places[0] + 1]
    other.close()
    ledger.close()
    play.close()


def test_who_gives_places_and_dies_before_the_commit_gives_none(pg_url: str) -> None:
    play = Play(pg_url, ())
    play.mill.event("a.one")

    def number_and_fail(tx: Any) -> None:
        events.number(tx)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        play.ledger.do(number_and_fail)
    assert play.value("SELECT count(*) FROM gm_event WHERE place IS NULL") == 1
    assert names(play.mill) == ["a.one"]
    play.close()


def test_places_that_others_are_giving_are_waited_for_not_passed(pg_url: str) -> None:
    """Whoever reads meanwhile sees none of what is not numbered yet; so nobody can see a later one first."""
    play = Play(pg_url, ())
    play.mill.event("a.one")
    inside, go_on = threading.Event(), threading.Event()

    def slowly(tx: Any) -> None:
        events.number(tx)
        inside.set()
        assert go_on.wait(30)

    thread = threading.Thread(target=play.ledger.do, args=(slowly,))
    thread.start()
    assert inside.wait(30)
    play.mill.event("a.two")
    assert play.mill.events().events == ()
    go_on.set()
    thread.join()
    assert names(play.mill) == ["a.one", "a.two"]
    play.close()


def test_many_who_write_and_read_at_once_all_see_the_same(opened: Open) -> None:
    play = opened(SITE)
    writers, of_each = 4, 15

    def write(who: int) -> None:
        for n in range(of_each):
            if n % 3 == 2:
                with play.mill.transaction() as connection:
                    play.mill.event(f"w{who}.{n}", connection=connection)
                    play.mill.event(f"w{who}.{n}b", connection=connection)
            else:
                play.mill.event(f"w{who}.{n}")

    def read() -> list[Event]:
        seen: list[Event] = []
        while len(seen) < writers * (of_each + of_each // 3):
            seen += play.mill.events(seen[-1].id if seen else None, limit=7).events
        return seen

    *_, first, second = together(*[partial(write, n) for n in range(writers)], read, read)
    assert first == second == told(play.mill)
    for who in range(writers):
        mine = [event.name for event in first if event.name.startswith(f"w{who}.")]
        assert mine == [f"w{who}.{n}{b}" for n in range(of_each) for b in (["", "b"] if n % 3 == 2 else [""])]


# ---- what is not kept


def test_who_was_away_too_long_is_told_to_look_anew(play: Play) -> None:
    for n in range(10):
        play.mill.event(f"a.e{n}")
    ids = [event.id for event in told(play.mill)]
    play.clock.advance(3600)
    play.mill.event("a.late")
    assert names(play.mill)[-1] == "a.late"
    assert play.ledger.do(events.forget, kept=3_600_000_000 - 1) == 10
    assert names(play.mill) == ["a.late"]
    reset = play.mill.events(ids[3])
    assert (reset.reset, reset.events, reset.last) == (True, (), play.mill.last_event())
    assert not play.mill.events(ids[-1]).reset  # it has missed nothing
    assert [event.name for event in play.mill.events(ids[-1]).events] == ["a.late"]


def test_the_newest_is_kept_and_no_more_than_so_many(play: Play) -> None:
    for n in range(10):
        play.mill.event(f"a.e{n}")
    told(play.mill)
    assert play.ledger.do(events.forget, count=4) == 6
    assert names(play.mill) == ["a.e6", "a.e7", "a.e8", "a.e9"]
    play.clock.advance(10**6)
    assert play.ledger.do(events.forget) == 3
    assert play.ledger.do(events.forget) == 0
    play.mill.event("a.next")
    places = [int(event.id.split("-")[1]) for event in told(play.mill)]
    assert places == [10, 11]


def test_after_a_restore_everybody_looks_anew(sqlite_url: str, tmp_path: Any) -> None:
    play = Play(sqlite_url, ())
    play.mill.event("a.one")
    backups.backup(play.ledger, tmp_path / "b")
    before = play.mill.last_event()
    backups.restore(sqlite_url, tmp_path / "b", by="me", force=True)
    assert play.mill.events(before).reset
    play.close()


@pytest.mark.parametrize("text", ["", "7", "1-", "-1-2", "1-2-3", "1-x", "1-99999999999999999999", " 1-2", "\u0661-\u0662"])
def test_what_is_no_id_of_an_event_is_said_so(play: Play, text: str) -> None:
    with pytest.raises(Invalid, match="is not the id of an event"):
        play.mill.events(text)


def test_an_id_from_the_future_or_of_another_ledger_is_a_reset(play: Play) -> None:
    play.mill.event("a.one")
    assert play.mill.events("1-7").reset
    assert play.mill.events("77-1").reset


def test_a_role_that_only_reads_sees_what_others_have_numbered(pg_url: str, owner_pg_url: str) -> None:
    play = Play(pg_url, ())
    play.mill.event("a.one")
    with servers.role(owner_pg_url, "reader") as role:
        reader = Play(servers.with_user(owner_pg_url, role), (), play.clock)
        assert reader.mill.events().events == ()
        assert play.ledger.do(events.number) is False
        assert names(reader.mill) == ["a.one"]
        reader.close()
    play.close()
