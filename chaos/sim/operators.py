"""What applications and operators ask for, and the record of what they were told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chaos.sim.cast import Cast
from chaos.sim.shapes import QUEUES
from chaos.sim.world import Broken
from gristmill.errors import NotFound, Refused, Unavailable

DELAY = 5.0


class Operators:
    """One act at a time."""

    def __init__(self, cast: Cast) -> None:
        self.cast, self.world, self.mill = cast, cast.world, cast.mill
        self.acknowledged: list[tuple[str, int]] = []
        self.tags = 0
        self.retried: set[int] = set()  # jobs
        self.acts: list[Callable[[], object]] = [self.start, self.start, self.enqueue, self.enqueue, self.cancel_run]
        self.acts += [self.cancel_job, self.pause, self.resume, self.limit_queue, self.reconcile, self.purge]
        if self.world.nature.retries:
            self.acts += [self.retry_run, self.retry_run, self.retry_job]
        if self.world.nature.reconciled:
            self.acts = [self.start, self.enqueue, self.cancel_run, self.cancel_job, *[self.reconcile] * 8]

    def act(self, which: Callable[[], object] | None = None) -> None:
        operator = self.cast.operator
        if operator.suspended:
            return
        act = which or self.world.dice.choice(self.acts)
        operator.suspended = True
        active, self.cast.active = self.cast.active, None
        try:
            answer = act()
            self.world.trace("operator", act.__name__, answer)
        except (Refused, NotFound, Unavailable) as error:
            self.world.trace("operator", act.__name__, type(error).__name__)
        finally:
            operator.suspended = False
            self.cast.active = active

    # ---- asking for work

    def start(self) -> int:
        dice = self.world.dice
        pipeline = dice.choice(sorted(self.mill.registry.pipelines))
        how = dice.choice(("wait", "join", "refuse"))
        priority = dice.choice(("high", "normal", "low"))
        run = self.mill.start(pipeline, dice.choice("ab"), args={"n": 0}, if_active=how, priority=priority)
        self.acknowledged.append(("run", run.id))
        return run.id

    def enqueue(self) -> int:
        dice = self.world.dice
        self.tags += 1
        kind = dice.random()
        task = dice.choice(("solo", "cut", "flight"))
        if kind < 0.3:
            ids = self.mill.enqueue_many(task, [{"n": 1000 * self.tags + n} for n in range(dice.randint(1, 4))])
            self.acknowledged += [("job", number) for number in ids]
            return len(ids)
        how: dict[str, Any] = {"delay": dice.random() * DELAY} if kind < 0.5 else {}
        if dice.random() < 0.3:
            how |= {"unique": "u", "unique_scope": dice.choice(("queued", "unfinished"))}
        job = self.mill.enqueue(task, args={"n": 1000 * self.tags}, **how)
        self.acknowledged.append(("job", job.id))
        return job.id

    # ---- acting on what is there

    def _some(self, what: str, where: str = "true") -> int:
        rows = self.cast.look(f"SELECT id FROM gm_{what} WHERE {where} ORDER BY id")
        if not rows:
            raise NotFound("there is none")
        chosen: int = self.world.dice.choice(rows)[0]
        return chosen

    def cancel_run(self) -> int:
        run = self._some("run", "finished_at IS NULL")
        self.mill.cancel_run(run, by="me")
        return run

    def cancel_job(self) -> int:
        job = self._some("job", "finished_at IS NULL")
        self.mill.cancel_job(job, by="me")
        return job

    def retry_job(self) -> int:
        job = self._some("job")
        self.retried.add(job)
        self.mill.retry_job(job, by="me")
        return job

    def retry_run(self) -> int:
        run = self._some("run")
        stages = sorted(row[0] for row in self.cast.look(f"SELECT name FROM gm_stage WHERE run_id = {run}"))
        which: dict[str, Any] = self.world.dice.choice(
            [{}, {"key": "*"}, {"key": "*k0"}, {"stage": self.world.dice.choice(stages)}]
        )
        self.mill.retry_run(run, by="me", **which)
        return run

    def pause(self) -> None:
        self.mill.pause(self.world.dice.choice(QUEUES), by="me")

    def resume(self) -> None:
        for queue in sorted(self.mill.registry.queues()):
            self.mill.resume(queue, by="me")

    def limit_queue(self) -> None:
        at_once = self.world.dice.choice((None, 1, 3))
        self.mill.set_queue(self.world.dice.choice(QUEUES), limits={"at_once": at_once}, by="me")

    def purge(self) -> None:
        if self.world.dice.random() < 0.2:
            self.mill.purge_queue(self.world.dice.choice(QUEUES), by="me")

    def reconcile(self) -> int:
        """Nothing but lost workers is ever to be mended: all else would be a verb that left something undone."""
        midway, before = any(post.suspended for post in self.cast.posts), self._commits_of_others()
        found = self.mill.reconcile()
        self.world.meetings += midway or self._commits_of_others() > before
        wrong = [repair for repair in found if repair.what != "rescue"]
        if wrong:
            raise Broken(f"the reconciler found something to mend: {wrong[:3]}")
        return len(found)

    def _commits_of_others(self) -> int:
        return self.world.commits.total() - self.world.commits[self.cast.operator.name]
