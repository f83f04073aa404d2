"""What Sentry gets: errors by kind, without secrets; and what happens when there is no Sentry: nothing."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clerk import logs, sentry
from clerk.config import Config
from clerk.errors import Transient, Unreadable
from tests.clerk.standins import StandIn, eventually, stand_in


@pytest.fixture
def server() -> Iterator[StandIn]:
    with stand_in() as here:
        here.status = 200
        yield here


@pytest.fixture
def _in_a_folder_with_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text("LEGISTAR_TOKEN=only-in-dotenv\n")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def _reported(server: StandIn) -> Iterator[None]:
    import sentry_sdk

    before = logging.getLogger().level
    logging.getLogger().setLevel(logging.INFO)
    assert sentry.configure(Config(sentry_dsn=dsn(server), database_url="postgresql://u:hunter22@h/d"))
    yield
    sentry_sdk.get_client().close(timeout=2)
    sentry_sdk.get_global_scope().set_client(None)
    logging.getLogger().setLevel(before)


def dsn(server: StandIn) -> str:
    return server.url.replace("//", "//publickey@") + "/1"


def events(server: StandIn) -> list[dict[str, Any]]:
    """Of each envelope the event in it: a line of headers, then for each item a line of headers and its body."""
    found = []
    for taken in list(server.taken):
        _, *items = taken.body.split(b"\n")
        for head, body in zip(items[::2], items[1::2], strict=False):
            if json.loads(head)["type"] == "event":
                found.append(json.loads(body))
    return found


def report(server: StandIn, count: int) -> list[dict[str, Any]]:
    import sentry_sdk

    sentry_sdk.flush(timeout=10)
    eventually(lambda: len(events(server)) >= count)
    return events(server)


@pytest.mark.usefixtures("_reported")
def test_errors_of_one_kind_are_one_group_whatever_the_path(server: StandIn) -> None:
    for path in ("pdfs/CityCouncil/2026-01-01.pdf", "pdfs/Planning/2025-05-05.pdf"):
        with logs.about(subdomain="a.b", run_id=7, stage="ocr", job_id=3):
            try:
                raise Unreadable(f"{path} is corrupt; postgresql://u:hunter22@h/d")
            except Unreadable:
                logs.log.exception("ocr_failed", extra={"fields": {"kind": sentry.UNREADABLE, "path": path}})
    logs.milestone("ocr", "failed", kind=sentry.UNPROCESSED, path="x")
    for host, subdomain in (("one.example", "a"), ("one.example", "b"), ("two.example", "a")):
        logs.milestone("fetch", "failed", kind=sentry.FETCH, host=host, subdomain=subdomain)
    found = report(server, 6)
    assert sorted(event["fingerprint"] for event in found) == [
        ["fetch-error", "one.example"],
        ["fetch-error", "one.example"],
        ["fetch-error", "two.example"],
        ["pdf-failed-to-process"],
        ["pdf-failed-to-read"],
        ["pdf-failed-to-read"],
    ]
    assert "hunter22" not in str(found)
    [first, _] = [event for event in found if event["fingerprint"] == ["pdf-failed-to-read"]]
    assert first["tags"] == {"subdomain": "a.b", "run_id": "7", "stage": "ocr", "job_id": "3", "kind": "pdf-failed-to-read"}
    assert first["exception"]["values"][0]["stacktrace"]["frames"]
    assert (first["environment"], first["release"]) == ("production", "clerk@0.1.0.dev0")


@pytest.mark.usefixtures("_reported")
def test_errors_without_a_kind_are_grouped_by_stage_and_class(server: StandIn) -> None:
    for number in range(2):
        with logs.about(stage="deploy"):
            try:
                raise Transient(f"/srv/sites/{number} is away")
            except Transient:
                logs.log.exception("deploy_failed")
    logs.milestone("compilation", "failed", error="OSError: /srv/x")
    logs.log.error("site %s came back", "a.b")
    logs.log.warning("not an error")
    found = report(server, 4)
    assert sorted(event["fingerprint"] for event in found) == [
        ["clerk", "site %s came back"],
        ["compilation", "OSError"],
        ["deploy", "Transient"],
        ["deploy", "Transient"],
    ]


@pytest.mark.usefixtures("_in_a_folder_with_secrets", "_reported")
def test_a_secret_that_only_dotenv_has_is_not_told(server: StandIn) -> None:
    logs.log.error("the server said: only-in-dotenv is wrong")
    [event] = report(server, 1)
    assert "only-in-dotenv" not in str(event)
    assert "the server said: *** is wrong" in str(event)


def test_traces_are_sampled_as_the_settings_say(server: StandIn) -> None:
    import sentry_sdk

    assert sentry.configure(Config(sentry_dsn=dsn(server), sentry_environment="staging", sentry_sample_rate=0.25))
    try:
        options = sentry_sdk.get_client().options
        assert (options["environment"], options["traces_sample_rate"]) == ("staging", 0.25)
    finally:
        sentry_sdk.get_client().close(timeout=2)
        sentry_sdk.get_global_scope().set_client(None)


def test_without_a_dsn_nothing_is_loaded() -> None:
    program = (
        "import sys; from clerk import sentry, logs; from clerk.config import Config\n"
        "assert not sentry.configure(Config())\n"
        "assert not {'sentry_sdk', 'httpx', 'http.client', 'ssl'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_dsn_that_is_none_and_a_missing_package_are_said_and_harmless(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not sentry.configure(Config(sentry_dsn="https://s3cretkey@/"))
    assert "not reported to Sentry" in caplog.text
    assert "s3cretkey" not in caplog.text
    monkeypatch.setitem(sys.modules, "sentry_sdk", None)
    assert not sentry.configure(Config(sentry_dsn="https://k@h/1"))
    assert "gristmill-clerk[sentry]" in caplog.text


@pytest.mark.parametrize("status", [500, 429, None])
def test_a_sentry_that_is_broken_or_away_is_harmless(server: StandIn, status: int | None) -> None:
    server.status = status or 200
    where = dsn(server) if status else "http://k@127.0.0.1:9/1"
    program = (
        "import sys; from clerk import sentry, logs; from clerk.config import Config\n"
        "logs.configure(Config()); assert sentry.configure(Config(sentry_dsn=sys.argv[1]))\n"
        "logs.milestone('ocr', 'failed', kind=sentry.UNREADABLE); print('done')"
    )
    run = subprocess.run([sys.executable, "-c", program, where], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == "done\n"
    assert "Traceback" not in run.stderr
