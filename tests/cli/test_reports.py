"""What Sentry gets of failed jobs, from a real worker, at a stand-in for its server."""

from __future__ import annotations

import gzip
import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli
from tests.worker.helpers import eventually

pytestmark = pytest.mark.alike

APP = Path(__file__).with_name("traced.py")


@dataclass
class Sentry:
    dsn: str
    events: list[dict[str, Any]] = field(default_factory=list)

    def hear(self, envelope: bytes) -> None:
        """A line of headers, then for each item a line of headers and its body."""
        _, *items = envelope.split(b"\n")
        pairs = zip(items[::2], items[1::2], strict=False)
        self.events += [json.loads(body) for head, body in pairs if json.loads(head)["type"] == "event"]


@pytest.fixture
def cli(on_either: Cli) -> Cli:
    return on_either


@pytest.fixture
def sentry() -> Iterator[Sentry]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            heard.hear(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    heard = Sentry(f"http://key@127.0.0.1:{server.server_port}/1")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield heard
    server.shutdown()
    server.server_close()


def test_a_job_that_failed_for_good_is_reported_under_its_fingerprint(cli: Cli, sentry: Sentry) -> None:
    on = {"GRISTMILL_APP": str(APP), "GRISTMILL_SENTRY_DSN": sentry.dsn}
    for _ in range(2):
        cli.run("enqueue", "breaks", **on)
    cli.run("enqueue", "breaks_once", **on)  # the second attempt does well: nothing to report
    assert cli.run("work", "--drain", **on).code == 0
    found = eventually(lambda: sentry.events[1:] and sentry.events)
    (signature,) = {job["fingerprint"] for job in cli.call("job", "list", "--state", "failed", "--json").json}
    assert [event["fingerprint"] for event in found] == [[signature]] * 2
    assert {event["tags"]["job"] for event in found} == {"1", "2"}
    assert {(event["tags"]["task"], event["tags"]["attempt"]) for event in found} == {("breaks", "1")}
    assert found[0]["exception"]["values"][0]["type"] == "ValueError"
    assert "in breaks" in found[0]["extra"]["traceback"]


def test_a_crash_is_reported_too(cli: Cli, sentry: Sentry) -> None:
    on = {"GRISTMILL_APP": str(APP), "GRISTMILL_SENTRY_DSN": sentry.dsn}
    cli.run("enqueue", "dies", **on)
    assert cli.run("work", "--drain", **on).code == 0
    (event,) = eventually(lambda: sentry.events)
    assert event["exception"]["values"][0]["type"] == "crash"
    assert "exit code 3" in event["exception"]["values"][0]["value"]


def test_a_job_whose_worker_was_lost_is_reported_by_who_took_it_back(cli: Cli, sentry: Sentry) -> None:
    on = {"GRISTMILL_APP": str(APP), "GRISTMILL_SENTRY_DSN": sentry.dsn}
    cli.run("enqueue", "hangs", **on)
    cli.run("enqueue", "hangs_once", **on)  # it may be tried again: nothing to report
    with cli.spawn("work", "-n", 2, **on) as worker:
        eventually((cli.folder / "began").exists, "it began")
        eventually(lambda: len(cli.call("job", "list", "--state", "in_progress", "--json").json) == 2, "both began")
        os.kill(worker.pid, signal.SIGKILL)
        worker.communicate()
    assert cli.run("work", "--drain", **on).code == 0
    (event,) = eventually(lambda: sentry.events)
    assert event["fingerprint"] == [cli.call("job", "show", 1, "--json").json["fingerprint"]]
    assert event["exception"]["values"][0]["type"] == "worker_lost"
    assert (event["tags"]["task"], event["tags"]["job"], event["tags"]["attempt"]) == ("hangs", "1", "1")
    assert cli.call("job", "show", 2, "--json").json["state"] == "completed"


@pytest.mark.parametrize("dsn", ["http://key@127.0.0.1:9/1", "no dsn at all"])
def test_a_sentry_that_is_away_or_none_holds_nothing_up(cli: Cli, dsn: str) -> None:
    on = {"GRISTMILL_APP": str(APP), "GRISTMILL_SENTRY_DSN": dsn}
    cli.run("enqueue", "breaks", **on)
    assert cli.run("work", "--drain", **on).code == 0
    assert cli.call("job", "show", "1", "--json").json["state"] == "failed"
