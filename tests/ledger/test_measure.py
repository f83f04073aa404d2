"""What `/metrics` says is what is in the ledger, on both databases, and as Prometheus's own parser reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gristmill import Limit, Schedule, task
from gristmill.clock import FrozenClock
from gristmill.ledger import depth, failures
from gristmill.ledger.finish import Verdict
from gristmill.metrics import Family, exposition, text, to_json
from tests.ledger.conftest import Open
from tests.ledger.play import Play, each, end, plan, step


def read(said: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(said)
        for sample in family.samples
    }


class Look:
    """One scrape."""

    def __init__(self, play: Play) -> None:
        self.said = exposition(play.mill)
        self.values = read(self.said)

    def __call__(self, name: str, **labels: str) -> float:
        return self.values[f"gristmill_{name}", frozenset(labels.items())]

    def keys(self, name: str, label: str) -> set[str]:
        return {dict(labels)[label] for (found, labels) in self.values if found == f"gristmill_{name}"}


# ---- queues


def test_depth_and_age_of_a_queue_by_state(play: Play, clock: FrozenClock) -> None:
    play.mill.enqueue("solo")
    clock.advance(60)
    play.mill.enqueue_many("solo", [{"n": n} for n in range(4)])
    play.mill.enqueue("solo", delay=3600)
    player = play.player()
    player.take(1)
    clock.advance(5)
    look = Look(play)
    depths = {state: look("queue_jobs", queue="default", state=state) for state in look.keys("queue_jobs", "state")}
    assert depths == {"ready": 4, "delayed": 1, "limited": 0, "in_progress": 1}
    assert look("queue_oldest_seconds", queue="default", state="ready") == 5
    assert look("queue_oldest_seconds", queue="default", state="in_progress") == 5
    assert look("queue_oldest_seconds", queue="default", state="limited") == 0


def test_the_oldest_of_a_queue_is_found_in_whatever_line_it_stands(play: Play, clock: FrozenClock) -> None:
    play.mill.enqueue("solo", priority="low")
    clock.advance(100)
    play.mill.enqueue("solo", priority="high")
    assert Look(play)("queue_oldest_seconds", queue="default", state="ready") == 100


def test_a_slot_is_wanted_for_what_is_ready_or_in_progress(play: Play) -> None:
    play.mill.enqueue_many("solo", [{}] * 5)
    play.mill.enqueue("solo", delay=3600)
    play.player().take(2)
    assert Look(play)("queue_wanted_slots", queue="default") == 5
    play.mill.pause("default")
    look = Look(play)
    assert (look("queue_wanted_slots", queue="default"), look("queue_paused", queue="default")) == (2, 1)
    play.mill.resume("default")
    play.mill.set_queue("default", limits={"at_once": 3})
    assert Look(play)("queue_wanted_slots", queue="default") == 3


def test_a_job_whose_time_has_come_wants_a_slot_also_where_no_worker_is_left_to_put_it_into_the_line(
    play: Play, clock: FrozenClock
) -> None:
    play.mill.enqueue("solo")
    for _ in range(2):
        play.mill.enqueue("solo", delay=600)
    clock.advance(599)
    assert Look(play)("queue_wanted_slots", queue="default") == 1
    clock.advance(1)
    look = Look(play)
    depths = {state: look("queue_jobs", queue="default", state=state) for state in ("ready", "delayed", "limited")}
    assert depths == {"ready": 3, "delayed": 0, "limited": 0}
    assert look("queue_wanted_slots", queue="default") == 3
    assert look("queue_oldest_seconds", queue="default", state="ready") == 600
    queue = next(queue for queue in play.mill.queues() if queue.name == "default")  # lists and pages say the same
    assert (queue.ready, queue.delayed) == (3, 0)


def test_a_queue_in_which_nothing_is_but_what_is_due_says_since_when_that_waits(play: Play, clock: FrozenClock) -> None:
    asked = play.mill.enqueue("solo", delay=86_400)
    clock.advance(86_460)
    queue = next(queue for queue in play.mill.queues() if queue.name == "default")
    assert (queue.ready, queue.oldest) == (1, asked.run_at)  # and not for a day, which would be a reason to worry
    assert Look(play)("queue_oldest_seconds", queue="default", state="ready") == 60


@pytest.mark.parametrize("ended", [0.0, 0.5])
def test_a_long_line_is_estimated_well(play: Play, monkeypatch: pytest.MonkeyPatch, ended: float) -> None:
    monkeypatch.setattr(depth, "COUNTED", 100)
    monkeypatch.setattr(depth, "_OF_SEGMENT", 5)
    play.mill.set_queue("other", create=True)
    for n in range(10):  # batches of two queues, and two priorities, that take places in turn
        play.mill.enqueue_many("solo", [{}] * 100, priority="high" if n % 3 else "low")
        play.mill.enqueue_many("solo", [{}] * 50, queue="other")
    player = play.player()
    player.complete(*player.take(int(1500 * ended)))
    look = Look(play)
    for row in play.mill.queues():
        assert look("queue_jobs", queue=row.name, state="ready") == pytest.approx(row.ready, rel=0.25, abs=1)


def test_workers_that_are_late_busy_or_serve_a_queue(play: Play, clock: FrozenClock) -> None:
    play.mill.enqueue_many("solo", [{}] * 3)
    play.player(slots=4, queues=["elsewhere"])
    clock.advance(25)
    play.player(slots=2).take(3)
    clock.advance(10)
    look = Look(play)
    assert (look("workers", state="active"), look("workers", state="late"), look("workers_busy")) == (1, 1, 1)
    assert (look("slots"), look("slots_busy"), look("queue_workers", queue="default")) == (6, 2, 1)


# ---- failures


def test_attempts_that_failed_by_the_class_of_the_error(play: Play) -> None:
    play.mill.enqueue_many("stubborn", [{}] * 5)
    first, second = play.player(), play.player()
    one, two, three, done = first.take(4)
    first.finish(
        end(one, Verdict.ERROR, error_class="ValueError", reason="x"),
        end(two, Verdict.PERMANENT, error_class="Permanent", reason="y"),
        end(three, Verdict.TIMEOUT, reason="z"),
    )
    first.complete(done)
    other = second.take_one()
    first.end(other, Verdict.ERROR, error_class="KeyError")  # not its own: nothing is counted
    second.end(other, Verdict.ERROR, error_class="ValueError")
    expected = {"ValueError": 2, "Permanent": 1, "timeout": 1}

    def counted() -> dict[str, float]:
        look = Look(play)
        kinds = look.keys("attempts_failed_total", "error_class")
        return {kind: look("attempts_failed_total", error_class=kind) for kind in kinds}

    assert counted() == expected
    play.change("UPDATE gm_worker SET state = 2 WHERE id = :worker", worker=first.id)
    assert play.ledger.do(failures.tidy) == 3
    assert play.ledger.do(failures.tidy) == 0
    assert counted() == expected
    assert {row.worker_id for row in play.rows("SELECT worker_id FROM gm_failure")} == {0, second.id}


# ---- runs


def test_runs_of_a_pipeline_and_those_that_are_stuck(opened: Open, clock: FrozenClock) -> None:
    play = opened(plan("site", find=step(), page=each("find"), total=step("page")))
    runs = [play.mill.start("site", name).id for name in ("a", "b")]
    clock.advance(7)
    play.mill.start("site", "a", if_active="wait")
    look = Look(play)
    assert look("runs", pipeline="site", state="waiting") == 1
    assert look("run_oldest_seconds", pipeline="site") == 7
    assert look("subjects_stuck", pipeline="site") == 0
    play.player().take(2)
    # The end of its only job is counted, but nothing followed from it.
    play.change("UPDATE gm_run SET state = 1, started_at = created_at WHERE id = :run", run=runs[0])
    play.change("UPDATE gm_job SET state = 2, worker_id = NULL, finished_at = 1 WHERE run_id = :run", run=runs[0])
    play.change("UPDATE gm_stage SET completed = total WHERE run_id = :run", run=runs[0])
    assert Look(play)("subjects_stuck", pipeline="site") == 1
    assert [run.subject for run in play.mill.stuck()] == ["a"]
    play.mill.reconcile()
    look = Look(play)
    assert play.mill.stuck() == []
    assert (look("subjects_stuck", pipeline="site"), look("repairs_total", what="repair")) == (0, 1)


def test_a_run_whose_items_are_under_way_is_not_stuck(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find"), total=step("page")))
    play.mill.start("site", "a")
    player = play.player()
    for _ in range(2):
        job = player.take_one()
        player.emit(job, "x", "y") if play.stage_name(job) == "find" else None
        assert Look(play)("subjects_stuck", pipeline="site") == 0
        player.complete(job)
    assert Look(play)("subjects_stuck", pipeline="site") == 0


# ---- schedules, limits


def test_how_late_the_latest_schedule_is(play: Play, clock: FrozenClock) -> None:
    assert Look(play)("schedule_lag_seconds") == 0
    play.mill.add_schedule(Schedule("hourly", cron="0 * * * *", task="solo"))
    clock.advance(3600 + 3600 + 90)
    look = Look(play)
    assert look("schedules", state="on") == 1
    assert look("schedule_lag_seconds") >= 90
    play.mill.pause_schedule("hourly")
    assert Look(play)("schedules", state="paused") == 1


@task(name="polite", limit=Limit("host", per="host", at_once=1, breaker=2))
def polite(ctx: Any, host: str) -> None:
    """One at once of each host."""


def test_only_keys_that_hold_something_back_are_named(opened: Open) -> None:
    play = opened(polite)
    play.mill.enqueue_many("polite", [{"host": "busy.example"}] * 20 + [{"host": f"{n}.example"} for n in range(100)])
    look = Look(play)
    assert look.keys("limit_waiting", "key") == {"busy.example"}
    assert look("limit_at_once", limit="host", key="busy.example") == 1
    assert look("limit_waiting", limit="host", key="busy.example") == look("queue_jobs", queue="default", state="limited")


def test_at_most_twenty_keys_are_named(opened: Open) -> None:
    play = opened(polite)
    play.mill.enqueue_many("polite", [{"host": f"{n}.example"} for n in range(50) for _ in range(9)])
    assert len(Look(play).keys("limit_waiting", "key")) == 20


def test_an_open_circuit_is_told(opened: Open) -> None:
    play = opened(polite)
    play.mill.enqueue_many("polite", [{"host": "down.example"}] * 5)
    player = play.player()
    assert Look(play)("limit_circuits_open", limit="host") == 0
    for _ in range(2):
        player.end(player.take_one(), Verdict.ERROR)
    look = Look(play)
    assert look("limit_circuits_open", limit="host") == 1
    assert look("limit_circuit_open", limit="host", key="down.example") == 1


# ---- the text


def test_an_empty_ledger_has_something_to_say(play: Play) -> None:
    look = Look(play)
    assert look.values["gristmill_workers", frozenset({("state", "active")})] == 0
    assert "gristmill_info" in look.said


def test_the_names_of_a_queue_are_quoted() -> None:
    family = Family("x", "gauge", "two\nlines \\ and one")
    family.add(1.5, queue='a"b\\c\nd')
    family.add(2**60 + 1, queue="big")
    (read_family,) = text_string_to_metric_families(text([family]))
    assert read_family.documentation == "two\nlines \\ and one"
    assert [sample.labels["queue"] for sample in read_family.samples] == ['a"b\\c\nd', "big"]
    assert str(2**60 + 1) in text([family])


def test_a_histogram_counts_up_to_each_bound() -> None:
    family = Family("x_seconds", "histogram", "times")
    family.add_histogram([0.1, 1], [3, 0, 2], 12.5, queue="a")
    values = read(text([family]))
    buckets = {
        bound: values["x_seconds_bucket", frozenset({("queue", "a"), ("le", bound)})] for bound in ("0.1", "1", "+Inf")
    }
    assert buckets == {"0.1": 3, "1": 3, "+Inf": 5}
    assert values["x_seconds_sum", frozenset({("queue", "a")})] == 12.5
    assert values["x_seconds_count", frozenset({("queue", "a")})] == 5


def test_an_application_adds_its_own(play: Play) -> None:
    own = Family("clerk_pages", "gauge", "Pages.")
    own.add(3)
    assert read(exposition(play.mill, [own]))["clerk_pages", frozenset()] == 3


def test_as_json(play: Play) -> None:
    said: Mapping[str, Any] = to_json(play.mill.metrics())
    assert {"labels": {"state": "late"}, "value": 0} in said["gristmill_workers"]["samples"]


def test_a_reader_may_look(play: Play) -> None:
    """What a scrape runs is only reading: no verb, no lock."""
    before = play.rows("SELECT * FROM gm_ledger")
    exposition(play.mill)
    assert play.rows("SELECT * FROM gm_ledger") == before


# ---- what ended


def test_jobs_that_ended_are_counted_by_outcome_and_stay_so_when_they_are_removed(play: Play, clock: FrozenClock) -> None:
    play.mill.enqueue_many("solo", [{}] * 6)
    clock.advance(2)
    player = play.player()
    jobs = player.take(6)
    player.complete(*jobs[:3])
    player.finish(end(jobs[3], Verdict.SKIPPED), end(jobs[4], Verdict.PERMANENT), end(jobs[5], Verdict.PERMANENT))

    def counted(outcome: str) -> float:
        return Look(play)("jobs_finished_total", queue="default", task="solo", outcome=outcome)

    assert [counted(outcome) for outcome in ("completed", "skipped", "failed", "cancelled")] == [3, 1, 2, 0]
    play.mill.delete_jobs(ids=[job.id for job in jobs])
    assert play.value("SELECT count(*) FROM gm_job") <= 1  # SQLite keeps the newest, for its number
    assert [counted(outcome) for outcome in ("completed", "skipped", "failed", "cancelled")] == [3, 1, 2, 0]


def test_waits_and_runs_are_histograms(play: Play, clock: FrozenClock) -> None:
    play.mill.enqueue_many("solo", [{}] * 2)
    clock.advance(2)
    player = play.player()
    jobs = player.take(2)
    clock.advance(20)
    player.finish(*(end(job, Verdict.SKIPPED, ran=20_000_000) for job in jobs))
    look, of = Look(play), {"queue": "default", "task": "solo"}
    assert look("job_wait_seconds_count", **of) == look("job_run_seconds_count", **of) == 2
    assert look("job_wait_seconds_sum", **of) == pytest.approx(4)
    assert look("job_run_seconds_sum", **of) == pytest.approx(40)
    assert [look("job_wait_seconds_bucket", **of, le=bound) for bound in ("1", "5", "+Inf")] == [0, 2, 2]
    assert [look("job_run_seconds_bucket", **of, le=bound) for bound in ("10", "30", "+Inf")] == [0, 2, 2]


def test_an_attempt_that_is_followed_by_another_is_counted(play: Play) -> None:
    play.mill.enqueue("stubborn")
    player = play.player()
    player.end(player.take_one(), Verdict.ERROR)
    assert Look(play)("attempts_retried_total", queue="default", task="stubborn") == 1
