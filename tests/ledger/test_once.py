"""`once`: asked for several times, done once, also after it has ended."""

from __future__ import annotations

import pytest

from gristmill.errors import Invalid, NotFound
from tests.ledger.conftest import Open
from tests.ledger.play import Play, plan, solo, step, stubborn
from tests.ledger.together import times

DAY = 86_400


@pytest.fixture
def site(opened: Open) -> Play:
    return opened(plan("site", work=step()))


def test_the_same_key_is_the_same_job_also_after_its_end(site: Play) -> None:
    first = site.mill.enqueue(solo, once="k")
    site.drain()
    again = site.mill.enqueue(solo, once="k", args={"n": 2})
    assert (first.created, again.created, again.id, again.state) == (True, False, first.id, "completed")
    assert site.mill.enqueue(solo, once="other").created
    assert site.mill.enqueue(stubborn, once="k").created  # keys are a task's own


def test_the_same_key_is_the_same_run_also_after_its_end(site: Play) -> None:
    first = site.mill.start("site", "s", once="k")
    site.drain()
    again = site.mill.start("site", "s", once="k")
    assert (first.created, again.created, again.id, again.state) == (True, False, first.id, "completed")
    assert site.mill.start("site", "s").created


def test_a_key_that_was_used_for_another_subject_is_refused(site: Play) -> None:
    site.mill.start("site", "s", once="k")
    with pytest.raises(Invalid, match="was used for site 's'"):
        site.mill.start("site", "t", once="k")
    assert len(site.mill.runs()) == 1


def test_a_start_that_joins_remembers_which(site: Play) -> None:
    active = site.mill.start("site", "s")
    assert site.mill.start("site", "s", once="k").id == active.id
    site.drain()
    assert site.mill.start("site", "s", once="k").id == active.id


def test_forty_at_once_are_one_job(site: Play) -> None:
    jobs = times(40, lambda: site.mill.enqueue(solo, once="k"))
    assert (len({job.id for job in jobs}), sum(job.created for job in jobs)) == (1, 1)
    assert len(site.mill.jobs()) == 1


def test_what_is_refused_leaves_the_key_free(site: Play) -> None:
    with site.mill.transaction() as connection:
        site.mill.enqueue(solo, once="k", connection=connection)
        connection.rollback()
    assert site.mill.enqueue(solo, once="k").created


def test_a_key_is_forgotten_after_a_week(site: Play) -> None:
    site.mill.enqueue(solo, once="k")
    site.clock.advance(6 * DAY)
    assert not site.mill.enqueue(solo, once="k").created
    site.clock.advance(2 * DAY)
    assert site.mill.enqueue(solo, once="k").created
    assert site.value("SELECT count(*) FROM gm_once") == 1


def test_a_job_that_is_gone_is_said(site: Play) -> None:
    site.mill.enqueue(solo, once="k")
    site.drain()
    site.change("DELETE FROM gm_job")
    with pytest.raises(NotFound):
        site.mill.enqueue(solo, once="k")
    assert site.mill.jobs() == []
