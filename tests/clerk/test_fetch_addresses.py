"""No connection is made to an address that is not public: however it is written, and whatever its name says later."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clerk.config import Config
from clerk.errors import ClerkError, Transient, Unreadable
from clerk.fetchers import addresses, urls
from clerk.fetchers.http import Client, Timeouts
from clerk.fetchers.http_index import HttpIndex
from clerk.parts import Found, Wanted
from tests.clerk.web import Canary, Web, answer, canary, redirect

FAST = Config(fetch_rate=1e9)
SOON = Timeouts(connect=2, read=2, page=5, document=5)

# Every way to write an address of this machine, or of the networks around it, that some program somewhere understands.
LOCAL = Path(__file__).with_name("inner_addresses.txt").read_text(encoding="utf-8").split()
WIDE = "\uff11\uff12\uff17.\uff10.\uff10.\uff11"  # 127.0.0.1, for East Asian typography
NAMES = {"localhost": ["127.0.0.1", "::1"], "inside.test": ["127.0.0.1"], "both.test": ["10.0.0.1", "::1", "127.0.0.1"]}


def without_dns(host: str, port: int) -> list[str]:
    """What the system makes of a number in any spelling; names from a table, so that nothing leaves this machine."""
    if host.lower() in NAMES:
        return NAMES[host.lower()]
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    return [str(address[0]) for *_, address in found]


@pytest.fixture
def trap() -> Iterator[Canary]:
    with canary() as made:
        yield made


def with_port(host: str, port: int) -> str:
    for end in ("#", "?", "\\"):
        before, sign, after = host.partition(end)
        if sign and "\\@" not in host and "\\." not in host:
            return f"{before}:{port}/{sign}{after}"
    return f"{host}:{port}"


def test_there_are_enough_spellings() -> None:
    assert len(set(LOCAL)) >= 100


def test_the_canary_sings(trap: Canary) -> None:
    """The same spellings do reach this machine when that is allowed: so the test below could fail."""
    with Client(Config(allow_private=True, fetch_rate=1e9), SOON, resolve=without_dns) as client:
        for host in (
            "127.0.0.1",
            "2130706433",
            "0x7f.1",
            "0177.0.0.1",
            "localhost.",
            "0.0.0.0",
            "inside.test",
            WIDE,
        ):
            before = trap.seen
            with pytest.raises(Transient, match="could not be fetched whole"):
                client.page(f"http://{host}:{trap.port}/")
            assert trap.seen > before, host


def test_no_spelling_of_an_inner_address_is_connected_to(trap: Canary, tmp_path: Path) -> None:
    """Given by the operator, listed in an index, or as where a redirect leads, with both schemes: 600 cases and more."""
    cases = 0
    with (
        Web("127.0.0.77") as front,
        Client(
            FAST, SOON, resolve=without_dns, permitted=lambda one: one == "127.0.0.77" or addresses.permitted(one)
        ) as client,
    ):
        for host in LOCAL:
            for scheme in ("http", "HTTPS"):
                url = f"{scheme}://{with_port(host, trap.port)}/x-2026-01-31.pdf"
                front.routes["/a.pdf"] = redirect(url)
                front.routes["/b.pdf"] = redirect(front.url("/a.pdf"), 307)
                for asked in (url, front.url("/a.pdf"), front.url("/b.pdf")):
                    with pytest.raises(ClerkError):
                        client.get(Found(asked, "minutes", "M", "2026-01-31"), None, tmp_path)
                    cases += 1
                front.routes["/index"] = answer(f'<a href="{url}">x</a>'.encode(), Content_Type="text/html")
                index = HttpIndex({"url": front.url("/index"), "link_pattern": r"\.pdf"}, client)
                for found in index.find(Wanted("a", {}, 2000)):
                    with pytest.raises(ClerkError):
                        client.get(found, None, tmp_path)
                cases += 1
    assert cases >= 600
    assert trap.seen == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://example.com/x",
        "gopher://127.0.0.1/",
        "data:text/plain,x",
        "//example.com/x",
        "example.com/x",
        "javascript:alert(1)",
        "http:///x",
        "http://",
        "http://[::1",
        "http://a:0/",
        "http://a:99999/",
        "http://a b/",
        "",
        "http://a\r\nHost: b/",
        "dict://a/",
        "unix:/run/docker.sock",
        "http://" + "a" * 5000,
    ],
)
def test_only_whole_web_addresses_are_fetched(url: str, tmp_path: Path) -> None:
    with Client(FAST, SOON) as client, pytest.raises(Unreadable, match="cannot be fetched"):
        client.get(Found(url, "minutes", "M", "2026-01-31"), None, tmp_path)


def test_a_name_that_changes_its_answer_gains_nothing(tmp_path: Path) -> None:
    """The address that was checked is the one that is connected to: there is no second lookup in between."""
    lookups: list[str] = []

    def rebinding(host: str, port: int) -> list[str]:
        lookups.append(host)
        return ["127.0.0.1"] if len(lookups) == 1 else ["127.0.0.2"]

    with Web("127.0.0.1") as outside:
        outside.routes["/x.pdf"] = answer()
        with (
            Web("127.0.0.2") as inside,
            Client(FAST, SOON, resolve=rebinding, permitted=lambda one: one == "127.0.0.1") as client,
        ):
            found = Found(f"http://rebind.test:{outside.port}/x.pdf", "minutes", "M", "2026-01-31")
            fetched = client.get(found, None, tmp_path)
            assert (fetched.path is not None, lookups) == (True, ["rebind.test"])
            assert outside.headers[0]["host"] == f"rebind.test:{outside.port}"
            again = Found(f"http://rebind.test:{inside.port}/x.pdf", "minutes", "M", "2026-01-31")
            with pytest.raises(Unreadable, match=r"rebind\.test is not on the public internet"):
                client.get(again, None, tmp_path)
            assert inside.connections == 0


def test_who_is_refused_is_told_which_document_it_is_and_what_would_help(tmp_path: Path) -> None:
    with Web("127.0.0.1") as web, Client(replace(FAST, allow_private=True), SOON) as client:
        web.routes["/x.pdf"] = redirect("http://169.254.169.254/latest/meta-data/")
        with pytest.raises(Unreadable) as refused:
            client.get(Found(web.url("/x.pdf"), "minutes", "M", "2026-01-31"), None, tmp_path)
    said = f"{web.url('/x.pdf')}: 169.254.169.254 is not on the public internet; nothing is fetched from such an address"
    assert str(refused.value) == said
    with Client(FAST, SOON) as client, pytest.raises(Unreadable, match=r"^http://10\.1\.2\.3/: .*FETCH_ALLOW_PRIVATE=1"):
        client.page("http://10.1.2.3/")


def test_of_a_name_with_both_kinds_of_addresses_only_the_public_one_is_connected_to(tmp_path: Path) -> None:
    with Web("127.0.0.1") as outside:
        outside.routes["/x.pdf"] = answer()
        with Client(
            FAST, SOON, resolve=lambda *_: ["10.0.0.1", "::1", "127.0.0.1"], permitted=lambda one: one == "127.0.0.1"
        ) as client:
            assert client.get(Found(outside.url("/x.pdf", "both.test"), "minutes", "M", "2026-01-31"), None, tmp_path).path


@pytest.mark.parametrize(
    "public", ["8.8.8.8", "93.184.216.34", "1.1.1.1", "2606:4700::1111", "2a00:1450:4001::200e", "64:ff9b::8.8.8.8"]
)
def test_public_addresses_are_permitted(public: str) -> None:
    assert addresses.permitted(public)


@pytest.mark.parametrize("own", ["127.0.0.1", "::1", "10.2.3.4", "192.168.1.1", "fd12::1", "100.64.3.4", "::ffff:10.0.0.1"])
def test_ones_own_networks_can_be_allowed(own: str) -> None:
    assert not addresses.permitted(own)
    assert addresses.permitted(own, allow_private=True)


@pytest.mark.parametrize(
    "never",
    [
        "169.254.169.254",
        "::ffff:169.254.169.254",
        "::a9fe:a9fe",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
        "fe80::1",
        "224.0.0.1",
        "ff02::1",
        "fd00:ec2::254",
        "168.63.129.16",
        "255.255.255.255",
        "fe80::1%lo",
        "localhost",
        "",
        "0x7f.1",
        "1.2.3",
    ],
)
def test_what_hands_out_credentials_is_never_permitted(never: str) -> None:
    assert not addresses.permitted(never, allow_private=True)


@given(st.ip_addresses())
def test_nothing_is_permitted_that_python_knows_to_be_inner(number: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    if addresses.permitted(str(number)) and number not in ipaddress.ip_network("64:ff9b::/96"):
        assert number.is_global
        kinds = [number.is_private, number.is_loopback, number.is_link_local, number.is_multicast, number.is_reserved]
        assert not any(kinds)


@given(st.text(max_size=60), st.sampled_from(["http://", "https://a", "//", "", "http://a@", "http://[", "/"]))
def test_links_of_any_text_lead_to_a_web_address_or_nowhere(text: str, start: str) -> None:
    url = urls.absolute("https://city.test/minutes/", start + text)
    if url is not None:
        assert urls.parse(url).url == url
        assert url.isascii()
        assert "@" not in urls.parse(url).authority


@pytest.mark.parametrize(
    ("href", "url"),
    [
        ("a b.pdf", "https://c.test/m/a%20b.pdf"),
        ("\n /x/\ty.pdf ", "https://c.test/x/y.pdf"),
        ("..\\docs\\é.pdf", "https://c.test/docs/%C3%A9.pdf"),
        ("//Other.TEST:443/x#page=2", "https://other.test/x"),
        ("?id=1&name=a b", "https://c.test/m/?id=1&name=a%20b"),
        ("http://bücher.test/", "http://xn--bcher-kva.test/"),
        ("a%20b%2F.pdf", "https://c.test/m/a%20b%2F.pdf"),
        ("mailto:a@b.c", None),
        ("javascript:void(0)", None),
        ("#top", "https://c.test/m/"),
        ("", None),
    ],
)
def test_links_are_read_as_browsers_read_them(href: str, url: str | None) -> None:
    assert urls.absolute("https://c.test/m/", href) == url


@pytest.mark.parametrize(
    "text",
    [
        "https://user:SECRET@host/x",
        "https://user:SEC/RET@host/x",
        "https://a:b@SECRET@host/x",
        "https://host/x?token=SECRET&a=1",
        "https://host/x?a=1&api_key=SECRET#f",
        "https://host/x?X-Amz-Signature=SECRET",
        "could not reach https://host/?Password=SECRET in time",
    ],
)
def test_secrets_are_not_shown(text: str) -> None:
    assert "RET" not in urls.shown(text)
    assert "host" in urls.shown(text)
