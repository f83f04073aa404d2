"""Bad input: one clear line, the right exit code, no traceback, and nothing half done."""

from __future__ import annotations

import pytest

from tests.cli.conftest import APP, Cli, words

WITH_APP = ["-A", str(APP)]
GREET = [*WITH_APP, "enqueue", "greet", "--arg", "name=x"]

USAGE = [
    (["strat"], "gristmill has no command 'strat'; did you mean 'start'?"),
    (["run", "shwo", "1"], "gristmill run has no command 'shwo'; did you mean 'show'?"),
    (["status", "--databse", "x"], "no such option '--databse'; did you mean '--database'?"),
    (["status", "--wrong"], "no such option '--wrong'; see gristmill status --help"),
    (["run", "show"], "missing argument 'RUN'; see gristmill run show --help"),
    (["run", "show", "1", "2"], "got unexpected extra argument (2); see gristmill run show --help"),
    (["run", "show", "one"], "'one' is not a whole number"),
    (["run", "show", "0"], "'0' is not a whole number from 1"),
    (["run", "show", "9" * 30], "is not a whole number from 1"),
    (["run", "show", "٣"], "is not a whole number"),
    (["run", "list", "--state", "complete"], "unknown state 'complete'; did you mean 'completed'?"),
    (["run", "list", "--limit", "0"], "'0' is not a whole number from 1 to 100,000"),
    (["run", "list", "--limit", "1e3"], "'1e3' is not a whole number"),
    (["job", "list", "--since", "yesterday"], "'yesterday' is not a duration; write 90, 10m, 2h or 1d"),
    (["job", "list", "--since", "99999w"], "is not a duration"),
    (["job", "list", "--state", "waiting"], "unknown state 'waiting'"),
    (["schedule", "pause", "\udc80"], "holds a character that no database can"),
    (["run", "list", "--state", "x" * 100_000], "unknown state 'xxx"),
    (["retry", "1"], "no command 'retry'; did you mean 'run retry' or 'job retry' or 'error retry'?"),
    (["pause", "mail"], "no command 'pause'; did you mean 'schedule pause' or 'queue pause'?"),
    (["run", "retry", "1", "--key", ""], "it must not be empty"),
    (["queue", "set", "q"], "nothing to set; give --weight W, --at-once N, --per-second X or --create"),
    (["queue", "set", "q", "--weight", "0"], "'0' is not a number above 0"),
    (["queue", "set", "q", "--weight", "nan"], "'nan' is not a number above 0"),
    (["queue", "set", "all", "--create"], "queue name 'all' is reserved"),
    (["db", "upgrade", "nonsense"], "cannot move the schema to 'nonsense'"),
    (["start", "letters", "s"], "no application was given; name one with -A FILE_OR_MODULE, with GRISTMILL_APP, or"),
    (["work"], "no application was given"),
    (["up"], "no application was given"),
    (["-A", "nowhere.py", "up"], "there is no file 'nowhere.py'"),
    (["-A", "no_such_module", "up"], "cannot import 'no_such_module'"),
    (["-A", "", "up"], "invalid value for '-A' / '--app': must not be empty"),
    (["-A", "json", "up"], "'json' has no pipelines and no tasks"),
    ([*WITH_APP, "start", "leters", "s"], "unknown pipeline 'leters'; did you mean 'letters'?"),
    ([*WITH_APP, "start", "letters", "s"], "needs argument 'folder'"),
    ([*WITH_APP, "start", "letters", " ", "--arg", "folder=x"], "subject must not be empty"),
    ([*WITH_APP, "start", "letters", "s", "--arg", "foldr=x"], "no argument 'foldr'; did you mean 'folder'?"),
    ([*WITH_APP, "start", "letters", "s", "--arg", "folder"], "--arg 'folder' must be NAME=VALUE"),
    ([*WITH_APP, "start", "letters", "s", "--arg", "=x"], "--arg '=x' must be NAME=VALUE"),
    ([*WITH_APP, "start", "letters", "s", "--arg", "folder=a", "--arg", "folder=b"], "--arg folder=… is given twice"),
    ([*WITH_APP, "start", "letters", "s", "--if-active", "jion"], "unknown --if-active 'jion'; did you mean 'join'?"),
    ([*WITH_APP, "start", "letters", "s", "--priority", "hihg"], "unknown priority 'hihg'; did you mean 'high'?"),
    ([*WITH_APP, "enqueue", "gret"], "unknown task 'gret'; did you mean 'greet'?"),
    ([*WITH_APP, "enqueue", "total"], "unknown task 'total'; there are: anything, greet, hold"),
    ([*WITH_APP, "enqueue", "letters.count"], "is a stage: it runs as part of a run"),
    ([*GREET, "--arg", "times=many"], "argument 'times'"),
    ([*GREET, "--arg", 'times={"broken": '], "argument 'times'"),
    ([*GREET, "--arg", "times=NaN"], "argument 'times'"),
    ([*GREET, "--in", "soon"], "'soon' is not a duration"),
    ([*GREET, "--at", "noon"], "'noon' is not a time"),
    ([*GREET, "--at", "2099-01-01", "--in", "5"], "--at and --in are two ways to say when"),
    ([*GREET, "--timeout", "0"], "timeout must be a number of seconds above 0"),
    ([*GREET, "--retries", "-1"], "'-1' is not a whole number from 0 to 10,000"),
    ([*GREET, "--unique", ""], "unique key must not be empty"),
    ([*WITH_APP, "work", "-n", "0"], "'0' is not a whole number from 1 to 1,024"),
    ([*WITH_APP, "work", "--burst", "--drain"], "--burst and --drain are two ways to end"),
    (["status", "--database", "nonsense"], "the database URL 'nonsense' is malformed"),
    (["status", "--database", "mysql://host/name"], "the database URL starts with 'mysql'"),
    (["status", "--database", "sqlite://"], "an SQLite ledger must be a file"),
    (["status", "--database", ""], "invalid value for '--database': must not be empty"),
]


@pytest.mark.parametrize(("command", "message"), USAGE, ids=words)
def test_a_usage_error_is_one_line_and_64(made: Cli, command: list[str], message: str) -> None:
    result = made.call(*command)
    assert message in result.err
    assert (result.code, result.out) == (64, "")
    assert is_one_line(result.err)
    assert made.call("job", "list", "--json").json == []


FAILURES = [
    (["run", "show", "77"], "there is no run 77"),
    (["run", "cancel", "77"], "there is no run 77"),
    (["watch", "77"], "there is no run 77"),
    (["job", "show", "77"], "there is no job 77"),
    (["job", "retry", "77"], "there is no job 77"),
    (["job", "cancel", "77"], "there is no job 77"),
    ([*GREET, "--queue", "maill"], "unknown queue 'maill'; did you mean 'mail'?"),
    ([*WITH_APP, "work", "-q", "maill", "--burst"], "unknown queue 'maill'; did you mean 'mail'?"),
    (["job", "list", "--queue", "maill"], "unknown queue 'maill'"),
    (["queue", "pause", "maill"], "there is no queue 'maill'"),
    (["queue", "set", "maill", "--weight", "2"], "there is no queue 'maill'"),
]


@pytest.mark.parametrize(("command", "message"), FAILURES, ids=words)
def test_what_is_not_there_is_one_line_and_1(made: Cli, command: list[str], message: str) -> None:
    result = made.call(*command)
    assert (result.code, result.out, result.err) == (1, "", f"Error: {message}\n")


@pytest.mark.parametrize(
    "command", [["status"], ["start", "letters", "s", "--arg", "folder=x"], ["db", "upgrade"]], ids=" ".join
)
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite:////no/such/folder/x.db", "the folder of the database sqlite:////no/such/folder/x.db is not there"),
        ("sqlite:///no-database.txt", "file is not a database"),
        ("postgresql://user:secret@127.0.0.1:1/x", "Connection refused"),
    ],
)
def test_a_database_that_cannot_be_used_is_one_line_and_69(cli: Cli, command: list[str], url: str, message: str) -> None:
    (cli.folder / "no-database.txt").write_text("just some text, long enough to be more than a header " * 10)
    result = cli.call(*WITH_APP, *command, "--database", url)
    assert (result.code, result.out) == (69, "")
    assert message in result.err
    assert is_one_line(result.err)
    assert "secret" not in result.err


@pytest.mark.parametrize(
    "command", [["strat"], [*WITH_APP, "enqueue", "gret"], ["status", "--database", "nonsense"]], ids=words
)
def test_a_usage_error_in_a_real_process(made: Cli, command: list[str]) -> None:
    result = made.run(*command)
    assert (result.code, result.out) == (64, "")
    assert is_one_line(result.err)


def test_a_usage_error_makes_no_database(cli: Cli) -> None:
    for command in (["start", "leters", "s"], ["enqueue", "gret"], ["start", "letters", "s", "--arg", "folder"]):
        assert cli.call(*WITH_APP, *command).code == 64
    assert list(cli.folder.iterdir()) == []


def test_a_payload_over_one_mebibyte_is_refused(made: Cli) -> None:
    parts = [word for n in range(11) for word in ("--arg", f"part{n}={'x' * 100_000}")]
    result = made.run(*WITH_APP, "enqueue", "anything", *parts)
    assert result.code == 64
    assert "the limit is 1 MiB" in result.err
    assert is_one_line(result.err)
    assert made.call("job", "list", "--json").json == []


def test_an_application_that_cannot_be_imported_is_one_line(made: Cli) -> None:
    (made.folder / "broken.py").write_text("import nothing_of_that_name\n")
    (made.folder / "raises.py").write_text("raise RuntimeError('no configuration')\n")
    for name, message in (("broken", "nothing_of_that_name"), ("raises", "no configuration")):
        result = made.run("-A", f"{name}.py", "start", "letters", "s")
        assert result.code == 64
        assert message in result.err
        assert is_one_line(result.err)


def test_a_group_without_a_command_shows_its_help(made: Cli) -> None:
    for group in ([], ["run"], ["db"]):
        result = made.call(*group)
        assert (result.code, result.out) == (64, "")
        assert "Commands:" in result.err


def test_debug_shows_where_an_error_comes_from(made: Cli) -> None:
    result = made.run("run", "show", 77, GRISTMILL_DEBUG="1")
    assert result.code == 1
    assert "Traceback" in result.err
    assert result.err.splitlines()[-1] == "Error: there is no run 77"


def test_a_bug_is_said_to_be_one(made: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from gristmill.mill import Mill

    monkeypatch.setattr(Mill, "status", lambda self: 1 / 0)
    result = made.call("status")
    assert result.code == 1
    assert result.err.startswith("Error: this is a bug in Gristmill: ZeroDivisionError: division by zero; GRISTMILL_DEBUG=1")


def test_a_folder_that_cannot_be_written_is_one_line(cli: Cli) -> None:
    (cli.folder / "gristmill.db").mkdir()
    result = cli.call("status")
    assert result.code == 69
    assert is_one_line(result.err)


def is_one_line(err: str) -> bool:
    return err.startswith("Error: ") and err.count("\n") == 1 and "Traceback" not in err


def test_a_name_of_five_thousand_letters_is_not_shown_whole(made: Cli) -> None:
    name = "x" * 5000
    for asked in (("schedule", "run-now", name), ("queue", "pause", name), ("limit", "set", name, "--at-once", "2")):
        refused = made.call(*WITH_APP, *asked)
        assert refused.code
        assert len(refused.err) < 700, asked
    zoned = made.call(*WITH_APP, "schedule", "add", "daily", "@daily", "--task", "greet", "--tz", name)
    assert "unknown time zone" in zoned.err
    assert len(zoned.err) < 700
