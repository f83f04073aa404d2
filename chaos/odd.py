"""Odd values, by the dice; and tasks that take, give back, emit, print and raise them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from gristmill import Context, Pipeline, Retries, task

HUGE = 64 << 20
ONCE = Retries(0)


def deep(depth: int, of: type = list) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if of is list else {"a": value}
    return value


def _circle() -> Any:
    made: list[Any] = []
    made.append(made)
    return made


def _letters(dice: random.Random) -> str:
    return "".join(chr(dice.choice((dice.randrange(0x80), dice.randrange(0x110000)))) for _ in range(dice.randint(0, 30)))


KINDS: dict[str, Callable[[random.Random], Any]] = {
    "huge": lambda dice: "x" * HUGE,
    "large": lambda dice: "ä" * dice.choice((499, 500, 501, 1 << 19, (1 << 20) - 2, 1 << 20)),
    "deep": lambda dice: deep(dice.choice((50, 254, 255, 1000, 100_000)), dice.choice((list, dict))),
    "nul": lambda dice: dice.choice(("\0", "a\0b", "\0" * 100, {"a": "\0"}, {"\0": 1})),
    "surrogate": lambda dice: dice.choice(("\ud800", "a\udfffb", {"\udc80": 1}, ["\ud83d", "\ude00"])),
    "int": lambda dice: dice.choice((1, -1)) * dice.choice((2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**4000, 10**5000)),
    "float": lambda dice: dice.choice((float("nan"), float("inf"), -0.0, 5e-324, 1e308)),
    "keys": lambda dice: dice.choice(({1: 2}, {None: 1}, {(1, 2): 3}, {"": 1}, {"self": 1}, {"ctx": 1}, {"a b": {"": {}}})),
    "type": lambda dice: dice.choice((b"bytes", {1, 2}, object(), print, int, ..., 1j, range(3), Exception("x"))),
    "circle": lambda dice: _circle(),
    "text": _letters,
    "plain": lambda dice: dice.choice(
        (None, True, "", " ", "\n", "\x1b[31mred", "../../etc", "'; DROP TABLE gm_job; --", "%s{}")
    ),
    "right-to-left": lambda dice: dice.choice(("\u202eabc", "\u2028", "\ufeff", "e\u0301" * 50, "🧪" * 200)),
}


def draw(dice: random.Random, huge: float = 0.005) -> Any:
    """One of them, or some within each other."""
    kind = "huge" if dice.random() < huge else dice.choice([name for name in KINDS if name != "huge"])
    value = KINDS[kind](dice)
    wrapped = dice.random()
    if wrapped < 0.2:
        return [value, draw(dice, 0)]
    if wrapped < 0.4:
        return {"value": value}
    return value


# ---- for the worker


flow = Pipeline("flow")


@flow.stage(need=0)
def odd_keys(ctx: Context, seed: int = 0) -> Iterator[Any]:
    """Emits what is odd, and what is not a key at all."""
    yield "good"
    yield draw(random.Random(seed), 0)


@flow.stage(after=odd_keys, each=True, need=0, retries=ONCE)
def odd_item(ctx: Context, **rest: Any) -> Any:
    return rest


@task(retries=ONCE)
def take(ctx: Context, **rest: Any) -> int:
    return len(rest)


@task(retries=ONCE)
def give(ctx: Context, seed: int, huge: float = 0.0) -> Any:
    return draw(random.Random(seed), huge)


@task(retries=ONCE)
def say(ctx: Context, seed: int) -> None:
    """Prints, reports and raises it."""
    value = draw(random.Random(seed), 0)
    print(repr(value)[:100_000])
    raise ValueError(value)
