"""How many jobs an event loop may hold in advance: those that it will soon have room for."""

from __future__ import annotations

import pytest

from gristmill.execution.turnover import Turnover

DEPTH, SOON = 0.1, 0.05
AT_ONCE = 1000


def seen(takes: float, rate: float, until: float = 100.0) -> Turnover:
    """One that has ended jobs evenly for some seconds."""
    turnover = Turnover()
    for step in range(2000):
        turnover.ended(int(rate / 500), takes, until - 4 + (step + 1) / 500)
    assert turnover.rate == pytest.approx(rate, rel=0.1)
    return turnover


def test_none_while_nothing_is_known() -> None:
    assert Turnover().ahead([0.0] * AT_ONCE, AT_ONCE, DEPTH, SOON, 100.0) == 0


def test_of_short_jobs_as_many_as_end_in_the_time() -> None:
    turnover = seen(takes=0.001, rate=5000)
    assert turnover.ahead([99.999] * 20, 20, DEPTH, SOON, 100.0) == pytest.approx(500, rel=0.1)


def test_of_jobs_out_of_step_as_many_as_end_soon() -> None:
    turnover = seen(takes=0.1, rate=10_000)
    begun = [99.9 + 0.1 * n / AT_ONCE for n in range(AT_ONCE)]
    assert turnover.ahead(begun, AT_ONCE, DEPTH, SOON, 100.0) == pytest.approx(500, rel=0.02)


def test_none_while_all_have_just_begun_and_many_when_all_will_have_ended() -> None:
    turnover = seen(takes=0.1, rate=10_000)
    begun = [100.0] * AT_ONCE
    assert turnover.ahead(begun, AT_ONCE, DEPTH, SOON, 100.04) == 0
    assert turnover.ahead(begun, AT_ONCE, DEPTH, SOON, 100.06) == pytest.approx(AT_ONCE, rel=0.1)
    assert 100.06 < turnover.due_at(100.0, SOON) < 100.08


def test_none_for_the_places_of_jobs_that_take_much_longer_than_others() -> None:
    turnover = seen(takes=0.1, rate=500)
    assert turnover.ahead([90.0] * AT_ONCE, AT_ONCE, DEPTH, SOON, 100.0) == 0


def test_never_more_than_it_ends_in_the_time() -> None:
    turnover = seen(takes=1.0, rate=1000)
    assert turnover.ahead([99.0] * AT_ONCE, AT_ONCE, DEPTH, SOON, 100.0) == pytest.approx(100, rel=0.1)


def test_as_many_as_that_are_expected_as_soon_as_the_first_have_ended() -> None:
    turnover = Turnover()
    turnover.ended(10, 0.1, 100.1)
    assert turnover.ahead([100.0] * 990, 990, DEPTH, SOON, 100.1) == 990


def test_jobs_in_step_make_no_waves() -> None:
    turnover = Turnover()
    for end in range(1, 20):
        for part in range(5):
            turnover.ended(200, 0.1, end / 10 + part / 1000)
            assert end < 6 or turnover.rate == pytest.approx(10_000, rel=0.35)


def test_what_came_back_is_not_fetched_again_before_one_has_ended() -> None:
    turnover = seen(takes=0.1, rate=10_000)
    turnover.forget()
    assert turnover.ahead([99.9] * AT_ONCE, AT_ONCE, DEPTH, SOON, 100.0) == 0
