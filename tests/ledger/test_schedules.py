"""Schedules: each fire time once, whoever fires and wherever it dies; catching up, overlap, windows, pause, edits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gristmill.clock import SECOND, FrozenClock
from gristmill.errors import Invalid, NotFound, Refused
from gristmill.ledger import schedules
from gristmill.ledger.finish import Verdict
from gristmill.schedule import Schedule
from gristmill.scheduler import Scheduler
from tests.ledger.conftest import Open
from tests.ledger.play import Play, plan, solo, step
from tests.ledger.together import outcomes, times, together

HOUR = 3600
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock(NOON)


@pytest.fixture
def site(opened: Open) -> Play:
    return opened(plan("site", work=step()))


def hourly(name: str = "hourly", **options: Any) -> Schedule:
    target = {} if "pipeline" in options else {"task": solo}
    return Schedule(name, **{"cron": "0 * * * *", **target, **options})


def add(play: Play, schedule: Schedule) -> Scheduler:
    play.mill.add_schedule(schedule)
    return play.mill.scheduler()


def told(play: Play, name: str | None = None) -> list[tuple[str, str]]:
    """(hour and minute, outcome), oldest first."""
    found = play.mill.schedule_history(name)
    return [(f"{firing.fire_at:%H:%M}", firing.outcome) for firing in reversed(found)]


def jobs(play: Play) -> int:
    return len(play.mill.jobs(limit=10_000))


# ---- firing


def test_a_schedule_fires_at_its_time_and_not_before(site: Play) -> None:
    scheduler = add(site, hourly(args={"n": 3}, priority="high"))
    assert scheduler.run() == 0
    site.clock.advance(HOUR - 1)
    assert scheduler.tick() == pytest.approx(1)
    site.clock.advance(1)
    assert scheduler.tick() == 0
    [job] = site.mill.jobs()
    assert (job.task, job.args, job.priority) == ("solo", {"n": 3}, "high")
    assert scheduler.run() == 0
    [firing] = site.mill.schedule_history("hourly")
    assert (firing.outcome, firing.job, firing.fire_at, firing.by) == ("started", job.id, NOON + timedelta(hours=1), None)
    entry = site.mill.schedule("hourly")
    assert (entry.last_job, entry.last_at) == (job.id, NOON + timedelta(hours=1))
    assert entry.next_at == NOON + timedelta(hours=2)


def test_a_schedule_of_a_pipeline_starts_a_run_of_its_subject(site: Play) -> None:
    scheduler = add(site, hourly(pipeline="site", subject="a.org"))
    site.clock.advance(HOUR)
    scheduler.run()
    [run] = site.mill.runs()
    [firing] = site.mill.schedule_history()
    assert (run.subject, firing.runs, site.mill.schedule("hourly").last_run) == ("a.org", (run.id,), run.id)


def test_many_who_fire_at_once_start_one_job(site: Play) -> None:
    add(site, hourly())
    site.clock.advance(HOUR)
    assert sum(times(20, lambda: site.mill.scheduler().run())) == 1
    assert jobs(site) == 1


def test_while_one_has_the_leadership_the_others_wait(site: Play) -> None:
    scheduler = add(site, hourly())
    site.clock.advance(HOUR)
    with site.ledger.sole("schedules") as mine:
        assert mine
        assert scheduler.tick() == 1
    assert jobs(site) == 0
    scheduler.tick()
    assert jobs(site) == 1


def test_three_schedulers_over_a_day_start_each_fire_time_once(site: Play) -> None:
    add(site, hourly(overlap=True))
    for _ in range(24):
        site.clock.advance(HOUR)
        together(*[site.mill.scheduler().tick] * 3)
        site.mill.scheduler().run()
    assert jobs(site) == 24
    assert len({firing.fire_at for firing in site.mill.schedule_history()}) == 24


def test_what_is_unknown_here_is_left_to_its_own_workers(opened: Open, database_url: str, clock: FrozenClock) -> None:
    theirs = opened(plan("other", work=step()))
    add(theirs, hourly(pipeline="other", subject="x"))
    ours = opened(plan("site", work=step()))
    scheduler = add(ours, hourly("mine"))
    clock.advance(HOUR)
    scheduler.run()
    assert [firing.schedule for firing in ours.mill.schedule_history()] == ["mine"]
    assert scheduler.tick() == 1  # it does not run in circles about the other
    theirs.mill.scheduler().run()
    assert len(ours.mill.runs()) == 1


def test_arguments_that_this_code_does_not_take_are_left_to_others_for_a_while_and_then_recorded(site: Play) -> None:
    scheduler = add(site, hourly(args={"n": 1}))
    site.mill.add_schedule(hourly("other"))
    site.change("""UPDATE gm_schedule SET spec = replace(spec, '"n":', '"m":') WHERE name = 'hourly'""")
    site.clock.advance(HOUR)
    scheduler.run()
    assert [(firing.schedule, firing.outcome) for firing in site.mill.schedule_history()] == [("other", "started")]
    site.clock.advance(31)
    scheduler.run()
    [failed] = site.mill.schedule_history("hourly")
    assert failed.outcome == "failed"
    assert "takes no argument 'm'" in str(failed.detail)


def test_one_that_newer_code_wrote_is_shown_and_keeps_up_nobody(site: Play) -> None:
    scheduler = add(site, hourly(args={"n": 1}))
    site.mill.add_schedule(hourly("other"))
    site.change("""UPDATE gm_schedule SET spec = replace(spec, '"cron":', '"moon":') WHERE name = 'hourly'""")
    site.clock.advance(HOUR)
    scheduler.run()
    assert told(site) == [("13:00", "started")]
    assert [(entry.name, entry.state) for entry in site.mill.schedules()] == [("hourly", "broken"), ("other", "on")]


# ---- catching up


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("none", [("15:00", "missed")]),
        ("one", [("14:00", "missed"), ("15:00", "started")]),
        ("all", [("13:00", "started"), ("14:00", "started"), ("15:00", "started")]),
    ],
)
def test_what_was_missed_is_caught_up_by_policy(site: Play, policy: str, expected: list[tuple[str, str]]) -> None:
    scheduler = add(site, hourly(catch_up=policy, overlap=True))
    site.clock.advance(3.5 * HOUR)
    scheduler.run()
    assert told(site) == expected
    assert jobs(site) == sum(outcome == "started" for _, outcome in expected)
    assert site.mill.schedule("hourly").next_at == NOON + timedelta(hours=4)


def test_how_many_were_missed_is_said(site: Play) -> None:
    scheduler = add(site, hourly(catch_up="none"))
    site.clock.advance(3.5 * HOUR)
    scheduler.run()
    assert site.mill.schedule_history()[0].detail == "3 fire times from 2026-11-15 13:00 UTC on"


def test_a_tick_that_is_a_little_late_is_on_time(site: Play) -> None:
    scheduler = add(site, hourly(catch_up="none"))
    site.clock.advance(HOUR + 59)
    scheduler.run()
    assert told(site) == [("13:00", "started")]


def test_all_goes_one_after_another_unless_they_may_overlap(site: Play) -> None:
    scheduler = add(site, hourly(catch_up="all"))
    site.clock.advance(2.5 * HOUR)
    scheduler.run()
    assert told(site) == [("13:00", "started")]
    assert scheduler.tick() > 0  # it waits, and does not spin
    site.drain()
    site.clock.advance(1)
    scheduler.run()
    assert told(site) == [("13:00", "started"), ("14:00", "started")]


def test_after_a_year_away_a_schedule_of_every_minute_fires_once(site: Play) -> None:
    scheduler = add(site, hourly(cron="* * * * *"))
    site.clock.advance(365 * 24 * HOUR)
    scheduler.run()
    assert jobs(site) == 1
    assert site.mill.schedule_history()[-1].detail == "1000 fire times from 2026-11-15 12:01 UTC on"


# ---- overlap


def test_while_the_last_job_is_unfinished_it_is_skipped_and_recorded(site: Play) -> None:
    scheduler = add(site, hourly())
    for _ in range(2):
        site.clock.advance(HOUR)
        scheduler.run()
    assert told(site) == [("13:00", "started"), ("14:00", "overlap")]
    site.drain(verdicts={"-": Verdict.PERMANENT})
    site.clock.advance(HOUR)
    scheduler.run()
    assert told(site)[-1] == ("15:00", "started")


def test_while_the_last_run_is_unfinished_it_is_skipped(site: Play) -> None:
    scheduler = add(site, hourly(pipeline="site", subject="s"))
    for _ in range(2):
        site.clock.advance(HOUR)
        scheduler.run()
    assert told(site) == [("13:00", "started"), ("14:00", "overlap")]
    assert len(site.mill.runs()) == 1


def test_a_run_that_somebody_else_started_is_not_joined(site: Play) -> None:
    scheduler = add(site, hourly(pipeline="site", subject="s"))
    site.mill.start("site", "s")
    site.clock.advance(HOUR)
    scheduler.run()
    assert told(site) == [("13:00", "overlap")]


def test_one_that_may_overlap_waits_behind_the_active_run(site: Play) -> None:
    scheduler = add(site, hourly(pipeline="site", subject="s", overlap=True))
    site.mill.start("site", "s")
    site.clock.advance(HOUR)
    scheduler.run()
    assert told(site) == [("13:00", "started")]
    assert sorted(run.state for run in site.mill.runs()) == ["queued", "waiting"]


# ---- windows, jitter, off, pause


def test_in_a_maintenance_window_it_is_skipped_and_recorded(site: Play) -> None:
    scheduler = add(site, hourly(windows="13:00-15:00", tz="UTC"))
    for _ in range(3):
        site.clock.advance(HOUR)
        scheduler.run()
    assert told(site) == [("13:00", "window"), ("14:00", "window"), ("15:00", "started")]


def test_what_is_caught_up_does_not_start_in_a_window_either(site: Play) -> None:
    scheduler = add(site, hourly(cron="0 13 * * *", windows=["14:00-16:00"]))
    site.clock.advance(2.5 * HOUR)
    scheduler.run()
    assert told(site) == [("13:00", "window")]


def test_jitter_delays_a_fire_time_by_always_the_same(site: Play) -> None:
    schedule = hourly(jitter=600)
    scheduler = add(site, schedule)
    due = site.mill.schedule("hourly").next_at
    assert due is not None
    late = due - NOON - timedelta(hours=1)
    assert timedelta(0) < late < timedelta(seconds=600)
    site.clock.advance(timedelta(hours=1) + late - timedelta(seconds=1))
    assert scheduler.run() == 0
    site.clock.advance(1)
    assert scheduler.run() == 1
    assert told(site) == [("13:00", "started")]


def test_off_is_there_and_never_fires(site: Play) -> None:
    scheduler = add(site, hourly(cron="off"))
    site.clock.advance(1000 * HOUR)
    assert scheduler.run() == 0
    assert site.mill.schedule("hourly").state == "off"


def test_a_pause_lasts_and_what_it_passed_over_is_not_caught_up(site: Play) -> None:
    scheduler = add(site, hourly(catch_up="all"))
    site.mill.pause_schedule("hourly", by="ann")
    entry = site.mill.schedule("hourly")
    assert (entry.state, entry.paused_by, entry.next_at) == ("paused", "ann", None)
    site.clock.advance(3.5 * HOUR)
    assert scheduler.run() == 0
    site.mill.resume_schedule("hourly")
    assert scheduler.run() == 0
    site.clock.advance(0.5 * HOUR)
    scheduler.run()
    assert told(site) == [("16:00", "started")]


# ---- run now


def test_run_now_starts_it_and_leaves_its_times(site: Play) -> None:
    scheduler = add(site, hourly())
    fired = site.mill.run_schedule("hourly", by="ann")
    assert (fired.outcome, fired.by, fired.fire_at) == ("started", "ann", NOON)
    with pytest.raises(Refused, match="of the last time is queued"):
        site.mill.run_schedule("hourly")
    site.clock.advance(HOUR)
    scheduler.run()
    assert told(site) == [("12:00", "started"), ("13:00", "overlap")]


def test_run_now_at_a_fire_time_takes_nothing_from_it(site: Play) -> None:
    scheduler = add(site, hourly(overlap=True))
    site.clock.advance(HOUR)
    for _ in range(2):
        site.mill.run_schedule("hourly")
    scheduler.run()
    assert told(site) == [("13:00", "started")] * 3


def test_run_now_works_while_paused_and_off(site: Play) -> None:
    add(site, hourly(cron="off", overlap=True))
    site.mill.run_schedule("hourly")
    site.mill.pause_schedule("hourly")
    site.mill.run_schedule("hourly")
    assert jobs(site) == 2


# ---- declared in code


def declared(opened: Open, *pieces: Any) -> tuple[Play, list[str]]:
    play = opened(plan("site", work=step()), *pieces)
    return play, play.mill.declare_schedules()


def test_a_declaration_updates_and_the_operators_pause_stays(opened: Open) -> None:
    play, _ = declared(opened, hourly())
    play.mill.pause_schedule("hourly")
    play, _ = declared(opened, hourly(cron="30 * * * *"))
    entry = play.mill.schedule("hourly")
    assert (entry.state, entry.spec["cron"], entry.declared) == ("paused", "30 * * * *", True)
    play.mill.resume_schedule("hourly")
    assert play.mill.schedule("hourly").next_at == NOON + timedelta(minutes=30)


def test_the_same_declaration_again_forgets_nothing_that_was_missed(opened: Open, clock: FrozenClock) -> None:
    declared(opened, hourly())
    clock.advance(1.5 * HOUR)
    play, _ = declared(opened, hourly(args={"n": 2}))
    play.mill.scheduler().run()
    assert told(play) == [("13:00", "started")]
    assert play.mill.jobs()[0].args == {"n": 2}


def test_a_removed_declaration_is_reported_and_goes_on_until_it_is_removed(opened: Open, clock: FrozenClock) -> None:
    declared(opened, hourly())
    play, gone = declared(opened)
    assert gone == ["hourly"]
    assert play.mill.schedule("hourly").undeclared_at == NOON
    clock.advance(HOUR)
    assert play.mill.scheduler().run() == 1
    assert play.mill.remove_schedule("hourly") is False
    assert declared(opened)[1] == []


def test_one_that_was_added_is_not_missed_in_the_code(opened: Open) -> None:
    play, _ = declared(opened)
    play.mill.add_schedule(hourly())
    assert declared(opened)[1] == []


def test_what_is_declared_is_not_replaced_by_hand(opened: Open) -> None:
    play, _ = declared(opened, hourly())
    with pytest.raises(Refused, match="declared in code"):
        play.mill.add_schedule(hourly(cron="off"), replace=True)
    assert play.mill.remove_schedule("hourly") is True


def test_adding_twice_is_refused_or_replaces(site: Play) -> None:
    add(site, hourly())
    with pytest.raises(Refused, match="--replace"):
        site.mill.add_schedule(hourly(cron="off"))
    assert site.mill.add_schedule(hourly(cron="off"), replace=True).state == "off"


def test_of_many_who_add_at_once_one_gets_through(site: Play) -> None:
    added = 0
    for outcome in outcomes(*[lambda: site.mill.add_schedule(hourly())] * 8):
        with suppress(Refused):
            outcome()
            added += 1
    assert added == 1


def test_many_workers_that_start_at_once_declare_it_once(opened: Open) -> None:
    play = opened(plan("site", work=step()), hourly(), hourly("second"))
    times(8, play.mill.declare_schedules)
    assert [entry.name for entry in play.mill.schedules()] == ["hourly", "second"]


def test_an_edit_while_it_is_being_fired_is_not_fired_as_it_was(site: Play) -> None:
    add(site, hourly(args={"n": 1}))
    site.clock.advance(HOUR)
    with site.ledger.reading() as tx:
        [row] = schedules.due(tx)
    what = site.mill._prepare(Schedule.read(row.name, row.spec))
    site.mill.add_schedule(hourly(args={"n": 2}), replace=True)
    assert site.ledger.do(schedules.fire, row.id, row.spec, what) is None
    site.mill.scheduler().run()
    assert [job.args for job in site.mill.jobs()] == [{"n": 2}]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Schedule("x", cron="0 3 * * *"), "give it a task"),
        (lambda: Schedule("x", cron="0 3 * *", task="solo"), "schedule 'x': cron '0 3 \\* \\*' has 4 fields"),
        (lambda: Schedule("x", cron="off", task="solo", subject="s"), "a subject goes with a pipeline"),
        (lambda: Schedule("x", cron="off", task="solo", batch=3), "choose among subjects"),
        (lambda: Schedule("x", cron="off", pipeline="site", batch=0), "from 1 to"),
        (lambda: Schedule("x", cron="off", task="solo", catch_up="some"), "unknown catch_up"),
        (lambda: Schedule("x", cron="off", task="solo", jitter=-1), "jitter must be a number of seconds"),
        (lambda: Schedule("x", cron="off", task="solo", tz="Mars/Olympus"), "unknown time zone"),
        (lambda: Schedule("x y", cron="off", task="solo"), "schedule name"),
        (lambda: Schedule("x", cron="off", task=42), "is not a task"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_schedule_is_refused_where_it_is_made(make: Callable[[], Schedule], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        make()


def test_one_about_something_unknown_is_refused_when_it_is_added(site: Play) -> None:
    with pytest.raises(Invalid, match="schedule 'x': unknown task 'sollo'; did you mean 'solo'"):
        site.mill.add_schedule(Schedule("x", cron="off", task="sollo"))
    add(site, hourly())
    with pytest.raises(NotFound, match="did you mean 'hourly'"):
        site.mill.pause_schedule("hourli")


# ---- the clock


def test_a_clock_that_is_set_back_fires_nothing_twice_and_goes_on(site: Play) -> None:
    scheduler = add(site, hourly(overlap=True))
    site.clock.advance(3 * HOUR)  # it is wrong by two hours
    scheduler.tick()
    assert told(site) == [("14:00", "missed"), ("15:00", "started")]
    site.clock.advance(-2 * HOUR)
    scheduler.tick()
    for _ in range(3):
        scheduler.run()
        site.clock.advance(HOUR)
        scheduler.tick()
    assert [time for time, outcome in sorted(told(site)) if outcome == "started"] == ["14:00", "15:00", "16:00"]
    assert jobs(site) == 3


def test_a_clock_that_was_wrong_while_nobody_looked_does_not_silence_a_schedule(site: Play) -> None:
    add(site, hourly(overlap=True))
    site.clock.advance(365 * 24 * HOUR)
    site.mill.scheduler().run()
    site.clock.advance(-365 * 24 * HOUR)
    site.mill.scheduler().tick()
    assert site.mill.schedule("hourly").next_at == NOON + timedelta(hours=1)


# ---- history


def test_a_schedule_keeps_the_last_thousand(site: Play) -> None:
    scheduler = add(site, hourly(overlap=True))
    number = site.value("SELECT id FROM gm_schedule")
    site.change(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1500)"
        f" INSERT INTO gm_fire (schedule_id, fire_at, at, outcome) SELECT {number}, i, i, 'missed' FROM n"
    )
    site.clock.advance(HOUR)
    scheduler.run()
    assert site.value("SELECT count(*) FROM gm_fire") == 1000
    assert site.value("SELECT max(fire_at) FROM gm_fire") == site.clock.at // SECOND * SECOND
    site.clock.advance(1)
    site.mill.run_schedule("hourly")
    assert site.value("SELECT count(*) FROM gm_fire") == 1000


def test_what_people_do_is_in_the_audit(site: Play) -> None:
    add(site, hourly())
    site.mill.pause_schedule("hourly")
    site.mill.resume_schedule("hourly")
    site.mill.run_schedule("hourly")
    site.mill.remove_schedule("hourly")
    verbs = [entry.verb for entry in site.mill.audit()]
    assert sorted(verbs) == [f"schedule.{verb}" for verb in ("add", "pause", "remove", "resume", "run-now")]
