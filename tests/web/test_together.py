"""Several at once: what one has set another's form leaves alone, and nothing is done that nobody chose."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from gristmill import Context, Mill, Pipeline
from gristmill.api import app
from gristmill.errors import Unavailable
from gristmill.model import Queue
from gristmill.web.site import Recent
from gristmill.web.view import ANYBODY
from tests.web import town
from tests.web.filling import mill_of
from tests.web.test_guarding import here
from tests.web.test_stuck import get_stuck

_FIELD = re.compile(r'<input[^>]* name="([^"]+)" value="([^"]*)"')
_LABELS = re.compile(r'<textarea name="labels"[^>]*>([^<]*)</textarea>')


@pytest.fixture
def mill(sqlite_url: str) -> Iterator[Mill]:
    with mill_of(sqlite_url) as mill:
        yield mill


@pytest.fixture
def client(mill: Mill) -> Iterator[httpx.Client]:
    with here(app(mill, open=True, pages=True)) as client:
        client.get("/settings")
        yield client


def token(client: httpx.Client) -> dict[str, str]:
    return {"token": client.cookies["gristmill_form"]}


def form(client: httpx.Client, path: str) -> dict[str, Any]:
    """What the form that ends in /set would send, as it is shown."""
    text = client.get(path).text.split(f'action="{path}/set"')[1].split("</form>")[0]
    fields: dict[str, Any] = {}
    for name, value in _FIELD.findall(text):
        fields.setdefault(name, []).append(unescape(value))
    if labels := _LABELS.search(text):
        fields["labels"] = unescape(labels[1])
    return fields


# ---- setting


def test_labels_that_another_has_set_since_stay(mill: Mill, client: httpx.Client) -> None:
    number = mill.set_subject(town.minutes, "Oakfield", interval=60, labels={"tier": "gold", "old": "1", "same": "a b"}).id
    shown = form(client, f"/subjects/{number}")
    mill.set_subject(town.minutes, "Oakfield", interval=120, labels={"z": "new", "same": "other"})
    written = shown["labels"].replace("tier=gold", "tier=silver").replace("old=1", "")
    assert client.post(f"/subjects/{number}/set", data={**shown, "labels": written}).status_code == 303
    found = mill.subject("minutes", "Oakfield")
    assert (found.interval, found.labels) == (120, {"same": "other", "tier": "silver", "z": "new"})
    assert client.post(f"/subjects/{number}/set", data={**shown, "interval": "2h"}).status_code == 303
    found = mill.subject("minutes", "Oakfield")
    assert (found.interval, found.labels) == (7200, {"same": "other", "tier": "silver", "z": "new"})
    cleared = {**form(client, f"/subjects/{number}"), "interval": "", "labels": ""}
    client.post(f"/subjects/{number}/set", data=cleared)
    found = mill.subject("minutes", "Oakfield")
    assert (found.interval, found.labels) == (None, {})


def test_numbers_of_a_queue_that_another_has_set_since_stay(mill: Mill, client: httpx.Client) -> None:
    mill.set_queue("mail", limits={"at_once": 3}, create=True)
    shown = form(client, "/queues/mail")
    mill.set_queue("mail", limits={"at_once": 7, "per_second": 2.5})
    client.post("/queues/mail/set", data={**shown, "weight": "4"})
    found = next(queue for queue in mill.queues() if queue.name == "mail")
    assert (found.weight, found.at_once, found.per_second) == (4, 7, 2.5)
    client.post("/queues/mail/set", data={**form(client, "/queues/mail"), "at_once": ""})
    found = next(queue for queue in mill.queues() if queue.name == "mail")
    assert (found.weight, found.at_once, found.per_second) == (4, None, 2.5)
    before = mill.audit(limit=1)
    client.post("/queues/mail/set", data=form(client, "/queues/mail"))
    assert mill.audit(limit=1) == before


def test_numbers_of_a_limit_that_another_has_set_since_stay(mill: Mill, client: httpx.Client) -> None:
    mill.enqueue(town.fetch, args={"host": "a.org"})
    sent = {**token(client), "name": "host", "key": "", "at_once": "2", "was_at_once": "2"}
    mill.set_limit("host", numbers={"at_once": 9})
    client.post("/limits/set", data={**sent, "per_second": "5", "was_per_second": ""})
    found = mill.limits("host", "")[0]
    assert (found.at_once, found.per_second) == (9, 5)


def test_a_database_that_is_away_is_no_mistake_in_a_form(
    mill: Mill, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*given: object, **named: object) -> None:
        raise Unavailable("the database is away")

    number = mill.set_subject(town.minutes, "Oakfield").id
    monkeypatch.setattr(mill, "set_subject", away)
    answer = client.post(f"/subjects/{number}/set", data={**token(client), "interval": "2h"})
    assert (answer.status_code, "the database is away" in answer.text) == (503, True)


# ---- choosing


@pytest.mark.parametrize("path", ["/jobs/many", "/runs/many"])
def test_nothing_marked_and_nothing_ticked_is_nothing_chosen(mill: Mill, client: httpx.Client, path: str) -> None:
    mill.start(town.minutes, "Oakfield", args={"pages": 1})
    for sent in ({}, {"confirm": "1"}, {"all": ""}, {"all": "", "confirm": "1"}):
        answer = client.post(path, data={**token(client), "q": "state:queued", "action": "cancel", **sent})
        assert (answer.status_code, "tick “all that match”" in answer.text) == (409, True)
    assert mill.run(1).state == "queued"
    ticked = {**token(client), "q": "state:queued", "action": "cancel", "all": "1"}
    assert "1 " in client.post(path, data=ticked).text.split('class="effect"')[1].split("</p>")[0]
    assert client.post(path, data={**ticked, "confirm": "1"}).status_code == 303
    assert mill.run(1).terminal


def test_all_that_are_stuck_are_more_than_a_page(mill: Mill, client: httpx.Client) -> None:
    ids = [get_stuck(mill, f"town-{n:02}") for n in range(53)]
    first = client.get("/runs", params={"q": "is:stuck"}).text
    assert (first.count('<tr id="run-'), "Next page" in first) == (50, True)
    second = client.get("/runs", params={"q": "is:stuck", "after": str(ids[3])}).text
    assert re.findall(r'<tr id="run-(\d+)"', second) == [str(number) for number in reversed(ids[:3])]
    ticked = {**token(client), "q": "is:stuck", "action": "cancel", "all": "1"}
    assert "53 runs stopped" in client.post("/runs/many", data=ticked).text


# ---- finding


def test_subjects_are_found_by_name_and_by_everything_else(sqlite_url: str, client: httpx.Client, mill: Mill) -> None:
    other = Pipeline("elsewhere")

    @other.stage
    def only(ctx: Context) -> None: ...

    with Mill.open(sqlite_url, other) as foreign:
        foreign.set_subject(other, "Oakfield", labels={"tier": "gold"})
    mill.set_subject(town.minutes, "Oakfield", labels={"tier": "silver"})

    def found(q: str) -> list[str]:
        return re.findall(r'<tr id="subject-(\d+)"', client.get("/subjects", params={"q": q}).text)

    assert found("Oakfield") == ["1", "2"]
    assert found("Oakfield label:tier=gold") == ["1"]
    assert found("name:Oakfield pipeline:minutes") == ["2"]
    assert found("Oakfield label:nothing") == []
    assert found("Oakfield state:failed") == []


# ---- what was seen a moment ago


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the time is, for what is kept."""
    now = [1000.0]
    monkeypatch.setattr("gristmill.web.site.time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_what_is_being_looked_at_while_somebody_acts_is_not_kept() -> None:
    recent = Recent()

    def look() -> str:
        recent.forget()
        return "before"

    assert recent.get("it", 60, look) == "before"
    assert recent.get("it", 60, lambda: "after") == "after"
    assert recent.get("it", 60, lambda: "later") == "after"


def test_what_takes_long_to_read_is_kept_longer(clock: list[float]) -> None:
    recent = Recent()

    def look(took: float) -> float:
        clock[0] += took
        return clock[0]

    for took, kept in ((0.01, 0.8), (0.05, 1.5), (3.0, 5.0)):
        recent.forget()
        began = clock[0]
        seen = recent.get("it", 0.8, lambda took=took: look(took), 5.0)  # type: ignore[misc]
        clock[0] = began + kept - 0.01
        assert recent.get("it", 0.8, lambda: 0.0, 5.0) == seen
        clock[0] += 0.02
        assert recent.get("it", 0.8, lambda: 0.0, 5.0) == 0


def test_of_those_who_waited_for_a_long_look_one_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it found is too old then; but they do not look each in turn."""
    recent, go, asked, now = Recent(), threading.Event(), threading.Semaphore(0), itertools.count()

    def monotonic() -> float:
        asked.release()
        return next(now) + 60 * go.is_set()

    monkeypatch.setattr("gristmill.web.site.time", SimpleNamespace(monotonic=monotonic))
    looks = itertools.count()

    def look() -> int:
        go.wait()
        return next(looks)

    with ThreadPoolExecutor(5) as people:
        found = [people.submit(recent.get, "it", 30, look) for _ in range(5)]
        for _ in range(6):  # all have asked, and one has begun
            asked.acquire()
        go.set()
        assert sorted(one.result() for one in found) == [0, 1, 1, 1, 1]


def test_of_what_was_kept_once_not_much_is_left(clock: list[float]) -> None:
    recent = Recent()
    for n in range(3 * Recent._MOST):
        assert recent.get(f"search {n}", 0.8, lambda n=n: n) == n  # type: ignore[misc]
        clock[0] += 0.1
    for n in range(2 * Recent._MOST):
        with pytest.raises(ZeroDivisionError):
            recent.get(f"nothing {n}", 0.8, lambda: 1 // 0)
    assert len(recent._known) <= len(recent._turns) <= Recent._MOST + 1
    assert recent.get(f"search {3 * Recent._MOST - 1}", 0.8, lambda: -1) == 3 * Recent._MOST - 1


LOOK = {"HX-Request": "true"}


@pytest.fixture
def looks(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One for each time that the queues were read."""
    seen, queues = list[str](), mill.queues

    def look() -> list[Queue]:
        seen.append("queues")
        return queues()

    monkeypatch.setattr(mill, "queues", look)
    return seen


def test_many_who_watch_a_page_cost_one_look(mill: Mill, client: httpx.Client, clock: list[float], looks: list[str]) -> None:
    mill.set_queue("mail", create=True)
    with ThreadPoolExecutor(8) as people:
        pages = [*people.map(lambda _: client.get("/queues", headers=LOOK).text, range(24))]
    assert (len({*pages}), looks) == (1, ["queues"])
    mill.pause("mail")
    assert client.get("/queues", headers=LOOK).text == pages[0]
    clock[0] += 1.11
    assert "paused" in client.get("/queues", headers=LOOK).text
    assert looks == ["queues"] * 2
    client.get("/queues")  # who comes to a page sees it as it is
    assert looks == ["queues"] * 3


def test_who_acts_sees_it_at_once_and_so_do_the_others(mill: Mill, client: httpx.Client, clock: list[float]) -> None:
    mill.set_queue("mail", create=True)
    assert "paused" not in client.get("/queues", headers=LOOK).text
    assert client.post("/queues/mail/pause", data=token(client)).status_code == 303
    assert "paused" in client.get("/queues", headers=LOOK).text


def test_everybody_has_their_own_token_in_what_they_share(mill: Mill, client: httpx.Client, clock: list[float]) -> None:
    mill.set_queue("mail", create=True)
    with httpx.Client(base_url=client.base_url) as other:
        other.get("/settings")
        mine, theirs = (one.get("/queues", headers=LOOK).text for one in (client, other))
        assert token(client) != token(other)
        assert token(client)["token"] in mine
        assert mine.replace(token(client)["token"], token(other)["token"]) == theirs
        assert ANYBODY not in mine + theirs
        assert other.post("/queues/mail/pause", data=token(other)).status_code == 303


def test_each_role_sees_its_own_page_and_each_search_its_own(mill: Mill, client: httpx.Client, clock: list[float]) -> None:
    mill.set_queue("mail", create=True)
    mill.enqueue(town.notify, args={"to": "anna"})
    texts = {role: mill.create_token(role, role).text for role in ("admin", "viewer")}
    for role, text in texts.items():
        page = client.get("/queues", headers={**LOOK, "Authorization": f"Bearer {text}"})
        assert (page.status_code, role, "Pause" in page.text) == (200, role, role == "admin")
    assert client.get("/queues", headers={**LOOK, "Authorization": "Bearer nobody"}).status_code == 401
    admin = {**LOOK, "Authorization": f"Bearer {texts['admin']}"}
    for q, shown in (("state:queued", True), ("state:failed", False), ("state:queued", True)):
        assert ('id="job-1"' in client.get("/jobs", params={"q": q}, headers=admin).text) is shown


def test_what_cannot_be_found_is_kept_for_nobody(mill: Mill, client: httpx.Client, clock: list[float]) -> None:
    assert client.get("/runs/1", headers=LOOK).status_code == 404
    mill.start(town.minutes, "Oakfield", args={"pages": 1})
    assert client.get("/runs/1", headers=LOOK).status_code == 200


def test_the_overview_tells_of_what_is_stuck_and_of_errors_at_once(
    mill: Mill, client: httpx.Client, clock: list[float]
) -> None:
    mill.start(town.minutes, "Riverton", args={"pages": 1})
    assert "stuck" not in client.get("/").text
    get_stuck(mill, "Oakfield")
    mill.enqueue(town.fail, args={"text": "mailbox is full"})
    for _ in range(3):
        mill.enqueue(town.fetch, args={"host": "example.org"})
    mill.work(until="idle", slots=1, queues=["mail", "web"])
    clock[0] += 0.9
    text = client.get("/").text
    assert "Oakfield is stuck" in text
    assert "mailbox is full" in text
    assert "example.org" in text
