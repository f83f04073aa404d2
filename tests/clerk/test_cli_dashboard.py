"""`dashboard`: served by a real process, to those who may."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from clerk.config import Config
from tests.clerk.cli import Cli

TOKEN = "a long secret of somebody"
pytestmark = pytest.mark.parametrize("clerk_url", ["sqlite"], indirect=True)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], clerk_config: Config) -> Cli:
    monkeypatch.chdir(tmp_path)
    return Cli(tmp_path, capsys)


@contextmanager
def served(cli: Cli, *words: object, **environ: str) -> Iterator[str]:
    with cli.spawn("dashboard", "--port", 0, *words, **environ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("http://127.0.0.1:"), (line, process.poll(), process.stderr and process.stderr.read())
            yield line.split()[0].rstrip("/")
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


def test_pages_and_metrics_are_served_on_this_machine(cli: Cli) -> None:
    with served(cli) as address, httpx.Client(base_url=address) as client:
        assert "Gristmill" in client.get("/").text
        told = client.get("/metrics").text
        assert "gristmill_queue_jobs" in told
        assert "pipeline_stuck_sites_count 0" in told
        assert client.get("/", headers={"Host": "evil.example"}).status_code == 403


def test_with_a_token_only_those_get_in_who_have_it(cli: Cli) -> None:
    with served(cli, DASHBOARD_TOKEN=TOKEN) as address, httpx.Client(base_url=address) as client:
        assert client.get("/metrics").status_code == 401
        assert client.get("/metrics", headers={"Authorization": f"Bearer {TOKEN[:-1]}"}).status_code == 401
        assert client.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
        assert client.get("/").headers["location"].startswith("/login")
        client.get("/login")
        form = {"token": client.cookies["gristmill_form"], "to": "/queues", "text": "wrong"}
        assert client.post("/login", data=form).status_code == 403
        assert client.post("/login", data={**form, "text": TOKEN}).headers["location"] == "/queues"
        assert client.get("/queues").status_code == 200


def test_another_host_without_a_token_is_refused(cli: Cli) -> None:
    refused = cli.run("dashboard", "--host", "0.0.0.0", DASHBOARD_TOKEN="")
    assert (refused.code, "set DASHBOARD_TOKEN" in refused.err) == (2, True)


def test_a_port_that_is_taken_is_said(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = cli.run("dashboard", "--port", taken.getsockname()[1])
    assert (refused.code, "cannot listen on 127.0.0.1" in refused.err) == (1, True)
