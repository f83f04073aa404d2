"""Stalest first: who is chosen, that nobody is chosen twice, and that it costs the same however many there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gristmill.clock import SECOND
from gristmill.errors import Invalid
from gristmill.ledger import stale
from gristmill.ledger.finish import Verdict
from gristmill.ledger.store import Tx
from gristmill.limit import Limit
from gristmill.schedule import Schedule, Stalest
from tests.ledger.conftest import Open
from tests.ledger.play import Play, plan, step
from tests.ledger.together import times, together

HOUR = 3600
DAY = 24 * HOUR


@pytest.fixture
def site(opened: Open) -> Play:
    return opened(plan("site", work=step()), plan("other", work=step()))


def subjects(play: Play, *names: str, **options: Any) -> None:
    for name in names:
        play.mill.set_subject("site", name, **options)


def next_of(play: Play, **options: Any) -> list[str]:
    return [run.subject for run in play.mill.start_stalest("site", **options)]


def ran(play: Play, name: str, verdict: Verdict = Verdict.COMPLETED) -> None:
    play.mill.start("site", name)
    play.drain(verdicts={"work": verdict})
    play.clock.advance(60)


# ---- who


def test_those_that_never_ran_come_first_then_the_oldest(site: Play) -> None:
    for name in ("c", "a"):
        ran(site, name)
    subjects(site, "new-b", "new-a")
    site.clock.advance(DAY)
    assert [next_of(site) for _ in range(5)] == [["new-a"], ["new-b"], ["c"], ["a"], []]


def test_one_whose_last_run_ended_within_is_left_alone_whatever_became_of_it(site: Play) -> None:
    ran(site, "good")
    ran(site, "bad", Verdict.PERMANENT)
    site.clock.advance(22 * HOUR)
    assert next_of(site) == []
    assert next_of(site, not_within=HOUR) == ["good"]
    site.clock.advance(HOUR)
    assert next_of(site) == ["bad"]


def test_one_that_is_running_is_left_alone(site: Play) -> None:
    subjects(site, "a", "b")
    site.mill.start("site", "a")
    assert next_of(site, batch=5, not_within=0) == ["b"]


def test_a_subjects_own_interval_comes_before_the_given_one(site: Play) -> None:
    for name in ("often", "seldom", "plain"):
        ran(site, name)
    subjects(site, "often", interval=HOUR)
    subjects(site, "seldom", interval=30 * DAY)
    site.clock.advance(2 * HOUR)
    assert next_of(site, batch=5) == ["often"]
    site.drain()
    site.clock.advance(DAY)
    assert sorted(next_of(site, batch=5)) == ["often", "plain"]
    site.drain()
    site.clock.advance(30 * DAY)
    assert sorted(next_of(site, batch=5)) == ["often", "plain", "seldom"]


def test_the_one_that_is_overdue_longest_comes_first_whichever_interval_it_has(site: Play) -> None:
    ran(site, "plain")
    ran(site, "own")
    subjects(site, "own", interval=HOUR)
    site.clock.advance(2 * DAY)
    assert next_of(site) == ["own"]
    assert next_of(site) == ["plain"]


def test_labels_choose_among_subjects(site: Play) -> None:
    subjects(site, "a", labels={"region": "us"})
    subjects(site, "b", labels={"region": "eu"})
    subjects(site, "c", labels={"region": "eu", "size": "big"})
    assert next_of(site, labels=["region=eu", "size"]) == ["c"]
    assert next_of(site, labels=["region=eu"], batch=9) == ["b"]
    assert next_of(site, labels=["colour"]) == []


def test_a_label_that_most_have_is_found_through_the_age(site: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stale, "_FEW", 1)
    for name in "abc":
        subjects(site, name, labels={"region": "eu" if name > "a" else "us"})
    assert next_of(site, labels=["region=eu", "region"], batch=9) == ["b", "c"]


def test_subjects_of_another_pipeline_are_not_meant(site: Play) -> None:
    site.mill.set_subject("other", "x", labels={"region": "eu"})
    assert next_of(site) == next_of(site, labels=["region"]) == []


def test_labels_and_intervals_go_together(site: Play) -> None:
    for name in ("often", "plain", "fresh"):
        ran(site, name)
        subjects(site, name, labels={"region": "eu"}, interval=HOUR if name == "often" else None)
    site.clock.advance(2 * HOUR)
    assert next_of(site, labels=["region=eu"], batch=9) == ["often"]
    site.mill.start("site", "fresh")
    site.clock.advance(DAY)
    assert next_of(site, labels=["region=eu"], batch=9) == ["plain"]  # the others run


def test_spread_goes_by_those_with_the_label(site: Play) -> None:
    subjects(site, *"abcdef", labels={"region": "eu"})
    subjects(site, *"uvwxyz")
    site.mill.add_schedule(sweep(labels=["region=eu"], spread=180))
    for _ in range(3):
        site.clock.advance(60)
        site.mill.scheduler().run()
    assert [len(firing.runs) for firing in reversed(site.mill.schedule_history())] == [3, 3]


def test_arguments_and_priority_are_those_of_the_run(opened: Open) -> None:
    play = opened(plan("site", work=step()))
    subjects(play, "a")
    [run] = play.mill.start_stalest("site", priority="low")
    assert run.priority == "low"
    with pytest.raises(Invalid, match="takes no argument 'x'"):
        play.mill.start_stalest("site", args={"x": 1})
    with pytest.raises(Invalid, match="unknown pipeline 'sight'; did you mean 'site'"):
        play.mill.start_stalest("sight")


def test_many_that_run_do_not_stand_in_the_way(site: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were started by hand, and are the stalest: they are put back once, not looked at for ever."""
    monkeypatch.setattr(stale, "_HEAD", 10)
    subjects(site, "b")
    for n in range(25):
        site.mill.start("site", f"a{n:02}")
    assert next_of(site) == ["b"]
    assert site.value("SELECT count(*) FROM gm_subject WHERE chosen_at > 0") == 11  # ten, and the one that was chosen


def test_limits_by_subject_are_kept_to(opened: Open) -> None:
    play = opened(plan("site", work=step(limit=Limit("who", per="subject", at_once=1))))
    subjects(play, "a", "b")
    assert next_of(play) == ["a"]
    play.mill.add_schedule(sweep())
    play.mill.add_schedule(Schedule("one", cron="* * * * *", pipeline="site", subject="c"))
    play.clock.advance(60)
    play.mill.scheduler().run()
    assert sorted(run.subject for run in play.mill.runs()) == ["a", "b", "c"]
    assert play.value("SELECT count(DISTINCT limit_id) FROM gm_stage") == 3
    play.drain()


# ---- nobody twice


def test_a_hundred_at_once_choose_a_hundred_different_ones(site: Play) -> None:
    subjects(site, *(f"s{n}" for n in range(120)))
    chosen = [name for names in times(100, lambda: next_of(site)) for name in names]
    assert len(chosen) == len(set(chosen)) == 100
    assert len(site.mill.runs(limit=1000)) == 100


@pytest.mark.parametrize("labels", [(), ("region",)], ids=["all", "with a label"])
def test_ten_at_once_over_five_start_five(site: Play, labels: Sequence[str]) -> None:
    subjects(site, "a", "b", "c", labels={"region": "eu"})
    subjects(site, "d", "e", interval=DAY, labels={"region": "us"})
    chosen = [name for names in times(10, lambda: next_of(site, labels=labels)) for name in names]
    chosen += next_of(site, batch=5)  # one that was just locked by somebody may have been passed over
    assert sorted(chosen) == ["a", "b", "c", "d", "e"]


def test_batches_beside_starts_by_hand_and_ends_start_nothing_twice(site: Play) -> None:
    names = [f"s{n:02}" for n in range(40)]
    subjects(site, *names)

    def by_hand() -> list[str]:
        return [name for name in names if site.mill.start("site", name).created]

    def choosing() -> list[str]:
        return [name for _ in range(10) for name in next_of(site, batch=7)]

    started = [name for some in together(by_hand, choosing, choosing, choosing) for name in some]
    assert sorted(started) == names
    site.drain()
    assert len(site.mill.runs(limit=1000)) == 40


# ---- as a schedule


def sweep(**options: Any) -> Schedule:
    return Schedule("sweep", cron="* * * * *", pipeline="site", **options)


def test_a_schedule_starts_the_stalest_at_each_of_its_times(site: Play) -> None:
    subjects(site, "a", "b", "c")
    site.mill.add_schedule(sweep(batch=2))
    scheduler = site.mill.scheduler()
    for _ in range(4):
        site.clock.advance(60)
        scheduler.run()
    history = site.mill.schedule_history("sweep")
    assert [(firing.outcome, firing.detail, len(firing.runs)) for firing in history] == [
        ("started", "c", 1),
        ("started", "a, b", 2),
    ]


def test_what_is_overdue_is_spread_evenly_until_the_first_has_waited_for_so_long(site: Play) -> None:
    """Forty at once, twenty minutes' time: two a minute, and all of them within it."""
    site.change(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40)"
        f" INSERT INTO gm_subject (pipeline, name, created_at) SELECT 'site', 's' || i, {site.clock.at} FROM n"
    )
    site.mill.add_schedule(sweep(spread=20 * 60))
    scheduler = site.mill.scheduler()
    for _ in range(20):
        site.clock.advance(60)
        scheduler.run()
    started = [len(firing.runs) for firing in site.mill.schedule_history()]
    assert sum(started) == 40
    assert max(started) <= 3


@pytest.mark.parametrize(
    ("overdue", "waited", "expected"),
    [(0, 0, 0), (1, 0, 1), (60, 0, 1), (600, 0, 10), (600, HOUR / 2, 20), (600, 2 * HOUR, 100), (10**6, 0, 100)],
)
def test_how_many_at_a_time(overdue: int, waited: float, expected: int) -> None:
    stalest = Stalest(batch=100, spread=HOUR * SECOND)
    assert stalest.wanted(overdue, int(waited * SECOND), 60 * SECOND) == expected


# ---- a hundred thousand


def plan_of(tx: Tx, sql: str, values: dict[str, Any]) -> str:
    word = "EXPLAIN QUERY PLAN" if tx.dialect == "sqlite" else "EXPLAIN"
    found = (
        tx.connection.exec_driver_sql(f"{word} {sql}", values) if values else tx.connection.exec_driver_sql(f"{word} {sql}")
    )
    return "\n".join(str(row[-1]) for row in found)


def test_with_a_hundred_thousand_subjects_the_first_are_found_by_an_index(
    site: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of them are fresh, some run, some have an interval of their own; nothing of that is walked over."""
    now = site.clock.at
    site.change(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)"
        ' INSERT INTO gm_subject (pipeline, name, created_at, last_run_at, "interval")'
        f" SELECT 'site', 's' || i, 0, {now} - CAST(i AS bigint) * 1000000, CASE WHEN i % 10 = 0 THEN 3600000000 END FROM n"
    )
    plans: list[str] = []
    execute = Tx.execute

    def explaining(tx: Tx, sql: Any, **given: Any) -> Any:
        compiled = sql.compiled(tx.dialect)
        if "FROM gm_subject s" in compiled.sql:
            values = compiled.parameters({**given, "now": tx.now})
            plans.append(plan_of(tx, compiled.sql, values))
        return execute(tx, sql, **given)

    monkeypatch.setattr(Tx, "execute", explaining)
    assert next_of(site, batch=2) == ["s100000", "s99990"]  # an hour of their own: longer due than the others
    assert len(plans) == 3  # a look at each kind, and the lock
    for found in plans:
        assert "gm_subject_stale" in found or "gm_subject_due" in found, found
        assert "Sort" not in found, found
        assert "TEMP B-TREE" not in found, found
        assert "Seq Scan on gm_subject" not in found, found
        assert "SCAN s" not in found, found
