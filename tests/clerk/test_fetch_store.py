"""From a list of documents to files of a site: which are fetched, many at a time, and what is there afterwards."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clerk import names, storage
from clerk.config import Config
from clerk.errors import Critical, Transient, Unreadable
from clerk.fetchers.http import Client, Timeouts
from clerk.fetchers.http_index import HttpIndex
from clerk.fetchers.selection import choose
from clerk.fetchers.store import Identities, incoming, keep, receive
from clerk.fetchers.turns import Stopped, Turns
from clerk.parts import Fetched, Found, Known, Wanted
from clerk.storage import Document, SiteFiles
from tests.clerk.latency import download_all, downloaded, fill, serving
from tests.clerk.web import PDF, Handler, Web, answer, raw

SHA = hashlib.sha256(PDF).hexdigest()


def minutes(url: str, date: str = "2026-01-31", meeting: str = "Council") -> Found:
    return Found(url, "minutes", meeting, date)


def agenda(url: str, date: str = "2026-01-31", meeting: str = "Council") -> Found:
    return Found(url, "agendas", meeting, date)


# ---- choosing


def test_agendas_are_fetched_only_where_minutes_are_missing() -> None:
    listed = [
        agenda("a1"),
        minutes("m1"),
        minutes("m2", "2026-02-01"),
        agenda("a2", "2026-02-01"),
        agenda("a3", "2026-03-01"),
    ]
    listed += [agenda("a4", meeting="Parks"), minutes("m1"), minutes("old", "2019-12-31"), agenda("a5", "2026-04-01")]
    chosen = choose(listed, Wanted("a", {}, 2020), minutes={("Council", "2026-04-01")})
    assert [one.url for one in chosen] == ["m1", "m2", "a3", "a4"]
    everything = choose(listed, Wanted("a", {}, 2020, all_agendas=True))
    assert [one.url for one in everything] == ["a1", "m1", "m2", "a2", "a3", "a4", "a5"]


def test_minutes_go_on_before_the_source_has_said_all() -> None:
    def listing() -> Iterator[Found]:
        yield agenda("a")
        yield minutes("m", "2026-02-01")
        raise Transient("broken off")

    chosen = choose(listing(), Wanted("a", {}, 2020))
    assert next(chosen).url == "m"
    with pytest.raises(Transient):
        next(chosen)


FOUND = st.builds(
    Found,
    st.integers(0, 30).map(str),
    st.sampled_from(names.KINDS),
    st.sampled_from(["A", "B"]),
    st.sampled_from(["2019-01-01", "2026-01-01", "2026-01-02"]),
)


@given(st.lists(FOUND, max_size=30), st.booleans())
def test_whatever_is_listed_in_whatever_order(listed: list[Found], everything: bool) -> None:
    chosen = list(choose(listed, Wanted("a", {}, 2020, everything)))
    assert len({one.url for one in chosen}) == len(chosen)
    first = {one.url: one for one in reversed(listed) if one.date >= "2020"}
    having = {(one.meeting, one.date) for one in first.values() if one.kind == "minutes"}
    wanted = {one for one in first.values() if everything or one.kind == "minutes" or (one.meeting, one.date) not in having}
    assert set(chosen) == wanted


# ---- identity


def test_a_second_document_on_a_day_gets_a_number_and_keeps_it() -> None:
    first = Identities({})
    keys = {url: first.of(minutes(url)).key for url in ("x", "y", "z")}
    assert list(keys.values()) == [f"minutes/Council/2026-01-31{end}" for end in ("", "-2", "-3")]
    assert first.of(agenda("w")).key == "agendas/Council/2026-01-31"
    again = Identities(keys)
    assert [again.of(minutes(url)).key for url in ("z", "y", "new", "x")] == [
        keys["z"],
        keys["y"],
        "minutes/Council/2026-01-31-4",
        keys["x"],
    ]
    assert Identities({"y": keys["y"]}).of(minutes("new")).date == "2026-01-31"  # the first one is gone from the database


def test_a_folder_full_of_documents_of_one_day_is_no_trouble() -> None:
    """Files without a date in their names have the day of their copy: all of them the same."""
    identities = Identities({"known": "minutes/Meeting/2026-01-05-3"})
    keys = [identities.of(Found(f"{number}.pdf", "minutes", "Meeting", "2026-01-05")).key for number in range(12_000)]
    assert keys[:3] == [f"minutes/Meeting/2026-01-05{end}" for end in ("", "-2", "-4")]
    assert keys[-1] == "minutes/Meeting/2026-01-05-12001"
    assert len(set(keys)) == 12_000


def test_an_address_that_is_now_of_another_meeting_is_another_document() -> None:
    known = {"latest": "minutes/Council/2026-01-31"}
    identities = Identities(known)
    assert identities.of(minutes("latest", "2026-02-28")).key == "minutes/Council/2026-02-28"
    assert identities.of(minutes("other")).key == "minutes/Council/2026-01-31-2"
    assert known == {"latest": "minutes/Council/2026-01-31"}


@given(
    st.lists(FOUND, max_size=20, unique_by=lambda one: one.url), st.lists(FOUND, max_size=20, unique_by=lambda one: one.url)
)
def test_no_two_addresses_are_one_document(before: list[Found], after: list[Found]) -> None:
    first = Identities({})
    known = {one.url: first.of(one).key for one in before}
    again = Identities(known)
    given = {one.url: again.of(one).key for one in after}
    assert len(set(given.values())) == len(given)
    for one in before:
        if one in after:
            assert given[one.url] == known[one.url]


# ---- keeping


def fetched(into: Path, data: bytes, kind: str = "application/pdf") -> Fetched:
    received = receive([data], into, 1 << 20, "x")
    return Fetched(minutes("x"), received.path, received.sha256, content_type=kind)


DOCUMENT = Document("minutes", "Council", "2026-01-31")


def test_a_document_takes_its_place_and_is_replaced_by_new_content(tmp_path: Path) -> None:
    files = SiteFiles(tmp_path, "a.b")
    with incoming(files) as into:
        stored = keep(files, DOCUMENT, fetched(into, PDF))
        assert (stored.path, stored.written) == (files.pdf(DOCUMENT), True)
        inode = stored.path.stat().st_ino
        assert not keep(files, DOCUMENT, fetched(into, PDF)).written
        assert stored.path.stat().st_ino == inode
        assert keep(files, DOCUMENT, fetched(into, b"")).written
        assert stored.path.read_bytes() == b""
        assert list(into.iterdir()) == []
    assert not into.exists()
    assert oct(stored.path.stat().st_mode)[-3:] == "644"


def test_a_web_page_is_kept_as_one_and_only_one_of_both_stays(tmp_path: Path) -> None:
    files = SiteFiles(tmp_path, "a.b")
    with incoming(files) as into:
        assert files.source(DOCUMENT) is None
        stored = keep(files, DOCUMENT, fetched(into, b"<html>", "text/html"))
        assert (stored.path.name, files.source(DOCUMENT)) == ("2026-01-31.html", stored.path)
        assert list(files.documents("minutes", "pdfs")) == [DOCUMENT]
        files.pdf(DOCUMENT).write_bytes(b"left by one who died in between")
        assert list(files.documents("minutes", "pdfs")) == [DOCUMENT]
        assert not keep(files, DOCUMENT, fetched(into, b"<html>", "text/html")).written
        assert files.source(DOCUMENT) == stored.path
        keep(files, DOCUMENT, fetched(into, PDF))
    assert [path.name for path in files.pdf(DOCUMENT).parent.iterdir()] == ["2026-01-31.pdf"]


def test_what_is_unchanged_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is unchanged"):
        keep(SiteFiles(tmp_path, "a.b"), DOCUMENT, Fetched(minutes("x"), unchanged=True))


def test_what_the_dead_left_is_swept(tmp_path: Path) -> None:
    files = SiteFiles(tmp_path, "a.b")
    old, young = files.root / ".incoming-old", files.root / ".incoming-young"
    for folder in (old, young):
        storage.write(folder / "document-1", b"x")
    os.utime(old, (1, 1))
    with incoming(files) as into:
        assert (old.exists(), young.exists(), into.is_dir()) == (False, True, True)
    assert list(files.documents("minutes", "pdfs")) == []


def test_killed_at_any_moment_the_document_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    """A process replaces the file again and again, and is killed; what is there is whole each time."""
    code = """
import sys
from pathlib import Path
from clerk.fetchers.store import incoming, keep, receive
from clerk.parts import Fetched, Found
from clerk.storage import Document, SiteFiles
files, number = SiteFiles(Path(sys.argv[1]), "a.b"), 0
with incoming(files) as into:
    while True:
        number += 1
        received = receive([bytes([65 + number % 26])] * 50_000, into, 1 << 20, "x")
        found = Found("x", "minutes", "Council", "2026-01-31")
        keep(files, Document("minutes", "Council", "2026-01-31"), Fetched(found, received.path, received.sha256))
        print(number, flush=True)
"""
    path = SiteFiles(tmp_path, "a.b").pdf(DOCUMENT)
    for turn in range(3):
        with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                for _ in range(3 * turn + 1):
                    process.stdout.readline()
            finally:
                process.send_signal(signal.SIGKILL)
        data = path.read_bytes()
        assert len(data) == 50_000
        assert len(set(data)) == 1


# ---- many at a time


class Source:
    """A fetcher whose documents are functions."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = list(outcomes)
        self.asked: list[str] = []
        self.lock = threading.Lock()

    def find(self, wanted: Wanted) -> Iterator[Found]:
        return iter(())

    def get(self, found: Found, known: Known | None, into: Path) -> Fetched:
        with self.lock:
            self.asked.append(found.url)
            outcome = self.outcomes.pop(0) if self.outcomes else None
        if isinstance(outcome, Exception):
            raise outcome
        return Fetched(found, sha256=known.sha256 if known else "", unchanged=True)


def nothing(_: Found) -> None:
    return None


def test_what_fails_for_a_moment_is_tried_three_times_and_what_fails_for_good_once(tmp_path: Path) -> None:
    for errors, tried in (
        ([Transient("1"), Transient("2")], 3),
        ([Transient("1"), Transient("2"), Transient("3")], 3),
        ([Unreadable("1")], 1),
        ([Stopped("1")], 1),
        ([ValueError("a plugin's mistake")], 1),
    ):
        source = Source(*errors)
        (outcome,) = download_all(source, [minutes("x")], nothing, tmp_path, 1, pauses=(0.001, 0.001))
        assert len(source.asked) == tried
        if tried == 3 and len(errors) == 2:
            assert isinstance(outcome, Fetched)
        else:
            assert outcome == (minutes("x"), errors[-1])


def test_one_document_that_fails_does_not_keep_the_others(tmp_path: Path) -> None:
    source = Source(Unreadable("404"))
    outcomes = list(download_all(source, [minutes(str(n)) for n in range(50)], nothing, tmp_path, 5))
    assert sum(isinstance(one, Fetched) for one in outcomes) == 49


def test_a_storage_that_cannot_be_written_ends_all(tmp_path: Path) -> None:
    source = Source(Critical("disk full"))
    with pytest.raises(Critical, match="disk full"):
        list(download_all(source, (minutes(str(n)) for n in range(1_000_000)), nothing, tmp_path, 2))
    assert len(source.asked) < 1_000


def test_what_a_source_listed_before_it_broke_off_still_counts(tmp_path: Path) -> None:
    def listing() -> Iterator[Found]:
        yield from (minutes(str(n)) for n in range(7))
        raise Transient("the second page of the index is away")

    coming = download_all(Source(), listing(), nothing, tmp_path, 3)
    assert all(isinstance(next(coming), Fetched) for _ in range(7))
    with pytest.raises(Transient, match="second page"):
        next(coming)


def test_what_has_come_does_not_wait_for_a_source_that_takes_its_time(tmp_path: Path) -> None:
    seen = threading.Semaphore(0)

    def listing() -> Iterator[Found]:
        for number in range(9):
            yield minutes(str(number))
        for number in range(9, 12):  # a slow index: the next page comes when all of the last are dealt with
            for _ in range(9 if number == 9 else 1):
                assert seen.acquire(timeout=30), "what had come was kept until more was listed"
            yield minutes(str(number))

    for outcome in download_all(Source(), listing(), nothing, tmp_path, 20):
        assert isinstance(outcome, Fetched)
        seen.release()


def test_a_source_that_ends_its_thread_does_not_leave_who_waits_for_it(tmp_path: Path) -> None:
    def listing() -> Iterator[Found]:
        yield minutes("1")
        raise SystemExit("a plugin's mistake")

    coming = download_all(Source(), listing(), nothing, tmp_path, 2)
    assert isinstance(next(coming), Fetched)
    with pytest.raises(SystemExit):
        next(coming)


def test_a_long_list_is_never_in_memory(tmp_path: Path) -> None:
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    most = 0

    def listing() -> Iterator[Found]:
        nonlocal most
        for number in range(2_000):
            one = minutes(str(number))
            alive.add(one)
            most = max(most, len(alive))
            yield one

    assert sum(1 for _ in download_all(Source(), listing(), lambda _: Known("s"), tmp_path, 4)) == 2_000
    assert most < 50


def test_one_who_stops_early_leaves_no_thread(tmp_path: Path) -> None:
    with Web() as web:
        for number in range(100):
            web.routes[f"/{number}.pdf"] = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n%PDF-", wait=web.released)
        web.routes["/0.pdf"] = answer()
        with Client(Config(allow_private=True, fetch_rate=1e9), pace=Turns()) as client:
            index = HttpIndex({"url": web.url("/")}, client)
            coming = download_all(index, (minutes(web.url(f"/{n}.pdf")) for n in range(100)), nothing, tmp_path, 4)
            assert isinstance(next(coming), Fetched)
            coming.close()  # type: ignore[attr-defined]
        for thread in threading.enumerate():
            if thread.name.startswith("fetch"):
                thread.join(30)
                assert not thread.is_alive()
    assert len(list(tmp_path.iterdir())) == 1
    assert len(web.asked) <= 9


def test_many_come_at_once(tmp_path: Path) -> None:
    """Each answer waits until twenty are asked for: one at a time would never end."""
    together = threading.Barrier(20, timeout=60)

    def wait(page: Handler) -> None:
        together.wait()
        answer()(page)

    with Web() as web, Client(Config(allow_private=True, fetch_rate=1e9), Timeouts(read=60), pace=Turns()) as client:
        web.routes["/x.pdf"] = wait
        index = HttpIndex({"url": web.url("/")}, client)
        founds = (minutes(web.url(f"/x.pdf?{number}")) for number in range(40))
        came = list(download_all(index, founds, nothing, tmp_path, 20))
    assert [one.sha256 for one in came if isinstance(one, Fetched)] == [SHA] * 40
    assert web.connections <= 25  # they are used again


def test_a_second_pass_asks_only_whether_something_changed(tmp_path: Path) -> None:
    """The whole way, twice, over a page with a minutes, an agenda, a corrupt, an empty and a missing document."""
    files, rows = SiteFiles(tmp_path, "a.b"), dict[str, tuple[str, Known]]()

    def one_pass(web: Web, client: Client) -> tuple[int, list[str]]:
        index = HttpIndex({"url": web.url("/"), "meeting": "../Council"}, client)
        identities, written, errors = Identities({url: key for url, (key, _) in rows.items()}), 0, []
        with incoming(files) as into:
            chosen = choose(index.find(wanted := Wanted("a.b", {}, 2020)), wanted)
            for outcome in download_all(index, chosen, lambda one: rows[one.url][1] if one.url in rows else None, into, 4):
                if isinstance(outcome, Fetched):
                    document = identities.of(outcome.found)
                    written += not outcome.unchanged and keep(files, document, outcome).written
                    rows[outcome.found.url] = document.key, Known(outcome.sha256, outcome.etag, outcome.modified)
                else:
                    errors.append(str(outcome[1]))
        return written, errors

    def conditional(page: Handler) -> None:
        known = page.headers["If-None-Match"] == '"1"'
        answer(b"" if known else PDF, 304 if known else 200, ETag='"1"', Content_Length="" if known else str(len(PDF)))(page)

    with Web() as web, Client(Config(allow_private=True, fetch_rate=1e9), pace=Turns()) as client:
        links = [f"<a href={name}-2026-01-0{n}.pdf>{name}</a>" for n, name in ((1, "minutes"), (1, "agenda"), (2, "agenda"))]
        links += [f"<a href={name}.pdf>2026-01-03</a>" for name in ("corrupt", "empty", "gone")]
        web.routes["/"] = answer("".join(links).encode(), Content_Type="text/html")
        web.routes["/minutes-2026-01-01.pdf"] = web.routes["/agenda-2026-01-02.pdf"] = conditional
        web.routes["/corrupt.pdf"], web.routes["/empty.pdf"] = answer(b"%PDF-broken"), answer(b"")
        written, errors = one_pass(web, client)
        assert (written, len(errors)) == (4, 1)
        assert "gone.pdf answers 404" in errors[0]
        before = sorted((path, path.stat().st_mtime_ns) for path in files.root.rglob("*.pdf"))
        assert len(before) == 4
        assert len(list(files.documents("minutes", "pdfs"))) == 3
        assert "/agenda-2026-01-01.pdf" not in web.asked
        assert one_pass(web, client)[0] == 0
        assert sorted((path, path.stat().st_mtime_ns) for path in files.root.rglob("*.pdf")) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.b"]
    assert sorted(path.name for path in files.root.iterdir()) == ["_agendas", "pdfs"]


@pytest.mark.timing
def test_twenty_slots_are_fifteen_times_as_fast_as_one(tmp_path: Path) -> None:
    """500 documents from a server that takes 100 ms for each answer, in a process of its own."""
    (tmp_path / "into").mkdir()
    with serving(fill(tmp_path / "documents", 500)) as base:
        one, many = downloaded(base, tmp_path / "into", 100, 1), downloaded(base, tmp_path / "into", 500, 20)
    assert (500 * one / 100) / many >= 15, (one, many)


@given(st.text(max_size=300))
def test_a_meeting_stays_what_it_is_and_fits_into_a_file_name(text: str) -> None:
    meeting = names.meeting(text)
    assert names.meeting(meeting) == meeting
    assert len(f".{meeting}.12345678".encode()) < 255
    assert Document("minutes", meeting, "2026-01-31").meeting == meeting


def test_the_clock_of_a_host_does_not_grow_for_ever() -> None:
    now = time.monotonic()
    pace = Turns(clock=lambda: now)
    for number in range(5_000):
        pace.wait(f"host{number}", 1e9, threading.Event())
        now += 1
    assert len(pace._next) <= 1_001
