"""The compiled database: what is in it, what it is called, and what strange input does to it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import sqlite3
import threading
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from clerk import compiling
from clerk.compiling import Compiled, compile_site, full, page_id, schema
from clerk.compiling import pages as pages_module
from clerk.compiling.aside import read_only
from clerk.errors import ClerkError, Critical
from clerk.storage import SiteFiles
from tests.clerk.site import (
    AGENDA,
    CACHE,
    COUNCIL,
    PARKS,
    assert_sound,
    query,
    search,
    write_cache,
    write_pages,
)

EMPTY = ('{"persons":[],"orgs":[],"locations":[]}', '{"votes":[]}')


@pytest.fixture
def files(tmp_path: Path) -> SiteFiles:
    return SiteFiles(tmp_path / "sites", "alameda.ca")


def columns(db: Path, table: str) -> dict[str, str]:
    return {row[1]: row[2] for row in query(db, f"PRAGMA table_info({table})")}


def test_a_site_is_compiled_into_tables_and_indexes(files: SiteFiles) -> None:
    write_pages(files, COUNCIL, "Rezoning of Oak Street", "Adjourned", *[f"page {n}" for n in range(3, 12)])
    write_pages(files, AGENDA, "The café opens")
    told: list[int] = []
    assert compile_site(files, 7, told.append) == Compiled(minutes=11, agendas=1)
    assert compile_site(files, 8).pages == 12
    assert_sound(files.database)
    for kind in ("minutes", "agendas"):
        assert columns(files.database, kind) == {
            **dict.fromkeys(["id", "meeting", "date", "text", "page_image", "entities_json", "votes_json"], "TEXT"),
            "page": "INTEGER",
        }
    assert [row[0] for row in query(files.database, "SELECT page FROM minutes ORDER BY page")] == list(range(1, 12))
    assert search(files.database, "oak") == [("CityCouncil", "2026-01-06", 1)]
    assert search(files.database, "rezone"), "words are found by their stem"
    assert search(files.database, "cafe", "agendas"), "and without their accents"
    assert query(files.database, "SELECT page_image FROM agendas") == [("/_agendas/CityCouncil/2026-01-06/1.png",)]
    assert query(files.database, "PRAGMA journal_mode") == [("delete",)]


def test_datasette_finds_the_index_of_each_table(files: SiteFiles) -> None:
    """By the way it looks for one: a virtual table whose content is the table."""
    compile_site(files, 1)
    for kind in ("minutes", "agendas"):
        found = query(
            files.database,
            "SELECT name FROM sqlite_master WHERE rootpage = 0 AND sql LIKE ?",
            f"%VIRTUAL TABLE%USING FTS%content=[{kind}]%",
        )
        assert found == [(f"{kind}_fts",)]


def test_case_15_only_agendas_or_only_minutes_both_tables_exist(files: SiteFiles) -> None:
    write_pages(files, AGENDA, "Call to order")
    assert compile_site(files, 1) == Compiled(minutes=0, agendas=1)
    assert search(files.database, "order", "agendas")
    assert search(files.database, "order", "minutes") == []


def test_an_id_is_of_what_the_page_is_so_that_links_survive(files: SiteFiles) -> None:
    write_pages(files, COUNCIL, "Zürich\r\nvoted")
    compile_site(files, 1)
    known_by = {"text": "Zürich\nvoted", "page": 1, "kind": "minutes", "date": "2026-01-06", "meeting": "CityCouncil"}
    digest = hashlib.sha256(json.dumps(known_by, sort_keys=True).encode()).hexdigest()
    assert query(files.database, "SELECT id FROM minutes") == [(digest[:12],)]
    assert page_id("minutes", "CityCouncil", "2026-01-06", 1, "Zürich\nvoted") == digest[:12]
    agenda = b'{"date": "2026-01-06", "kind": "agenda", "meeting": "A", "page": 1, "text": "\\u00fc"}'
    assert page_id("agendas", "A", "2026-01-06", 1, "ü") == hashlib.sha256(agenda).hexdigest()[:12]


def test_the_same_page_twice_is_one_row_and_another_with_the_same_digits_is_a_second(
    files: SiteFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pages(files, COUNCIL, "same")
    (files.text(COUNCIL) / "01.txt").write_text("same")
    assert compile_site(files, 1).minutes == 1
    monkeypatch.setattr(pages_module, "_DIGITS", 0)  # every page then has the same first digits
    write_pages(files, COUNCIL, "same", "other", "third")
    write_cache(files, COUNCIL, 3)
    assert compile_site(files, 2).minutes == 3
    assert sorted(len(row[0]) for row in query(files.database, "SELECT id FROM minutes")) == [0, 24, 24]
    write_cache(files, COUNCIL, 2)
    assert compiling.merge_extractions(files, 2) == 1
    assert len(query(files.database, "SELECT DISTINCT agendas_id, minutes_id FROM votes")) == 2
    assert_sound(files.database)


def test_extractions_are_columns_and_rows_that_refer_to_their_page(files: SiteFiles) -> None:
    write_pages(files, COUNCIL, "one", "two")
    write_cache(files, COUNCIL, 2)
    write_pages(files, AGENDA, "three")
    write_cache(files, AGENDA, 1)
    compile_site(files, 1)
    rows = dict(query(files.database, "SELECT page, entities_json || votes_json FROM minutes"))
    assert rows[1] == "".join(EMPTY)
    assert query(files.database, "SELECT entities_json, votes_json FROM minutes WHERE page = 2") == [
        (orjson.dumps(CACHE["entities"]).decode(), orjson.dumps(CACHE["votes"]).decode())
    ]
    joined = query(
        files.database,
        "SELECT m.page, e.kind, e.text FROM entities e JOIN minutes m ON m.id = e.minutes_id ORDER BY e.id",
    )
    assert joined == [(2, "person", "Ada Lovelace"), (2, "person", "Ben Okri"), (2, "org", "Planning Commission")]
    members = query(
        files.database,
        "SELECT v.motion_by, v.result, v.ayes, v.abstain, x.name, x.vote FROM vote_members x"
        " JOIN votes v ON v.id = x.vote_id JOIN agendas a ON a.id = v.agendas_id ORDER BY x.id",
    )
    assert members == [("Ada Lovelace", "passed", 2, None, name, "aye") for name in ("Ada Lovelace", "Ben Okri")]
    referred = {(row[2], row[3]) for row in query(files.database, "PRAGMA foreign_key_list(votes)")}
    assert referred == {("minutes", "minutes_id"), ("agendas", "agendas_id")}


@pytest.mark.parametrize(
    "cache",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        {},
        {"entities": None, "votes": None},
        {**CACHE, "votes": {"votes": [{}]}},
        {**CACHE, "entities": {"persons": [{"text": 1, "confidence": 1}], "orgs": [], "locations": []}},
        {**CACHE, "votes": {"votes": [{**CACHE["votes"]["votes"][0], "tally": {"ayes": 2**63}}]}},
        {**CACHE, "votes": {"votes": [{**CACHE["votes"]["votes"][0], "result": None}]}},
    ],
    ids=str,
)
def test_a_cache_that_cannot_be_read_is_as_good_as_none(files: SiteFiles, cache: Any) -> None:
    write_pages(files, COUNCIL, "one")
    write_cache(files, COUNCIL, 1, cache)
    compile_site(files, 1)
    assert query(files.database, "SELECT entities_json, votes_json FROM minutes") == [EMPTY]


def test_bytes_that_are_no_text_do_not_stop_a_site(files: SiteFiles) -> None:
    write_pages(files, COUNCIL, "")
    (files.text(COUNCIL) / "2.txt").write_bytes(b"before\x00after \xff\xfe tail")
    (files.text(COUNCIL) / "notes.txt").write_text("not a page")
    assert compile_site(files, 1).minutes == 2
    assert search(files.database, "tail") == [("CityCouncil", "2026-01-06", 2)]
    assert_sound(files.database)


def test_case_14_the_first_build_works_and_the_one_before_is_kept(files: SiteFiles) -> None:
    backup = files.root / "meetings.db.bk"
    for number, text in enumerate(["first", "second", "third"], 1):
        write_pages(files, COUNCIL, text)
        compile_site(files, number)
        assert search(files.database, text)
        if number > 1:
            assert search(backup, ["first", "second"][number - 2])
    assert {path.name for path in files.root.iterdir()} == {"txt", "meetings.db", "meetings.db.bk", ".meetings.db.lock"}


def test_what_a_dead_run_left_is_removed_and_a_failed_one_leaves_nothing(files: SiteFiles) -> None:
    write_pages(files, COUNCIL, *["old"] * 600)
    compile_site(files, 1)
    inode = files.database.stat().st_ino
    for left in ("meetings.db.tmp-5", "meetings.db.tmp-5-journal", "meetings.db.tmp-bk"):
        (files.root / left).write_text("half")

    def stop(pages: int) -> None:
        assert not (files.root / "meetings.db.tmp-5").exists()
        assert (files.root / "meetings.db.tmp-6").exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_site(files, 6, stop)
    assert files.database.stat().st_ino == inode
    assert list(files.root.glob("*.tmp-*")) == []


def test_a_database_that_fails_its_check_never_gets_the_name(files: SiteFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pages(files, COUNCIL, "old")
    compile_site(files, 1)
    finish = schema.finish

    def spoiled(db: sqlite3.Connection) -> None:
        finish(db)
        db.execute("UPDATE minutes SET text = 'something else'")

    monkeypatch.setattr(schema, "finish", spoiled)
    with pytest.raises(ClerkError, match="full-text index of minutes that was built is broken"):
        compile_site(files, 2)
    monkeypatch.setattr(
        compiling.schema, "finish", lambda db: db.execute("INSERT INTO vote_members VALUES (1, 'no', 'x', 'y')")
    )
    with pytest.raises(ClerkError, match="a row of vote_members refers to nothing in votes"):
        compile_site(files, 2)
    assert search(files.database, "old")
    assert list(files.root.glob("*.tmp-*")) == []


def test_a_full_disk_is_critical(files: SiteFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pages(files, COUNCIL, *["x" * 5000] * 50)

    def small(db: sqlite3.Connection, all_sites: bool = False) -> None:
        db.execute("PRAGMA max_page_count = 60")
        create_tables(db, all_sites)

    create_tables = schema.create_tables
    monkeypatch.setattr(schema, "create_tables", small)
    with pytest.raises(Critical, match="storage cannot be written: database or disk is full while"):
        compile_site(files, 1)
    assert not files.database.exists()


# ---- merging


def test_extractions_that_came_later_are_merged_once(files: SiteFiles) -> None:
    write_pages(files, COUNCIL, "one", "two")
    write_cache(files, COUNCIL, 1)
    compile_site(files, 1)
    before = files.database.stat()
    assert compiling.merge_extractions(files, 1) == 0
    after = files.database.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns), "nothing new: it is not touched"
    write_cache(files, COUNCIL, 2)
    assert compiling.merge_extractions(files, 1) == 1
    merged = query(files.database, "SELECT * FROM minutes"), query(files.database, "SELECT * FROM votes")
    assert len(merged[1]) == 2
    assert compiling.merge_extractions(files, 1) == 0
    assert_sound(files.database)
    compile_site(files, 2)
    assert (query(files.database, "SELECT * FROM minutes"), query(files.database, "SELECT * FROM votes")) == merged


def test_a_merge_replaces_what_was_extracted_before(files: SiteFiles) -> None:
    write_pages(files, COUNCIL, "one")
    write_cache(files, COUNCIL, 1)
    compile_site(files, 1)
    write_cache(files, COUNCIL, 1, {"entities": {"persons": [], "orgs": [], "locations": []}, "votes": {"votes": []}})
    assert compiling.merge_extractions(files, 1) == 1
    assert query(files.database, "SELECT (SELECT count(*) FROM entities) + (SELECT count(*) FROM vote_members)") == [(0,)]
    assert query(files.database, "SELECT entities_json, votes_json FROM minutes") == [EMPTY]


def test_text_that_was_not_compiled_yet_is_left_to_the_next_compile(files: SiteFiles) -> None:
    write_pages(files, COUNCIL, "one")
    compile_site(files, 1)
    write_pages(files, COUNCIL, "another one", "two")
    write_cache(files, COUNCIL, 1)
    write_cache(files, COUNCIL, 2)
    assert compiling.merge_extractions(files, 1) == 0


def test_there_must_be_something_to_merge_into(files: SiteFiles) -> None:
    with pytest.raises(ClerkError, match=r"compile alameda\.ca first"):
        compiling.merge_extractions(files, 1)
    files.root.mkdir(parents=True)
    files.database.write_bytes(b"no database at all" * 100)
    write_pages(files, COUNCIL, "one")
    with pytest.raises(ClerkError, match=r"meetings\.db could not be built: file is not a database"):
        compiling.merge_extractions(files, 1)


# ---- all sites


def test_all_sites_are_one_database_and_a_list(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sites: list[dict[str, Any]] = [
        {"subdomain": name, "name": name.title(), "pages": 1} for name in ("b.x", "a.x", "none", "bad", "old")
    ]
    sites[0]["extra"] = {"url": "x"}
    for name in ("a.x", "b.x"):
        files = SiteFiles(tmp_path, name)
        write_pages(files, COUNCIL, "", f"only in {name[0]}town")  # both have the same blank page
        write_cache(files, COUNCIL, 1)
        compile_site(files, 1)
    (tmp_path / "bad").mkdir()
    good = (tmp_path / "a.x" / "meetings.db").read_bytes()
    (tmp_path / "bad" / "meetings.db").write_bytes(good[:4096] + b"\xff" * (len(good) - 4096))
    (tmp_path / "old").mkdir()
    with closing(sqlite3.connect(tmp_path / "old" / "meetings.db")) as db:
        db.execute("CREATE TABLE minutes (id, meeting, date, page, text, page_image)")
        db.execute("INSERT INTO minutes VALUES ('0123', 'Old', '1999-01-01', 1, 'vintage', '')")
        db.commit()
    for _ in range(2):
        path = compiling.build_full(tmp_path, lambda: sites)
    assert_sound(path)
    found = query(path, "SELECT subdomain, count(*) FROM minutes GROUP BY 1 ORDER BY 1")
    assert found == [("a.x", 2), ("b.x", 2), ("old", 1)]
    assert search(path, "atown")
    assert search(path, "vintage")
    assert query(path, "SELECT subdomain, count(*) FROM vote_members GROUP BY 1") == [("a.x", 2), ("b.x", 2)]
    assert ["bad" in record.getMessage() for record in caplog.records] == [True, True]
    listed = query(tmp_path / "sites.db", "SELECT subdomain, name, pages, extra FROM sites ORDER BY 1")
    assert listed[0] == ("a.x", "A.X", 1, None)
    assert listed[1] == ("b.x", "B.X", 1, '{"url":"x"}')
    assert len(listed) == 5


def test_a_database_that_cannot_be_opened_leaves_out_its_site_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for subdomain in ("a.x", "gone.x"):
        database = SiteFiles(tmp_path, subdomain).database
        database.parent.mkdir()
        with closing(sqlite3.connect(database)) as db:
            db.execute("CREATE TABLE minutes (id, meeting, date, page, text, page_image)")
            db.execute("INSERT INTO minutes VALUES ('0123', 'Council', '1999-01-01', 1, 'vintage', '')")
            db.commit()
    elsewhere = f"{tmp_path.as_uri()}/nowhere.db?mode=ro"
    monkeypatch.setattr(full, "read_only", lambda path: elsewhere if "gone.x" in str(path) else read_only(path))
    path = compiling.build_full(tmp_path, lambda: [{"subdomain": "gone.x"}, {"subdomain": "a.x"}])
    assert query(path, "SELECT subdomain FROM minutes") == [("a.x",)]
    assert [record.getMessage().partition(" of the")[0] for record in caplog.records] == [
        f"{tmp_path}/gone.x/meetings.db is left out"
    ]


def test_the_list_of_sites_may_be_empty_and_holds_times(tmp_path: Path) -> None:
    assert query(compiling.write_sites(tmp_path, list), "SELECT * FROM sites") == []
    rows = [{"subdomain": "a", "updated_at": datetime(2026, 1, 6, tzinfo=UTC), 'odd"; --': 1.5}]
    path = compiling.write_sites(tmp_path, lambda: rows)
    assert query(path, "SELECT * FROM sites") == [("a", "2026-01-06T00:00:00+00:00", 1.5)]
    with pytest.raises(ClerkError, match=r"sites\.db could not be built: UNIQUE"):
        compiling.write_sites(tmp_path, lambda: [*rows, *rows])
    assert len(query(tmp_path / "sites.db", "SELECT * FROM sites")) == 1


def test_of_two_lists_of_sites_that_are_written_at_once_the_newer_one_stays(tmp_path: Path) -> None:
    known = [{"subdomain": "a"}]
    second = threading.Thread(target=compiling.write_sites, args=(tmp_path, lambda: list(known)))

    def first() -> list[dict[str, str]]:
        second.start()
        with (tmp_path / ".sites.db.lock").open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        listed = list(known)
        known.append({"subdomain": "b"})
        return listed

    compiling.write_sites(tmp_path, first)
    second.join()
    assert query(tmp_path / "sites.db", "SELECT subdomain FROM sites ORDER BY 1") == [("a",), ("b",)]


def test_pages_of_several_meetings_come_in_order(files: SiteFiles) -> None:
    write_pages(files, PARKS, "p1")
    write_pages(files, COUNCIL, "c1", "c2")
    compile_site(files, 1)
    assert [row[0] for row in query(files.database, "SELECT text FROM minutes ORDER BY rowid")] == ["c1", "c2", "p1"]
