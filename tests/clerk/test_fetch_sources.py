"""The four sources against real folders and servers: what they find, what they leave out, what they say of bad settings."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clerk import names, parts
from clerk.config import Config
from clerk.errors import Incomplete, Transient, Unreadable, Usage
from clerk.fetchers import legistar, pages, registry, words
from clerk.fetchers.http import Client
from clerk.fetchers.turns import Turns
from clerk.parts import Fetcher, Found, Known, Wanted
from tests.clerk.web import PDF, Handler, Web, answer, redirect

ALL = Wanted("a.b", {}, 1900)


@pytest.fixture
def web() -> Iterator[Web]:
    with Web() as made:
        yield made


@pytest.fixture
def client() -> Iterator[Client]:
    with Client(Config(allow_private=True, fetch_rate=1e9, max_document_mb=1), pace=Turns()) as made:
        yield made


def source(client: Client, label: str, /, **extra: Any) -> Fetcher:
    return registry.fetcher_class(label)(extra, client)


def found(fetcher: Fetcher, wanted: Wanted = ALL) -> list[tuple[str, str, str, str]]:
    return [(one.url, one.kind, one.meeting, one.date) for one in fetcher.find(wanted)]


def html(body: str) -> Any:
    return answer(body.encode(), Content_Type="text/html; charset=utf-8")


# ---- labels and settings


def test_an_unknown_label_is_answered_with_the_labels() -> None:
    with pytest.raises(
        Usage, match=r"no scraper 'legistr'; did you mean 'legistar'\? built in are: folder, http_index, feed, legistar"
    ):
        registry.fetcher_class("legistr")


def test_a_plugin_may_bring_a_source_or_take_the_place_of_one(client: Client) -> None:
    class Mine:
        def __init__(self, extra: Any, web: parts.Web) -> None: ...
        def find(self, wanted: Wanted) -> Iterator[Found]:
            return iter(())

        def get(self, found: Found, known: Known | None, into: Path) -> Any: ...

    assert registry.fetcher_class("mine", {"mine": Mine}.get) is Mine
    assert registry.fetcher_class("folder", {"folder": Mine}.get) is Mine
    assert registry.fetcher_class("folder", {"mine": Mine}.get) is not Mine


@pytest.mark.parametrize(
    ("label", "extra", "why"),
    [
        ("folder", {}, "folder: 'path' is missing in --extra"),
        ("folder", {"path": 3}, "folder: 'path' wants a text, not '3'"),
        ("folder", {"path": ".", "patern": "x"}, r"'patern' is no setting of this fetcher; did you mean 'pattern'\?"),
        ("folder", {"path": ".", "pattern": "../*.pdf"}, "cannot begin with / or have .. in it"),
        ("folder", {"path": ".", "pattern": "/etc/*"}, "cannot begin with /"),
        ("http_index", {}, "http_index: 'url' is missing"),
        ("http_index", {"url": "ftp://a/b"}, "only http:// and https:// are"),
        ("http_index", {"url": "https://user:CANARY@a/b"}, r"https://\*\*\*@a/b cannot be fetched: a name or password"),
        ("http_index", {"url": "http://a/", "link_pattern": "("}, "'link_pattern' is no regular expression: missing \\)"),
        ("http_index", {"url": "http://a/", "kind_pattern": "x" * 501}, "longer than 500"),
        ("http_index", {"url": "http://a/", "depth": 3}, "'depth' wants a number from 0 to 2, not '3'"),
        ("http_index", {"url": "http://a/", "depth": True}, "'depth' wants a number"),
        ("http_index", {"url": "http://a/", "colour": "x"}, "there are: url, link_pattern, kind_pattern, date_pattern"),
        ("feed", {"url": ""}, "feed: 'url' is missing"),
        ("feed", {"url": "http://a/", "link_pattern": "x"}, "'link_pattern' is no setting"),
        ("legistar", {}, "legistar: 'client' is missing"),
        ("legistar", {"client": "../x"}, "'client' is a name such as 'oakland'"),
        ("legistar", {"client": "x", "token_env": "NOT_SET_AT_ALL"}, "'NOT_SET_AT_ALL' holds nothing"),
        ("legistar", {"client": "x", "token_env": "a=b"}, "holds nothing"),
        ("legistar", {"client": "x", "base_url": "file:///x"}, "'base_url': file:///x cannot be fetched"),
    ],
)
def test_a_bad_setting_says_what_to_write(client: Client, label: str, extra: dict[str, Any], why: str) -> None:
    with pytest.raises(Usage, match=why) as caught:
        source(client, label, **extra)
    assert "CANARY" not in str(caught.value)


def test_settings_of_the_site_are_none_of_a_fetchers_business(client: Client, tmp_path: Path) -> None:
    assert found(source(client, "folder", path=str(tmp_path), ocr_backend="tesseract")) == []


# ---- folder


def put(root: Path, name: str, data: bytes = PDF) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_a_folder_in_the_usual_order(client: Client, tmp_path: Path) -> None:
    for name in (
        "minutes/City Council/2026-01-31.pdf",
        "minutes/City Council/2026-01-31-2.pdf",
        "agendas/Parks & Rec/2025-02-01.PDF",
    ):
        put(tmp_path, name)
    put(tmp_path, "minutes/City Council/notes.txt")
    put(tmp_path, ".hidden/2026-01-01.pdf")
    assert found(source(client, "folder", path=str(tmp_path))) == [
        ("agendas/Parks & Rec/2025-02-01.PDF", "agendas", "ParksAndRec", "2025-02-01"),
        ("minutes/City Council/2026-01-31.pdf", "minutes", "CityCouncil", "2026-01-31"),
        ("minutes/City Council/2026-01-31-2.pdf", "minutes", "CityCouncil", "2026-01-31"),
    ]
    assert [one[3] for one in found(source(client, "folder", path=str(tmp_path)), Wanted("a", {}, 2026))] == [
        "2026-01-31"
    ] * 2


def test_a_folder_in_any_order(client: Client, tmp_path: Path) -> None:
    os.utime(put(tmp_path, "scan.pdf"), (1_700_000_000, 1_700_000_000))
    put(tmp_path, "Council/Agenda January 5, 2026.pdf")
    put(tmp_path, "Council/2026/minutes_02-03-2026.pdf")
    assert found(source(client, "folder", path=str(tmp_path), pattern="**/*.pdf")) == [
        ("scan.pdf", "minutes", "Meeting", "2023-11-14"),
        ("Council/Agenda January 5, 2026.pdf", "agendas", "Council", "2026-01-05"),
        ("Council/2026/minutes_02-03-2026.pdf", "minutes", "Council", "2026-02-03"),
    ]
    assert len(found(source(client, "folder", path=str(tmp_path), pattern="council/*"))) == 2


def test_no_link_leads_out_of_a_folder(client: Client, tmp_path: Path) -> None:
    secret = put(tmp_path, "outside/2026-01-01.pdf", b"secret")
    inside = tmp_path / "inside"
    put(inside, "2026-01-02.pdf")
    (inside / "2026-01-03.pdf").symlink_to(secret)
    (inside / "2026-01-04.pdf").symlink_to(inside / "2026-01-02.pdf")
    (inside / "2026-01-05.pdf").symlink_to("2026-01-05.pdf")
    (inside / "folder").symlink_to(secret.parent)
    os.mkfifo(inside / "2026-01-06.pdf")
    (inside / "2026-01-07.pdf").mkdir()
    fetcher = source(client, "folder", path=str(inside))
    assert [one[3] for one in found(fetcher)] == ["2026-01-02", "2026-01-04"]
    for bad in ("2026-01-03.pdf", "folder/2026-01-01.pdf", "../outside/2026-01-01.pdf", str(secret), "2026-01-05.pdf"):
        with pytest.raises(Unreadable, match="leads out of it"):
            fetcher.get(Found(bad, "minutes", "M", "2026-01-01"), None, tmp_path)
    (tmp_path / "link").symlink_to(inside)
    assert len(found(source(client, "folder", path=str(tmp_path / "link")))) == 2


def test_a_file_is_copied_once_and_read_again_only_if_it_was_touched(client: Client, tmp_path: Path) -> None:
    path = put(tmp_path, "f/2026-01-02.pdf")
    into = tmp_path / "into"
    into.mkdir()
    fetcher = source(client, "folder", path=str(tmp_path / "f"))
    one = next(fetcher.find(ALL))
    first = fetcher.get(one, None, into)
    assert first.path is not None
    assert first.path.read_bytes() == PDF
    known = Known(first.sha256, None, first.modified)
    path.chmod(0o644)
    assert fetcher.get(one, known, into).unchanged
    os.utime(path, (1, 1))
    touched = fetcher.get(one, known, into)
    assert (touched.unchanged, touched.path, touched.modified != first.modified) == (True, None, True)
    path.write_bytes(b"other")
    changed = fetcher.get(one, known, into)
    assert (changed.unchanged, changed.path is not None) == (False, True)
    assert len(list(into.iterdir())) == 2


def test_bad_files_of_a_folder(client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    into = tmp_path / "into"
    into.mkdir()
    empty, large = put(tmp_path, "f/2026-01-01.pdf", b""), put(tmp_path, "f/2026-01-02.pdf")
    os.truncate(large, 10 * 1024**3)  # ten gigabytes that take no room
    gone = put(tmp_path, "f/2026-01-03.pdf")
    (tmp_path / "f" / os.fsdecode(b"2026-01-04-\xff.pdf")).write_bytes(PDF)
    put(tmp_path, "f/2026-01-05.html", b"<html>")
    fetcher = source(client, "folder", path=str(tmp_path / "f"), pattern="*.[ph][dt]*")
    with caplog.at_level(logging.WARNING):
        listed = list(fetcher.find(ALL))
    assert [one.date for one in listed] == ["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-05"]
    assert "is left out" in caplog.text
    gone.unlink()
    assert fetcher.get(listed[0], None, into).path is not None
    assert empty.exists()
    for one, why in ((listed[1], "larger than 1 MB"), (listed[2], "is not in")):
        with pytest.raises(Unreadable, match=why):
            fetcher.get(one, None, into)
    assert fetcher.get(listed[3], None, into).content_type == "text/html"
    assert len(list(into.iterdir())) == 2


def test_a_file_that_is_being_written_is_left_for_a_moment(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clerk.fetchers import store

    path = put(tmp_path, "f/2026-01-01.pdf")
    fetcher = source(client, "folder", path=str(tmp_path / "f"))
    receive = store.receive

    def and_more_comes(*arguments: Any) -> store.Received:
        received = receive(*arguments)
        with path.open("ab") as file:
            file.write(b"more")
        return received

    monkeypatch.setattr(store, "receive", and_more_comes)
    (tmp_path / "into").mkdir()
    with pytest.raises(Transient, match="is being written just now"):
        fetcher.get(next(fetcher.find(ALL)), None, tmp_path / "into")
    assert list((tmp_path / "into").iterdir()) == []


def test_a_folder_that_is_not_there(client: Client, tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="there is no folder"):
        found(source(client, "folder", path=str(tmp_path / "none")))


# ---- http_index


def test_the_links_of_a_page(web: Web, client: Client) -> None:
    web.routes["/city/"] = html(
        """<!DOCTYPE html><title>Minutes</title><!-- <a href="no-2026-01-01.pdf">no</a> -->
        <script>document.write('<a href="no-2026-01-02.pdf">')</script>
        <a href="undated.pdf">Budget</a> <a href="files/a%20b.pdf">Agenda, January 5, 2026</a>
        <A CLASS=x HREF = ' /files/2026-01-06 minutes.PDF#page=1 '>View</A>
        <a href="?get=7&amp;name=x-01-07-2026.pdf" title="Minutes > 1"><img src="x.gif" alt="pdf"></a>
        <table><tr><td>January 8, 2026<td><ul><li><a href="8a.pdf">Agenda</a><li><a href="8m.pdf">Minutes</a></ul></tr>
        <tr><td>January 9, 2026<td><a href=9m.pdf>Minutes</a></table>
        <h3>February 10, 2026</h3><div><a href="10.pdf">Approved Minutes</a></div>
        <a href="http://elsewhere.test/2026-01-11.pdf">x</a><a href="mailto:a@b.c">m</a><a href="javascript:x()">j</a>
        <a href="2026-01-12.docx">word</a><a href="http://[bad/2026-01-13.pdf">bad</a><a href="2026-01-14.pdf">Minutes"""
    )
    index = source(client, "http_index", url=web.url("/city/"), meeting="City Council")
    assert [(url.removeprefix(web.url("")), kind, date[5:]) for url, kind, _, date in found(index)] == [
        ("/city/files/a%20b.pdf", "agendas", "01-05"),
        ("/files/2026-01-06%20minutes.PDF", "minutes", "01-06"),
        ("/city/?get=7&name=x-01-07-2026.pdf", "minutes", "01-07"),
        ("/city/8a.pdf", "agendas", "01-08"),
        ("/city/8m.pdf", "minutes", "01-08"),
        ("/city/9m.pdf", "minutes", "01-09"),
        ("/city/10.pdf", "minutes", "02-10"),
        ("http://elsewhere.test/2026-01-11.pdf", "minutes", "01-11"),
        ("/city/2026-01-14.pdf", "minutes", "01-14"),
    ]
    assert {meeting for _, _, meeting, _ in found(index)} == {"CityCouncil"}


def test_what_has_no_date_is_said(web: Web, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    web.routes["/"] = html('<a href="a.pdf">x</a><a href="b.pdf">y</a><a href="b.pdf">2026-01-01</a>')
    with caplog.at_level(logging.WARNING):
        assert len(found(source(client, "http_index", url=web.url("/")))) == 1
    assert "lists 1 documents without a date: date_pattern may find it" in caplog.text


def test_the_patterns_of_an_index(web: Web, client: Client) -> None:
    web.routes["/"] = html(
        """<a href="/View/Council/112825?d=Y2026M01D05">Proceedings</a>
        <a href="http://files.test/View/Parks/99?d=Y2025M03D04">Tagesordnung</a> <a href="/about">about 2026-01-01</a>"""
    )
    index = source(
        client,
        "http_index",
        url=web.url("/"),
        link_pattern=r"/view/(?P<meeting>\w+)/\d+",
        kind_pattern="tagesordnung",
        date_pattern=r"d=Y(?P<date>\d{4}M\d\dD\d\d)",
    )
    assert found(index) == []  # "2026M01D05" is no date
    extra = {"link_pattern": r"/view/(?P<meeting>\w+)/\d+", "kind_pattern": "tagesordnung"}
    web.routes["/"] = html(
        """<a href="/View/Council/112825?d=2026-01-05&posted=2026-01-09">Proceedings</a>
        <a href="http://files.test/View/Parks/99?d=2025-03-04&posted=2026-01-09">Tagesordnung</a>"""
    )
    index = source(client, "http_index", url=web.url("/"), date_pattern=r"d=([-\d]+)", **extra)
    assert [one[1:] for one in found(index)] == [("minutes", "Council", "2026-01-05"), ("agendas", "Parks", "2025-03-04")]
    index = source(client, "http_index", url=web.url("/"), date_pattern=r"d=([-\d]+)", meeting="All", **extra)
    assert [one[2] for one in found(index, Wanted("a", {}, 2026))] == ["All"]
    named = {**extra, "kind_pattern": "(?P<agendas>tages)|(?P<minutes>nothing)"}
    assert [
        one[1] for one in found(source(client, "http_index", url=web.url("/"), date_pattern=r"d=([-\d]+)", **named))
    ] == ["agendas"]


def test_pages_are_followed_as_deep_as_asked_and_on_one_host(web: Web, client: Client) -> None:
    with Web("127.0.0.5") as other:
        web.routes["/"] = redirect("/start/")
        web.routes["/start/"] = html(
            f'<a href="one">1</a><a href="{other.url("/x")}">other</a><a href="gone">g</a><a href="/">r</a>'
        )
        web.routes["/start/one"] = html(
            '<base href="/deep/"><a href="two">2</a><a href="2026-01-01.pdf">m</a><a href="z.zip">z</a>'
        )
        web.routes["/deep/two"] = html('<a href="/start/">back</a><a href="2026-01-02.pdf">m</a><a href="three">3</a>')
        web.routes["/deep/three"] = html('<a href="2026-01-03.pdf">m</a>')
        for depth, days in ((0, []), (1, ["2026-01-01"]), (2, ["2026-01-01", "2026-01-02"])):
            web.asked.clear()
            assert [one[3] for one in found(source(client, "http_index", url=web.url("/"), depth=depth))] == days
            assert len(set(web.asked)) == len(web.asked) == depth + 2 + (depth > 0)
        assert other.connections == 0
        assert "/deep/three" not in web.asked


def test_an_index_that_leads_everywhere_is_not_followed_everywhere(
    web: Web, client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clerk.fetchers import http_index

    monkeypatch.setattr(http_index, "_MOST_PAGES", 20)
    web.routes["/"] = html("".join(f'<a href="/{n}">x</a>' for n in range(50)))
    with caplog.at_level(logging.WARNING):
        assert found(source(client, "http_index", url=web.url("/"), depth=1)) == []
    assert len(web.asked) == 20
    assert "leads to 51 pages; the first 20 were read" in caplog.text


def test_an_index_that_cannot_be_read_fails_and_with_a_busy_page_below_it_is_incomplete(web: Web, client: Client) -> None:
    index = source(client, "http_index", url=web.url("/"), depth=1)
    with pytest.raises(Unreadable, match="answers 404"):
        found(index)
    web.routes["/"] = answer(PDF)
    with pytest.raises(Unreadable, match="is application/pdf, not an index"):
        found(index)
    web.routes["/"] = html('<a href="/busy">x</a><a href="/well">y</a>')
    web.routes["/busy"] = answer(b"", 503)
    web.routes["/well"] = html('<a href="2026-01-01.pdf">m</a>')
    listed = iter(index.find(ALL))
    assert next(listed).date == "2026-01-01"
    with pytest.raises(Incomplete, match=r"1 of 3 pages of the index could not be read: .*/busy answers 503"):
        next(listed)


@pytest.mark.parametrize(
    "piece",
    [
        *(
            "<div>",
            "<",
            "<a ",
            "<a href='",
            '<a href="',
            "<!--",
            "<![CDATA[",
            "<script>",
            "</",
            "<a href=x.pdf>",
            "<tr><li>",
            "&",
        ),
        *("<a href=x>t</a>", "<a" + " b" * 50, "<a href=x title='", "<li><a href=2026-01-01.pdf>", "<title>", " " * 50, "="),
        *("<a\t=\t\"'", "<h1>x", "<x/"),
    ],
)
def test_hostile_pages_take_no_time(piece: str) -> None:
    """A parser that builds a tree would take minutes for the first, and html.parser for the third."""
    for _ in pages.links(piece * (200_000 // len(piece))):
        pass


@given(st.text(alphabet="<>a/=\"' hrefbsx!-\n", max_size=200))
def test_any_text_is_a_page(text: str) -> None:
    for link in pages.links(text):
        assert link.href


# ---- feed

RSS = """<?xml version="1.0" encoding="utf-8"?><rss version="2.0"><channel><title>Town of Nowhere Minutes</title>
<item><title>City Council Regular Meeting Minutes - January 5, 2026</title><pubDate>Tue, 20 Jan 2026 10:00:00 GMT</pubDate>
  <enclosure url="{base}/a.pdf" type="application/pdf" length="1"/></item>
<item><title>Parks &amp; Recreation Agenda</title><pubDate>Mon, 19 Jan 2026 23:30:00 -0500</pubDate>
  <link>{base}/view</link><description>&lt;a href="/b.pdf"&gt;Packet&lt;/a&gt;</description></item>
<item><title>2026-01-07</title><link>d.pdf</link><category>Planning</category></item>
<item><title>Podcast 2026-01-08</title><enclosure url="{base}/e.mp3" type="audio/mpeg"/></item>
<item><title>Undated</title><link>{base}/f.pdf</link></item>
<item><title>Old minutes 1999-01-01</title><link>{base}/g.pdf</link></item>
</channel></rss>"""
ATOM = """<feed xmlns="http://www.w3.org/2005/Atom"><title>Council</title><entry><title>Agenda 01/05/2026</title>
<updated>2026-01-02T00:00:00Z</updated><link rel="enclosure" href="/a" type="application/pdf"/>
<link rel="alternate" href="/page"/><content type="html">&lt;a href="/m.pdf"&gt;Minutes&lt;/a&gt;</content></entry></feed>"""
JSON = {
    "version": "https://jsonfeed.org/version/1.1",
    "title": "Council",
    "items": [
        {
            "title": "Minutes",
            "date_published": "2026-01-05T10:00:00Z",
            "attachments": [{"url": "/a", "mime_type": "application/pdf"}],
        },
        {"title": None, "content_html": '<a href="b.pdf">Agenda January 6, 2026</a>', "tags": ["Parks"], "attachments": 3},
        {"url": 7, "external_url": "c.pdf", "date_published": "soon"},
        "nonsense",
    ],
}


def test_the_documents_of_a_feed(web: Web, client: Client) -> None:
    web.routes["/feed"] = answer(RSS.format(base=web.url("")).encode(), Content_Type="application/rss+xml")
    feed = source(client, "feed", url=web.url("/feed"))
    assert [(url.removeprefix(web.url("")), *rest) for url, *rest in found(feed, Wanted("a", {}, 2020))] == [
        ("/a.pdf", "minutes", "CityCouncil", "2026-01-05"),
        ("/b.pdf", "agendas", "ParksAndRecreation", "2026-01-20"),
        ("/d.pdf", "minutes", "Planning", "2026-01-07"),
    ]
    agendas = source(client, "feed", url=web.url("/feed"), kind_pattern="council")
    assert [one[1] for one in found(agendas, Wanted("a", {}, 2020))] == ["agendas", "minutes", "minutes"]


def test_atom_and_json_feeds(web: Web, client: Client) -> None:
    web.routes["/atom"] = answer(ATOM.encode(), Content_Type="application/atom+xml; charset=utf-8")
    web.routes["/json"] = answer(json.dumps(JSON).encode(), Content_Type="application/feed+json")
    assert [
        (url.removeprefix(web.url("")), *rest) for url, *rest in found(source(client, "feed", url=web.url("/atom")))
    ] == [
        ("/a", "agendas", "Council", "2026-01-05"),
        ("/m.pdf", "minutes", "Council", "2026-01-05"),
    ]
    assert [
        (url.removeprefix(web.url("")), *rest) for url, *rest in found(source(client, "feed", url=web.url("/json")))
    ] == [
        ("/a", "minutes", "Council", "2026-01-05"),
        ("/b.pdf", "agendas", "Parks", "2026-01-06"),
    ]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"<html><body>Hello</body></html>", "is no feed"),
        (b"", "is no feed"),
        (b"/etc/passwd", "is no feed"),
        (b'{"items": []}', "is JSON, but no JSON Feed"),
        (b'{"items"', "is no JSON"),
        (b'{"a":' * 100_000, "is no JSON"),
        (b"<rss>" + b" " * 6_000_000, "larger than 5 MB, too large for a feed"),
    ],
)
def test_what_is_no_feed(web: Web, client: Client, data: bytes, why: str) -> None:
    web.routes["/"] = answer(data, Content_Type="text/xml")
    with pytest.raises(Unreadable, match=why):
        found(source(client, "feed", url=web.url("/")))


def test_a_feed_reads_no_files_and_does_not_swell(web: Web, client: Client) -> None:
    entities = '<!ENTITY a "aaaaaaaaaa">' + "".join(
        f'<!ENTITY a{n} "{f"&a{n - 1};" * 10 if n else "&a;" * 10}">' for n in range(9)
    )
    web.routes["/"] = answer(
        f"""<?xml version="1.0"?><!DOCTYPE rss [{entities}<!ENTITY x SYSTEM "file:///etc/hostname">
        <!ENTITY y SYSTEM "{web.url("/canary")}">]><rss version="2.0"><channel><title>&a8;</title>
        <item><title>&x;&y; 2026-01-05</title><link>/a.pdf</link></item></channel></rss>""".encode(),
        Content_Type="text/xml",
    )
    listed = found(source(client, "feed", url=web.url("/")))
    assert web.asked == ["/"]
    assert all(Path("/etc/hostname").read_text().strip() not in one[2] for one in listed)


# ---- legistar


def event(number: int, **more: Any) -> dict[str, Any]:
    return {"EventId": number, "EventBodyName": "City Council", "EventDate": "2026-01-05T00:00:00", **more}


def test_the_events_of_legistar(web: Web, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CITY_TOKEN", "CANARY token")
    web.routes["/v1/city/events"] = answer(
        json.dumps(
            [
                event(1, EventAgendaFile="http://files.test/a1", EventMinutesFile="http://files.test/m1"),
                event(2, EventAgendaFile=None, EventMinutesFile=None),
                event(3, EventBodyName="Parks & Rec/*", EventAgendaFile="/View.ashx?M=A&ID=3", EventMinutesFile=""),
                event(4, EventDate=None, EventAgendaFile="http://files.test/a4"),
                event(5, EventDate="1999-01-01T00:00:00", EventAgendaFile="http://files.test/a5"),
                event(6, EventBodyName=None, EventAgendaFile="file:///etc/passwd", EventMinutesFile="http://files.test/m6"),
                {},
            ]
        ).encode(),
        Content_Type="application/json",
    )
    fetcher = source(client, "legistar", client="city", base_url=web.url("/v1/"), token_env="CITY_TOKEN")
    assert found(fetcher, Wanted("a", {}, 2025)) == [
        ("http://files.test/m1", "minutes", "CityCouncil", "2026-01-05"),
        ("http://files.test/a1", "agendas", "CityCouncil", "2026-01-05"),
        (web.url("/View.ashx?M=A&ID=3"), "agendas", "ParksAndRecAnd", "2026-01-05"),
        ("http://files.test/m6", "minutes", "Meeting", "2026-01-05"),
    ]
    assert web.asked == [
        "/v1/city/events?$filter=EventDate%20ge%20datetime%272025-01-01%27&$orderby=EventId&$top=1000&$skip=0&token=CANARY%20token"
    ]
    web.routes["/v1/city/events"] = answer(b"", 403)
    with pytest.raises(Unreadable, match="answers 403") as caught:
        found(fetcher)
    assert "CANARY" not in str(caught.value)


def test_the_pages_of_legistar(web: Web, client: Client) -> None:
    events = [event(number, EventMinutesFile=f"http://files.test/{number}") for number in range(2_500)]

    def some(page: Handler) -> None:
        skip = int(page.path.partition("$skip=")[2])
        answer(json.dumps(events[skip : skip + legistar.PAGE]).encode(), Content_Type="application/json")(page)

    web.routes["/city/events"] = some
    fetcher = source(client, "legistar", client="city", base_url=web.url(""))
    assert len({one[0] for one in found(fetcher)}) == 2_500
    assert len(web.asked) == 3
    del events[2_000:]
    assert len(found(fetcher)) == 2_000


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"{}", "gives no list of events"),
        (b"[1]", "gives no list"),
        (b"<html>", "is no JSON"),
        (b"null", "gives no list"),
        (json.dumps([event(n) for n in range(1_000)]).encode(), "the same page again and again"),
    ],
)
def test_a_legistar_that_is_none(web: Web, client: Client, data: bytes, why: str) -> None:
    web.routes["/city/events"] = answer(data)
    with pytest.raises(Unreadable, match=why):
        found(source(client, "legistar", client="city", base_url=web.url("")))


# ---- words


@pytest.mark.parametrize(
    ("title", "meeting"),
    [
        ("City Council Regular Meeting Minutes - January 31, 2026", "CityCouncil"),
        ("AGENDA: Parks & Recreation (01/31/2026)", "ParksAndRecreation"),
        ("Minutes", ""),
        ("Approved Minutes of the Planning Board 2026-01-31.pdf", "PlanningBoard"),
        ("../../etc/passwd agenda", "etcAndpasswd"),
    ],
)
def test_a_title_names_the_meeting(title: str, meeting: str) -> None:
    assert words.meeting_of(title) == meeting


@given(st.text(max_size=150))
def test_any_title_gives_a_safe_name(title: str) -> None:
    meeting = words.meeting_of(title)
    assert not meeting or names.meeting(meeting) == meeting
