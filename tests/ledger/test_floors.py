"""A line is looked at from its floor, and from time to time as a whole: what was committed late stands below."""

from __future__ import annotations

import pytest

from gristmill import floors
from gristmill.floors import Floors
from tests.ledger.play import Play, solo


def ready(play: Play) -> list[int]:
    return [row.ready for row in play.rows("SELECT ready FROM gm_job WHERE ready IS NOT NULL ORDER BY ready")]


def line_of(play: Play) -> tuple[int, int, int]:
    return play.queue_ids()["default"], 0, 1


def move_below(play: Play, floor: int) -> None:
    """As if the transaction that gave this job its place had only now come to its end."""
    play.change("UPDATE gm_job SET ready = :low WHERE ready = (SELECT max(ready) FROM gm_job)", low=floor - 1)


def test_the_floor_rises_once_enough_was_taken_and_falls_for_what_came_late(play: Play) -> None:
    play.mill.enqueue_many(solo, [{}] * 300)
    known, line = Floors(play.ledger), line_of(play)
    assert known.of(line, 0.0, 0) == 0
    play.player().take(250)
    assert known.of(line, 0.5, 100) == 0  # too few to be worth it
    risen = known.of(line, 0.6, 250)
    assert risen == ready(play)[0] - 1 > 0
    move_below(play, risen)
    assert known.of(line, 0.9, 251) == risen
    assert known.of(line, 1.1, 252) == risen - 2 == ready(play)[0] - 1


def test_the_longer_a_look_takes_the_rarer_it_is_up_to_a_bound(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    play.mill.enqueue_many(solo, [{}] * 2)
    known, line = Floors(play.ledger), line_of(play)
    known.of(line, 0.0, 0)
    monkeypatch.setattr(floors, "_SHARE", 1e9)  # as if it had taken long
    first = known.of(line, 1.1, 0)
    play.change("UPDATE gm_job SET ready = ready - 1")
    assert known.of(line, 4.0, 0) == first
    assert known.of(line, 4.2, 0) == first - 1
