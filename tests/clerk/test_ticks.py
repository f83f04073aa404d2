"""Ticks at the same moment: two who choose sites, or catch up with the ledger, do not wait for each other for ever."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from clerk import sites
from clerk.app import open_mill
from clerk.config import Config
from clerk.db import terminal
from clerk.sites import Description, Options
from gristmill import Mill, Refused
from gristmill.states import State
from tests.clerk.cli import Cli
from tests.worker.helpers import eventually

BLOCKED = text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
only_postgres = pytest.mark.parametrize("clerk_url", [pytest.param("postgres", marks=pytest.mark.pg)], indirect=True)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], clerk_config: Config) -> Cli:
    monkeypatch.chdir(tmp_path)
    return Cli(tmp_path, capsys)


@pytest.fixture
def mill(clerk_config: Config) -> Iterator[Mill]:
    with open_mill(clerk_config) as opened:
        yield opened


def create(mill: Mill, *names: str) -> None:
    for name in names:
        sites.create(mill, Description(name, name, "folder", extra={"path": "."}))


def somebody_waits(mill: Mill) -> bool:
    with mill.transaction() as connection:
        return int(connection.execute(BLOCKED).scalar_one()) > 0


def test_two_ticks_with_a_batch_each_share_what_is_due(cli: Cli, mill: Mill) -> None:
    for turn in range(2):
        create(mill, *(f"s{turn}{n:02}.ca" for n in range(12)))
        ticks = [cli.spawn("update", "--next", "--batch-size", "8") for _ in range(2)]
        said = [tick.communicate(timeout=300) for tick in ticks]
        assert [tick.returncode for tick in ticks] == [0, 0], said
        chosen = sorted(line for out, _ in said for line in out.splitlines())
        assert chosen == [f"Auto-enqueueing s{turn}{n:02}.ca" for n in range(12)]
    assert len({run.subject for run in mill.runs(limit=100)}) == len(mill.runs(limit=100)) == 24


@only_postgres
def test_a_tick_that_waits_for_one_site_holds_no_other(cli: Cli, mill: Mill) -> None:
    """This process has the second and wants the first, the tick has the first and wants the second."""
    create(mill, "a.ca", "b.ca", "c.ca")
    options = Options().args()
    with mill.transaction() as connection:
        mill.start("site", "b.ca", args=options, if_active="refuse", connection=connection)
        tick = cli.spawn("update", "--next", "--batch-size", "3")
        eventually(lambda: somebody_waits(mill), "the tick waits for b.ca")
        with pytest.raises(Refused, match="has an active run already"):
            mill.start("site", "a.ca", args=options, if_active="refuse", connection=connection)
    out, err = tick.communicate(timeout=300)
    assert (tick.returncode, err) == (0, "")
    assert out.splitlines() == ["Auto-enqueueing a.ca", "Auto-enqueueing c.ca"]


@only_postgres
def test_a_site_is_caught_up_with_while_another_is_held(mill: Mill, clerk_config: Config) -> None:
    """As by a worker that ends jobs of both, the second one first."""
    create(mill, "a.ca", "b.ca")
    for name in ("a.ca", "b.ca"):
        mill.start("site", name, args=Options().args())  # by the engine alone
    caught: list[int] = []
    errors: list[BaseException] = []

    def catch_up() -> None:
        try:
            with open_mill(clerk_config) as own:
                caught.append(sites.catch_up(own))
        except BaseException as error:
            errors.append(error)

    with mill.transaction() as connection:
        assert terminal.catch_up(connection, "b.ca") == 1
        other = threading.Thread(target=catch_up)
        other.start()
        eventually(lambda: somebody_waits(mill), "the other one waits for b.ca")
        assert terminal.catch_up(connection, "a.ca") == 0  # it is done, and committed
    other.join(60)
    assert (errors, caught) == ([], [1])
    assert {sites.find(mill, name).current_stage for name in ("a.ca", "b.ca")} == {"fetch"}


@only_postgres
def test_who_catches_up_late_writes_nothing_that_is_over(mill: Mill, clerk_config: Config) -> None:
    """What it saw before it had to wait is not what it writes."""
    create(mill, "a.ca")
    mill.start("site", "a.ca", args=Options().args())
    sites.catch_up(mill)
    with mill.transaction() as connection:
        connection.execute(text("UPDATE clerk_site SET current_stage = 'ocr'"))  # so that it differs
    other = threading.Thread(target=lambda: sites.catch_up(mill))
    with open_mill(clerk_config) as own:
        with own.transaction() as connection:
            connection.execute(text("SELECT 1 FROM clerk_run FOR UPDATE"))
            other.start()
            eventually(lambda: somebody_waits(mill), "the other one waits")
            connection.execute(text("UPDATE clerk_run SET outcome = 'cancelled', finished_at = now()"))
            connection.execute(text(f"UPDATE gm_run SET state = {State.CANCELLED:d}, finished_at = 1, started_at = 1"))
            connection.execute(text("UPDATE clerk_site SET outcome = 'cancelled'"))
        other.join(60)
        with own.transaction() as connection:
            assert connection.execute(text("SELECT outcome FROM clerk_run")).scalars().all() == ["cancelled"]
        assert sites.find(own, "a.ca").outcome == "cancelled"
