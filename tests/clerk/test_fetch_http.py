"""The HTTP client against real servers: what they say, what they should not do, and what is left behind (nothing)."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import os
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path

import pytest

from clerk.config import Config
from clerk.errors import Critical, Transient, Unreadable
from clerk.fetchers import http
from clerk.fetchers.http import USER_AGENT, Client, Timeouts
from clerk.fetchers.turns import SharedTurns, Stopped, Turns
from clerk.parts import Fetched, Found, Known, Wanted
from clerk.pipeline import wiring
from tests.clerk.web import PDF, Handler, Web, answer, certificate, raw, redirect

SHA = hashlib.sha256(PDF).hexdigest()
LOCAL = Config(allow_private=True, fetch_rate=1e9, max_document_mb=1)
SOON = Timeouts(read=0.2, document=1)  # for those that wait in vain
Get = Callable[..., Fetched]


@pytest.fixture
def web() -> Iterator[Web]:
    with Web() as made:
        yield made


@pytest.fixture
def client() -> Iterator[Client]:
    with Client(LOCAL, pace=Turns()) as made:
        yield made


@pytest.fixture
def get(web: Web, client: Client, tmp_path: Path) -> Get:
    def fetched(path: str = "/x.pdf", known: Known | None = None) -> Fetched:
        return client.get(Found(web.url(path), "minutes", "M", "2026-01-31"), known, tmp_path)

    return fetched


def test_a_document_comes_into_a_file_with_its_hash_and_what_the_next_request_needs(web: Web, get: Get) -> None:
    web.routes["/x.pdf"] = answer(ETag='"v1"', Last_Modified="Sat, 31 Jan 2026 10:00:00 GMT")
    fetched = get()
    assert fetched.path is not None
    assert fetched.path.read_bytes() == PDF
    assert (fetched.sha256, fetched.etag, fetched.modified) == (SHA, '"v1"', "Sat, 31 Jan 2026 10:00:00 GMT")
    assert (fetched.content_type, fetched.unchanged) == ("application/pdf", False)
    said = web.headers[0]
    assert (said["user-agent"], said["accept-encoding"], said["host"]) == (USER_AGENT, "identity", f"127.0.0.1:{web.port}")
    assert not {"if-none-match", "if-modified-since", "cookie", "authorization", "referer"} & set(said)


def test_what_is_known_is_asked_for_with_conditions_and_not_sent_again(web: Web, get: Get, tmp_path: Path) -> None:
    web.routes["/x.pdf"] = answer(b"", 304, Content_Length="")
    known = Known(SHA, '"v1"', "Sat, 31 Jan 2026 10:00:00 GMT")
    fetched = get(known=known)
    assert (fetched.unchanged, fetched.path, fetched.sha256, fetched.etag) == (True, None, SHA, '"v1"')
    assert web.headers[0]["if-none-match"] == '"v1"'
    assert web.headers[0]["if-modified-since"] == known.modified
    with pytest.raises(Transient, match="nothing is known"):
        get()
    assert list(tmp_path.iterdir()) == []


def test_the_same_bytes_sent_again_are_unchanged(web: Web, get: Get, tmp_path: Path) -> None:
    web.routes["/x.pdf"] = answer(ETag='"v2"')
    fetched = get(known=Known(SHA, '"v1"'))
    assert (fetched.unchanged, fetched.path, fetched.etag) == (True, None, '"v2"')
    assert list(tmp_path.iterdir()) == []
    assert get(known=Known("0" * 64)).path is not None


def test_conditions_that_are_no_headers_are_left_out(web: Web, get: Get) -> None:
    web.routes["/x.pdf"] = answer()
    assert get(known=Known("0" * 64, '"a"\r\nX: y', "früh\u2026")).path is not None
    assert "x" not in web.headers[0]
    assert "if-none-match" not in web.headers[0]


@pytest.mark.parametrize(
    ("sent", "cut"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + PDF, "shorter than it says"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n%PDF-\r\n", "no last chunk"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n%PDF-\r\n0\r\n\r\n", "a broken chunk"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n%PDF-1", "two lengths"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "half a header"),
        (b"", "nothing"),
        (b"not http at all\r\n\r\n", "another protocol"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 300_000, "an endless header"),
    ],
)
def test_an_incomplete_transfer_may_work_in_a_moment(web: Web, get: Get, tmp_path: Path, sent: bytes, cut: str) -> None:
    web.routes["/x.pdf"] = raw(sent)
    with pytest.raises(Transient, match="could not be fetched whole"):
        get()
    assert list(tmp_path.iterdir()) == []


def test_an_old_server_may_end_a_document_by_hanging_up(web: Web, get: Get) -> None:
    web.routes["/x.pdf"] = raw(b"HTTP/1.0 200 OK\r\n\r\n" + PDF)
    assert get().sha256 == SHA


def test_an_empty_document_is_one(web: Web, get: Get) -> None:
    web.routes["/x.pdf"] = answer(b"")
    fetched = get()
    assert fetched.path is not None
    assert fetched.path.stat().st_size == 0


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 410, 451, 204, 206, 300, 305])
def test_what_never_will_work(web: Web, get: Get, status: int) -> None:
    web.routes["/x.pdf"] = answer(b"", status)
    with pytest.raises(Unreadable, match=f"answers {status}"):
        get()


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
def test_what_may_work_later(web: Web, get: Get, status: int) -> None:
    web.routes["/x.pdf"] = answer(b"", status)
    with pytest.raises(Transient, match=f"answers {status}") as caught:
        get()
    assert caught.value.retry_after is None


@pytest.mark.parametrize(
    ("said", "low", "high"),
    [("7", 7, 7), (formatdate(time.time() + 3600, usegmt=True), 1000, 3600), ("99999999", 86400, 86400)],
    ids=["seconds", "date", "far too long"],
)
def test_a_server_may_say_when(web: Web, tmp_path: Path, said: str, low: float, high: float) -> None:
    web.routes["/x.pdf"] = answer(b"", 429, Retry_After=said)
    pace = Turns(clock=lambda: 1_000.0)
    with Client(LOCAL, pace=pace) as client, pytest.raises(Transient) as caught:
        client.get(Found(web.url("/x.pdf"), "minutes", "M", "2026-01-31"), None, tmp_path)
    assert caught.value.retry_after is not None
    assert low <= caught.value.retry_after <= high
    assert 1_000 + min(low, 60) <= pace._next["127.0.0.1"] <= 1_000 + min(high, 60)  # and the host gets its quiet


def test_a_host_is_asked_at_its_pace_by_all_threads_together(web: Web, tmp_path: Path) -> None:
    moments: list[float] = []

    def watched(page: Handler) -> None:
        moments.append(time.monotonic())
        answer()(page)

    web.routes["/x.pdf"] = watched
    config = Config(allow_private=True, fetch_rate=20.0)
    with Client(config, pace=(shared := Turns())) as one, Client(config, pace=shared) as two:
        found = Found(web.url("/x.pdf"), "minutes", "M", "2026-01-31")
        threads = [threading.Thread(target=client.get, args=(found, None, tmp_path)) for client in (one, two) * 4]
        began = time.monotonic()  # not the first to arrive: on a busy machine that one may be late
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(moments) == 8
    assert max(moments) - began >= 7 / 20 * 0.9


def test_all_processes_that_share_a_storage_share_one_pace(tmp_path: Path) -> None:
    """Many sites are on one host: as many fetches as there are workers ask it no more often than one."""
    asks = (
        "import sys, pathlib; from clerk.fetchers.turns import SharedTurns\n"
        "turns = SharedTurns(pathlib.Path(sys.argv[1]))\n"
        "for _ in range(50): print(repr(turns.turn('town.example', 2.0)))"
    )
    command = [sys.executable, "-c", asks, str(tmp_path / ".hosts")]
    asking = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    moments = sorted(float(line) for one in asking for line in one.communicate(timeout=60)[0].split())
    assert len(moments) == 150
    assert all(later - earlier > 0.499 for earlier, later in itertools.pairwise(moments))


def test_a_site_is_fetched_at_the_pace_of_its_storage(web: Web, tmp_path: Path) -> None:
    web.routes["/"] = answer(b"<a href='2026-01-31.pdf'>Minutes</a>", Content_Type="text/html")
    with wiring.source(replace(LOCAL, storage=tmp_path), "http_index", {"url": web.url("/")}) as fetcher:
        assert len(list(fetcher.find(Wanted("elm.ca", {}, 2026)))) == 1
    assert [path.name for path in (tmp_path / ".hosts").iterdir()] == ["127.0.0.1"]


def test_a_shared_pace_outlives_a_clock_that_is_set_back_a_torn_file_and_a_storage_that_cannot_be_written(
    tmp_path: Path,
) -> None:
    now = 1_000_000.0
    shared = SharedTurns(tmp_path / ".hosts", clock=lambda: now)
    other = SharedTurns(tmp_path / ".hosts", clock=lambda: now)
    assert (shared.turn("a", 2.0), other.turn("a", 2.0), other.turn("b", 2.0)) == (now, now + 0.5, now)
    shared.hold("a", 30.0)
    assert other.turn("a", 2.0) == now + 30.0
    now -= 86_400.0
    assert shared.turn("a", 2.0) == now
    (tmp_path / ".hosts" / "a").write_text("torn")
    assert shared.turn("a", 2.0) == now
    (tmp_path / "file").write_text("")
    alone = SharedTurns(tmp_path / "file" / ".hosts", clock=lambda: now)
    assert (alone.turn("a", 2.0), alone.turn("a", 2.0)) == (now, now + 0.5)


def test_more_than_the_limit_is_refused_by_its_length_before_it_is_read(web: Web, get: Get, tmp_path: Path) -> None:
    """Ten gigabytes are announced; the server would send for as long as one listens."""
    web.routes["/x.pdf"] = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10737418240\r\n\r\n%PDF-", wait=web.released)
    with pytest.raises(Unreadable, match="larger than 1 MB"):
        get()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("head", [b"HTTP/1.0 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"])
def test_more_than_the_limit_is_refused_while_it_comes(web: Web, get: Get, tmp_path: Path, head: bytes) -> None:
    sent: list[int] = []

    def endless(page: Handler) -> None:
        page.close_connection = True
        page.wfile.write(head)
        try:
            while len(sent) < 10_000:
                page.wfile.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                sent.append(65536)
        except OSError:
            pass

    web.routes["/x.pdf"] = endless
    with pytest.raises(Unreadable, match="larger than 1 MB"):
        get()
    assert list(tmp_path.iterdir()) == []
    assert sum(sent) < 20_000_000


def test_a_server_that_says_nothing_is_not_waited_for(web: Web, tmp_path: Path) -> None:
    for piece in (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 600\r\n\r\n%PDF-"):
        web.routes["/x.pdf"] = raw(piece, wait=web.released)
        with Client(LOCAL, SOON) as client, pytest.raises(Transient, match="does not answer in time"):
            client.get(Found(web.url("/x.pdf"), "minutes", "M", "2026-01-31"), None, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\nX-Slow: ", b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n"])
def test_a_server_that_drips_is_not_listened_to_for_ever(web: Web, tmp_path: Path, start: bytes) -> None:
    """A byte now and then keeps every single read alive, also within the headers; the request as a whole has an end."""

    def drip(page: Handler) -> None:
        page.close_connection = True
        page.wfile.write(start)
        try:
            while not web.released.wait(0.05):
                page.wfile.write(b"a")
        except OSError:
            pass

    web.routes["/x.pdf"] = drip
    patient = Timeouts(read=60, document=1)
    with Client(LOCAL, patient) as client, pytest.raises(Transient, match="does not answer in time"):
        client.get(Found(web.url("/x.pdf"), "minutes", "M", "2026-01-31"), None, tmp_path)


def test_a_port_where_nobody_listens_may_have_somebody_later(client: Client, tmp_path: Path) -> None:
    with Web() as gone:
        url = gone.url("/x.pdf")
    with pytest.raises(Transient, match="could not be fetched"):
        client.get(Found(url, "minutes", "M", "2026-01-31"), None, tmp_path)


def test_a_name_that_is_unknown_may_be_known_later(tmp_path: Path) -> None:
    def unknown(host: str, port: int) -> list[str]:
        raise OSError(-2, "Name or service not known")

    with (
        Client(LOCAL, resolve=unknown) as client,
        pytest.raises(Transient, match=r"the name city\.test cannot be looked up"),
    ):
        client.get(Found("http://city.test/x", "minutes", "M", "2026-01-31"), None, tmp_path)


def test_the_second_address_of_a_name_is_tried(web: Web, tmp_path: Path) -> None:
    web.routes["/x.pdf"] = answer()
    with Client(LOCAL, resolve=lambda *_: ["127.0.0.9", "127.0.0.1"]) as client:
        fetched = client.get(Found(web.url("/x.pdf", "city.test"), "minutes", "M", "2026-01-31"), None, tmp_path)
    assert fetched.sha256 == SHA


# ---- redirects


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_followed(web: Web, get: Get, status: int) -> None:
    web.routes["/x.pdf"] = redirect("y/../z.pdf?a=1#f", status)
    web.routes["/z.pdf?a=1"] = answer()
    assert get().sha256 == SHA
    assert get().found.url == web.url("/x.pdf")


def test_redirects_end(web: Web, get: Get) -> None:
    for number in range(7):
        web.routes[f"/{number}"] = redirect(f"/{number + 1}")
    web.routes["/6"] = answer()
    assert get("/1").sha256 == SHA
    with pytest.raises(Unreadable, match="redirects more than 5 times"):
        get("/0")
    web.routes["/a"], web.routes["/b"] = redirect("/b#x"), redirect(web.url("/a#y"))
    with pytest.raises(Unreadable, match="redirects in a circle"):
        get("/a")
    assert len(web.asked) == 6 + 6 + 2


@pytest.mark.parametrize("to", ["", "file:///etc/passwd", "http://[", "ftp://a/b", "http://user:pw@127.0.0.1/", "data:,x"])
def test_redirects_lead_to_the_web_or_nowhere(web: Web, get: Get, to: str) -> None:
    web.routes["/x.pdf"] = redirect(to)
    with pytest.raises(Unreadable, match="redirects to what is no address"):
        get()


# ---- types and encodings


@pytest.mark.parametrize(
    ("path", "said", "body", "kind"),
    [
        ("/x.pdf", "application/pdf", PDF, "application/pdf"),
        ("/view?id=1", "text/html; charset=utf-8", b"<html>Minutes</html>", "text/html"),
        ("/view?id=1", "application/xhtml+xml", b"<html>Minutes</html>", "text/html"),
        ("/view?id=1", "text/html", PDF, "application/pdf"),
        ("/x.pdf", "text/html", b"<html>Please log in</html>", "application/pdf"),  # ocr will say that it is none
        ("/view?id=1", "application/pdf", b"<html>Sorry</html>", "application/pdf"),
        ("/view?id=1", "", b"anything", "application/pdf"),
    ],
)
def test_a_web_page_is_one_only_if_nothing_promised_a_pdf(
    web: Web, get: Get, path: str, said: str, body: bytes, kind: str
) -> None:
    web.routes[path] = answer(body, Content_Type=said)
    fetched = get(path)
    assert fetched.path is not None
    assert (fetched.content_type, fetched.path.read_bytes()) == (kind, body)


def test_a_document_that_comes_compressed_is_refused(web: Web, get: Get, tmp_path: Path) -> None:
    web.routes["/x.pdf"] = answer(gzip.compress(PDF), Content_Encoding="gzip")
    with pytest.raises(Unreadable, match="came compressed"):
        get()
    assert list(tmp_path.iterdir()) == []


def test_a_page_that_comes_compressed_is_undone_within_bounds(web: Web, client: Client) -> None:
    web.routes["/a"] = answer(gzip.compress(b"hello"), Content_Type="text/html", Content_Encoding="gzip")
    web.routes["/b"] = answer(zlib.compress(b"hello"), Content_Type="text/html", Content_Encoding="deflate")
    assert client.page(web.url("/a")).text == client.page(web.url("/b")).text == "hello"
    bomb = gzip.compress(b"\0" * (http.LARGEST_PAGE + 1))
    assert len(bomb) < 100_000
    for name, body, encoding, why in (
        ("/bomb", bomb, "gzip", "larger than 20 MB"),
        ("/layers", gzip.compress(bomb), "gzip, gzip", "was not asked for"),
        ("/other", b"x", "br", "was not asked for"),
        ("/lie", b"x" * 50, "gzip", "says gzip but is not"),
    ):
        web.routes[name] = answer(body, Content_Type="text/html", Content_Encoding=encoding)
        with pytest.raises(Unreadable, match=why):
            client.page(web.url(name))
    web.routes["/half"] = answer(gzip.compress(PDF)[:-20], Content_Encoding="gzip")
    with pytest.raises(Transient, match="ended before"):
        client.page(web.url("/half"))


@pytest.mark.parametrize(
    ("data", "said", "text"),
    [
        ("é".encode(), "text/html; charset=utf-8", "é"),
        ("é".encode("latin-1"), "text/html; charset=ISO-8859-1", "é"),
        ("–".encode("cp1252"), "text/html; charset=iso-8859-1", "–"),
        ("é".encode("latin-1"), "text/html", "é"),
        ("é".encode(), "text/html", "é"),
        ("é".encode("utf-16"), "text/html", "é"),
        (b"\xef\xbb\xbf" + "é".encode(), "text/html; charset=latin-1", "é"),
        (b'<meta charset="windows-1251">' + "Я".encode("cp1251"), "text/html", '<meta charset="windows-1251">Я'),
        ("é".encode(), "text/html; charset=nonsense", "é"),
        ("é".encode(), "text/html; charset=zip", "é"),
        ("é".encode(), 'text/html; charset="UTF-8"', "é"),
        (b"\xff", "text/html; charset=utf-8", "\ufffd"),
    ],
)
def test_pages_are_decoded_as_browsers_do(web: Web, client: Client, data: bytes, said: str, text: str) -> None:
    web.routes["/"] = answer(data, Content_Type=said)
    assert client.page(web.url("/")).text == text


# ---- TLS


def test_a_certificate_is_verified_for_the_name_that_was_asked_for(tmp_path: Path) -> None:
    """The connection goes to an address, but the name is what is sent and checked."""
    server, trusting = certificate(tmp_path, "city.test")
    into = tmp_path / "into"
    into.mkdir()
    with Web(tls=server) as web:
        web.routes["/x.pdf"] = answer()
        good, bad = (Found(web.url("/x.pdf", name), "minutes", "M", "2026-01-31") for name in ("city.test", "other.test"))
        with Client(LOCAL, resolve=lambda *_: ["127.0.0.1"], tls=trusting) as client:
            assert client.get(good, None, into).sha256 == SHA
            with pytest.raises(Unreadable, match="certificate that cannot be verified: Hostname mismatch"):
                client.get(bad, None, into)
        with (
            Client(LOCAL, resolve=lambda *_: ["127.0.0.1"]) as strict,
            pytest.raises(Unreadable, match="certificate that cannot be verified: self"),
        ):
            strict.get(good, None, into)
        assert len(web.asked) == 1


def test_what_was_verified_does_not_go_on_unverified(tmp_path: Path, web: Web) -> None:
    server, trusting = certificate(tmp_path, "127.0.0.1")
    with Web(tls=server) as secure, Client(LOCAL, tls=trusting) as client:
        secure.routes["/down"] = redirect(web.url("/x.pdf"))
        web.routes["/up"] = redirect(secure.url("/x.pdf"))
        secure.routes["/x.pdf"] = answer()
        with pytest.raises(Unreadable, match="redirects from https to http"):
            client.get(Found(secure.url("/down"), "minutes", "M", "2026-01-31"), None, tmp_path)
        assert web.connections == 0
        assert client.get(Found(web.url("/up"), "minutes", "M", "2026-01-31"), None, tmp_path).sha256 == SHA


def test_a_stalled_handshake_ends(tmp_path: Path, web: Web) -> None:
    """A server that speaks no TLS at all on the other end."""
    url = web.url("/x.pdf").replace("http:", "https:")
    with Client(LOCAL) as client, pytest.raises(Transient):
        client.get(Found(url, "minutes", "M", "2026-01-31"), None, tmp_path)


# ---- the end


def test_closing_ends_what_waits(web: Web, tmp_path: Path) -> None:
    arrived = threading.Event()

    def stall(page: Handler) -> None:
        arrived.set()
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 600\r\n\r\n%PDF-", wait=web.released)(page)

    web.routes["/x.pdf"] = stall
    client = Client(LOCAL)  # which would listen for half a minute
    caught: list[BaseException] = []

    def waiting() -> None:
        try:
            client.get(Found(web.url("/x.pdf"), "minutes", "M", "2026-01-31"), None, tmp_path)
        except Exception as error:
            caught.append(error)

    thread = threading.Thread(target=waiting)
    thread.start()
    assert arrived.wait(20)
    client.close()
    thread.join(20)
    assert not thread.is_alive()
    assert isinstance(caught[0], Transient)
    with pytest.raises(Stopped):
        client.page(web.url("/"))
    assert list(tmp_path.iterdir()) == []


def test_secrets_are_in_no_error(web: Web, client: Client, tmp_path: Path) -> None:
    web.routes["/moved"] = redirect("/x.pdf?token=CANARY&again=1")
    for url in (
        web.url("/x.pdf?token=CANARY"),
        web.url("/moved?api_key=CANARY"),
        f"http://user:CANARY@127.0.0.1:{web.port}/",
        "http://127.0.0.1:1/?token=CANARY",
        "file://user:CANARY@host/?token=CANARY",
    ):
        with pytest.raises((Transient, Unreadable)) as caught:
            client.get(Found(url, "minutes", "M", "2026-01-31"), None, tmp_path)
        assert "CANARY" not in str(caught.value), caught.value


def test_a_disk_that_cannot_be_written_is_not_the_documents_fault(
    web: Web, get: Get, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/dev/full is a real device that has no room."""
    web.routes["/x.pdf"] = answer()
    full = tmp_path / "document"
    monkeypatch.setattr("tempfile.mkstemp", lambda **_: (os.open("/dev/full", os.O_WRONLY), str(full)))
    with pytest.raises(Critical, match="No space left"):
        get()


def test_nothing_heavy_is_imported_before_the_first_request() -> None:
    code = (
        "import sys; from clerk.config import Config; from clerk.fetchers import registry, http, downloading;"
        "[registry.fetcher_class(label) for label in registry.BUILT_IN]; http.Client(Config()).close();"
        "print(sorted({'httpcore', 'httpx', 'h11', 'feedparser', 'selectolax', 'anyio'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
