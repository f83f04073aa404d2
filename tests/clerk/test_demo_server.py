"""The demonstration's server: it lists what is there in four ways, and says when nothing changed."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from pathlib import Path
from urllib.parse import urlsplit

import feedparser
import pytest

from clerk.demo import listings
from clerk.demo.server import Server, serving
from clerk.demo.sites import sites
from clerk.demo.towns import TOWNS
from tests.worker.helpers import eventually

BEND, FALLS = "larkspurbend.ca", "kestrelfalls.ny"
FILES = (
    f"{BEND}/minutes/City Council/2026-01-13.pdf",
    f"{BEND}/agendas/City Council/2026-01-13.pdf",
    f"{BEND}/agendas/City Council/2026-02-10.pdf",
    f"{BEND}/minutes/City Council/2025-12-09.pdf",
    f"{FALLS}/minutes/Zoning Board of Appeals/2026-01-08.pdf",
    f"{FALLS}/agendas/Common Council/2026-02-04.pdf",
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "served"
    for file in FILES:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%PDF-1.4 " + file.encode())
    (tmp_path / "secret.pdf").write_bytes(b"secret")
    with serving(folder) as server:
        yield server


def get(
    server: Server, path: str, headers: dict[str, str] | None = None, method: str = "GET"
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", int(server.url.rsplit(":")[-1]), timeout=20)
    try:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())
    finally:
        connection.close()


def links(page: bytes) -> list[str]:
    return re.findall(r'href="([^"]+)"', page.decode())


def test_the_table_has_the_latest_meeting_first_with_its_papers(server: Server) -> None:
    status, page, head = get(server, f"/{BEND}/")
    assert (status, head["Content-Type"]) == (200, "text/html; charset=utf-8")
    days = re.findall(r"<tr><td>(.*?)</td>", page.decode())
    assert days == ["Tuesday, February 10, 2026", "Tuesday, January 13, 2026", "Tuesday, December 9, 2025"]
    assert links(page) == [
        f"/{BEND}/documents/agendas/City%20Council/2026-02-10.pdf",
        f"/{BEND}/documents/agendas/City%20Council/2026-01-13.pdf",
        f"/{BEND}/documents/minutes/City%20Council/2026-01-13.pdf",
        f"/{BEND}/documents/minutes/City%20Council/2025-12-09.pdf",
    ]
    for link in links(page):
        status, content, head = get(server, link)
        assert (status, head["Content-Type"]) == (200, "application/pdf")
        assert content.startswith(b"%PDF")


def test_the_archive_leads_to_a_page_per_year(server: Server) -> None:
    years = links(get(server, f"/{BEND}/archive/")[1])
    assert years == [f"/{BEND}/archive/2026.html", f"/{BEND}/archive/2025.html"]
    assert links(get(server, years[1])[1]) == [f"/{BEND}/documents/minutes/City%20Council/2025-12-09.pdf"]
    assert get(server, f"/{BEND}/archive/1999.html")[0] == 404


def test_the_start_page_leads_to_every_site(server: Server) -> None:
    assert links(get(server, "/")[1]) == [f"/{FALLS}/", f"/{BEND}/"]


def test_the_feed_is_a_feed(server: Server) -> None:
    status, content, head = get(server, f"/{BEND}/feed.xml")
    found = feedparser.parse(content, response_headers={"content-type": head["Content-Type"]})
    assert (status, found.bozo, len(found.entries)) == (200, False, 4)
    first = found.entries[0]
    assert (first.title, first.category) == ("City Council Agenda - February 10, 2026", "City Council")
    assert first.published_parsed[:3] == (2026, 2, 10)
    [enclosure] = first.enclosures
    assert enclosure.type == "application/pdf"
    assert len(get(server, urlsplit(enclosure.href).path)[1]) == int(enclosure.length)


def test_legistar_answers_in_pages_and_with_nulls(server: Server) -> None:
    def events(query: str = "") -> list[dict[str, object]]:
        status, content, _ = get(server, f"/v1/{FALLS}/events{query}")
        assert status == 200
        found: list[dict[str, object]] = json.loads(content)
        return found

    zoning, council = events()
    assert (zoning["EventBodyName"], zoning["EventDate"]) == ("Zoning Board of Appeals", "2026-01-08T00:00:00")
    assert zoning["EventAgendaFile"] is None
    assert str(zoning["EventMinutesFile"]).startswith(server.url)
    assert get(server, urlsplit(str(zoning["EventMinutesFile"])).path)[0] == 200
    assert council["EventMinutesFile"] is None
    assert events("?$top=1") == [zoning]
    assert events("?%24top=1&%24skip=1") == [council]
    assert events("?$skip=2") == []
    assert events("?$orderby=EventDate%20desc") == events("?$orderby=EventId%20desc") == [council, zoning]
    assert events("?$filter=EventDate+ge+datetime%272026-02-01%27") == [council]
    assert events("?$filter=EventDate+ge+datetime%272026-02-01T00:00:00%27&$orderby=EventDate%20asc") == [council]


@pytest.mark.parametrize("query", ["$top=-1", "$skip=x", "$filter=EventBodyName+eq+%27x%27", "$orderby=EventColour"])
def test_a_question_that_legistar_would_not_understand_is_refused(server: Server, query: str) -> None:
    status, content, _ = get(server, f"/v1/{FALLS}/events?{query}")
    assert status == 400
    assert query.partition("=")[0].encode() in content


@pytest.mark.parametrize(
    "path",
    [f"/{BEND}/", f"/{BEND}/feed.xml", f"/v1/{FALLS}/events", f"/{BEND}/documents/minutes/City%20Council/2026-01-13.pdf"],
)
def test_who_has_it_is_told_that_it_is_the_same(server: Server, path: str) -> None:
    _, content, head = get(server, path)
    assert content
    for known in (
        {"If-None-Match": head["ETag"]},
        {"If-None-Match": f'"other", W/{head["ETag"]}'},
        {"If-Modified-Since": head["Last-Modified"]},
    ):
        status, nothing, again = get(server, path, known)
        assert (status, nothing, again["ETag"]) == (304, b"", head["ETag"])
    for outdated in (
        {"If-None-Match": '"other"', "If-Modified-Since": head["Last-Modified"]},
        {"If-Modified-Since": formatdate(0, usegmt=True)},
        {"If-Modified-Since": "whenever"},
    ):
        assert get(server, path, outdated)[:2] == (200, content)


def test_a_document_that_changed_is_sent_again_and_a_new_one_is_listed(server: Server) -> None:
    path = f"/{BEND}/documents/minutes/City%20Council/2026-01-13.pdf"
    document, listing = get(server, path)[2]["ETag"], get(server, f"/{BEND}/")[2]["ETag"]
    (server.folder / FILES[0]).write_bytes(b"%PDF amended")
    assert get(server, path, {"If-None-Match": document})[:2] == (200, b"%PDF amended")
    assert get(server, f"/{BEND}/", {"If-None-Match": listing})[0] == 304
    shutil.copy(server.folder / FILES[0], server.folder / BEND / "minutes" / "City Council" / "2026-01-13-2.pdf")
    status, page, _ = get(server, f"/{BEND}/", {"If-None-Match": listing})
    assert status == 200
    assert "2026-01-13-2.pdf" in page.decode()


def test_requests_are_counted_by_what_was_answered(server: Server) -> None:
    path = f"/{BEND}/documents/minutes/City%20Council/2026-01-13.pdf"
    tag = get(server, path)[2]["ETag"]
    get(server, f"/{BEND}/")
    get(server, "/nowhere/")
    get(server, path, {"If-None-Match": tag})
    assert dict(server.counts()) == {200: 2, 404: 1, 304: 1}
    assert dict(server.counts(documents=True)) == {200: 1, 304: 1}
    assert dict(server.counts(documents=False)) == {200: 1, 404: 1}
    server.forget()
    assert not server.counts()


def test_a_head_request_has_no_content(server: Server) -> None:
    status, content, head = get(server, f"/{BEND}/", method="HEAD")
    assert (status, content) == (200, b"")
    assert int(head["Content-Length"]) > 100


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.pdf",
        f"/{BEND}/documents/minutes/../../../../secret.pdf",
        f"/{BEND}/documents/minutes/%2e%2e%2f%2e%2e%2f%2e%2e/secret.pdf",
        f"/{BEND}/documents/minutes/../secret.pdf",
        f"/{BEND}/documents/minutes/City%20Council/..%2F..%2F..%2F..%2Fsecret.pdf",
        f"/{BEND}/documents/minutes/City%20Council/a%00b.pdf",
        f"/{BEND}/documents/x/City%20Council/2026-01-13.pdf",
        f"/{BEND}/documents/minutes/City%20Council/1999-01-01.pdf",
        f"/{BEND}",
        "/v1/nobody/events",
        "/v1",
    ],
)
def test_what_is_not_listed_is_not_there(server: Server, path: str) -> None:
    status, content, _ = get(server, path)
    assert (status, b"secret" in content) == (404, False)


def test_many_at_once_are_answered(server: Server) -> None:
    path = f"/{BEND}/documents/minutes/City%20Council/2026-01-13.pdf"
    with ThreadPoolExecutor(20) as threads:
        found = list(threads.map(lambda _: get(server, path)[0], range(100)))
    assert found == [200] * 100
    assert server.counts()[200] == 100


def test_it_listens_on_loopback_only_and_ends(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", server.url)
        assert get(server, "/")[0] == 200
    with pytest.raises(ConnectionRefusedError):
        get(server, "/")


def test_it_has_the_port_that_is_asked_for_unless_somebody_else_has_it(tmp_path: Path) -> None:
    with serving(tmp_path) as first:
        port = int(first.url.rsplit(":")[-1])
        with serving(tmp_path, port) as second:
            assert second.url != first.url
            assert get(second, "/")[0] == 200
    with serving(tmp_path, port) as again:
        assert again.url == first.url


def test_who_is_stopped_while_asking_is_no_error(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    def answering() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if "process_request_thread" in thread.name]

    with socket.create_connection(("127.0.0.1", int(server.url.rsplit(":")[-1]))) as asker:
        asker.sendall(f"GET /{BEND}/".encode())
        eventually(answering, "the server listens to it")
        asker.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it ends as a killed one does
    eventually(lambda: not answering(), "the server has seen that")
    assert capfd.readouterr().err == ""


def test_times_are_those_of_the_files(server: Server) -> None:
    os.utime(server.folder / FILES[0], (86_400, 86_400))
    path = f"/{BEND}/documents/minutes/City%20Council/2026-01-13.pdf"
    assert get(server, path)[2]["Last-Modified"] == "Fri, 02 Jan 1970 00:00:00 GMT"


def test_every_site_can_be_created_and_its_source_answers(server: Server) -> None:
    made = sites(server.url, 2025)
    assert [site.subdomain for site in made] == [town.subdomain for town in TOWNS]
    assert {site.scraper for site in made} == {"http_index", "feed", "legistar"}
    for site in made:
        arguments = site.arguments()
        options = dict(zip(arguments[1::2], arguments[2::2], strict=True))
        assert (arguments[0], options["--start-year"], options["--country"]) == (site.subdomain, "2025", "US")
        assert json.loads(options["--extra"]) == site.extra
        assert json.dumps(site.extra).count("{") == 1  # nothing is left to fill in
        if site.subdomain in (BEND, FALLS):
            url = site.extra.get("url") or f"{site.extra['base_url']}/{site.extra['client']}/events"
            assert get(server, urlsplit(url).path)[0] == 200


def test_a_name_with_signs_cannot_break_a_page(tmp_path: Path) -> None:
    odd = tmp_path / BEND / "minutes" / 'A<b> & "c"' / "2026-01-13.pdf"
    odd.parent.mkdir(parents=True)
    odd.write_bytes(b"%PDF")
    rows = listings.rows(tmp_path, BEND)
    assert "<b>" not in listings.table(BEND, rows)
    assert not feedparser.parse(listings.feed(BEND, rows, "http://x").encode()).bozo
