"""What limits mean: keys, numbers, buckets, circuits, and how many may go on."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gristmill import Limit
from gristmill.clock import SECOND
from gristmill.errors import Invalid
from gristmill.limit import Breaker, Bucket, Numbers, room


def key(per: Any, *given: dict[str, Any]) -> str:
    return Limit("host", per=per).key(*given)


def test_a_key_is_an_argument_or_what_a_function_makes_of_arguments() -> None:
    assert key(None, {"url": "x"}) == ""
    assert key("url", {"url": "x"}, {"url": "y", "n": 1}) == "x"
    assert key("n", {"url": "x"}, {"n": 7}) == "7"
    assert key(lambda url, n=3: f"{url}{n}", {"url": "x"}) == "x3"
    assert key(lambda **all_of_them: ",".join(sorted(all_of_them)), {"b": 1}, {"a": 2}) == "a,b"


@pytest.mark.parametrize(
    ("per", "words"),
    [
        ("missing", "no argument 'missing'"),
        (lambda url: url.nothing, "AttributeError"),
        (lambda other: other, "TypeError"),
        (lambda url: None, "must give text"),
        (lambda url: " ", "must not be empty"),
    ],
)
def test_a_key_that_cannot_be_had_says_why(per: Any, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        key(per, {"url": "x"})


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "queue"},
        {"name": "my host"},
        {"at_once": 0},
        {"at_once": 1.5},
        {"at_once": True},
        {"per_second": 0},
        {"breaker": -1},
        {"cooldown": None},
        {"per": 3},
        {"per": lambda *args: ""},
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        Limit(**{"name": "host", **wrong})


def test_what_comes_later_counts_more_number_by_number() -> None:
    declared, chosen = '{"at_once":2,"per_second":5}', '{"at_once":null,"breaker":3}'
    assert Numbers.of(declared, None, chosen) == Numbers(None, 5, 3)
    assert Numbers.of(declared, chosen, '{"at_once":9}').at_once == 9
    assert Numbers(2, 5).words() == "2 at once, 5 per second"
    assert Numbers().words() == "no limit"


@pytest.mark.parametrize("rate", [0.5, 5, 20, 300])
def test_a_bucket_never_lets_more_start_than_its_rate_whoever_is_late(rate: float) -> None:
    """Jobs come into the line when a token is there, and start any time later; nobody looks for random times."""
    rng = random.Random(rate)
    bucket, now, line, starts = Bucket(0.0, 0), 1_000_000, 0, list[int]()
    began: list[int] = []
    for _ in range(3000):
        now += int(rng.expovariate(rate) * rng.choice([0.1, 1, 3]) * SECOND)
        bucket = bucket.after(rate, now, began, line)
        came = max(0, int(bucket.tokens + 1e-9))
        bucket = Bucket(bucket.tokens - came, now)
        line, began = line + came, []
        for _ in range(rng.randint(0, line)):
            now += rng.randint(0, int(0.2 / rate * SECOND))
            began.append(now)
            line -= 1
        starts += began
    together = max(1.0, rate * 0.1)
    assert len(starts) > 500
    for n in range(0, len(starts), 7):
        for m in range(n + 1, min(n + 200, len(starts)), 3):
            assert m - n + 1 <= together + (starts[m] - starts[n]) / SECOND * rate + 1.001


def test_a_circuit_opens_after_failures_in_a_row_and_is_closed_by_a_success() -> None:
    numbers = Numbers(breaker=3, cooldown=10)
    assert Breaker().after(numbers, 0, [False, False, True, False, False]) == Breaker(2)
    opened = Breaker().after(numbers, 100, [False] * 3)
    assert opened == Breaker(3, 100 + 10 * SECOND)
    assert [opened.state(at) for at in (100, 100 + 10 * SECOND)] == ["open", "half-open"]
    assert opened.after(numbers, 200, [False]).open_until == opened.open_until
    assert opened.after(numbers, 11 * SECOND, [False]).open_until == 21 * SECOND
    assert opened.after(numbers, 11 * SECOND, [True]) == Breaker()
    assert opened.after(Numbers(), 200, []) == Breaker()


def free(numbers: Numbers, running: int, line: int, ended: int = 0, breaker: Breaker = Breaker()) -> int:  # noqa: B008
    return room(numbers, breaker, Bucket(100.0, 5), 5, running, line, ended).free


def test_how_many_may_go_on() -> None:
    two = Numbers(at_once=2)
    assert [free(two, *held) for held in ((0, 0), (1, 0), (1, 1), (2, 1), (5, 0))] == [2, 1, 0, -1, 0]
    assert [free(Numbers(), *held) for held in ((0, 0), (10, 0), (10, 20), (0, 0, 100))] == [4, 20, 0, 200]
    assert free(Numbers(at_once=1000), 10, 0) == 20
    assert free(two, 0, 2, breaker=Breaker(3, 100)) == -2  # open: what stands in line steps back
    assert free(two, 0, 0, breaker=Breaker(3, 5)) == 1  # half open
    assert free(two, 1, 0, breaker=Breaker(3, 5)) == 0
