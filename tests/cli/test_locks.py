"""`lock list`: who holds what, and who waits for it."""

from __future__ import annotations

import os

from gristmill import Mill
from gristmill.identity import born, host
from gristmill.ledger import locks
from tests.cli.conftest import Cli


def test_a_lock_its_holder_and_who_waits(made: Cli) -> None:
    assert made.call("lock", "list").err == "note: no lock is held\n"
    assert made.call("lock", "list", "--json").json == []
    with Mill.open(f"sqlite:///{made.folder}/gristmill.db") as mill, mill.lock("page", "home"):
        key = locks.key_of("page", "home")
        mill.ledger.do(locks.ask, key, locks.Who(7, 1, 3), os.getpid(), born(os.getpid()) or "")
        lines = [line.split("  ") for line in made.call("lock", "list").out.splitlines()]
        words = [[word.strip() for word in line if word.strip()] for line in lines]
        assert words[0] == ["LOCK", "WHO", "DOES", "SINCE"]
        assert words[1][:3] == ["page/home", f"process {os.getpid()} on {host()}", "holds it"]
        assert words[2][:2] == [f"job 7 (worker 3 on {host()})", "waits"]
        (document,) = made.call("lock", "list", "--json").json
        assert (document["resource"], document["kind"], document["object"]) == ("page/home", *key[:2])
        assert (document["holder"]["job"], document["holder"]["pid"]) == (None, os.getpid())
        assert [(user["job"], user["worker"]) for user in document["waiters"]] == [(7, 3)]
