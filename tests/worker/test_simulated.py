"""A real worker in a simulated world (`chaos.sim`): what a seed found once, step by step; and that seeds play alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chaos.sim.cast import Post
from chaos.sim.playing import Player
from chaos.sim.simulation import Simulation
from chaos.sim.world import LEASE, Nature
from gristmill import Retries
from gristmill.execution.child import LEASE_OVER


@pytest.fixture
def player(tmp_path: Path) -> Iterator[Player]:
    player = Player(tmp_path)
    yield player
    player.close()


@pytest.fixture
def calm(player: Player, monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulation]:
    """A world with one worker, in which nothing goes wrong by itself."""
    monkeypatch.setattr("chaos.sim.simulation._WORKERS", 1)
    simulation = Simulation(1, player.ledger)
    simulation.world.nature = Nature(0, 0, 0, 0, 0, 0, 0, False)
    simulation.world.calm = True
    with simulation.cast.on_stage():
        yield simulation
        simulation.cast.close()


def steps(simulation: Simulation, until: Callable[[], object], within: float) -> float:
    """Lets the world go on; says how many (simulated) seconds it took."""
    began = simulation.world.now
    while not until():
        assert simulation.world.now - began < within
        simulation.step()
    return simulation.world.now - began


def enqueue(simulation: Simulation) -> int:
    """An async job that is tried again at once."""
    again = Retries(3, delays=[0])
    return simulation.cast.mill.enqueue("flight", args={"n": 0}, retries=again, timeout=100).id


def state(simulation: Simulation, job: int) -> int:
    found: int = simulation.cast.look(f"SELECT state FROM gm_job WHERE id = {job}")[0][0]
    return found


@pytest.mark.parametrize("seed", [3, 168, 700])
def test_a_seed_plays_the_same_way_twice(player: Player, seed: int) -> None:
    told = player.play(seed)
    assert told.broken is None
    assert player.play(seed + 1).digest != told.digest
    assert player.play(seed) == told


def test_a_first_child_that_ends_with_its_lease_says_nothing_about_the_application(calm: Simulation) -> None:
    """Its worker was frozen, or cut off. It goes on, also if all that waits is async: another child shows what there is."""
    job = enqueue(calm)
    post = Post(calm.cast)
    post.step()
    (process,) = calm.cast.processes
    process.starts_at = calm.world.now + 2 * LEASE
    calm.world.now += LEASE
    process.step()
    assert process.returncode == LEASE_OVER
    steps(calm, lambda: state(calm, job) == 2, within=20)


def test_a_job_that_is_claimed_again_while_its_last_end_is_not_written_is_found(calm: Simulation) -> None:
    """Its process died; the turn that says so takes it once more, and its answer is lost. The end that is still to be
    written must neither hide that claim nor end it."""
    job = enqueue(calm)
    post = Post(calm.cast)
    steps(calm, lambda: any(process.works for process in calm.cast.processes), within=5)
    next(process for process in calm.cast.processes if process.works).die(-9)
    post.worker.ledger.loses = "exchange"  # type: ignore[attr-defined]
    steps(calm, lambda: not post.worker.ledger.loses, within=5)  # type: ignore[attr-defined]
    assert calm.cast.look(f"SELECT attempt, state FROM gm_job WHERE id = {job}") == [(2, 1)]
    steps(calm, lambda: state(calm, job) == 2, within=10)
