"""Spans from asking for work to its end, as a collector gets them: of real processes, some of which are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gristmill.ledger.store import Ledger
from tests.cli.conftest import Cli, clean_environment
from tests.worker.helpers import eventually

pytestmark = pytest.mark.alike

APP = Path(__file__).with_name("traced.py")
TRACEPARENT = "TRACEPARENT"


@dataclass
class Span:
    name: str
    trace: str
    number: str
    parent: str
    kind: int
    failed: bool
    start: int
    end: int
    about: dict[str, Any]

    @property
    def attempt(self) -> tuple[int, str]:
        return self.about["gristmill.attempt"], self.about["gristmill.outcome"]


@dataclass
class Collector:
    """Keeps what is sent to it, as OTLP over HTTP."""

    url: str
    spans: list[Span] = field(default_factory=list)

    def hear(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += map(_span, scope.spans)

    def named(self, name: str, count: int = 1) -> list[Span]:
        """Spans of this name, in the order of their starts: so many, and no more."""
        found = eventually(lambda: [s for s in self.spans if s.name == name][: count + 1] or None, f"a span {name}")
        if len(found) < count:
            found = eventually(lambda: (some := [s for s in self.spans if s.name == name])[count - 1 :] and some, name)
        assert len(found) == count
        return sorted(found, key=lambda span: span.start)

    def one(self, name: str) -> Span:
        return self.named(name)[0]


def _span(span: Any) -> Span:
    about = {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}
    numbers = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
    times = (span.start_time_unix_nano, span.end_time_unix_nano)
    return Span(span.name, *numbers, span.kind, span.status.code == 2, *times, about)


@pytest.fixture
def collector() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.hear(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    heard = Collector(f"http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield heard
    server.shutdown()
    server.server_close()


@pytest.fixture
def cli(on_either: Cli) -> Cli:
    return on_either


@pytest.fixture
def on(collector: Collector) -> dict[str, str]:
    return {"GRISTMILL_TRACES": "1", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "GRISTMILL_APP": str(APP)}


def test_a_job_is_a_part_of_the_trace_of_who_asked(cli: Cli, collector: Collector, on: dict[str, str]) -> None:
    assert cli.run("enqueue", "hello", **on).code == 0
    assert cli.run("work", "--drain", **on).code == 0
    asked, ran, inner = collector.one("enqueue hello"), collector.one("run hello"), collector.one("inner")
    assert asked.trace == ran.trace == inner.trace
    assert (asked.parent, ran.parent, inner.parent) == ("", asked.number, ran.number)
    assert (asked.kind, ran.kind) == (4, 5)  # producer, consumer
    assert asked.about == {"gristmill.task": "hello", "gristmill.job": 1}
    assert ran.about == {
        "gristmill.task": "hello",
        "gristmill.queue": "default",
        "gristmill.job": 1,
        "gristmill.attempt": 1,
        "gristmill.outcome": "completed",
    }
    assert ran.start <= inner.start <= inner.end <= ran.end
    assert not ran.failed


def test_a_run_is_one_trace_with_all_its_items(cli: Cli, collector: Collector, on: dict[str, str]) -> None:
    assert cli.run("start", "site", "example.org", **on).code == 0
    assert cli.run("work", "--drain", **on).code == 0
    asked, pages = collector.one("start site"), collector.named("run site.page", 2)
    assert {page.about["gristmill.key"] for page in pages} == {"a", "b"}
    assert {(page.trace, page.parent) for page in pages} == {(asked.trace, asked.number)}
    assert collector.one("run site.find").about["gristmill.subject"] == "example.org"
    own = {page.about["gristmill.key"]: page.number for page in pages}
    for key in ("a", "b"):  # in one event loop
        assert collector.one(f"read {key}").parent == own[key]


def test_every_attempt_has_its_span(cli: Cli, collector: Collector, on: dict[str, str]) -> None:
    cli.run("enqueue", "breaks_once", **on)
    cli.run("work", "--drain", **on)
    first, second = collector.named("run breaks_once", 2)
    assert (first.attempt, second.attempt) == ((1, "error"), (2, "completed"))
    assert (first.failed, second.failed) == (True, False)
    assert first.number != second.number


def test_a_process_that_dies_has_a_span_that_says_so(cli: Cli, collector: Collector, on: dict[str, str]) -> None:
    cli.run("enqueue", "dies", **on)
    cli.run("work", "--drain", **on)
    spans = [span for span in eventually(lambda: collector.spans) if span.name == "run dies"]
    spans = spans or collector.named("run dies")
    assert {span.about["gristmill.outcome"] for span in spans} == {"crash"}
    assert all(span.failed for span in spans)


def test_the_attempt_of_a_killed_worker_is_told_as_lost_by_who_took_its_job_back(
    cli: Cli, collector: Collector, on: dict[str, str]
) -> None:
    cli.run("enqueue", "hangs_once", **on)
    with cli.spawn("work", **on) as worker:
        eventually((cli.folder / "began").exists, "it began")
        os.kill(worker.pid, signal.SIGKILL)
        worker.communicate()
    assert not [span for span in collector.spans if span.name == "run hangs_once"]
    assert cli.run("work", "--drain", **on).code == 0
    lost, second = collector.named("run hangs_once", 2)
    assert (lost.attempt, second.attempt) == ((1, "lost"), (2, "completed"))
    assert (lost.failed, second.failed) == (True, False)
    asked = collector.one("enqueue hangs_once")
    assert {lost.parent, second.parent} == {asked.number}
    assert asked.start < lost.start < lost.end <= second.start + 1_000_000_000
    for span in (span for span in collector.spans if span.name == "before the end"):  # if it came so far
        assert span.parent == lost.number


def test_what_was_asked_for_without_traces_is_a_trace_of_its_own(cli: Cli, collector: Collector, on: dict[str, str]) -> None:
    cli.run("start", "site", "example.org", GRISTMILL_APP=str(APP))
    cli.run("work", "--drain", **on)
    spans = [collector.one("run site.find"), *collector.named("run site.page", 2)]
    assert len({span.trace for span in spans}) == 1
    assert {span.parent for span in spans} == {""}


_YEAR = 366 * 86_400_000_000
_A_YEAR_EARLIER = f"UPDATE gm_schedule SET fire_at = fire_at - {_YEAR}, due_at = due_at - {_YEAR} WHERE name = 'yearly'"


def _make_due(ledger: Ledger) -> bool:
    with ledger.transaction() as connection:
        return connection.exec_driver_sql(_A_YEAR_EARLIER).rowcount == 1


def test_what_a_schedule_starts_is_in_the_trace_of_its_fire_time(
    cli: Cli, collector: Collector, on: dict[str, str], database_url: str
) -> None:
    with contextlib.closing(Ledger(database_url)) as ledger, cli.spawn("work", **on) as worker:
        eventually(lambda: _make_due(ledger), "the worker has written it down")
        fired = eventually(lambda: [span for span in collector.spans if span.name == "fire yearly"], "it is fired")[0]
        ran = eventually(
            lambda: [s for s in collector.spans if s.name == "run hello" and s.parent == fired.number], "it ran"
        )
        assert cli.run("schedule", "run-now", "by-hand", **on).code == 0
        by_hand, found = collector.one("fire by-hand"), collector.one("run site.find")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
    assert fired.about == {"gristmill.schedule": "yearly", "gristmill.outcome": "started"}
    assert (ran[0].trace, fired.kind) == (fired.trace, 4)
    assert (found.trace, found.parent) == (by_hand.trace, by_hand.number)


def test_a_collector_that_is_away_holds_nothing_up(cli: Cli, on: dict[str, str]) -> None:
    nobody = {**on, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    assert cli.run("enqueue", "hello", **nobody).code == 0
    assert cli.run("work", "--drain", **nobody).code == 0
    assert cli.call("job", "show", "1", "--json").json["state"] == "completed"


_OFF = """
import sys
from gristmill import Mill
from traced import hello
with Mill.open("sqlite:///gristmill.db", hello) as mill:
    mill.enqueue("hello")
    mill.work(until="idle")
    print(sorted(name for name in sys.modules if name.startswith("opentelemetry")))
    print(mill.ledger.glance(lambda tx: tx._driver.execute("SELECT count(*) FROM gm_trace").fetchone()[0]))
"""


def test_where_they_are_off_nothing_is_imported_and_nothing_written(cli: Cli) -> None:
    (cli.folder / "traced.py").write_text("from gristmill import task\n\n@task\ndef hello(ctx): pass\n")
    done = subprocess.run(
        [sys.executable, "-c", _OFF], cwd=cli.folder, env=clean_environment(), capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split("\n")[:2] == ["[]", "0"], done.stderr


def test_traces_without_the_packages_are_an_error_that_says_what_to_install(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gristmill import traces
    from gristmill.errors import Invalid

    monkeypatch.setenv("GRISTMILL_TRACES", "1")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(Invalid, match=r"gristmill\[otel\]"), traces.asking("enqueue x"):
        pass
    with contextlib.suppress(KeyError):
        monkeypatch.delitem(sys.modules, "opentelemetry")
