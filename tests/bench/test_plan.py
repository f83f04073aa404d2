"""Who is asked for what, and how often."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench import environments, guard, plan, systems
from bench.guard import Ratio

PEERS = Path(environments.__file__).parent / "peers"


def test_every_program_of_a_peer_has_a_lock_with_hashes_and_no_host():
    for system in systems.SYSTEMS:
        assert (PEERS / f"{system.program}.py").exists()
        if system.is_peer:
            lock = (PEERS / "locks" / f"{system.program}.txt").read_text()
            assert "--hash=sha256:" in lock
            assert "://" not in lock
            assert re.search(rf"^{system.program}(\[.*\])?==", lock, re.MULTILINE)


def test_rounds_are_interleaved():
    chosen, measures = systems.chosen(["arq", "dramatiq"]), plan.chosen(["drain", "kill"])
    steps = [(s.number, s.measure.name, s.system.name) for s in plan.steps(chosen, measures, 2, quick=False)]
    assert steps == [
        (0, "drain", "dramatiq"),
        (0, "drain", "arq"),
        (0, "kill", "dramatiq"),
        (0, "kill", "arq"),
        (1, "drain", "dramatiq"),
        (1, "drain", "arq"),
    ]


def test_a_slow_peer_gets_fewer_jobs():
    drain = plan.BY_NAME["drain"]
    assert drain.settings(systems.BY_NAME["rq-fork"], False)["count"] == 330
    assert drain.settings(systems.BY_NAME["pgqueuer-100"], False)["count"] == 10_000


def test_what_decides_most_is_measured_most_often():
    def rounds(measure: str, system: str) -> int:
        return plan.rounds_of(plan.BY_NAME[measure], systems.BY_NAME[system], 3)

    assert [rounds("drain", name) for name in ("gristmill-sqlite", "arq", "rq-fork")] == [3, 3, 1]
    assert [rounds("bulk", name) for name in ("loops-sqlite", "arq")] == [3, 1]
    assert [rounds("kill", name) for name in ("gristmill-sqlite", "arq")] == [1, 1]


def test_the_quick_form_leaves_some_out_unless_they_are_named():
    names = [system.name for system in systems.chosen([], quick=True)]
    assert "gristmill-postgres" in names
    assert not {"arq", "rq-fork"} & set(names)
    assert [system.name for system in systems.chosen(["arq"], quick=True)] == ["arq"]


def test_a_wrong_name_is_answered_with_those_that_there_are():
    with pytest.raises(SystemExit, match=r"there is no rqq; there are .*rq-fork"):
        systems.chosen(["rqq"])
    with pytest.raises(SystemExit, match=r"no scenario dran; there are drain"):
        plan.chosen(["dran"])


def test_the_committed_floors_are_those_that_are_measured():
    import json

    assert {ratio.name for ratio in guard.ratios(json.loads(guard.FLOORS.read_text()))} == set(guard.NAMES)
    with pytest.raises(SystemExit, match="must have a floor for each"):
        guard.ratios({"drain sqlite": 0.5})


def test_the_guard_takes_the_median_and_asks_again_only_what_is_below():
    answers = {
        "fine": iter([0.6, 0.4, 0.6]),
        "noisy": iter([0.1, 0.2, 0.7, 0.7, 0.6]),
        "slow": iter([0.9] + [0.1] * guard.MOST),  # one round in which the loop was held up is no proof
    }
    found = [Ratio(name, 0.5) for name in answers]
    guard.play_rounds(found, lambda name: next(answers[name]), until=float("inf"))
    assert [len(ratio.rounds) for ratio in found] == [3, 5, guard.MOST]
    assert [ratio.holds for ratio in found] == [True, True, False]
    assert list(guard.told(found))[-1].startswith("The hot path has got slow")


def test_without_time_the_guard_measures_each_once():
    found = [Ratio("slow", 0.5), Ratio("fine", 0.5)]
    guard.play_rounds(found, lambda name: 0.1, until=0.0)
    assert [ratio.rounds for ratio in found] == [[0.1], [0.1]]


def test_no_peer_in_a_database_is_left_out_of_the_row_that_says_ahead_of_all_of_them():
    peers = [system for system in systems.SYSTEMS if system.is_peer and system.store != "redis"]
    assert all(plan.BY_NAME["latency"].wanted(system, False) for system in peers)
