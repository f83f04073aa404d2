"""What the pages make of what they are told: searches, verdicts, charts."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.cron import Cron
from gristmill.errors import Invalid
from gristmill.model import Diagnosis, LimitState, Queue, Reason, Run, ScheduleEntry, Signature, Stage, Status, Why, Worker
from gristmill.web import charts, cures, graph, search, verdict
from gristmill.web.view import local

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


# ---- searches


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("state:failed queue:ocr", {"state": ["failed"], "queue": "ocr"}),
        ("state:failed,skipped state:queued", {"state": ["failed", "skipped", "queued"]}),
        ("run:17 key:2024-*", {"run": 17, "key": "2024-*"}),
        ("page 12", {"key": "*page*12*"}),
        ('key:"a b" task:x', {"key": "a b", "task": "x"}),
        (r'key:"say \"hi\""', {"key": 'say "hi"'}),
        ("is:archived", {"archived": True}),
        ("error:1cf674e7f108", {"error": "1cf674e7f108"}),
        ("https://a.org/x", {"key": "*https://a.org/x*"}),
        ("subject:https://a.org/x", {"subject": "https://a.org/x"}),
        ("subject:mill* worker:3", {"subject": "mill*", "worker": 3}),
    ],
)
def test_a_search_for_jobs(text: str, found: dict[str, Any]) -> None:
    assert search.jobs(text) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("colour:red", "there is no qualifier 'colour'"),
        ("urn:isbn:1", 'quotes make it a plain word: "urn:isbn:1"'),
        ("queu:ocr", "did you mean 'queue'?"),
        ("run:x", "run: wants a number"),
        ("queue:a queue:b", "queue: is there twice"),
        ("is:new", "is:new is not known"),
        ("word key:x", "give one of both"),
    ],
)
def test_a_search_that_cannot_be_meant_says_why(text: str, said: str) -> None:
    with pytest.raises(Invalid) as refused:
        search.jobs(text)
    assert said in str(refused.value)


def test_a_subject_is_found_by_a_part_of_its_name_or_by_a_pattern() -> None:
    assert search.subjects("pipeline:site https://a.org/x") == {"pipeline": "site", "name": "*https://a.org/x*"}
    assert search.runs("Port Salem") == {"subject": "*Port*Salem*"}
    assert search.subjects("name:mill*") == {"name": "mill*"}
    assert search.runs('subject:"Port ?alem" stage:ocr') == {"subject": "Port ?alem", "stage": "ocr"}
    for parse, text in ((search.subjects, "name:Port Salem"), (search.runs, "subject:Port Salem")):
        with pytest.raises(Invalid, match="in quotes if it has spaces"):
            parse(text)


def test_what_was_made_lately_is_found_by_how_long_ago() -> None:
    for parse in (search.jobs, search.runs):
        since = parse("since:1d")["since"]
        assert timedelta(hours=24) <= datetime.now(UTC) - since < timedelta(hours=25)
        with pytest.raises(Invalid, match="write 30m, 2h or 1d"):
            parse("since:yesterday")
    for text in ("1000000d", f"{'9' * 400}d"):
        with pytest.raises(Invalid, match="10000d at most"):
            search.jobs(f"since:{text}")
        with pytest.raises(Invalid, match="10000d at most"):
            search.audit(f"since:{text}")
        with pytest.raises(Invalid, match="10000d at most"):
            search.subjects(f"stale:{text}")


@given(st.text(min_size=1).filter(lambda text: "\0" not in text))
def test_what_is_written_for_a_value_finds_it_again(value: str) -> None:
    assert search.words_of(search.written({"key": value[:500]}), search.JOBS) == ({"key": [value[:500]]}, [])


@given(st.text())
def test_no_text_breaks_the_search(text: str) -> None:
    for parse in (search.jobs, search.runs, search.subjects):
        with contextlib.suppress(Invalid):
            parse(text)


def test_where_one_goes_after_signing_in_is_here() -> None:
    assert local("/runs?q=state%3Afailed") == "/runs?q=state%3Afailed"
    for elsewhere in ("//evil.example", "https://evil.example", "/\\evil.example", "", "runs", "/\nx"):
        assert local(elsewhere) == "/"


# ---- verdicts


def queue(**given: Any) -> Queue:
    usual: dict[str, Any] = {"name": "ocr", "weight": 1.0, "paused": False, "ready": 0, "delayed": 0, "in_progress": 0}
    usual |= {"oldest": None, "workers": 1}
    return Queue(**{**usual, **given})


def worker(**given: Any) -> Worker:
    usual: dict[str, Any] = {"id": 1, "host": "mill-1", "pid": 7, "state": "active", "queues": (), "slots": 2}
    usual |= {"own_slots": {}, "labels": (), "memory_mib": 0, "version": "1", "delivery": "database", "holding": 0}
    usual |= {"doing": (), "registered_at": NOW, "heartbeat_at": NOW}
    return Worker(**{**usual, "lease_until": NOW, **given})


def seen(*queues: Queue, workers: Any = (), errors: Any = (), limits: Any = (), schedules: Any = ()) -> verdict.Seen:
    return verdict.Seen(Status({"completed": 1}, (), queues, tuple(workers), NOW), errors, limits, schedules)


def entry() -> ScheduleEntry:
    times: dict[str, Any] = dict.fromkeys(["last_at", "last_started_at", "last_job", "last_run", "undeclared_at"])
    times |= {"paused_at": None, "paused_by": None, "problem": None, "declared": True}
    return ScheduleEntry("nightly", "on", "daily", {}, NOW + timedelta(hours=1), **times)


def said(found: verdict.Seen) -> list[tuple[bool, str, str]]:
    return [(one.bad, one.sentence, one.path) for one in verdict.concerns(found)]


def test_nothing_is_wrong() -> None:
    found = seen(queue(in_progress=2, ready=5), workers=[worker()])
    assert said(found) == []
    assert verdict.all_well(found.status) == "Everything is all right: 2 jobs in progress, 5 ready, 1 worker."
    idle = seen(queue(), workers=[worker()])
    assert verdict.all_well(idle.status) == "Everything is all right. Nothing is waiting; 1 worker ready."
    later = seen(queue(delayed=2), workers=[worker()])
    assert verdict.all_well(later.status) == "Everything is all right. 2 jobs to run later; 1 worker ready."


def test_nobody_works() -> None:
    assert said(seen(queue(ready=1, workers=0))) == [(True, "No worker is running, and 1 job waits.", "/workers")]
    found = seen(queue(ready=3, workers=0), queue(name="x", workers=1), workers=[worker()])
    assert said(found) == [(True, "No worker serves queue ocr: 3 jobs wait.", "/queues")]
    later = seen(queue(delayed=1, workers=0))
    assert said(later) == [(False, "No worker is running, and 1 job is to run later.", "/workers")]
    assert said(seen(queue(workers=0), schedules=[entry(), entry()])) == [
        (False, "No worker is running, and 2 schedules are on.", "/workers")
    ]
    assert said(seen(queue(workers=0), schedules=[replace(entry(), state="paused")])) == []
    gone = worker(late=True)
    assert said(seen(workers=[gone])) == [(True, "worker 1 on mill-1 is not heard of any more.", "/workers")]


def test_what_is_stuck_is_told_with_where_to_look() -> None:
    one, two = run_of(), replace(run_of(), id=2, subject="t")
    found = replace(seen(workers=[worker()]), stuck=[one])
    assert said(found) == [(True, "s is stuck: its run has no job left that could move it on.", "/runs/1")]
    [(_, sentence, path)] = said(replace(found, stuck=[one, two]))
    assert sentence.startswith("s and t are stuck")
    assert path == "/runs?q=is%3Astuck"
    assert search.runs("is:stuck") == search.STUCK
    with pytest.raises(Invalid, match="is:stuck, alone"):
        search.runs("is:stuck state:failed")


def test_jobs_that_wait_for_hours_although_there_are_workers_are_told() -> None:
    hours = NOW - timedelta(hours=5)
    idle, busy = queue(ready=3, oldest=hours), queue(name="mail", ready=1, in_progress=2, oldest=NOW - timedelta(hours=2))
    assert said(seen(idle, busy, workers=[worker()])) == [
        (True, "Queue ocr: 3 jobs wait, the oldest for 5 h, and nothing of it is in progress.", "/queues"),
        (False, "Queue mail: 1 job waits, the oldest for 2 h, and its workers do not keep up.", "/queues"),
    ]
    both = said(seen(idle, replace(idle, name="pages"), workers=[worker()]))
    assert both[0][1] == "Queues ocr and pages: 6 jobs wait, the oldest for 5 h, and nothing of them is in progress."
    young = queue(ready=3, oldest=NOW - timedelta(minutes=59))
    assert said(seen(young, workers=[worker()])) == []
    unserved = said(seen(queue(ready=3, oldest=hours, workers=0), workers=[worker()]))
    assert [sentence for _, sentence, _ in unserved] == ["No worker serves queue ocr: 3 jobs wait."]
    paused = said(seen(queue(ready=3, oldest=hours, paused=True), workers=[worker()]))
    assert [sentence for _, sentence, _ in paused] == ["Queue ocr is paused: 3 jobs wait."]


def test_what_the_doctor_finds_is_told_once() -> None:
    full = Diagnosis("disk", False, "0.1 GiB left for the database in /data", ("df", "-h", "/data"))
    dead = [Diagnosis("bloat", False, f"gm_{name} has 200,000 dead rows") for name in ("job", "run")]
    repeated = [Diagnosis(check, False, "as above") for check in ("workers", "queues", "limits", "schedules")]
    well = Diagnosis("clock", True, "this host's clock is 0.0 s ahead")
    found = replace(seen(workers=[worker()]), doctor=[well, *dead, *repeated, full])
    assert said(found) == [
        (True, "The doctor says of disk: 0.1 GiB left for the database in /data.", "/settings"),
        (False, "The doctor says of bloat: gm_job has 200,000 dead rows (1 more like it).", "/settings"),
    ]


def test_what_somebody_did_on_purpose_is_no_alarm() -> None:
    found = seen(queue(paused=True, ready=30), queue(name="b", paused=True), workers=[worker()])
    assert said(found) == [(False, "Queues ocr and b are paused: 30 jobs wait.", "/queues")]


def test_failures_are_told_by_their_causes() -> None:
    def failing(name: str, failed: int) -> Signature:
        return Signature(name, "ValueError", "ValueError: no such page.\nx", failed, failed, 1, NOW, NOW, False)

    one = seen(errors=[failing("a", 5)], workers=[worker()])
    assert said(one) == [(False, "5 jobs failed within a day, all by one error: no such page.", "/errors/a")]
    single = seen(errors=[replace(failing("a", 1), error="x" * 500)], workers=[worker()])
    assert said(single) == [(False, f"1 job failed within a day: {'x' * 119}….", "/errors/a")]
    nameless = seen(errors=[replace(failing("a", 1), error=None)], workers=[worker()])
    assert said(nameless) == [(False, "1 job failed within a day: ValueError.", "/errors/a")]
    some = replace(seen(errors=[failing("a", 5), failing("b", 2)], workers=[worker()]), more_errors=True)
    assert said(some) == [(False, "At least 7 jobs failed within a day, by the first 2 of more causes.", "/errors")]
    many = seen(errors=[failing("a", 5), failing("b", 2), failing("c", 0)], workers=[worker()])
    assert said(many) == [(False, "7 jobs failed within a day; 2 causes explain them.", "/errors")]


def test_circuits_and_schedules_are_told_and_the_worst_comes_first() -> None:
    limit = LimitState("host", "a.org", 1, None, 3, 60.0, "application", 0, 0, 4, "open", 3, NOW)
    late = replace(entry(), next_at=NOW - timedelta(hours=1), late=True)
    found = said(seen(queue(paused=True), workers=[worker()], limits=[limit], schedules=[late]))
    assert [(bad, path) for bad, _, path in found] == [(True, "/limits"), (True, "/schedules"), (False, "/queues")]
    assert found[1][1] == "Schedule nightly should have fired 60 min ago."
    assert found[0][1] == "After failures, host a.org is left alone for a while: 4 jobs wait."


# ---- times


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("*/10 * * * *", "Every 10 minutes (UTC)"),
        ("*/15 3 * * *", "Every 15 minutes from 03:00 through 03:59 (UTC)"),
        ("*/10 * * * MON", "Every 10 minutes on Monday (UTC)"),
        ("*/7 * * * *", "Every seventh minute of every hour (UTC)"),
        ("*/30 */2 * * *", "Every 30th minute past every second hour (UTC)"),
        ("* * * * *", "Every minute (UTC)"),
        ("10 * * * *", "At minute 10 of every hour (UTC)"),
    ],
)
def test_times_that_come_evenly_are_said_so(cron: str, words: str) -> None:
    assert Cron(cron).words() == words


# ---- cures


def test_what_a_page_can_do_about_it_is_a_button() -> None:
    def found(reason: Reason, *command: str, run: int | None = 7) -> tuple[str, str, str] | None:
        cure = cures.cure(Why("run 7", reason, "…", command), run)
        return (cure.label, cure.path, cure.role) if cure else None

    assert found(Reason.QUEUE_PAUSED, "queue", "resume", "a/b") == ("Resume queue a/b", "/queues/a%2Fb/resume", "operator")
    assert found(Reason.FINISHED, "run", "retry", "5") == ("Retry what failed", "/runs/5/retry", "operator")
    assert found(Reason.INCONSISTENT, "reconcile") == ("Reconcile", "/runs/7/reconcile", "admin")
    assert found(Reason.INCONSISTENT, "reconcile", run=None) is None
    assert found(Reason.WORKER_SILENT, "reconcile") is None, "of one run, that would not be mended"
    assert found(Reason.NO_WORKER, "work", "-q", "ocr") is None
    assert found(Reason.IN_LINE) is None
    assert cures.cure(None, 7) is None


# ---- charts


def stage(name: str, **given: Any) -> Stage:
    usual: dict[str, Any] = {"state": "sealed", "outcome": None, "total": 10, "completed": 4, "failed": 1, "skipped": 1}
    usual |= {"cancelled": 0, "queue": "q", "each": True, "gate": False, "opened_at": NOW, "closed_at": None}
    return Stage(name, **{**usual, **given})


def run_of(*stages: Stage) -> Run:
    return Run(1, "p", "s", "in_progress", "normal", 1, {}, None, None, None, NOW, NOW, None, None, stages)


def test_a_bar_is_as_long_as_what_is_done() -> None:
    drawn = str(charts.bar(stage("read")))
    assert 'width="40.00%"' in drawn
    assert 'aria-label="6 of 10 done"' in drawn
    assert "rect" not in str(charts.bar(stage("read", total=0, completed=0, failed=0, skipped=0)))


@given(st.integers(0, 10**9))
def test_an_axis_ends_with_a_round_number_above_all(most: int) -> None:
    assert charts.nice(most) >= most
    assert charts.nice(most) <= max(5, 2 * most)


def test_the_chart_shows_every_minute() -> None:
    columns = [charts.Column(NOW + timedelta(minutes=n), n, 1) for n in range(60)]
    drawn = str(charts.throughput(columns))
    assert drawn.count("<title>") == 60
    assert "1,830 jobs ended, 60 of them failed" in drawn


def test_a_graph_has_a_place_for_every_stage_and_escapes_names() -> None:
    stages = [stage(name) for name in ("a", "<b>", "c", "d")]
    after = {"<b>": ("a",), "c": ("a",), "d": ("<b>", "c")}
    drawn = str(graph.drawn(run_of(*stages), after, "/jobs?q=", {"c": "5 s left"}))
    assert drawn.count('class="edge"') == 4
    assert "<b>" not in drawn
    assert "&lt;b&gt;" in drawn
    assert "5 s left" in drawn, "also where something has failed"
    assert drawn.count(">1 failed, 1 skipped<") == 4


def test_a_run_that_has_not_begun_has_a_timeline_too() -> None:
    lines, _ = charts.timeline(run_of(stage("a", opened_at=None, state="waiting"), stage("b", closed_at=NOW)))
    assert [line.took for line in lines] == ["", "0.0 s"]
