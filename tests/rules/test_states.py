"""The table of states and transitions: complete, and the only place where it is written."""

from __future__ import annotations

import inspect

import pytest

from gristmill import states
from gristmill.states import (
    ACTIVE_RUN,
    JOB_TRANSITIONS,
    RUN_TRANSITIONS,
    SUCCESS,
    TERMINAL,
    StageState,
    State,
    Transition,
    WorkerState,
    sources,
)


def reachable(transitions: tuple[Transition, ...]) -> set[State]:
    found = {t.target for t in transitions if t.source is None}
    while more := {t.target for t in transitions if t.source in found} - found:
        found |= more
    return found


def test_every_state_of_a_job_can_be_reached() -> None:
    assert reachable(JOB_TRANSITIONS) == set(State) - {State.WAITING}


def test_every_state_of_a_run_but_skipped_can_be_reached() -> None:
    assert reachable(RUN_TRANSITIONS) == set(State) - {State.SKIPPED}


@pytest.mark.parametrize("transitions", [JOB_TRANSITIONS, RUN_TRANSITIONS])
def test_from_every_state_an_end_can_be_reached(transitions: tuple[Transition, ...]) -> None:
    ending = set(TERMINAL)
    while more := {t.source for t in transitions if t.target in ending and t.source is not None} - ending:
        ending |= more
    assert reachable(transitions) <= ending


@pytest.mark.parametrize("transitions", [JOB_TRANSITIONS, RUN_TRANSITIONS])
def test_no_transition_is_written_twice_and_each_says_who_makes_it(transitions: tuple[Transition, ...]) -> None:
    keys = [(t.verb, t.source, t.target) for t in transitions]
    assert len(keys) == len(set(keys))
    assert all(t.who for t in transitions)


def test_an_ended_job_leaves_its_state_only_by_a_requeue_or_with_a_retry_of_its_run() -> None:
    assert {t.verb for t in JOB_TRANSITIONS if t.source in TERMINAL} == {"requeue", "redo", "rerun", "prune"}
    assert {t.target for t in JOB_TRANSITIONS if t.source in TERMINAL} == {State.QUEUED, State.SKIPPED}


def test_an_ended_run_leaves_its_state_only_by_a_retry() -> None:
    assert {t.verb for t in RUN_TRANSITIONS if t.source in TERMINAL} == {"retry"}


def test_only_a_claim_leads_to_in_progress() -> None:
    assert {t.verb for t in JOB_TRANSITIONS if t.target is State.IN_PROGRESS} == {"claim"}
    assert sources("claim") == (State.QUEUED,)


def test_a_workers_verbs_start_from_in_progress_only() -> None:
    assert sources("finish") == sources("release") == sources("rescue") == (State.IN_PROGRESS,)


def test_a_job_that_completed_cleanly_is_not_requeued() -> None:
    assert set(sources("requeue")) == {int(state) for state in TERMINAL - {State.COMPLETED}}


def test_every_state_is_active_waiting_or_terminal() -> None:
    assert {*ACTIVE_RUN, State.WAITING, *TERMINAL} == set(State)
    assert not ACTIVE_RUN & TERMINAL
    assert SUCCESS < TERMINAL
    assert all(state.terminal == (state in TERMINAL) for state in State)


def test_the_numbers_are_what_databases_hold_and_never_change() -> None:
    assert {s.word: int(s) for s in State} == {
        "queued": 0,
        "in_progress": 1,
        "completed": 2,
        "completed_with_errors": 3,
        "failed": 4,
        "cancelled": 5,
        "skipped": 6,
        "waiting": 7,
    }
    assert [s.word for s in StageState] == ["waiting", "open", "sealed", "closed"]
    assert [s.word for s in WorkerState] == ["active", "stopped", "lost"]


def test_every_state_says_who_moves_it_on() -> None:
    source = inspect.getsource(states)
    for state in State:
        assert f"{state.name} = {int(state)}  #: " in source
