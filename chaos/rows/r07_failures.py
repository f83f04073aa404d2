"""No, half or all items of a fan-out fail, by an exception, by their time limit, or by the death of their process.

The run always ends. Its fan-in runs once, after all items, unless the stage needed a success and there was none: then the
run is failed, with a reason.
"""

from __future__ import annotations

import time
from collections import Counter

from chaos import oracle
from chaos.play import Play, Violation
from chaos.record import noted

TITLE = "items that fail, by exception, timeout and crash"
DATABASES = ("SQLite", "PostgreSQL")
WAYS = {"exception": "ValueError", "timeout": "timeout", "crash": "crash"}
SHARES = (0, 50, 100)  # percent


def play(play: Play) -> str:
    play.apps = ("chaos.apps", "chaos.failing_app")
    oracle.watch(play.mill)
    play.crew(2, queues=())
    began = time.monotonic()
    runs = {
        _start(play, pipeline, how, share): (pipeline, how, share)
        for pipeline in ("tolerant", "usual")
        for how in WAYS
        for share in SHARES
    }
    oracle.settle(play)
    took = time.monotonic() - began
    oracle.check(play, failing=True)
    totals = Counter(run for run, *_ in noted(play.folder, "totalled"))
    items = [_judge(play, run, *what, totals[run]) for run, what in runs.items()]
    return f"{len(runs)} runs of {sum(items)} items, all over after {took:.0f} s, as their stage's need says; 0 stuck"


def _items(play: Play, how: str) -> int:
    """Those that cost a process are fewer."""
    return play.pick(100, 10_000) if how == "exception" else play.pick(8, 200)


def _start(play: Play, pipeline: str, how: str, share: int) -> int:
    items = _items(play, how)
    bad, first = items * share // 100, play.dice.randrange(items)
    given = {"folder": str(play.folder), "items": items, "how": how, "bad": bad, "first": first}
    return play.acknowledge("run", play.mill.start(pipeline, f"{how}-{share}", args=given).id)


def _judge(play: Play, number: int, pipeline: str, how: str, share: int, totals: int) -> int:
    """Raises unless the run has ended as it should."""
    run, items = play.mill.run(number), _items(play, how)
    bad = items * share // 100
    hopeless = pipeline == "usual" and bad == items
    stage = run.stage("item")
    expected = (
        "failed" if hopeless else "completed_with_errors" if bad else "completed",
        (items, items - bad, bad),
        0 if hopeless else 1,
    )
    got = (run.state, (stage.total, stage.completed, stage.failed), totals)
    if got != expected:
        raise Violation(f"run {number} ({pipeline}, {share}% by {how}) is {got}, not {expected}")
    if hopeless and not (run.error or run.reason):
        raise Violation(f"run {number} ({pipeline}, {share}% by {how}) does not say why it failed")
    sql = "SELECT DISTINCT error_class FROM gm_job WHERE run_id = {} AND key IS NOT NULL AND error_class IS NOT NULL"
    if (why := {row[0] for row in oracle.rows(play.mill, sql.format(number))}) != ({WAYS[how]} if bad else set()):
        raise Violation(f"run {number} ({pipeline}, {share}% by {how}): its items failed with {why}")
    return items
