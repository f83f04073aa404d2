"""clerk's tables: as described, upgraded by command, and enough for a role that may not delete."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import text

from clerk import app, reconciling, sites
from clerk.app import open_mill
from clerk.config import Config, load
from clerk.db import migrations, tables
from clerk.errors import ClerkError, NoDatabase, Usage
from clerk.pipeline import configure
from clerk.sites import Description
from gristmill import Mill
from gristmill.errors import DatabaseError
from gristmill.ledger.migrate import differences
from gristmill.testing import FrozenClock, drain
from tests.clerk import played_reading
from tests.clerk.playing import Play, minutes
from tests.clerk.test_pipeline import SITE, counters


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    made = Play(tmp_path / "play")
    monkeypatch.setenv("CLERK_PLAY", str(made.folder))
    monkeypatch.setenv("CLERK_PLUGINS_DIR", str(made.folder / "plugins"))
    monkeypatch.setattr("clerk.pipeline.documents.read", played_reading.read)
    configure(load())
    return made


@pytest.fixture
def mill(clerk_config: Config, play: Play) -> Iterator[Mill]:
    with open_mill(clerk_config, clock=FrozenClock(datetime.now(UTC))) as opened:
        sites.create(opened, Description(SITE, "Oakfield", "played"))
        yield opened


def test_the_revisions_make_the_tables_that_the_code_describes(mill: Mill, clerk_url: str) -> None:
    assert differences(mill.ledger.engine, [migrations(clerk_url)]) == []


def test_a_database_that_is_not_there_or_behind_is_said_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sqlite_url: str
) -> None:
    for url in (f"sqlite:///{tmp_path}/none.db", sqlite_url):
        monkeypatch.setenv("DATABASE_URL", url)
        config = load(folder=tmp_path)
        with pytest.raises(NoDatabase, match="`clerk db upgrade`"):
            open_mill(config)
        done = app.database(config, "upgrade")
        assert done.returncode == 0, done.stderr
        open_mill(config).close()


@pytest.mark.parametrize(
    ("url", "kind", "said"),
    [
        ("postgresql://clerk:hunter2secret@127.0.0.1:9/clerk?connect_timeout=2", NoDatabase, "127.0.0.1"),
        ("mysql://db/clerk", Usage, "write sqlite:///FILE or postgresql://HOST/NAME"),
        ("sqlite://", Usage, "must be a file"),
    ],
)
def test_what_an_upgrade_would_not_mend_is_not_answered_with_one(
    tmp_path: Path, url: str, kind: type[ClerkError], said: str
) -> None:
    with pytest.raises(kind) as refused:
        open_mill(Config(database_url=url, storage=tmp_path))
    assert said in str(refused.value)
    assert "upgrade" not in str(refused.value)


def test_a_database_of_a_later_clerk_is_not_answered_with_an_upgrade(clerk_config: Config) -> None:
    with open_mill(clerk_config) as mill, mill.transaction() as connection:
        connection.execute(text("UPDATE gm_version SET version_num = '9999'"))
        connection.execute(text("UPDATE gm_ledger SET oldest = '9999'"))
    with pytest.raises(NoDatabase, match=r"does not take code for \d+ any more; update Gristmill here") as refused:
        open_mill(clerk_config)
    assert "clerk db upgrade" not in str(refused.value)


def test_a_new_site_is_refused_if_it_is_there_and_changed_if_it_is(mill: Mill) -> None:
    with pytest.raises(Exception, match="already exists"):
        sites.create(mill, Description(SITE, "Other", "played"))
    with pytest.raises(Usage):
        sites.create(mill, Description("../etc", "Bad", "played"))
    changed = sites.change(mill, Description(SITE, "Oak Field", "played", extra={"path": "/x"}))
    assert (changed.name, changed.extra, [site.name for site in sites.known(mill)]) == (
        "Oak Field",
        {"path": "/x"},
        ["Oak Field"],
    )


def test_documents_of_a_source_that_moved_are_those_that_they_were(mill: Mill) -> None:
    site = Description(SITE, "Oakfield", "played")
    sites.create(mill, Description("other.ca", "Other", "played"))
    urls = {SITE: "http://a:1/x.pdf", "other.ca": "http://a:1/http://a:1/x.pdf"}
    with mill.transaction() as connection:
        for subdomain, url in urls.items():
            values = {"subdomain": subdomain, "key": "minutes/A/2026-01-01", "kind": "minutes", "meeting": "A"}
            row = values | {"date": "2026-01-01", "state": "missing", "url": url}
            connection.execute(tables.document.insert().values(row))

    def known() -> dict[str, str]:
        with mill.transaction() as connection:
            return {row.subdomain: row.url for row in connection.execute(tables.document.select())}

    sites.change(mill, site, ("http://b:2/", "http://c:3/"))
    assert known() == urls
    sites.change(mill, site, ("http://a:1/", "http://longer:22/"))
    assert known() == urls | {SITE: "http://longer:22/x.pdf"}
    sites.change(mill, Description("other.ca", "Other", "played"), ("http://a:1/", "http://d/"))
    assert known()["other.ca"] == "http://d/http://a:1/x.pdf"


def test_what_a_person_has_to_see_to_is_listed_and_left_alone(mill: Mill, play: Play, clerk_config: Config) -> None:
    play.site(SITE, minutes(2, read="Unreadable"))
    sites.update(mill, SITE)
    drain(mill)
    before = sites.find(mill, SITE)
    clerk_config.storage.rename(clerk_config.storage.with_name("gone"))
    with open_mill(clerk_config) as own:
        found = reconciling.reconcile(own)
    assert found is not None
    assert all(repair.left for repair in found)
    details = [repair.detail for repair in found]
    assert any("its run failed in ocr: none of 2 documents" in detail for detail in details)
    assert any("is not there" in detail for detail in details)
    assert sites.find(mill, SITE) == before


def test_what_the_ledger_moved_alone_is_caught_up_with(mill: Mill, play: Play) -> None:
    play.site(SITE, minutes(1))
    run = mill.start("site", SITE, args=sites.Options().args())  # by the engine's own command, say
    assert sites.find(mill, SITE).current_stage is None
    assert sites.catch_up(mill) == 1
    assert (sites.find(mill, SITE).current_stage, sites.find(mill, SITE).run_id) == ("fetch", run.id)
    assert sites.catch_up(mill) == 0
    drain(mill)
    assert sites.find(mill, SITE).outcome == "completed"


@pytest.mark.pg
def test_a_worker_needs_no_right_to_delete(
    clerk_worker_url: str, play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does who creates sites, chooses them and reconciles. `test_cases` runs as such a role, too."""
    monkeypatch.setenv("STORAGE_DIR", str(tmp_path / "sites"))
    monkeypatch.setenv("DEPLOY_TARGET", str(tmp_path / "published"))
    monkeypatch.setenv("DATABASE_URL", clerk_worker_url)
    play.site(SITE, {**minutes(3), **minutes(1, first=5, read="Unreadable")})
    with open_mill(load(), clock=FrozenClock(datetime.now(UTC))) as mill:
        sites.create(mill, Description(SITE, "Oakfield", "played"))
        sites.next_sites(mill)
        drain(mill)
        assert (sites.find(mill, SITE).outcome, counters(mill, "ocr")) == ("completed", (3, 1, 4))
        assert reconciling.reconcile(mill) == []
        with pytest.raises(DatabaseError, match="permission denied"), mill.transaction() as connection:
            connection.execute(text("DELETE FROM clerk_run"))
