"""The real ledger, whose transactions may fail: before they begin, after some statement, or when only the answer is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

from chaos.sim.world import Actor, Killed, World
from gristmill.errors import Unavailable
from gristmill.ledger.exchange import Exchanged
from gristmill.ledger.store import Ledger, Tx
from tests.ledger.hooks import hooked

P = ParamSpec("P")
T = TypeVar("T")


class SimLedger(Ledger):
    """One actor's way to the database that all share. Between two of its transactions others may go on."""

    def __init__(self, shared: Ledger, world: World, actor: Actor) -> None:
        self.__dict__.update(shared.__dict__)
        self.world = world
        self.actor = actor
        self.loses = ""  # the verb whose next answer is lost, whatever the dice say

    def do(self, verb: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        world, name = self.world, getattr(verb, "__name__", "verb")
        self._wait()
        kind = world.dice.choice(("before", "within", "after", "after")) if world.chance(world.nature.faults) else ""
        if kind == "before":
            world.trace(self.actor.name, name, "unavailable")
            raise Unavailable("simulated: the database cannot be reached")
        chosen = hooked(verb, self._cut(name)) if kind == "within" else verb
        result = super().do(chosen, *args, **kwargs)
        world.commits[self.actor.name] += 1
        world.trace(self.actor.name, name, *_shown(result))
        if kind == "after" or name == self.loses:
            self.loses = ""
            world.trace(self.actor.name, name, "committed, answer lost")
            raise Unavailable("simulated: the database went away during a commit, and it is unclear whether it holds")
        self._wait()
        return result

    def _cut(self, name: str) -> Callable[[int], None]:
        last = self.world.dice.randint(1, 12)

        def after(statement: int) -> None:
            if statement == last:
                self.world.trace(self.actor.name, name, "cut after statement", statement)
                raise Unavailable("simulated: the connection is gone")

        return after

    @contextmanager
    def reading(self) -> Iterator[Tx]:
        self._wait()
        if self.world.chance(self.world.nature.faults / 2):
            self.world.trace(self.actor.name, "reading", "unavailable")
            raise Unavailable("simulated: the database cannot be reached")
        with super().reading() as tx:
            yield tx

    def glance(self, look: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._wait()
        if self.world.chance(self.world.nature.faults / 2):
            self.world.trace(self.actor.name, "glance", "unavailable")
            raise Unavailable("simulated: the database cannot be reached")
        return super().glance(look, *args, **kwargs)

    def _wait(self) -> None:
        world = self.world
        world.now += 0.0005
        if world.chance(world.nature.pauses):
            world.others(self.actor)
        if self.actor.dead:
            raise Killed


def _shown(result: Any) -> tuple[Any, ...]:
    """What a verb answered, for the trace."""
    if isinstance(result, Exchanged):
        return [(job.id, job.attempt) for job in result.taken.jobs] if result.taken else [], result.late
    return (result,) if isinstance(result, int | str) else ()
