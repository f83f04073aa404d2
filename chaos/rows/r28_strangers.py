"""Strangers, and hostile text: every route denies who may not, and what others wrote is only text in a real browser."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright
from playwright.sync_api import Page as Tab

from chaos import strangers
from chaos.play import Impossible, Play, Violation
from gristmill import Mill
from tests import chromium
from tests.api.server import serving
from tests.web import town
from tests.web.filling import HOSTILE, fill

TITLE = "strangers, and hostile text in a browser"
DATABASES = ("SQLite", "PostgreSQL")
APP = Path(town.__file__)
_RUN = "window.hacked = 1"
TEXTS = (
    HOSTILE,
    "../../../../etc/passwd",
    f"../../<script>{_RUN}</script>/..",
    f'"><svg onload="{_RUN}">',
    f"' autofocus onfocus='{_RUN}' x='",
    f"javascript:{_RUN}",
    f"</title></textarea></pre><script>{_RUN}</script>",
    f'<iframe srcdoc="<script>parent.{_RUN}</script>"></iframe>',
    f'<a href="javascript:{_RUN}">look</a>',
    f'<details open ontoggle="{_RUN}">',
    f'<div hx-get="/settings" hx-trigger="load" hx-on:load="{_RUN}">x</div>',
    "{{ 7 * 191 }} ${7 * 191} {% include '/etc/passwd' %}",
    "..\\..\\windows\\win.ini",
    "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "//evil.example/x?q=%22%3E&token=#x",
    "<style>@import 'http://evil.example/x';</style><base href='http://evil.example/'>",
)
_BEGIN = ("/", "/subjects", "/runs", "/jobs", "/jobs?q=state:failed", "/errors", "/queues", "/audit", "/settings", "/limits")
# What text must never become. Ours are outside of `main`, or are forms and links of the templates.
_MADE = "main :is(script, img, iframe, style, b, base, object, embed, [onload], [onerror], [onfocus], [ontoggle])"
_ODD = """() => [...document.querySelectorAll('a[href], form[action]')]
    .map((one) => new URL(one.getAttribute('href') ?? one.getAttribute('action'), document.baseURI))
    .filter((to) => to.origin !== location.origin).map(String)"""
_LINKS = """() => [...document.querySelectorAll('main a[href]')]
    .map((one) => String(new URL(one.getAttribute('href'), document.baseURI)))"""


def play(play: Play) -> str:
    path = chromium.find()
    if path is None:
        raise Impossible(chromium.HOW.partition(" Or leave")[0])
    play.apps = ("tests.web.town",)
    texts = TEXTS[: play.pick(6, len(TEXTS))]
    _fill(play.mill, texts)
    secret = play.folder / "secret.txt"
    secret.write_text(f"canary-{play.seed}-{play.dice.randrange(10**12)}")
    with serving(play.url, app=APP, fresh=True) as server:
        denied = strangers.ask_open(server.address, play.mill)
        with _browser(path) as browser:
            _other_site(play, browser, server.address)
            seen = _look(play, browser, server.address, texts)
    tokens = {role: play.mill.create_token(f"r28-{role}", role).text for role in strangers.ROLES}
    with serving(play.url, app=APP, fresh=True) as server:
        denied += strangers.ask_guarded(server.address, play.mill, tokens)
        climbed = strangers.climb(server.address, tokens["admin"], secret)
        if shown := [line for line in server.log if "Traceback" in line or "bug" in line]:
            raise Violation(f"the server showed a traceback: {shown[:1]}")
    answers = ", ".join(f"{number} x {status}" for status, number in sorted(denied.items()))
    return (
        f"{sum(denied.values())} requests of strangers to every route and page ({answers}): all denied, nothing changed;"
        f" a page of another site in Chromium could do nothing; {seen} pages with {len(texts)} hostile texts in it:"
        f" 0 scripts ran, 0 requests left; {climbed} ways up from what is served: 0 paths escaped"
    )


def _fill(mill: Mill, texts: tuple[str, ...]) -> None:
    """Something of everything, and each text wherever others can write one."""
    fill(mill)
    for text in texts:
        mill.start(town.minutes, text, args={"pages": 8})
        mill.set_subject(town.minutes, text, labels={"from": text[:200]}, by=text)
        mill.enqueue(town.fail, args={"text": text})
        mill.enqueue(town.fetch, args={"host": text})
        late = mill.enqueue(town.notify, args={"to": text}, unique=text, delay=3600)
        mill.cancel_job(late.id, reason=text, by=text)
    mill.resume("mail", by=texts[0])
    mill.work(until="idle", slots=2)
    mill.cancel_jobs(task="fetch", state="queued")  # those would be tried again while somebody looks
    mill.pause("mail", by=texts[0])


@contextlib.contextmanager
def _browser(path: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=chromium.OPTIONS)
        yield browser
        browser.close()


# ---- hostile text


def _look(play: Play, browser: Browser, address: str, texts: tuple[str, ...]) -> int:
    """Every kind of page, and on from link to link, by the dice; says how many pages were looked at."""
    tab, left = _tab(browser, address)
    seen, known = set[str](), [address + path for path in _BEGIN]
    known += [f"{address}/jobs?q={text.replace('&', '').replace('#', '')}" for text in texts]
    known += [f"{address}/subjects/{subject.id}" for subject in play.mill.subjects(limit=200) if subject.name in texts]
    for place in range(play.pick(45, 500)):
        waiting = [url for url in known if url not in seen]
        if not waiting:
            break
        url = waiting[0] if place % 3 else play.dice.choice(waiting)
        seen.add(url)
        known += _looked(tab, url)
    if left:
        raise Violation(f"pages asked others: {left[:3]}")
    return len(seen)


def _tab(browser: Browser, address: str) -> tuple[Tab, list[str]]:
    """A tab, and what it asked of anybody else."""
    tab, left = browser.new_context().new_page(), list[str]()
    tab.set_default_timeout(60_000)
    tab.on("request", lambda request: None if request.url.startswith(address) else left.append(request.url))
    tab.on("dialog", lambda dialog: left.append(f"dialog: {dialog.message}"))
    return tab, left


def _looked(tab: Tab, url: str) -> list[str]:
    answer = tab.goto(url)
    if answer is None or answer.status != 200:
        raise Violation(f"{url} was answered with {answer and answer.status}")
    for opened in tab.locator("main details.peeker > summary").all()[:1]:
        opened.click()  # what is fetched later is text too
        tab.locator("main details.peeker .peek .attempt").first.wait_for()
    if tab.evaluate("window.hacked") is not None:
        raise Violation(f"a script ran on {url}")
    if made := tab.locator(_MADE).count():
        raise Violation(
            f"{made} elements on {url} were made of text: {tab.locator(_MADE).first.evaluate('e => e.outerHTML')}"
        )
    if "1337" in tab.locator("main").inner_text():
        raise Violation(f"a template was made of text on {url}")
    if odd := tab.evaluate(_ODD):
        raise Violation(f"{url} leads elsewhere: {odd[:3]}")
    found: list[str] = tab.evaluate(_LINKS)
    return found


# ---- a page of another site

_TRAP = """<!doctype html><title>a nice page</title><body><script>
const to = {address!r};
const made = (kind, given) => document.body.appendChild(Object.assign(document.createElement(kind), given));
window.read = [];
const reads = (answer) => answer.text().then((text) => {{ if (text) window.read.push(text); }});
for (const path of {paths}) {{
  const frame = made("iframe", {{ name: "f" + path }});
  const form = made("form", {{ method: "post", action: to + path, target: frame.name }});
  form.innerHTML = '<input name="token" value=""><input name="confirm" value="1">';
  form.submit();
  for (const mode of ["cors", "no-cors"]) for (const method of ["GET", "POST"]) {{
    const headers = {{ "Content-Type": "text/plain" }}, body = method === "POST" ? "{{}}" : undefined;
    fetch(to + path, {{ method, mode, headers, body, credentials: "include" }}).then(reads).catch(() => 0);
  }}
}}
</script>"""


def _other_site(play: Play, browser: Browser, address: str) -> None:
    """It posts forms and fetches, to a server that its visitor may use for everything."""
    paths = [strangers.filled(page) for page in strangers.PAGES if page.method == "POST" and page.role]
    paths += ["/api/queues/mail/pause", "/api/jobs", "/api/runs"]
    trap = play.folder / "trap"
    trap.mkdir()
    (trap / "index.html").write_text(_TRAP.format(address=address, paths=paths))
    before = _state(play.mill)
    with _serving_files(trap) as port:
        tab, answered = browser.new_context().new_page(), list[int]()
        tab.on("response", lambda one: answered.append(one.status) if one.url.startswith(address) else None)
        tab.goto(f"http://localhost:{port}/index.html")
        tab.wait_for_load_state("networkidle")
        read = tab.evaluate("window.read")
        tab.context.close()
    if len(answered) < len(paths):
        raise Violation(f"the page of another site was answered only {len(answered)} times: it did not try all")
    if read or _state(play.mill) != before:
        raise Violation(f"a page of another site read {read[:1]} or changed something")


def _state(mill: Mill) -> list[Any]:
    queues = [(queue.name, queue.paused, queue.ready) for queue in mill.queues()]
    return [queues, mill.audit(limit=5), mill.jobs(limit=5), mill.runs(limit=5)]


@contextlib.contextmanager
def _serving_files(folder: Path) -> Iterator[int]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()
