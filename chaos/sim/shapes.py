"""Pipelines and tasks as the dice want them. What their functions do is decided elsewhere: these are never called."""

from __future__ import annotations

import random
from typing import Any

from gristmill import Limit, Pipeline, Retries
from gristmill.errors import Invalid
from gristmill.pipeline import Task
from gristmill.registry import Piece

TIMEOUT = 4.0
DELAYS = [0.0, 2.0, 5.0]  # after errors
COOLDOWN = 8.0
QUEUES = ("default", "other")


def plain(ctx: Any, n: int = 0) -> None:
    """What a plain function would do is up to the dice."""


async def swift(ctx: Any, n: int = 0) -> None:
    """The same for one that shares its process."""


def draw(dice: random.Random) -> list[Piece]:
    """One or two pipelines, and tasks for jobs on their own."""
    pieces: list[Piece] = [_pipeline(dice, name) for name in ("one", "two")[: dice.randint(1, 2)]]
    return [*pieces, *_tasks(dice)]


def _retries(dice: random.Random) -> Retries:
    delays = dice.sample(DELAYS, dice.randint(1, 3))
    return Retries(dice.randint(0, 3), delays=delays, crashes=dice.randint(0, 2), losses=dice.randint(1, 4))


def _limit(dice: random.Random, name: str) -> Limit | None:
    kind = dice.random()
    if kind < 0.7:
        return None
    if kind < 0.85:
        return Limit(name, per="n", at_once=dice.randint(1, 2))
    if kind < 0.95:
        return Limit(name, at_once=1)
    return Limit(name, at_once=2, breaker=2, cooldown=COOLDOWN)


def _options(dice: random.Random, name: str) -> dict[str, Any]:
    return {
        "retries": _retries(dice),
        "limit": _limit(dice, name),
        "timeout": TIMEOUT if dice.random() < 0.5 else None,
        "queue": dice.choice(QUEUES),
    }


def _pipeline(dice: random.Random, name: str) -> Pipeline:
    while True:
        made = _try(dice, name)
        try:
            made.ordered()
            return made
        except Invalid:
            continue  # a gate in a place where none can be


def _try(dice: random.Random, name: str) -> Pipeline:
    made = Pipeline(name)
    for n in range(dice.randint(2, 5)):
        before = list(made.stages)
        after = dice.sample(before, min(len(before), dice.choice((1, 1, 1, 2)))) if before else []
        fn = swift if dice.random() < 0.2 else plain
        options = _options(dice, f"{name}{n}")
        if after and dice.random() < 0.15:
            made.gate(after=after, name=f"s{n}", **options)(fn)
            continue
        each = bool(after) and dice.random() < 0.6
        stage = made.stage(after=after, each=each, name=f"s{n}", need=dice.choice((None, None, 0, 0.5)), **options)(fn)
        if dice.random() < 0.15:
            stage.part(name="part", retries=_retries(dice), need=dice.choice((None, 0)))(plain)
    return made


def _tasks(dice: random.Random) -> list[Piece]:
    solo: Task[Any, Any] = Task(plain, name="solo", **_options(dice, "solo"))
    cut: Task[Any, Any] = Task(plain, name="cut", **_options(dice, "cut"))
    cut.part(name="page", retries=_retries(dice), need=dice.choice((None, 0)))(plain)
    flight: Task[Any, Any] = Task(swift, name="flight", **_options(dice, "flight"))
    return [solo, cut, flight]
