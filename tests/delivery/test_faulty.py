"""Whatever becomes of messages, every job ends once, and every fan-in happens: only later."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gristmill import Mill
from tests.apps import everyday
from tests.delivery.conftest import Opener
from tests.delivery.faulty import Faulty
from tests.ledger import invariants
from tests.worker.helpers import all_end, lines, run_ends, working

pytestmark = pytest.mark.slow  # of ./run chaos

SEED = 7
POLL = {"slots": 2, "poll": 0.2}


@pytest.fixture
def everyday_mill(opened: Opener) -> Iterator[tuple[Mill, Faulty]]:
    with opened() as mill:
        yield mill, Faulty(mill.delivery, SEED)
        invariants.check(mill.ledger)


def test_every_job_ends_once(everyday_mill: tuple[Mill, Faulty], tmp_path: Path) -> None:
    mill, faulty = everyday_mill
    folder = tmp_path / "notes"
    folder.mkdir()
    priorities = random.Random(SEED)
    with working(mill, **POLL), working(mill, **POLL):
        jobs = [
            mill.enqueue(
                everyday.write_down,
                args={"folder": str(folder), "name": str(n)},
                priority=priorities.choice(["high", "normal", "low"]),
                delay=priorities.choice([None, None, 0.1]),
            ).id
            for n in range(30)
        ]
        jobs += [mill.enqueue(everyday.flaky, args={"failures": 1}).id for _ in range(5)]
        jobs += [mill.enqueue(everyday.add_async, args={"a": n}).id for n in range(5)]
        mill.pause("default")
        mill.resume("default")
        assert Counter(job.state for job in all_end(mill, *jobs)) == {"completed": 40}
    (file,) = folder.iterdir()
    assert sorted(Counter(lines(file)).values()) == [1] * 30
    assert min(faulty.counts.values()) > 0, "nothing went wrong"


def test_every_fan_in_happens_once(opened: Opener) -> None:
    with opened("flows") as mill:
        Faulty(mill.delivery, SEED)
        with working(mill, **POLL):
            runs = [mill.start("site", f"site {n}", args={"pages": 6}).id for n in range(2)]
            assert [run_ends(mill, run).state for run in runs] == ["completed"] * 2
        invariants.check(mill.ledger)
