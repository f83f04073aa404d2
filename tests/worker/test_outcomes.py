"""How attempts end, and what is kept of those that did not succeed: chosen outcomes, retries, tracebacks, logs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gristmill import Mill
from gristmill.model import Job
from tests.apps import everyday
from tests.worker.helpers import drain, lines

pytestmark = pytest.mark.alike


def ended(mill: Mill, task, **args: object) -> Job:
    job = mill.enqueue(task, args=args)
    drain(mill, slots=1)
    return mill.job(job.id)


# ---- outcomes that a function chooses


def test_permanent_is_never_tried_again(mill: Mill) -> None:
    job = ended(mill, everyday.permanent)
    assert (job.state, job.error, job.error_class, job.attempt) == ("failed", "no such site", "Permanent", 1)


def test_skip_is_no_failure_and_says_why(mill: Mill) -> None:
    job = ended(mill, everyday.skip)
    assert (job.state, job.error, job.attempt) == ("skipped", "seen before", 1)
    assert mill.attempts(job.id) == []


def test_later_runs_again_and_costs_nothing(mill: Mill) -> None:
    job = ended(mill, everyday.later_once)
    assert (job.state, job.result, job.errors) == ("completed", 2, 0)


def test_unspent_costs_nothing_and_lets_the_worker_rest(mill: Mill, folder: Path) -> None:
    first = mill.enqueue(everyday.unspent_once, args={"pause": 1.5})
    began = time.monotonic()
    drain(mill, slots=1, queues=["tools"])
    job = mill.job(first.id)
    assert (job.state, job.result, job.errors, job.returns) == ("completed", 2, 0, 1)
    assert time.monotonic() - began >= 1.5
    (kept,) = mill.attempts(job.id)
    assert (kept.outcome, kept.error) == ("unspent", "the disk is full")


def test_a_worker_that_rests_starts_nothing_else(lite: Mill, folder: Path) -> None:
    first = lite.enqueue(everyday.unspent_once, args={"pause": 1.0}, priority="high")
    other = lite.enqueue(everyday.write_down, args={"folder": folder, "name": "other"}, queue="tools", priority="low")
    drain(lite, slots=1)
    (gave_up,) = lite.attempts(first.id)
    started = lite.job(other.id).started_at
    assert started is not None
    assert gave_up.ended_at is not None
    assert (started - gave_up.ended_at).total_seconds() > 0.9


def test_a_short_rest_ends_on_time_although_the_poll_is_slow(lite: Mill) -> None:
    job = lite.enqueue(everyday.unspent_once, args={"pause": 0.2})
    drain(lite, slots=1, poll=60, lease=180)  # it fails before that
    assert lite.job(job.id).state == "completed"


# ---- retries


def test_errors_are_tried_again_as_often_as_was_said(mill: Mill) -> None:
    lucky, unlucky = (mill.enqueue(everyday.flaky, args={"failures": n}) for n in (3, 9))
    drain(mill, slots=1, prefetch=0)
    assert (mill.job(lucky.id).state, mill.job(lucky.id).result, mill.job(lucky.id).errors) == ("completed", 4, 3)
    assert (mill.job(unlucky.id).state, mill.job(unlucky.id).attempt) == ("failed", 4)
    assert mill.job(unlucky.id).error == "ConnectionError: refused, attempt 4"


@pytest.mark.parametrize(("kind", "attempts"), [("os", 2), ("value", 1), ("other", 4)])
def test_the_error_type_decides_how_often(lite: Mill, kind: str, attempts: int) -> None:
    job = ended(lite, everyday.fail_as, kind=kind)
    assert (job.state, job.attempt) == ("failed", attempts)
    assert len(lite.attempts(job.id)) == attempts


def test_retries_wait_for_their_delays(mill: Mill, folder: Path) -> None:
    job = ended(mill, everyday.fail_and_say_when, folder=folder)
    first, second, third = map(float, lines(folder / "tries"))
    assert job.state == "failed"
    assert 0.25 < second - first < 5
    assert 0.55 < third - second < 5


def test_a_failed_job_runs_again_when_an_operator_says_so(mill: Mill) -> None:
    job = ended(mill, everyday.permanent)
    assert mill.retry_job(job.id).state == "queued"
    drain(mill, slots=1)
    assert (mill.job(job.id).state, mill.job(job.id).attempt) == ("failed", 2)


# ---- what is kept


def test_every_failed_attempt_is_kept(mill: Mill) -> None:
    job = ended(mill, everyday.flaky, failures=9)
    kept = mill.attempts(job.id)
    assert [attempt.attempt for attempt in kept] == [4, 3, 2, 1]
    assert {(attempt.outcome, attempt.error_class) for attempt in kept} == {("error", "ConnectionError")}
    assert [attempt.error for attempt in kept] == [f"ConnectionError: refused, attempt {n}" for n in (4, 3, 2, 1)]
    assert all(a.started_at is not None and a.ended_at is not None and a.started_at <= a.ended_at for a in kept)


def test_a_failed_attempt_keeps_traceback_and_log(mill: Mill) -> None:
    job = ended(mill, everyday.talkative)
    (kept,) = mill.attempts(job.id)
    assert (kept.error_class, kept.error) == ("LookupError", "LookupError: deep down")
    assert kept.traceback is not None
    assert kept.log is not None
    for said in ("printed", "to stderr", "a library's warning", "the job's own logger", "a program's output"):
        assert said in kept.log
    assert "in talkative" in kept.traceback
    assert "in _deep" in kept.traceback
    assert "/execution/" not in kept.traceback, "frames of ours tell the user nothing"


def test_what_is_kept_is_bounded_and_the_end_matters_most(mill: Mill) -> None:
    job = ended(mill, everyday.long_winded)
    (kept,) = mill.attempts(job.id)
    assert kept.log is not None
    assert kept.traceback is not None
    assert kept.error is not None
    assert len(kept.log) < 20_000
    assert kept.log.endswith("line 99999\n")
    assert len(kept.traceback) < 70_000
    assert len(kept.error) < 3_000


def test_the_log_is_of_this_job_alone(lite: Mill) -> None:
    first = lite.enqueue(everyday.talkative)
    second = lite.enqueue(everyday.flaky, args={"failures": 1})
    drain(lite, slots=1)
    assert "printed" in str(lite.attempts(first.id)[0].log)
    assert "printed" not in str(lite.attempts(second.id)[0].log)


# ---- the log


def test_a_line_of_the_log_says_what_comes_next(mill: Mill, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "gristmill.worker")
    first = mill.enqueue(everyday.permanent)
    second = mill.enqueue(everyday.fail_and_say_when, args={"folder": "/nowhere"}, retries=1)
    drain(mill, until="idle", slots=1)
    assert f"job {first.id} permanent attempt 1: permanent: no such site; failed for good" in caplog.messages
    (again,) = [line for line in caplog.messages if line.startswith(f"job {second.id} fail_and_say_when attempt 1: error: ")]
    assert "; again in " in again
