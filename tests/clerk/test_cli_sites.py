"""`new`, `change`, `update`, `enqueue`, `purge`: what they print, how they end, and what is in the database then."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import insert, select, text
from sqlalchemy import update as set_row

from clerk import sites
from clerk.app import open_mill
from clerk.cli.app import PLUGINS_DIR
from clerk.config import Config
from clerk.db import tables
from clerk.pipeline import wiring
from clerk.sites import Description
from gristmill import Mill
from tests.clerk.cli import Cli
from tests.clerk.playing import Play
from tests.clerk.test_cli_mending import take_a_job
from tests.clerk.test_pipeline import SITE, row

ALL = [
    *("--name", "Elm Creek", "--state", "CA", "--country", "US", "--kind", "city", "--scraper", "folder"),
    *("--start-year", "2020", "--lat-lng", "37.8, -122.3", "--extra", '{"path": "documents"}'),
]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    made = Play(tmp_path / "play")
    monkeypatch.setenv("CLERK_PLAY", str(made.folder))
    monkeypatch.setenv("CLERK_PLUGINS_DIR", str(made.folder / "plugins"))
    return made


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], clerk_config: Config) -> Cli:
    monkeypatch.chdir(tmp_path)
    return Cli(tmp_path, capsys)


@pytest.fixture
def mill(clerk_config: Config, play: Play) -> Iterator[Mill]:
    with open_mill(clerk_config) as opened:
        sites.create(opened, Description(SITE, "Oakfield", "played"))
        yield opened


# ---- new


def test_a_new_site_is_created_and_run_before_all_others(cli: Cli, mill: Mill) -> None:
    done = cli.call("new", "elm.ca", *ALL)
    assert (done.code, done.out, done.err) == (0, "Enqueueing new site elm.ca with high priority\n", "")
    site = sites.find(mill, "elm.ca")
    assert (site.name, site.scraper, site.start_year, site.lat, site.lng) == ("Elm Creek", "folder", 2020, "37.8", "-122.3")
    assert (site.extra, site.current_stage, site.last_updated) == ({"path": "documents"}, "fetch", None)
    run = mill.run(site.run_id or 0)
    assert (run.priority, run.args["all_years"]) == ("high", True)


def test_a_site_that_exists_is_left_as_it_is(cli: Cli, mill: Mill) -> None:
    before = sites.find(mill, SITE)
    done = cli.call("new", SITE, *ALL)
    assert done.code == 1
    assert done.err.startswith(f"Error: Site '{SITE}' already exists")
    assert sites.find(mill, SITE) == before


def watch_for_new_sites(play: Play) -> None:
    (play.folder / "plugins" / "hook.py").write_text(
        "from pathlib import Path\nfrom clerk.plugins import hookimpl\n"
        "@hookimpl\ndef post_create(subdomain):\n    Path('created').write_text(subdomain)\n"
    )


def test_who_watches_for_new_sites_is_told_and_all_agendas_are_fetched_if_wanted(cli: Cli, mill: Mill, play: Play) -> None:
    watch_for_new_sites(play)
    assert cli.call("new", "elm.ca", *ALL, "--all-agendas").code == 0
    assert (cli.folder / "created").read_text() == "elm.ca"
    [run] = mill.runs(subject="elm.ca")
    assert (run.priority, run.args["all_years"], run.args["all_agendas"]) == ("high", True, True)


def test_a_site_and_its_first_run_are_both_there_or_neither(cli: Cli, mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(sites, "_ask", lambda *_: 1 / 0)
        assert cli.call("new", "elm.ca", *ALL).code == 1
    assert [site.subdomain for site in sites.known(mill)] == [SITE]
    assert cli.call("new", "elm.ca", *ALL).code == 0


@pytest.mark.parametrize("options", [[], ["--no-enqueue"]])
def test_a_plugin_that_fails_takes_no_new_site_back(cli: Cli, mill: Mill, play: Play, options: list[str]) -> None:
    fail_at_new_sites(play.folder / "plugins")
    done = cli.call("new", "elm.ca", *ALL, *options)
    assert (done.code, done.err.count("\n"), len(mill.runs(subject="elm.ca"))) == (1, 1, int(not options))
    said = "Error: elm.ca was created, and what was asked for is done, but post_create of the plugin "
    assert (done.err.startswith(said), "no mail server" in done.err) == (True, True)


def fail_at_new_sites(plugins: Path) -> None:
    plugins.mkdir(exist_ok=True)
    (plugins / "hook.py").write_text(
        "from clerk.plugins import hookimpl\n@hookimpl\ndef post_create(subdomain):\n    raise OSError('no mail server')\n"
    )


def test_a_site_may_be_created_without_a_run(cli: Cli, mill: Mill, play: Play) -> None:
    watch_for_new_sites(play)
    assert cli.call("new", "elm.ca", *ALL, "--no-enqueue").code == 0
    assert sites.find(mill, "elm.ca").current_stage is None
    assert (cli.folder / "created").read_text() == "elm.ca"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["elm.ca"], "missing --name, --scraper"),
        (["../etc", *ALL], "is no subdomain"),
        (["elm.ca", *ALL, "--scraper", "foldr"], "folder, http_index, feed, legistar"),
        (["elm.ca", *ALL, "--extra", "[1]"], "wants an object"),
        (["elm.ca", *ALL, "--extra", "{"], "is not JSON"),
        (["elm.ca", *ALL, "--extra", '{"ocr_backend": "abbyy"}'], "there is no OCR backend"),
        (
            ["elm.ca", *ALL, "--extra", '{"pth": "documents"}'],
            "folder: 'pth' is no setting of this fetcher; did you mean 'path'?",
        ),
        (["elm.ca", *ALL, "--extra", "{}"], "folder: 'path' is missing in --extra"),
        (["elm.ca", *ALL, "--extra", '{"path": "documents", "extractor": "rule"}'], "there is no extractor 'rule'"),
        (["elm.ca", *ALL, "--lat-lng", "here"], "is no place"),
        (["elm.ca", *ALL, "--start-year", "soon"], "soon"),
        (["elm.ca", *ALL, "--local", "--no-enqueue"], "give one of them"),
    ],
)
def test_what_is_wrong_with_a_new_site_is_said_in_one_line(cli: Cli, mill: Mill, words: list[str], said: str) -> None:
    done = cli.call("new", *words)
    assert (done.code, done.err.count("\n"), done.out) == (2, 1, "")
    assert done.err.startswith("Error: ")
    assert said in done.err
    assert [site.subdomain for site in sites.known(mill)] == [SITE]


def test_what_is_missing_is_asked_for_on_a_terminal_and_a_wrong_answer_at_once_again(cli: Cli, mill: Mill) -> None:
    (cli.folder / "papers").mkdir()
    answers = ["no name", "elm.ca", "Elm", "CA", "", "", "soon", "2020", "north", "38.1,-120.4", "foldr", "folder", "[]"]
    done = cli.typed("new", "--no-enqueue", answers="\n".join([*answers, '{"path": "papers"}', ""]))
    assert (done.code, done.lines[-1].endswith("Created elm.ca")) == (0, True), (done.out, done.err)
    for wrong in (
        "'no name' is no subdomain",
        "'soon' is not a valid",
        "'north' is no place",
        "no scraper 'foldr'",
        "an object",
    ):
        assert wrong in done.out + done.err
    made = sites.find(mill, "elm.ca")
    assert (made.name, made.state, made.country, made.kind, made.start_year) == ("Elm", "CA", "US", "city", 2020)
    assert (made.lat, made.scraper, made.extra) == ("38.1", "folder", {"path": "papers"})


def test_whatever_is_missing_is_asked_for_on_a_terminal_and_nothing_else(cli: Cli, mill: Mill) -> None:
    words = ["--name", "Elm", "--scraper", "folder", "--extra", '{"path": "papers"}', "--state", "", "--no-enqueue"]
    done = cli.typed("new", "elm.ca", *words, answers="CA\ntown\n2020\n\n")
    assert done.code == 0, (done.out, done.err)
    assert re.findall(r"(\w[\w, ]*?) *(?:\[[^]]*\])?:", done.out) == ["Country", "Kind", "Start year", "Latitude, longitude"]
    made = sites.find(mill, "elm.ca")
    assert (made.state, made.country, made.kind, made.start_year, made.lat) == (None, "CA", "town", 2020, None)


def test_a_fetcher_of_a_plugin_that_breaks_over_its_settings_is_named(cli: Cli, mill: Mill, play: Play) -> None:
    (play.folder / "plugins" / "town.py").write_text(
        "from clerk.plugins import hookimpl\n@hookimpl\ndef fetcher_class(label):\n"
        "    return (lambda extra, web: extra['url']) if label == 'town' else None\n"
    )
    done = cli.call("new", "elm.ca", "--name", "Elm Creek", "--scraper", "town")
    assert (done.code, done.err.startswith("Error: town: no fetcher can be made of these settings (KeyError: 'url')")) == (
        2,
        True,
    )
    assert [site.subdomain for site in sites.known(mill)] == [SITE]


# ---- change


def test_only_what_is_given_is_changed_and_where_a_site_is_stays(cli: Cli, mill: Mill) -> None:
    cli.call("new", "elm.ca", *ALL)
    before = sites.find(mill, "elm.ca")
    done = cli.call("change", "elm.ca", "--name", "Elm", "--lat-lng", "38,-122", "--extra", '{"path": "papers"}')
    assert (done.code, done.out, done.err) == (0, "Changed elm.ca\n", "")
    expected = replace(before, name="Elm", lat="38", lng="-122", extra={"path": "papers"})
    assert sites.find(mill, "elm.ca") == expected


def test_documents_of_a_source_that_moved_stay_the_same_documents(cli: Cli, mill: Mill) -> None:
    with mill.transaction() as connection:
        given = {"subdomain": SITE, "key": "minutes/Council/2026-01-05", "kind": "minutes", "meeting": "Council"}
        connection.execute(insert(tables.document).values(**given, date="2026-01-05", url="http://a/1.pdf", state="missing"))
    assert cli.call("change", SITE, "--moved", "http://a/", "https://b/papers/").code == 0
    with mill.transaction() as connection:
        assert connection.execute(select(tables.document.c.url)).scalars().all() == ["https://b/papers/1.pdf"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([SITE], 2, "nothing to change"),
        ([SITE, "--scraper", "foldr"], 2, "did you mean 'folder'"),
        ([SITE, "--scraper", "folder"], 2, "folder: 'path' is missing in --extra"),
        (["x", "--name", "X"], 1, "Site 'x' not found"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(cli: Cli, mill: Mill, words: list[str], code: int, said: str) -> None:
    before = sites.known(mill)
    done = cli.call("change", *words)
    assert (done.code, said in done.err) == (code, True), done.err
    assert sites.known(mill) == before


# ---- update


def test_an_update_is_of_high_priority(cli: Cli, mill: Mill) -> None:
    done = cli.call("update", "-s", SITE)
    assert (done.code, done.lines) == (0, [f"Enqueueing {SITE} with high priority"])
    assert mill.run(sites.find(mill, SITE).run_id or 0).priority == "high"


def test_an_active_run_is_raised_and_other_options_leave_one_run_that_follows(cli: Cli, mill: Mill) -> None:
    cli.call("enqueue", SITE)
    run = sites.find(mill, SITE).run_id
    done = cli.call("update", "--site-id", SITE)
    assert (done.code, done.lines[0]) == (0, f"Enqueueing {SITE} with high priority")
    assert done.lines[1] == f"{SITE} has an active run already ({run}), which has high priority now"
    done = cli.call("update", "--subdomain", SITE, "--backfill")
    assert done.lines[2].endswith("follows it, with the options that were given now")
    done = cli.call("update", "--subdomain", SITE, "--retry-failed")
    assert [one.state for one in mill.runs()] == ["waiting", "queued"]
    follows = mill.runs()[0]
    assert done.lines[2] == f"Run {follows.id}, which waits to follow it, has the options that were given now, too"
    assert follows.args["all_years"] is follows.args["all_agendas"] is follows.args["retry_failed"] is True


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give one of -s SITE and --next"),
        (["-s", SITE, "--next"], "give one of -s SITE and --next"),
        (["--next", "--backfill"], "--next takes only"),
        (["-s", SITE, "--batch-size", "2"], "go with --next"),
        (["-s", "Oak Field"], "is no subdomain"),
        (["-s", SITE, "--ocr-backend", "vision"], "needs macOS"),
    ],
)
def test_an_update_that_makes_no_sense_is_refused(cli: Cli, mill: Mill, words: list[str], said: str) -> None:
    done = cli.call("update", *words)
    assert done.code == 2
    assert said in done.err
    assert mill.runs() == []


@pytest.mark.skipif(sys.platform == "darwin", reason="it is possible there")
@pytest.mark.parametrize(
    "words",
    [
        ["new", "elm.ca", *ALL, "--local"],
        ["run-local", SITE],
        ["update", "-s", SITE, "--local"],
        ["run-stage", "ocr", "-s", SITE],
        ["run-stage", "fetch", "-s", SITE, "--proceed"],
    ],
)
def test_nothing_is_started_here_that_nobody_could_read_here(
    cli: Cli, mill: Mill, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEFAULT_OCR_BACKEND", "vision")
    done = cli.call(*words)
    assert (done.code, done.out) == (2, "")
    assert "'vision' needs macOS" in done.err
    assert [site.subdomain for site in sites.known(mill)] == [SITE]
    assert mill.runs() == []


def test_who_reads_here_is_as_the_site_says_and_elsewhere_it_is_left_to_workers(
    cli: Cli, mill: Mill, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites.create(mill, Description("elm.ca", "Elm", "played", extra={"ocr_backend": "rapidocr"}))
    done = cli.call("run-local", "elm.ca")
    assert (done.code, mill.runs()) == (2, [])
    assert "'rapidocr' is not installed here" in done.err
    assert cli.call("update", "-s", "elm.ca").code == 0
    monkeypatch.setenv("DEFAULT_OCR_BACKEND", "rapidocr")
    assert cli.call("run-stage", "compilation", "-s", SITE).code != 2  # which reads no documents


def test_an_unknown_site_is_said_so_by_every_command_that_takes_one(cli: Cli, mill: Mill) -> None:
    for words in (["update", "-s"], ["status", "-s"], ["purge"], ["check-failed", "-s"], ["reconcile", "-s"], ["run-local"]):
        done = cli.call(*words, "x")
        assert (done.code, done.out, done.err) == (1, "", "Error: Site 'x' not found\n"), words


def test_the_next_sites_are_those_that_were_not_run_for_longest(cli: Cli, mill: Mill) -> None:
    now = datetime.now(UTC)
    ages = {"a": 30, "b": 50, "c": 22, SITE: 24}
    for name, hours in ages.items():
        if name != SITE:
            sites.create(mill, Description(name, name, "played"))
        with mill.transaction() as connection:
            ended = now - timedelta(hours=hours)
            connection.execute(set_row(tables.site).where(tables.site.c.subdomain == name).values(last_updated=ended))
    sites.create(mill, Description("new", "new", "played"))
    assert cli.call("update", "--next").lines == ["Auto-enqueueing new"]
    assert cli.call("update", "-n", "--batch-size", "2").lines == ["Auto-enqueueing b", "Auto-enqueueing a"]
    assert cli.call("update", "--next-site").lines == [f"Auto-enqueueing {SITE}"]
    done = cli.call("update", "--next")
    assert (done.code, done.lines) == (0, ["No sites eligible for auto-enqueue"])
    assert cli.call("update", "--next", "--lookback-hours", "12").lines == ["Auto-enqueueing c"]
    assert {run.priority for run in mill.runs()} == {"normal"}


def test_case_21_what_is_eligible_is_the_same_in_any_time_zone(
    cli: Cli, mill: Mill, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = datetime.now(UTC) - timedelta(hours=22, minutes=30)
    with mill.transaction() as connection:
        connection.execute(set_row(tables.site).values(last_updated=ended))
    for zone in ("Pacific/Kiritimati", "Pacific/Honolulu", "UTC"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        assert cli.call("update", "--next").lines == ["No sites eligible for auto-enqueue"]
    monkeypatch.setenv("TZ", "Pacific/Honolulu")
    time.tzset()
    try:
        assert cli.call("update", "--next", "--lookback-hours", "22").lines == [f"Auto-enqueueing {SITE}"]
        started = cli.call("status", "-s", SITE).lines[3].removeprefix("Started: ")
        shown = datetime.fromisoformat(started).replace(tzinfo=UTC)
        assert abs(datetime.now(UTC) - shown) < timedelta(minutes=5)
    finally:
        monkeypatch.undo()
        time.tzset()


# ---- enqueue


def test_case_19_unknown_sites_are_reported_and_the_rest_is_enqueued_in_fetch(cli: Cli, mill: Mill) -> None:
    sites.create(mill, Description("elm.ca", "Elm", "played"))
    done = cli.call("enqueue", SITE, "nowhere", "elm.ca", "--priority", "low")
    assert (done.code, done.err) == (1, "Error: Site 'nowhere' not found\n")
    runs = {run.subject: run for run in mill.runs()}
    assert done.lines == [f"Enqueued {name} (run: {runs[name].id}, priority: low)" for name in (SITE, "elm.ca")]
    assert {run.priority for run in runs.values()} == {"normal"}
    assert [sites.find(mill, name).current_stage for name in (SITE, "elm.ca")] == ["fetch", "fetch"]


def test_a_site_that_is_enqueued_twice_has_one_run(cli: Cli, mill: Mill) -> None:
    cli.call("enqueue", SITE, SITE)
    done = cli.call("enqueue", SITE, "--priority", "high")
    assert (done.code, len(mill.runs())) == (0, 1)
    assert "which has high priority now" in done.out


def test_case_20_booleans_are_booleans(cli: Cli, mill: Mill) -> None:
    cli.call("enqueue", SITE)
    assert row(mill)["coordinator_enqueued"] in (False, 0)
    assert not isinstance(row(mill)["coordinator_enqueued"], str)
    with mill.transaction() as connection:
        where = "WHERE NOT coordinator_enqueued"
        assert connection.execute(text(f"SELECT count(*) FROM sites {where}")).scalar() == 1
    args = mill.runs()[0].args
    assert (args["all_years"], args["skip_fetch"]) == (False, False)


# ---- purge


def test_a_purged_site_has_no_jobs_and_no_stage(cli: Cli, mill: Mill) -> None:
    cli.call("enqueue", SITE)
    done = cli.call("purge", SITE)
    assert (done.code, done.lines) == (0, [f"Found 1 job for {SITE}", "Purged 1 job"])
    assert row(mill)["current_stage"] is None
    with mill.transaction() as connection:
        for view in ("job_tracking", "site_progress"):
            assert connection.execute(text(f"SELECT count(*) FROM {view}")).scalar() == 0
    assert len(mill.runs()) == 1
    done = cli.call("purge", SITE)
    assert (done.code, done.lines) == (0, [f"Found 0 jobs for {SITE}", "Purged 0 jobs"])
    assert cli.call("status", "-s", SITE).lines == [f"No progress tracking found for site: {SITE}"]


def test_what_does_not_stop_is_an_error(cli: Cli, mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.call("enqueue", SITE)
    take_a_job(mill)
    monkeypatch.setattr(sites, "purge", partial(sites.purge, patience=0.1))
    done = cli.call("purge", SITE)
    assert (done.code, done.lines) == (1, [f"Found 1 job for {SITE}", "Purged 0 jobs"])
    assert done.err == f"Error: 1 job of {SITE} did not stop within 30 s; their workers end them\n"
    assert row(mill)["current_stage"] is None


def test_a_site_that_never_ran_has_nothing_to_purge(cli: Cli, mill: Mill) -> None:
    done = cli.call("purge", SITE)
    assert (done.code, done.lines, done.err) == (0, [f"Found 0 jobs for {SITE}", "Purged 0 jobs"], "")
    assert cli.call("purge", "nowhere").code == 1


# ---- the whole


def test_quiet_commands_say_nothing_but_errors(cli: Cli, mill: Mill) -> None:
    assert cli.call("-q", "update", "--next").out == ""
    assert cli.call("update", "-s", SITE, "--quiet").out == ""
    assert cli.call("-q", "purge", "nowhere").err == "Error: Site 'nowhere' not found\n"


def test_the_folder_of_plugins_is_said_where_the_pipeline_looks_for_it() -> None:
    assert PLUGINS_DIR == wiring.PLUGINS_DIR
