"""One seed from its beginning to its end."""

from __future__ import annotations

import random
import traceback
from typing import NamedTuple

from chaos.sim import checks, functions, shapes
from chaos.sim.cast import Cast, Post
from chaos.sim.operators import DELAY, Operators
from chaos.sim.process import SimProcess
from chaos.sim.world import LEASE, POLL, Actor, Broken, World
from gristmill.ledger.store import Ledger
from gristmill.registry import Registry

_STEPS = (25, 90)  # in which things go wrong
_CHECK_EVERY = 20
_DEEPEST = 2  # who waits in the middle of something, while another one waits in the middle of something
_WORKERS = 2
# The longest that work itself may take until something ends: a job that hangs and is then tried again, or a rest.
WORK = shapes.TIMEOUT + 1.0 + max(shapes.DELAYS) + shapes.COOLDOWN + max(functions.LATER, functions.REST) + DELAY
PAUSE = 2 * LEASE + POLL + WORK
_LEFT = (
    "SELECT (SELECT count(*) FROM gm_job WHERE state IN (0, 1)), (SELECT count(*) FROM gm_run WHERE finished_at IS NULL),"
    " (SELECT coalesce(max(n), 0) FROM chaos_change)"
)


class Told(NamedTuple):
    """What came of a seed."""

    seed: int
    digest: str
    steps: int
    jobs: int
    attempts: int
    longest: float  # simulated seconds in which nothing ended, after the faults had stopped
    meetings: int  # of reconcilers with workers
    broken: str | None
    lines: list[str]


class Simulation:
    def __init__(self, seed: int, shared: Ledger, keep_trace: bool = False, reconciled: bool = False) -> None:
        self.world = World(seed, keep_trace, reconciled=reconciled)
        self.dice: random.Random = self.world.dice
        self.cast = Cast(self.world, shared, Registry(*shapes.draw(self.dice)))
        self.operators = Operators(self.cast)
        self.world.others = self.let_others
        self._depth = 0
        self._shared = shared

    def play(self) -> Told:
        broken: str | None = None
        longest = 0.0
        with self.cast.on_stage():
            try:
                self._disturbed()
                longest = self._calm()
                checks.holds(self._shared)
                checks.check_end(self.cast, self.operators)
                self._trace_rows()
            except Broken as error:
                broken = str(error)
            except Exception as error:
                broken = f"{type(error).__name__}: {error}"
                self.world.lines += traceback.format_exc().splitlines() if self.world.keep_trace else []
            finally:
                self.cast.close()
        jobs, attempts = self.cast.look("SELECT count(*), coalesce(sum(attempt), 0) FROM gm_job")[0]
        world = self.world
        return Told(world.seed, world.digest, world.steps, jobs, attempts, longest, world.meetings, broken, world.lines)

    def _trace_rows(self) -> None:
        for sql in ("SELECT id, state, attempt, result FROM gm_job", "SELECT id, state, epoch FROM gm_run"):
            self.world.trace("end", str(self.cast.look(f"{sql} ORDER BY id")))

    # ---- two acts

    def _disturbed(self) -> None:
        for _ in range(self.dice.randint(1, 3)):
            self.operators.act(self.operators.start)
        self.operators.act(self.operators.enqueue)
        for _ in range(self.dice.randint(1, 3)):
            Post(self.cast)
        until = self.world.steps + self.dice.randint(*_STEPS)
        while self.world.steps < until:
            for _ in range(_CHECK_EVERY):
                self.step()
            checks.holds(self._shared)

    def _calm(self) -> float:
        """Nothing goes wrong any more; what has begun must end. Says for how long nothing did."""
        self.world.calm = True
        self.operators.act(self.operators.resume)
        longest, last, since = 0.0, None, self.world.now
        while True:
            left = tuple(self.cast.look(_LEFT)[0])
            if left != last:
                last, since = left, self.world.now
            longest = max(longest, self.world.now - since)
            if not left[0] and not left[1]:
                return longest
            if self.world.now - since > PAUSE:
                raise Broken(f"stuck: {left[0]} jobs and {left[1]} runs are not over, and nothing ended for {PAUSE:g} s")
            for _ in range(5):
                self.step()

    # ---- one step

    def step(self) -> None:
        world = self.world
        world.steps += 1
        world.now += 0.001
        self._go_wrong()
        ready = self._ready()
        if ready and (world.calm or self.dice.random() < 0.9):
            self.dice.choice(ready).step()
        else:
            self._advance()

    def _go_wrong(self) -> None:
        world, nature = self.world, self.world.nature
        if world.chance(nature.deaths):
            victims: list[Post | SimProcess] = [*self.cast.posts, *self.cast.processes]
            if victims:
                self._kill(self.dice.choice(victims))
        if world.chance(nature.freezes) and self.cast.posts:
            self._freeze(self.dice.choice(self.cast.posts))
        if world.chance(nature.deaths / 4) and self.cast.posts:
            post = self.dice.choice(self.cast.posts)
            if post.started and not post.suspended:
                world.trace(post.name, "is asked to stop")
                post.worker.stop()
        if len(self.cast.posts) < _WORKERS and (world.calm or self.dice.random() < 0.1):
            Post(self.cast)
        if world.chance(nature.operators):
            self.operators.act()

    def _kill(self, victim: Post | SimProcess) -> None:
        if isinstance(victim, Post):
            victim.kill()
        else:
            victim.die(-9)

    def _freeze(self, post: Post) -> None:
        post.frozen_until = self.world.now + LEASE * (0.5 + 2 * self.dice.random())
        post.frozen_with_children = self.dice.random() < 0.5
        self.world.trace(post.name, "is frozen until", f"{post.frozen_until:.3f}")

    def _ready(self) -> list[Post | SimProcess]:
        posts = [post for post in self.cast.posts if not post.suspended and not post.frozen and post.due()]
        processes = [p for p in self.cast.processes if self._moves(p) and p.next_at() <= self.world.now]
        return [*posts, *processes]

    def _moves(self, process: SimProcess) -> bool:
        return not process.suspended and not (process.post.frozen and process.post.frozen_with_children)

    def _advance(self) -> None:
        """To when something is due, or a bit of the way, or beyond."""
        world = self.world
        times = [max(post.next_at, post.frozen_until) for post in self.cast.posts if not post.suspended]
        times += [process.next_at() for process in self.cast.processes if self._moves(process)]
        times += [at for bell in self.cast.delivery.bells for at, _ in bell.rung]
        ahead = min((at for at in times if at > world.now), default=world.now + 0.5) - world.now
        if not world.calm:
            ahead *= self.dice.choice((0.3, 1.0, 1.0, 1.0))
            ahead += self.dice.random() * self.dice.choice((0.001, 0.1, 0.1, 1.0))
        world.now += min(ahead + 1e-6, LEASE)

    # ---- others, in the middle of something

    def let_others(self, actor: Actor) -> None:
        """This one waits between two of its transactions, perhaps for longer than its lease, and others go on."""
        if self._depth >= _DEEPEST or self.dice.random() < self._depth * 0.5:
            return
        was, actor.suspended = actor.suspended, True
        active = self.cast.active
        self._depth += 1
        try:
            steps = self.dice.randint(1, 5)
            if self.dice.random() < 0.15:
                self.world.trace(actor.name, "sleeps on its way")
                self.world.now += LEASE * (0.5 + self.dice.random())
                steps += 10
            for _ in range(steps):
                self.step()
        finally:
            self._depth -= 1
            self.cast.active = active
            actor.suspended = was
