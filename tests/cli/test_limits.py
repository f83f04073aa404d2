"""`limit list|set|close`, and the limits of `queue set`."""

from __future__ import annotations

from typing import Any

import orjson

from gristmill import Limit, Mill, task
from gristmill.testing import drain
from tests.cli.conftest import Cli


@task(name="fetch", limit=Limit("host", per="host", at_once=2, breaker=5))
def fetch(ctx: Any, host: str) -> None:
    """A job with a key."""


def asked(made: Cli) -> None:
    with Mill.open(f"sqlite:///{made.folder}/gristmill.db", fetch) as mill:
        mill.enqueue_many(fetch, [{"host": "a.org"}] * 5)


def test_limits_are_listed_with_what_they_do(made: Cli) -> None:
    assert "there are no limits" in made.call("limit", "list").err
    asked(made)
    shown = made.call("limit", "list", "host")
    assert shown.code == 0
    assert [line.split() for line in shown.out.splitlines() if "a.org" in line] == [
        ["host", "a.org", "2", "0", "2", "3", "closed,", "0", "of", "5", "failures", "application"]
    ]
    (limit,) = orjson.loads(made.call("limit", "list", "host", "a.org", "--json").out)
    assert (limit["at_once"], limit["ready"], limit["waiting"], limit["circuit"]) == (2, 2, 3, "closed")


def test_an_open_circuit_says_when_it_is_tried_again(made: Cli) -> None:
    @task(name="fetch", limit=Limit("host", per="host", breaker=1, cooldown=600))
    def failing(ctx: Any, host: str) -> None:
        raise OSError(host)

    with Mill.open(f"sqlite:///{made.folder}/gristmill.db", failing) as mill:
        mill.enqueue(failing, args={"host": "a.org"})
        drain(mill, until="idle")
    assert "open, one is tried in " in made.call("limit", "list", "host").out


def test_numbers_are_set_and_forgotten(made: Cli) -> None:
    asked(made)
    assert made.call("limit", "set", "host", "a.org", "--at-once", "4").out.startswith("limit host a.org: 4 at once")
    assert made.call("limit", "set", "host", "--at-once", "none", "--per-second", "0.5").code == 0
    keys = {found["key"]: found for found in orjson.loads(made.call("limit", "list", "host", "--json").out)}
    assert (keys[""]["at_once"], keys[""]["per_second"], keys["a.org"]["at_once"]) == (None, 0.5, 4)
    assert made.call("limit", "set", "host", "a.org", "--default").code == 0
    back = orjson.loads(made.call("limit", "set", "host", "--default", "--json").out)
    assert (back["at_once"], back["set_by"]) == (2, "application")


def test_wrong_words_are_refused(made: Cli) -> None:
    asked(made)
    assert made.call("limit", "set", "host").code == 64
    assert made.call("limit", "set", "host", "--at-once", "2", "--default").code == 64
    assert "nor 'none'" in made.call("limit", "set", "host", "--at-once", "many").err
    unknown = made.call("limit", "set", "hots", "--at-once", "2")
    assert (unknown.code, "did you mean 'host'" in unknown.err) == (1, True)
    assert "there is no limit 'hots'" in made.call("limit", "list", "hots").err
    assert "no such key" in made.call("limit", "list", "host", "b.org").err
    assert "closed already" in made.call("limit", "close", "host", "a.org").err
    assert made.call("queue", "set", "default").code == 64


def test_a_queue_gets_limits(made: Cli) -> None:
    asked(made)
    said = made.call("queue", "set", "default", "--at-once", "3", "--per-second", "10")
    assert said.out == "queue default has weight 1, 3 at once, 10 per second\n"
    (queue,) = orjson.loads(made.call("queue", "list", "--json").out)
    assert (queue["at_once"], queue["per_second"], queue["limited"]) == (3, 10, 3)
    assert "no limit" in made.call("queue", "set", "default", "--at-once", "none", "--per-second", "none").out
