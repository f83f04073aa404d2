"""When a failed job is tried again: delays, budgets, and policies by error type."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import Retries
from gristmill.errors import Invalid
from gristmill.retry import Failure, delay_after, error_name

never_below, never_above = (lambda: 0.0), (lambda: 1.0 - 2**-53)


def delays(policy: Retries, failure: Failure = Failure.ERROR, types: tuple[str, ...] = ()) -> list[float | None]:
    """The delays after the first, second, … failure, up to the one that ends it."""
    found: list[float | None] = []
    while not found or found[-1] is not None:
        found.append(delay_after(policy, failure, len(found) + 1, types))
    return found


def test_without_retries_the_first_failure_is_the_last() -> None:
    assert delays(Retries()) == [None]


def test_delays_are_taken_in_order_and_the_last_one_repeats() -> None:
    assert delays(Retries(5, delays=[1, 5, 15])) == [1, 5, 15, 15, 15, None]


def test_more_delays_than_retries_are_not_used() -> None:
    assert delays(Retries(1, delays=[1, 5, 15])) == [1, None]


def test_exponential_delays_grow_by_the_factor_up_to_the_longest() -> None:
    policy = Retries.exponential(6, first=1, factor=3, longest=30, jitter=0)
    assert delays(policy) == [1, 3, 9, 27, 30, 30, None]


@pytest.mark.parametrize("times", [0, 1, 63, 64, 65, 10_000])
def test_exponential_policies_stay_small_however_many_retries(times: int) -> None:
    policy = Retries.exponential(times, jitter=0)
    assert 1 <= len(policy.delays) <= 64
    assert delay_after(policy, Failure.ERROR, times + 1) is None
    if times:
        assert delay_after(policy, Failure.ERROR, times) == min(3600.0, 2.0 ** min(times - 1, 63))


@given(st.floats(0, 1), st.floats(0, 1e6), st.floats(0, 1, exclude_max=True))
def test_jitter_adds_or_takes_at_most_its_share(jitter: float, delay: float, luck: float) -> None:
    found = delay_after(Retries(1, delays=[delay], jitter=jitter), Failure.ERROR, 1, rng=lambda: luck)
    assert found is not None
    slack = 1e-9 * max(1.0, delay)
    assert max(0.0, delay * (1 - jitter)) - slack <= found <= delay * (1 + jitter) + slack


def test_jitter_reaches_both_ends() -> None:
    policy = Retries(1, delays=[100], jitter=0.1)
    assert delay_after(policy, Failure.ERROR, 1, rng=never_below) == pytest.approx(90)
    assert delay_after(policy, Failure.ERROR, 1, rng=never_above) == pytest.approx(110)
    assert delay_after(policy, Failure.ERROR, 1, rng=lambda: 0.5) == pytest.approx(100)


# ---- budgets


def test_every_way_to_fail_has_its_own_limit() -> None:
    policy = Retries(1, delays=[7], crashes=2, timeouts=3, losses=4)
    assert delays(policy, Failure.ERROR) == [7, None]
    assert delays(policy, Failure.CRASH) == [7, 7, None]
    assert delays(policy, Failure.TIMEOUT) == [7, 7, 7, None]
    assert delays(policy, Failure.LOSS) == [0, 0, 0, 0, None]


def test_timeouts_are_limited_like_errors_unless_given() -> None:
    assert delays(Retries(2, delays=[1]), Failure.TIMEOUT) == [1, 1, None]
    assert delays(Retries(2, delays=[1], timeouts=0), Failure.TIMEOUT) == [None]


def test_a_lost_job_goes_back_at_once_because_it_did_nothing_wrong() -> None:
    assert delay_after(Retries(0, delays=[60]), Failure.LOSS, 1) == 0


# ---- by error type


class Flaky(ConnectionError):
    """An error of an application."""


def names(kind: type[BaseException]) -> tuple[str, ...]:
    """What a child reports: the error's type and its bases, nearest first."""
    return tuple(error_name(base) for base in kind.__mro__ if base not in (object, BaseException))


POLICY = Retries(
    1,
    delays=[1],
    by_error={ConnectionError: Retries(3, delays=[60]), ValueError: Retries(0), OSError: Retries(2, delays=[9])},
)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (KeyError, [1, None]),
        (ValueError, [None]),
        (UnicodeError, [None]),
        (ConnectionError, [60, 60, 60, None]),
        (ConnectionResetError, [60, 60, 60, None]),
        (Flaky, [60, 60, 60, None]),
        (FileNotFoundError, [9, 9, None]),
    ],
)
@pytest.mark.parametrize("policy", [POLICY, Retries.from_json(POLICY.to_json())], ids=["declared", "stored"])
def test_the_nearest_base_class_with_a_policy_decides(
    policy: Retries, kind: type[BaseException], expected: list[float | None]
) -> None:
    assert delays(policy, types=names(kind)) == expected


def test_error_types_have_the_names_that_people_import_them_by() -> None:
    assert error_name(ValueError) == "ValueError"
    assert error_name(Flaky) == f"{__name__}.Flaky"
    assert error_name("httpx.ReadTimeout") == "httpx.ReadTimeout"


def test_a_policy_may_name_an_error_that_is_not_imported() -> None:
    policy = Retries(0, by_error={"httpx.ReadTimeout": Retries(1, delays=[5])})
    assert delays(policy, types=("httpx.ReadTimeout", "Exception")) == [5, None]


@pytest.mark.parametrize("policy", [Retries(), POLICY, Retries.exponential(9), Retries(3, crashes=0, timeouts=5, losses=9)])
def test_a_policy_survives_storage(policy: Retries) -> None:
    stored = Retries.from_json(policy.to_json())
    assert stored.to_json() == policy.to_json()
    for failure in Failure:
        for kind in (KeyError, Flaky, UnicodeError):
            for spent in (1, 2, 3, 10):
                args = (failure, spent, names(kind), lambda: 0.3)
                assert delay_after(stored, *args) == delay_after(policy, *args)


@pytest.mark.parametrize(
    "options",
    [
        {"times": -1},
        {"times": 1.5},
        {"times": True},
        {"times": "3"},
        {"times": 10_001},
        {"crashes": -1},
        {"timeouts": -1},
        {"losses": -1},
        {"delays": []},
        {"delays": [-1]},
        {"delays": [1, "2"]},
        {"delays": [float("nan")]},
        {"delays": [float("inf")]},
        {"delays": 5},
        {"jitter": -0.1},
        {"jitter": 1.1},
        {"jitter": float("nan")},
    ],
    ids=str,
)
def test_a_policy_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="Retries"):
        Retries(**options)
