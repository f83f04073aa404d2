"""Errors by fingerprint: thousands of failures, a few signatures; retried and ignored as one."""

from __future__ import annotations

from typing import Any

import pytest

from gristmill import Mill, Pipeline
from gristmill.clock import FrozenClock, micros, to_datetime
from gristmill.errors import NotFound
from gristmill.ledger import remove
from gristmill.ledger.claim import Claimed
from gristmill.ledger.exchange import Batch
from gristmill.ledger.finish import Outcome, Verdict, finish
from gristmill.ledger.sql import Sql
from gristmill.ledger.store import Tx
from gristmill.model import Signature
from tests.ledger import invariants
from tests.ledger.conftest import Open
from tests.ledger.play import Play, each, end, plain, plan, solo, step, stubborn


def site(**options: Any) -> Pipeline:
    return plan("site", find=step(queue="find"), page=each("find", queue="pages", **options), total=step("page"))


def trace(number: int, function: str) -> str:
    return (
        "Traceback (most recent call last):\n"
        f'  File "/srv/{number}/steps.py", line {number + 1}, in page\n    return {function}(path)\n'
        f'  File "/srv/{number}/pdf.py", line {2 * number + 7}, in {function}\n    raise ValueError\n'
    )


# Five kinds of failure, in which everything differs from job to job that may.
KINDS = (
    ("ValueError", "ValueError: page {n} of /data/{n}/doc.pdf is damaged", "decode"),
    ("ValueError", "ValueError: page {n} of /data/{n}/doc.pdf is damaged", "unpack"),
    ("KeyError", "KeyError: 'title'", "decode"),
    ("ConnectionError", "ConnectionError: https://example.org/{n}?x={n} did not answer in {n}.5 s", "fetch"),
    ("Permanent", "no text in document a{n}f", "decode"),
)


def failure(job: Claimed, kind: int = 0, verdict: Verdict = Verdict.PERMANENT) -> Outcome:
    error_class, said, function = KINDS[kind]
    return end(
        job,
        verdict,
        reason=said.format(n=job.id),
        error_class=error_class,
        traceback=trace(job.id, function),
        log=f"reading {job.id}\n",
    )


def fail_pages(play: Play, subject: str, count: int, *, kinds: int = 1) -> int:
    """A run whose pages fail, one kind after the other; all but the last one, which keeps its stage open."""
    player = play.player()
    run = play.mill.start("site", subject)
    finding = player.take_one()
    for first in range(0, count + 1, 500):
        player.emit(finding, *(f"{n:06}" for n in range(first, min(first + 500, count + 1))))
    player.report(Batch(completed=plain(finding)))
    pages = player.take(10_000, queues=["pages"])
    mine = [page for page in pages if page.run_id == run.id][:count]
    player.finish(*(failure(page, n % kinds) for n, page in enumerate(mine)))
    player.finish(*(end(page, Verdict.RELEASED) for page in pages if page not in mine))
    return run.id


def counts(found: list[Signature]) -> list[tuple[int, int, int]]:
    return [(signature.failed, signature.attempts, signature.subjects) for signature in found]


def test_3000_failures_of_five_kinds_are_five_signatures(opened: Open) -> None:
    play = opened(site())
    for subject in ("a", "b", "c"):
        fail_pages(play, subject, 1000, kinds=5)
        play.clock.advance(60)
    found = play.mill.errors()
    assert counts(found) == [(600, 600, 3)] * 5
    assert sorted(str(signature.error_class) for signature in found) == sorted(kind for kind, _, _ in KINDS)
    assert len({signature.fingerprint for signature in found}) == 5
    first, last = to_datetime(play.clock.at - micros(180)), to_datetime(play.clock.at - micros(60))
    assert {(signature.first_seen, signature.last_seen) for signature in found} == {(first, last)}


@pytest.mark.parametrize("which", [{}, {"every": True}, {"queue": "pages"}, {"stage": "page"}, {"queue": "default"}])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_page_after_page_is_the_whole_list(opened: Open, which: dict[str, Any], size: int) -> None:
    """Of some kinds most attempts are of jobs that count for other filters, or that another error failed since."""
    play = opened(site())
    fail_pages(play, "a", 23, kinds=5)
    play.mill.enqueue_many(solo, [{}] * 40)
    play.mill.enqueue_many(stubborn, [{}] * 3)
    player = play.player()
    jobs = player.take(43, queues=["default"])
    player.finish(*(failure(job, (n > 30) + 2 * (n > 36)) for n, job in enumerate(jobs[:40])))
    player.finish(*(failure(job, 2, Verdict.ERROR) for job in jobs[40:]))
    play.mill.ignore_error(play.mill.errors()[2].fingerprint, by="anna")
    every, seen, after = play.mill.errors(**which), [], None
    while page := play.mill.errors(**which, limit=size, after=after):
        seen += page
        after = page[-1].place
    assert seen == every == sorted(every, key=lambda one: one.rank)
    assert len(seen) == 5 - (which != {"every": True}) - (which == {"queue": "default"})


def test_what_is_being_removed_keeps_no_error_from_its_page(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    play = opened(site())
    run = fail_pages(play, "a", 9)
    player = play.player()
    player.finish(*(end(page) for page in player.take(queues=["pages"])))
    play.drain(player)
    play.mill.enqueue_many(solo, [{}] * 3)
    one, *others = player.take(3)
    player.finish(failure(one, 0), *(failure(job, 1) for job in others))
    monkeypatch.setattr(remove, "BATCH", 0)  # nothing of it goes in the transaction that removes the run
    play.ledger.do(remove.remove_run, run)
    first = play.mill.errors(limit=1)
    assert counts([*first, *play.mill.errors(limit=1, after=first[0].place)]) == [(2, 2, 0), (1, 1, 0)]


def test_page_after_page_is_the_whole_list_while_a_run_is_being_removed(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its failures are still there, and count no more."""
    play = opened(site())
    run = fail_pages(play, "a", 8)
    play.mill.enqueue_many(solo, [{}] * 6)
    player = play.player()
    jobs = player.take(queues=["default"])
    player.finish(*(failure(job, kind) for job, kind in zip(jobs, (0, 1, 1, 2, 2, 2), strict=True)))
    play.mill.cancel_run(run, by="anna")
    monkeypatch.setattr(remove, "BATCH", 1)
    play.ledger.do(remove.remove_run, run)
    seen: list[Signature] = []
    while page := play.mill.errors(limit=1, after=seen[-1].place if seen else None):
        seen += page
    assert seen == play.mill.errors()
    assert [one.failed for one in seen] == [3, 2, 1]


def test_a_successful_job_has_no_fingerprint_and_a_retried_one_only_in_its_attempts(play: Play) -> None:
    job = play.mill.enqueue(stubborn)
    player = play.player()
    player.finish(failure(player.take_one(), verdict=Verdict.ERROR))
    (attempt,) = play.mill.attempts(job.id)
    assert attempt.fingerprint
    assert play.mill.job(job.id).fingerprint is None
    assert counts(play.mill.errors()) == [(0, 1, 0)]
    play.drain_later()
    assert play.mill.job(job.id).fingerprint is None
    assert play.mill.job(job.id).state == "completed"


@pytest.mark.parametrize("verdict", [Verdict.TIMEOUT, Verdict.CRASH, Verdict.MEMORY, Verdict.LOST])
def test_failures_without_a_traceback_have_a_signature_too(play: Play, verdict: Verdict) -> None:
    play.mill.enqueue_many(solo, [{}] * 3)
    player = play.player()
    jobs = player.take()
    player.finish(*(end(job, verdict, reason=f"ended after {n}.5 s") for n, job in enumerate(jobs)))
    player.report(Batch(outcomes=[end(job, verdict) for job in player.take()]))  # a first crash or loss may be forgiven
    assert sum(signature.attempts for signature in play.mill.errors()) >= 3
    assert len({attempt.fingerprint for job in jobs for attempt in play.mill.attempts(job.id)[-1:]}) == 1


@pytest.mark.parametrize("verdict", [Verdict.CANCELLED, Verdict.UNSPENT])
def test_what_was_cancelled_or_given_back_did_not_fail(play: Play, verdict: Verdict) -> None:
    job = play.mill.enqueue(solo)
    player = play.player()
    player.end(player.take_one(), verdict, reason="disk full")
    assert [attempt.fingerprint for attempt in play.mill.attempts(job.id)] == [None]
    assert play.mill.errors() == []


def test_errors_are_filtered(opened: Open) -> None:
    play = opened(site())
    fail_pages(play, "a", 10, kinds=2)
    play.clock.advance(3600)
    play.mill.enqueue(solo)
    player = play.player(queues=["default"])
    (job,) = player.take(queues=["default"])
    player.finish(failure(job, kind=2))
    mill = play.mill
    assert counts(mill.errors()) == [(5, 5, 1), (5, 5, 1), (1, 1, 0)]
    assert counts(mill.errors(limit=1)) == [(5, 5, 1)]
    assert counts(mill.errors(queue="pages")) == counts(mill.errors(stage="page")) == [(5, 5, 1), (5, 5, 1)]
    assert counts(mill.errors(queue="default", limit=1)) == [(1, 1, 0)]  # though others fail more, elsewhere
    assert counts(mill.errors(pipeline="site", stage="total")) == []
    assert counts(mill.errors(queue="default")) == counts(mill.errors(since=to_datetime(play.clock.at))) == [(1, 1, 0)]
    with pytest.raises(NotFound, match="did you mean 'pages'"):
        mill.errors(queue="pagse")


def test_errors_that_fail_much_elsewhere_do_not_come_before_those_that_fail_here(opened: Open) -> None:
    play = opened(site())
    fail_pages(play, "a", 9, kinds=2)  # five of the first, four of the second
    play.mill.enqueue_many(solo, [{}] * 4)
    player = play.player(queues=["default"])
    jobs = player.take(queues=["default"])
    player.finish(*(failure(job, kind) for job, kind in zip(jobs, (0, 1, 1, 1), strict=True)))
    first, second = play.mill.errors(limit=2)
    assert counts([first, second]) == [(7, 7, 1), (6, 6, 1)]
    (found,) = play.mill.errors(queue="pages", limit=1)
    assert (found.fingerprint, found.failed) == (second.fingerprint, 5)


def test_the_example_is_one_that_meets_the_filter(opened: Open) -> None:
    play = opened(site())
    fail_pages(play, "a", 1)
    play.clock.advance(10)
    play.mill.enqueue(solo)
    player = play.player()
    (job,) = player.take(queues=["default"])
    player.finish(failure(job))
    (here,), (anywhere,) = play.mill.errors(pipeline="site"), play.mill.errors()
    assert here.fingerprint == anywhere.fingerprint
    assert here.error != anywhere.error


def test_an_error_in_detail(opened: Open) -> None:
    play = opened(site())
    fail_pages(play, "a", 3)
    fail_pages(play, "b", 1)
    play.clock.advance(10)
    play.mill.enqueue(solo)
    player = play.player()
    (last,) = player.take(queues=["default"])
    player.finish(failure(last))
    (signature,) = play.mill.errors()
    found = play.mill.error(signature.fingerprint)
    assert found.signature == signature
    assert (found.example.job, found.example.log) == (last.id, f"reading {last.id}\n")
    assert found.example.traceback == trace(last.id, "decode")
    places = [(place.pipeline, place.stage, place.task, place.queue, place.failed) for place in found.places]
    assert places == [("site", "page", "site.page", "pages", 4), (None, None, "solo", "default", 1)]
    assert [(subject.subject, subject.failed) for subject in found.subjects] == [("a", 3), ("b", 1)]
    assert list(found.jobs) == [job.id for job in play.mill.jobs(state="failed")]


def test_an_unknown_error_is_refused(play: Play) -> None:
    for call in (play.mill.error, play.mill.retry_error, play.mill.ignore_error):
        with pytest.raises(NotFound, match="there is no error 'abc'"):
            call("abc")


def test_all_failed_jobs_of_an_error_are_retried_and_no_others(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gristmill.ledger.bulk.BATCH", 7)
    play = opened(site())
    for subject in ("a", "b"):
        fail_pages(play, subject, 20, kinds=2)
    chosen, other = play.mill.errors()
    before = invariants.snapshot(play.ledger)
    would = play.mill.retry_error(chosen.fingerprint, dry_run=True)
    assert invariants.snapshot(play.ledger) == before
    done = play.mill.retry_error(chosen.fingerprint, by="me")
    assert done == would
    assert (done.queued, done.refused, done.refusal) == (20, 0, None)
    assert counts(play.mill.errors()) == [(20, 20, 2), (0, 20, 2)]
    assert [signature.fingerprint for signature in play.mill.errors()] == [other.fingerprint, chosen.fingerprint]
    assert len(play.mill.jobs(state="failed", limit=100)) == 20
    (entry,) = [entry for entry in play.mill.audit() if entry.verb == "job.retry_many"]
    assert (entry.who, entry.verb, entry.done, entry.open) == ("me", "job.retry_many", {"queued": 20, "left": 0}, False)
    assert chosen.fingerprint in entry.target
    assert play.value("SELECT count(*) FROM gm_audit WHERE verb = 'job.retry' AND who = 'me'") == 20
    play.drain()
    assert {run.state for run in play.mill.runs()} == {"completed_with_errors"}
    assert [play.counters(run.id, "page") for run in play.mill.runs()] == [(21, 11, 10, 0, 0)] * 2


def test_archived_jobs_are_neither_counted_nor_retried(opened: Open) -> None:
    """As lists leave them out: so what is counted, what is listed and what is confirmed are the same jobs."""
    play = opened(site())
    fail_pages(play, "a", 6)
    (chosen,) = play.mill.errors()
    jobs = play.mill.jobs(error=chosen.fingerprint)
    play.mill.archive_jobs(ids=[job.id for job in jobs[:2]])
    assert counts(play.mill.errors()) == [(4, 6, 1)]
    detail = play.mill.error(chosen.fingerprint)
    assert (detail.signature.failed, detail.places[0].failed, detail.subjects[0].failed) == (4, 4, 4)
    assert list(detail.jobs) == [job.id for job in play.mill.jobs(error=chosen.fingerprint)]
    assert play.mill.retry_error(chosen.fingerprint, dry_run=True).queued == 4
    assert play.mill.retry_error(chosen.fingerprint, confirm=4).queued == 4
    assert {play.mill.job(job.id).state for job in jobs[:2]} == {"failed"}
    assert counts(play.mill.errors()) == [(0, 6, 1)]


@pytest.mark.parametrize("size", [1, 2])
def test_page_after_page_is_the_whole_list_where_some_are_archived(opened: Open, size: int) -> None:
    play = opened(site())
    fail_pages(play, "a", 14, kinds=3)  # five, five and four
    first, second, third = play.mill.errors()
    play.mill.archive_jobs(error=first.fingerprint)
    play.mill.archive_jobs(ids=[job.id for job in play.mill.jobs(error=second.fingerprint)[:2]])
    seen: list[Signature] = []
    while page := play.mill.errors(limit=size, after=seen[-1].place if seen else None):
        seen += page
    assert seen == play.mill.errors()
    found = [(one.fingerprint, one.failed) for one in seen]
    assert found == [(third.fingerprint, 4), (second.fingerprint, 3), (first.fingerprint, 0)]


def test_a_job_that_fails_again_is_not_retried_twice_in_one_go(play: Play) -> None:
    play.mill.enqueue(solo)
    player = play.player()
    player.finish(failure(player.take_one()))
    (signature,) = play.mill.errors()
    assert play.mill.retry_error(signature.fingerprint).queued == 1
    player.finish(failure(player.take_one()))
    assert counts(play.mill.errors()) == [(1, 2, 0)]


def test_runs_are_retried_for_jobs_of_closed_stages(opened: Open) -> None:
    play = opened(site())
    run = fail_pages(play, "a", 2)
    play.drain()  # the last page, and with it the run
    assert play.mill.run(run).state == "completed_with_errors"
    fail_pages(play, "b", 1)
    (signature,) = play.mill.errors()
    done = play.mill.retry_error(signature.fingerprint)
    assert (done.queued, done.refused, done.refusal) == (3, 0, None)
    play.drain()
    assert (play.mill.run(run).state, play.mill.run(run).epoch) == ("completed", 2)


def test_items_are_retried_for_their_parts(opened: Open) -> None:
    play = opened(site())
    run = play.mill.start("site", "s").id
    player = play.player()
    play.turn(player, {"find": ["a", "b"]}, {})
    for item in player.take(2):
        player.split(item, "001", "002")
    for part in player.take(4):
        player.finish(failure(part))
    for item in player.take(2):
        player.end(item, Verdict.WITH_ERRORS)
    play.drain()
    assert play.mill.run(run).state == "completed_with_errors"
    (signature,) = play.mill.errors()
    would = play.mill.retry_error(signature.fingerprint, dry_run=True)
    assert (would.queued, would.refused) == (4, 0)
    assert play.mill.run(run).state == "completed_with_errors"
    assert play.mill.retry_error(signature.fingerprint) == would
    assert len(play.mill.jobs(state="queued", part_of=play.mill.jobs(key="a")[0].id)) == 2
    play.drain()
    assert play.mill.run(run).state == "completed"


def test_parts_that_are_given_by_number_are_queued_with_their_item_and_counted_once(opened: Open) -> None:
    play = opened(site())
    play.mill.start("site", "s")
    player = play.player()
    play.turn(player, {"find": ["a"]}, {})
    player.split(player.take_one(), "001", "002")
    parts = player.take(2)
    for part in parts:
        player.finish(failure(part))
    player.end(player.take_one(), Verdict.WITH_ERRORS)
    play.drain()
    both = play.mill.retry_jobs(ids=[part.id for part in parts])
    assert (both.counts["queued"], both.left, both.refusal) == (2, 0, None)
    assert [play.mill.job(part.id).state for part in parts] == ["queued"] * 2


def test_a_job_with_a_unique_key_is_retried_unless_it_has_a_twin(play: Play) -> None:
    player = play.player()
    for _ in range(2):
        play.mill.enqueue(solo, unique="x")
        player.finish(failure(player.take_one()))
    (signature,) = play.mill.errors()
    done = play.mill.retry_error(signature.fingerprint)
    assert (done.queued, done.refused) == (1, 1)
    assert "same unique key" in str(done.refusal)


def test_an_ignored_error_is_listed_only_when_asked_for(play: Play) -> None:
    play.mill.enqueue_many(solo, [{}] * 3)
    player = play.player()
    player.finish(*(failure(job, kind) for kind, job in enumerate(player.take())))
    hidden, *others = play.mill.errors()
    mill: Mill = play.mill
    for _ in range(2):
        mill.ignore_error(hidden.fingerprint, by="me")
        assert mill.errors() == others
    assert [(s.fingerprint, s.ignored) for s in mill.errors(every=True) if s.ignored] == [(hidden.fingerprint, True)]
    assert mill.error(hidden.fingerprint).signature.ignored
    mill.ignore_error(hidden.fingerprint, undo=True, by="me")
    assert mill.errors() == [hidden, *others]
    audit = [row.verb for row in play.rows("SELECT verb FROM gm_audit ORDER BY id")]
    assert audit == ["error.ignore", "error.heed"]


def test_completing_a_job_touches_no_index_on_postgresql(pg_url: str, clock: FrozenClock) -> None:
    """An index whose condition names a column that completing changes would be written for every job."""
    play = Play(pg_url, (), clock)
    play.mill.enqueue_many(solo, [{}] * 20)
    player = play.player()
    jobs = player.take()

    counted = Sql("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'gm_job'")

    def complete(tx: Tx) -> tuple[int, int]:
        before = tx.tuples(counted)[0]  # what this connection did a moment ago may be in it
        finish(tx, player.id, [], plain(*jobs))
        updated, in_place = (after - then for after, then in zip(tx.tuples(counted)[0], before, strict=True))
        return updated, in_place

    assert play.ledger.do(complete) == (20, 20)
    play.close()
