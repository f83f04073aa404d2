"""Subjects: how fresh they are, what is set on them, and the lists of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import orjson
import pytest

from gristmill.errors import Invalid, NotFound
from gristmill.ledger.finish import Verdict
from tests.ledger import invariants
from tests.ledger.conftest import Open
from tests.ledger.play import Play, each, plan, step
from tests.ledger.together import together


def names(play: Play, **filters: Any) -> list[str]:
    return [subject.name for subject in play.mill.subjects(**filters)]


def run_once(play: Play, subject: str, verdict: Verdict = Verdict.COMPLETED, pipeline: str = "site") -> int:
    number = play.mill.start(pipeline, subject).id
    play.drain(verdicts={"work": verdict})
    return number


@pytest.fixture
def site(opened: Open) -> Play:
    return opened(plan("site", work=step()), plan("other", work=step()))


# ---- what a subject knows


def test_a_subject_knows_its_runs_and_how_fresh_it_is(site: Play) -> None:
    good = run_once(site, "s")
    site.clock.advance(100)
    bad = run_once(site, "s", Verdict.PERMANENT)
    site.clock.advance(20)
    active = site.mill.start("site", "s")
    waiting = site.mill.start("site", "s", if_active="wait")
    found = site.mill.subject("site", "s")
    assert (found.last_run, found.last_state, found.last_good_run, found.age) == (bad, "failed", good, 120)
    assert (found.active_run, found.active_state, found.waiting_run, found.state) == (
        active.id,
        "queued",
        waiting.id,
        "queued",
    )
    assert found.last_run_at is not None
    assert found.last_good_at is not None
    assert found.last_run_at - found.last_good_at == timedelta(seconds=100)


def test_a_subject_is_found_by_a_pattern_of_its_name_in_whatever_case(site: Play) -> None:
    for name in ("Millbrook", "mill\\_1%", "Oakmill", "oak", "https://a.org/?id=1", "https://a.org/xid=1"):
        site.mill.set_subject("site", name)
    site.mill.set_subject("other", "Millbrook")
    for pattern, found in (
        ("mill*", ["Millbrook", "mill\\_1%", "Millbrook"]),
        ("*MILL*", ["Millbrook", "mill\\_1%", "Oakmill", "Millbrook"]),
        ("mill\\_?%", ["mill\\_1%"]),
        ("oa?", ["oak"]),
        ("%", []),
        ("millbrook", []),  # without a pattern it is the whole name
        ("Millbrook", ["Millbrook", "Millbrook"]),
        ("https://a.org/?id=1", ["https://a.org/?id=1"]),  # a name that is there means itself
        ("https://a.org/?ID=*", ["https://a.org/?id=1", "https://a.org/xid=1"]),
    ):
        assert names(site, name=pattern) == found, pattern
    assert names(site, name="mill*", pipeline="other") == ["Millbrook"]


def test_a_subject_that_never_had_a_run(site: Play) -> None:
    found = site.mill.set_subject("site", "new")
    assert (found.state, found.active_run, found.last_run, found.last_good_at, found.age) == (None, None, None, None, None)


@pytest.mark.parametrize(
    ("verdict", "state", "good"),
    [
        (Verdict.COMPLETED, "completed", True),
        (Verdict.WITH_ERRORS, "completed_with_errors", True),
        (Verdict.END_RUN, "completed", True),
        (Verdict.PERMANENT, "failed", False),
    ],
)
def test_only_runs_that_ended_well_make_a_subject_fresh(site: Play, verdict: Verdict, state: str, good: bool) -> None:
    run = run_once(site, "s", verdict)
    found = site.mill.subject("site", "s")
    assert (found.last_run, found.last_state, found.last_good_run) == (run, state, run if good else None)
    assert (found.age is not None) == good


def test_a_cancelled_run_is_the_last_one_and_a_cancelled_follow_up_is_not(site: Play) -> None:
    first = site.mill.start("site", "s")
    site.mill.cancel_run(site.mill.start("site", "s", if_active="wait").id)
    assert site.mill.subject("site", "s").last_run is None
    site.mill.cancel_run(first.id)
    assert (site.mill.subject("site", "s").last_run, site.mill.subject("site", "s").last_state) == (first.id, "cancelled")


def test_an_unknown_subject_is_said(site: Play) -> None:
    with pytest.raises(NotFound, match="site has no subject 'x'"):
        site.mill.subject("site", "x")


# ---- setting


def test_what_is_not_given_stays(site: Play) -> None:
    site.mill.set_subject("site", "s", interval=timedelta(hours=6), labels={"tier": "gold", "town": "Oak Field"})
    site.mill.set_subject("site", "s", labels={"tier": "silver", "old": None, "town": None})
    found = site.mill.set_subject("site", "s", labels={"new": "1"})
    assert (found.interval, found.labels) == (21_600, {"new": "1", "tier": "silver"})
    assert site.mill.set_subject("site", "s", interval=0).interval is None
    assert run_once(site, "s")
    assert site.mill.subject("site", "s").labels == {"new": "1", "tier": "silver"}


def test_what_people_set_is_recorded(site: Play) -> None:
    site.mill.set_subject("site", "s", interval=60, labels={"tier": "gold"}, by="me")
    (row,) = site.rows("SELECT who, verb, target, detail FROM gm_audit")
    assert tuple(row[:3]) == ("me", "subject.set", "subject site s")
    assert orjson.loads(row.detail) == {"interval": 60, "labels": {"tier": "gold"}}


BAD_INPUT: list[tuple[Callable[[Any], Any], str]] = [
    (lambda mill: mill.set_subject("sight", "s"), "unknown pipeline 'sight'; did you mean 'site'"),
    (lambda mill: mill.set_subject("site", ""), "subject must not be empty"),
    (lambda mill: mill.set_subject("site", "s", interval=-1), "interval must be a number of seconds"),
    (lambda mill: mill.set_subject("site", "s", labels=["a"]), "labels must be a dict"),
    (lambda mill: mill.set_subject("site", "s", labels={"a=b": "c"}), "cannot hold '='"),
    (lambda mill: mill.set_subject("site", "s", labels={"a": ""}), "label must not be empty"),
    (lambda mill: mill.set_subject("site", "s", labels={"a": 1}), "label must be text"),
    (lambda mill: mill.set_subject("site", "s", labels={"a": "b" * 201}), "the limit is 200"),
    (lambda mill: mill.subjects(label="a="), "label must not be empty"),
    (lambda mill: mill.subjects(state="faild"), "did you mean 'failed'"),
    (lambda mill: mill.subjects(stale_for="1d"), "stale_for must be a number of seconds"),
]


def test_bad_input_is_one_clear_line_and_nothing_half_done(site: Play) -> None:
    for call, message in BAD_INPUT:
        with pytest.raises(Invalid, match=message):
            call(site.mill)
    rows = invariants.snapshot(site.ledger)
    assert not rows["gm_subject"]
    assert not rows["gm_label"]


def test_the_longest_labels_can_be_stored(site: Play) -> None:
    key, value = "\U0001f33e" * 200, "\U0001f35e" * 200
    site.mill.set_subject("site", "s", labels={key: value})
    assert names(site, label=f"{key}={value}") == ["s"]
    assert site.mill.subject("site", "s").labels == {key: value}


def test_without_an_application_a_subject_is_changed_but_not_made(site: Play, database_url: str) -> None:
    from gristmill import Mill

    site.mill.set_subject("site", "s")
    with Mill.open(database_url) as mill:
        assert mill.set_subject("site", "s", labels={"a": "b"}).labels == {"a": "b"}
        with pytest.raises(NotFound, match="site has no subject 't'"):
            mill.set_subject("site", "t")


def test_labels_set_at_once_are_all_there(site: Play) -> None:
    together(*[lambda n=n: site.mill.set_subject("site", "s", labels={f"k{n}": "v"}) for n in range(20)])
    assert len(site.mill.subject("site", "s").labels) == 20
    assert names(site) == ["s"]


# ---- lists


def test_pages_follow_each_other_and_hold_every_subject_once(site: Play) -> None:
    made = [f"s{n}" for n in range(10)]
    for name in made:
        site.mill.set_subject("site", name, labels={"odd": str(int(name[1:]) % 2)})
    for filters in ({}, {"label": "odd=1"}, {"pipeline": "site", "stale_for": 60}):
        seen: list[str] = []
        page = site.mill.subjects(limit=3, **filters)
        while page:
            seen += [subject.name for subject in page]
            page = site.mill.subjects(limit=3, after=page[-1], **filters)
        assert seen == (made[1::2] if "label" in filters else made)


def test_lists_by_pipeline_and_label(site: Play) -> None:
    site.mill.set_subject("site", "a", labels={"tier": "gold", "town": "x=y"})
    site.mill.set_subject("site", "b", labels={"tier": "silver"})
    site.mill.set_subject("other", "a", labels={"tier": "gold"})
    assert [(s.pipeline, s.name) for s in site.mill.subjects(label="tier=gold")] == [("site", "a"), ("other", "a")]
    assert names(site, pipeline="site") == ["a", "b"]
    assert names(site, pipeline="site", label="tier") == ["a", "b"]
    assert names(site, label=["tier=gold", "town=x=y"]) == ["a"]
    assert names(site, label=["tier=gold", "tier=silver"]) == []


def test_stale_subjects_had_no_good_run_for_so_long_or_ever(site: Play) -> None:
    run_once(site, "old")
    site.clock.advance(3600)
    run_once(site, "new")
    run_once(site, "bad", Verdict.PERMANENT)
    site.clock.advance(60)
    assert names(site, stale_for=3660) == ["old", "bad"]
    assert names(site, stale_for=timedelta(seconds=3661)) == ["bad"]
    assert names(site, stale_for=0) == ["old", "new", "bad"]


def test_lists_by_state_look_at_the_active_run_and_at_the_last_one(opened: Open) -> None:
    play = opened(plan("site", work=step()), plan("wide", find=step(), page=each("find")))
    run_once(play, "good")
    run_once(play, "bad", Verdict.PERMANENT)
    play.mill.start("site", "bad")
    player = play.player()
    (job,) = player.take()
    play.mill.start("site", "fresh")
    play.mill.start("site", "fresh", if_active="wait")
    assert names(play, state="completed") == ["good"]
    assert names(play, state="failed") == ["bad"]
    assert names(play, state="queued") == ["bad", "fresh"]  # `take` alone does not say that a run has begun
    assert names(play, state="waiting") == ["fresh"]
    assert names(play, state="cancelled") == []
    player.complete(job)
    assert names(play, state="completed") == ["good", "bad"]
