"""Roles of PostgreSQL with the least that they need. (All other tests of the ledger run under a worker's role too.)"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from gristmill import Mill
from gristmill import ledger as ledger_package
from gristmill.errors import DatabaseError, Invalid
from gristmill.housekeeping import remove_pending
from gristmill.ledger import workers
from gristmill.ledger.finish import Verdict
from gristmill.ledger.grants import PURPOSES, grants, privileges, purpose_of
from gristmill.ledger.health import examine
from gristmill.ledger.remove import pending
from gristmill.ledger.store import Ledger
from gristmill.ledger.workers import Registration
from tests import servers
from tests.ledger.conftest import Open
from tests.ledger.play import each, plan, solo, step, stubborn

SITE = plan("site", find=step(), page=each("find"))


@pytest.fixture
def database_url(pg_url: str) -> str:
    """Only PostgreSQL has roles."""
    return pg_url


@pytest.fixture
def worked(opened: Open) -> Mill:
    """A ledger in which a worker has worked, under its role: a run with a failure, a job on its own."""
    play = opened(SITE)
    play.mill.start("site", "s")
    play.mill.enqueue(solo)
    play.drain(items={"find": ["a", "b"]}, verdicts={"page/a": Verdict.PERMANENT})
    return play.mill


@pytest.fixture
def mills(owner_pg_url: str, worked: Mill) -> Iterator[dict[str, Mill]]:
    """A mill under each role."""
    with ExitStack() as stack:
        made = {}
        for purpose in PURPOSES:
            role = stack.enter_context(servers.role(owner_pg_url, purpose))
            url = servers.with_user(owner_pg_url, role)
            made[purpose] = stack.enter_context(Mill.open(url, SITE, solo, stubborn, clock=worked.ledger.clock))
        yield made


def refused(mill: Mill, sql: str) -> bool:
    try:
        with mill.transaction() as connection:
            connection.execute(text(sql))
    except DatabaseError as error:
        return "permission denied" in str(error) or "must be owner" in str(error)
    return False


def look(mill: Mill) -> None:
    run, job = mill.runs()[0].id, mill.jobs()[0].id
    (error,) = mill.errors()
    for seen in (mill.run(run), mill.job(job), mill.subjects(), mill.subject("site", "s"), mill.queues(), mill.status()):
        assert seen
    mill.workers(every=True), mill.attempts(job), mill.error(error.fingerprint), mill.why(run=run), mill.why(job=job)
    assert list(mill.results(run, "page")) == [("b", None)]
    assert mill.reconcile(dry_run=True) == []
    with mill.ledger.reading() as tx:
        for view in ("gristmill_jobs", "gristmill_runs", "gristmill_stages"):
            tx.script(f"SELECT count(*) FROM {view}")
    assert all(finding.ok or finding.check == "queues" for finding in mill.doctor())


def act(mill: Mill) -> None:
    run = mill.start("site", "t", priority="low")
    mill.start("site", "t", priority="high")
    mill.start("site", "t", if_active="wait")
    job = mill.enqueue(stubborn, unique="one")
    mill.enqueue_many(solo, [{"n": n} for n in range(3)])
    mill.cancel_job(job.id)
    mill.retry_job(job.id)
    mill.cancel_run(run.id)
    (error,) = mill.errors()
    mill.retry_error(error.fingerprint)
    mill.ignore_error(error.fingerprint)
    mill.ignore_error(error.fingerprint, undo=True)
    mill.pause("default")
    mill.resume("default")
    mill.set_queue("new", create=True, weight=2)
    mill.set_subject("site", "t", interval=60, labels={"tier": "gold"})
    mill.set_subject("site", "t", labels={"tier": None})
    mill.forget("site", "s")


def test_a_reader_sees_everything_and_changes_nothing(mills: dict[str, Mill]) -> None:
    reader = mills["reader"]
    look(reader)
    changes: list[Callable[[], Any]] = [
        lambda: reader.enqueue(solo),
        lambda: reader.start("site", "t"),
        lambda: reader.pause("default"),
        lambda: reader.cancel_job(reader.jobs()[0].id),
    ]
    for change in changes:
        with pytest.raises((DatabaseError, Invalid)):
            change()
    for table in ("gm_job", "gm_run", "gm_stage", "gm_worker", "gm_audit", "gm_ledger", "gm_version"):
        assert refused(reader, f"DELETE FROM {table}"), table


def test_the_api_asks_for_work_and_acts_on_it_but_is_no_worker(mills: dict[str, Mill]) -> None:
    api = mills["api"]
    look(api)
    act(api)
    with pytest.raises(DatabaseError, match="permission denied"):
        api.ledger.do(workers.register, Registration("here", 1, "now", (), 1, "test"), 10**9)


@pytest.mark.parametrize("purpose", ["worker", "hand", "api"])
def test_nobody_changes_the_schema_or_what_was_recorded(mills: dict[str, Mill], purpose: str) -> None:
    mill = mills[purpose]
    for statement in (
        "DELETE FROM gm_audit",
        "UPDATE gm_audit SET who = 'me'",
        "UPDATE gm_ledger SET epoch = 1",
        "UPDATE gm_version SET version_num = '9999'",
        "UPDATE gm_task SET spec = '{}'",
        "TRUNCATE gm_job",
        "DROP TABLE gm_job",
        "ALTER TABLE gm_job ADD COLUMN mine text",
        "CREATE TABLE mine (n integer)",
    ):
        assert refused(mill, statement), statement


def test_a_worker_may_do_what_an_application_can(mills: dict[str, Mill]) -> None:
    look(mills["worker"])
    act(mills["worker"])


def test_a_hand_does_the_same_and_removes_no_runs_and_jobs(mills: dict[str, Mill]) -> None:
    hand = mills["hand"]
    look(hand)
    act(hand)
    number = hand.ledger.do(workers.register, Registration("here", 1, "now", (), 1, "test"), 10**9)
    hand.ledger.do(workers.leave, number)
    for table in ("gm_run", "gm_job", "gm_subject", "gm_worker", "gm_queue", "gm_order", "gm_recovery", "gm_removal"):
        assert refused(hand, f"DELETE FROM {table}"), table


def test_a_hand_may_delete_from_what_work_clears_and_from_nothing_else() -> None:
    """By the statements themselves: those that only run for who removes, prunes or restores are in these three files."""
    folder = Path(ledger_package.__file__).parent
    working = [path for path in folder.glob("*.py") if path.stem not in ("remove", "prune", "backup")]
    cleared = {name for path in working for name in re.findall(r"DELETE FROM (gm_\w+)", path.read_text())}
    assert {table for table, some in privileges("hand").items() if "DELETE" in some} == cleared


def test_a_hand_leaves_it_to_others_to_finish_a_removal(mills: dict[str, Mill]) -> None:
    with mills["worker"].transaction() as connection:
        connection.execute(text("INSERT INTO gm_removal (stage_id) VALUES (999999)"))
    for purpose, left in {"hand": [999999], "worker": []}.items():
        remove_pending(mills[purpose].ledger)
        with mills["worker"].ledger.reading() as tx:
            assert pending(tx) == left


def test_what_a_role_is_for_is_seen(mills: dict[str, Mill], owner_pg_url: str) -> None:
    for purpose, mill in mills.items():
        with mill.ledger.reading() as tx:
            assert purpose_of(tx)[0] == purpose
    ledger = Ledger(owner_pg_url)
    try:
        with servers.role(owner_pg_url, "reader") as role:
            servers.execute(owner_pg_url, f'REVOKE SELECT ON gm_stage FROM "{role}"')
            poor = Ledger(servers.with_user(owner_pg_url, role))
            with poor.reading() as tx:
                assert purpose_of(tx)[0] is None
            (finding,) = [found for found in examine(poor) if found.check == "permissions"]
            assert (finding.ok, finding.command) == (False, ("gristmill", "db", "grants", role))
            poor.close()
    finally:
        ledger.close()


def test_a_role_that_is_not_there_is_said_so(owner_pg_url: str) -> None:
    ledger = Ledger(owner_pg_url)
    try:
        with pytest.raises(Invalid, match='make it first: CREATE ROLE "no""body" LOGIN'):
            grants(ledger, 'no"body', "worker", apply=True)
        printed = grants(ledger, 'no"body', "reader")
        assert all(statement.startswith("GRANT ") and statement.endswith(' TO "no""body";') for statement in printed)
        assert not [statement for statement in printed if "INSERT" in statement or "SEQUENCE" in statement]
    finally:
        ledger.close()
