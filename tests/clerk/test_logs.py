"""What clerk says: whole lines of JSON in files that several processes write, in Loki, and never a secret or a delay."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from clerk import logs
from clerk.config import Config
from clerk.logs.files import AppendingFile
from clerk.logs.lines import Lines
from clerk.logs.loki import Loki
from clerk.masking import masked, masker
from tests.clerk.standins import StandIn, eventually, stand_in


@pytest.fixture(autouse=True)
def _silent_afterwards() -> Iterator[None]:
    before = logging.getLogger().level
    yield
    logs.close()
    logging.getLogger().setLevel(before)
    assert not {"CLERK_WORKER", "CLERK_LOG_SOCKET"} & set(os.environ)


@pytest.fixture
def loki() -> Iterator[StandIn]:
    with stand_in() as server:
        yield server


def entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def sent(server: StandIn) -> list[dict[str, Any]]:
    """The lines that arrived, each with its labels."""
    return [
        {**json.loads(line), "labels": stream["stream"]}
        for taken in list(server.taken)
        for stream in json.loads(taken.body)["streams"]
        for _, line in stream["values"]
    ]


def said(server: StandIn) -> set[str]:
    return {entry["message"] for entry in sent(server)}


# ---- lines


def test_a_line_says_what_it_is_about(tmp_path: Path) -> None:
    logs.configure(Config(log_dir=tmp_path / "logs"), worker="ocr-3")
    with logs.about(subdomain="alameda.ca", run_id=7, job_id=12):
        logs.milestone("ocr", "completed", duration=1.23456, pages=40)
        logs.log.warning("slow: %d", 3, extra={"seconds": 9})
    milestone, slow = entries(tmp_path / "logs" / "worker-ocr-3.log")
    assert list(milestone)[:7] == ["timestamp", "level", "message", "subdomain", "run_id", "stage", "job_id"]
    assert milestone["timestamp"].endswith("+00:00")
    expected = {"level": "INFO", "message": "ocr_completed", "subdomain": "alameda.ca", "run_id": 7, "stage": "ocr"}
    assert expected.items() <= milestone.items()
    assert (milestone["job_id"], milestone["duration"], milestone["pages"]) == (12, 1.235, 40)
    assert (slow["message"], slow["seconds"], slow["stage"]) == ("slow: 3", 9, None)


@pytest.mark.parametrize(
    ("stage", "what", "message", "level"),
    [
        ("fetch", "started", "fetch_started", "INFO"),
        ("deploy", "completed", "deploy_completed", "INFO"),
        ("compilation", "failed", "compilation_failed", "ERROR"),
        ("coordinator", "started", "coordinator_started", "INFO"),
    ],
)
def test_milestones_have_their_names(tmp_path: Path, stage: str, what: Any, message: str, level: str) -> None:
    logs.configure(Config(log_dir=tmp_path), worker="all-1")
    with logs.about(stage="extraction"):
        logs.milestone(stage, what, duration=2)
    [entry] = entries(tmp_path / "worker-all-1.log")
    assert (entry["message"], entry["level"], entry["duration"]) == (message, level, 2)
    assert entry["stage"] == ("extraction" if stage == "coordinator" else stage)


def test_nothing_that_is_logged_fails_the_job(tmp_path: Path) -> None:
    logs.configure(Config(log_dir=tmp_path), worker="ocr-1")
    logs.log.info("odd", extra={"huge": 1 << 80, "thing": object(), "nan": float("nan")})
    logs.milestone("ocr", "failed", message="not mine", name="nor this")
    try:
        raise ValueError("x" * 100_000)
    except ValueError:
        logs.log.exception("no luck")
    two, three, four = entries(tmp_path / "worker-ocr-1.log")
    assert two["huge"] == 1 << 80
    assert (three["message"], three["name"]) == ("ocr_failed", "nor this")
    assert four["error"].startswith("ValueError: xxx")
    assert 10_000 < len(four["traceback"]) < 25_000


def test_a_file_name_that_is_not_utf_8_can_be_logged(tmp_path: Path) -> None:
    handler = AppendingFile(tmp_path / "x.log")
    handler.setFormatter(Lines(masked))
    handler.emit(logging.makeLogRecord({"msg": "half \udcff", "path": "\udcfe.pdf"}))
    handler.close()
    [entry] = entries(tmp_path / "x.log")
    assert (entry["message"], entry["path"]) == ("half \udcff", "\udcfe.pdf")


def test_a_message_with_too_few_arguments_is_said_as_it_is() -> None:
    line = Lines(masked).format(logging.makeLogRecord({"msg": "%d %d", "args": (1,)}))
    assert json.loads(line)["message"] == "%d %d (1,)"


def test_a_log_that_cannot_be_written_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "logs").write_text("a file where the folder should be")
    logs.configure(Config(log_dir=tmp_path / "logs"), worker="ocr-1")
    logs.log.info("one")
    logs.log.info("two")
    assert capsys.readouterr().err.count("cannot be written") == 1


def test_people_get_words_and_commands_only_say_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(Config())
    with logs.about(subdomain="a.b", stage="ocr"):
        logs.log.info("not worth saying")
        logs.log.warning("hm")
    assert capsys.readouterr().err[9:] == "warning: hm  [subdomain=a.b stage=ocr]\n"


# ---- secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://u:p@ss@h/d and more", "postgresql://u:***@h/d and more"),
        ("redis://:secret@h:1/0", "redis://:***@h:1/0"),
        ("postgresql://u:pa/s@h/d, and redis://:1/2@h", "postgresql://u:***@h/d, and redis://:***@h"),
        ("postgresql://u:a/b?c#d%e:f@g@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u@tenant:secret@h/d", "postgresql://u@tenant:***@h/d"),
        ("http://h/x,postgresql://u:s@h/d,http://h:80/x", "http://h/x,postgresql://u:***@h/d,http://h:80/x"),
        ("http://u:pa/s@h/x", "http://u:***@h/x"),
        ("http://h:8000/@someone says a@b", "http://h:8000/@someone says a@b"),
        ("postgresql://u:***@h: no host 'ss@h' in d", "postgresql://u:***@h: no host '***@h' in d"),
        ("GET /x?token=abc&y=1", "GET /x?token=***&y=1"),
        ('{"api_key": "abc", "n": 1}', '{"api_key": "***", "n": 1}'),
        ("Authorization: Bearer abcdefgh.ijk", "Authorization: Bearer ***"),
        ("https://example.org/a:b@c says 12:30", "https://example.org/a:b@c says 12:30"),
        ("the token ring", "the token ring"),
    ],
)
def test_what_looks_like_a_secret_is_masked(text: str, shown: str) -> None:
    assert masked(text) == shown
    assert masked(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        *("x" * 200_000, "a." * 100_000 + "://", "token" * 40_000),
        *("://a:" * 40_000, "x://a:" * 40_000 + "@", "key = " * 40_000),
    ],
)
def test_masking_takes_no_longer_than_reading(text: str) -> None:
    """A page of text in an error must not hold up a worker."""
    began = time.process_time()
    masked(text)
    assert time.process_time() - began < 20  # of computing; it is far less, and the square of it would be far more


def test_a_secret_that_was_given_is_masked_wherever_it_stands() -> None:
    config = Config(database_url="postgresql://u:pass%21word@h/d", sentry_dsn="https://publickey@s/1")
    mask = masker(config, {"LEGISTAR_TOKEN": "tok-12345", "SHORT_TOKEN": "a", "HOME": "/home/me"})
    assert mask("pass!word pass%21word publickey xtok-12345x a /home/me") == "*** *** *** x***x a /home/me"


@pytest.mark.parametrize("password", ["pa/sword", "pa@sword", "pa#sword", "pa?sword", "pa%sword", "pa:sword", "1/sword'"])
def test_one_that_should_have_been_quoted_is_known_too(password: str) -> None:
    mask = masker(Config(database_url=f"postgresql://u:{password}@h/d"), {})
    assert mask(f"it is {password}, of u") == "it is ***, of u"


def test_no_secret_gets_into_the_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loki: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".env").write_text("LEGISTAR_TOKEN=only-in-dotenv\n")
    monkeypatch.chdir(tmp_path)
    config = Config(log_dir=tmp_path, loki_url=loki.url, database_url="postgresql://u:hunter22@h/d")
    logs.configure(config, worker="fetch-1")
    try:
        raise OSError("cannot reach postgresql://u:hunter22@h/d with only-in-dotenv")
    except OSError:
        logs.log.exception("hunter22", extra={"url": ["https://a:hunter22@b/"], "password": "x", "map": {"token": "y9"}})
    eventually(lambda: sent(loki))
    everything = (tmp_path / "worker-fetch-1.log").read_text() + capsys.readouterr().err + str(sent(loki))
    assert "no luck" not in everything
    for secret in ("hunter22", "only-in-dotenv", '"x"', "y9"):
        assert secret not in everything
    [entry] = entries(tmp_path / "worker-fetch-1.log")
    assert (entry["password"], entry["map"], entry["url"]) == ("***", {"token": "***"}, ["https://a:***@b/"])


# ---- files


def test_a_long_file_is_turned_over_and_old_ones_go(tmp_path: Path) -> None:
    handler = AppendingFile(tmp_path / "x.log", limit=100, keep=2)
    for number in range(40):
        handler.emit(logging.makeLogRecord({"msg": f"line {number:3}"}))
    handler.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.log", "x.log.1", "x.log.2"]
    kept = [line for name in ("x.log.2", "x.log.1", "x.log") for line in (tmp_path / name).read_text().splitlines()]
    assert kept == [f"line {number:3}" for number in range(40 - len(kept), 40)]


def _append(path: Path, name: str, gate: Any) -> None:
    handler = AppendingFile(path, limit=20_000, keep=30)
    gate.wait()
    for number in range(1000):
        handler.emit(logging.makeLogRecord({"msg": f"{name} {number} " + "x" * 50}))


def test_processes_that_write_and_turn_over_at_once_lose_and_tear_no_line(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    gate = spawn.Barrier(3)
    processes = [spawn.Process(target=_append, args=(tmp_path / "x.log", name, gate)) for name in "abc"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    files = list(tmp_path.iterdir())
    assert 3 < len(files) < 30
    lines = [line for path in files for line in path.read_text().splitlines()]
    assert sorted(lines) == sorted(f"{name} {number} " + "x" * 50 for name in "abc" for number in range(1000))


def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    handler = AppendingFile(tmp_path / "x.log")
    handler.emit(logging.makeLogRecord({"msg": "one"}))
    (tmp_path / "x.log").rename(tmp_path / "moved")
    handler.emit(logging.makeLogRecord({"msg": "two"}))
    handler.close()
    assert ((tmp_path / "moved").read_text(), (tmp_path / "x.log").read_text()) == ("one\n", "two\n")


# ---- Loki


def test_lines_arrive_below_the_url_with_few_labels(tmp_path: Path, loki: StandIn) -> None:
    login = loki.url.replace("//", "//me:s3cretly%21@")
    logs.configure(Config(log_dir=tmp_path, loki_url=f"{login}/prefix/"), worker="ocr-1")
    logs.log.info("one")
    logs.log.warning("two")
    eventually(lambda: said(loki) == {"one", "two"})
    assert {taken.path for taken in loki.taken} == {"/prefix/loki/api/v1/push"}
    assert {taken.headers["Authorization"] for taken in loki.taken} == {"Basic bWU6czNjcmV0bHkh"}
    [warning] = [entry for entry in sent(loki) if entry["message"] == "two"]
    labels = {"app": "clerk", "host": socket.gethostname(), "worker": "ocr-1", "level": "warning"}
    assert warning["labels"] == labels


def test_a_silent_loki_costs_old_lines_and_nothing_else(loki: StandIn) -> None:
    loki.open.clear()
    handler = Loki(loki.url, limit=100)
    try:
        for number in range(5000):  # while nothing is answered: who waited for that would wait for ever
            handler.put(number, "INFO", json.dumps({"message": str(number)}))
        loki.open.set()
        eventually(lambda: "4999" in said(loki))
        eventually(lambda: handler.dropped + len(said(loki)) == 5000)
        assert handler.dropped > 1000
    finally:
        handler.close()


def test_what_waits_is_sent_when_loki_is_back(loki: StandIn) -> None:
    loki.status = 503
    handler = Loki(loki.url)
    try:
        handler.put(1, "INFO", '{"message": "patient"}')
        eventually(lambda: loki.refused)
        loki.status = 204
        eventually(lambda: said(loki) == {"patient"})
        assert handler.dropped == 0
    finally:
        handler.close()


def test_lines_that_loki_refuses_are_counted_and_hold_up_no_others(loki: StandIn) -> None:
    loki.status = 400
    handler = Loki(loki.url)
    try:
        handler.put(1, "INFO", '{"message": "refused"}')
        eventually(lambda: handler.dropped == 1)
        loki.status = 204
        handler.put(2, "INFO", '{"message": "taken"}')
        eventually(lambda: said(loki) == {"taken"})
    finally:
        handler.close()


def test_a_connection_that_was_closed_meanwhile_is_made_anew(loki: StandIn) -> None:
    loki.hangs_up = True
    handler = Loki(loki.url)
    try:
        for number in range(3):
            handler.put(number, "INFO", json.dumps({"message": str(number)}))
            eventually(partial(lambda number: str(number) in said(loki), number))
        assert handler.dropped == 0
    finally:
        handler.close()


_PROGRAM = """
import sys
from pathlib import Path
from clerk import logs
from clerk.config import Config
logs.configure(Config(loki_url=sys.argv[1]))
for number in range(300):
    logs.log.warning("%d", number)
"""


def test_a_process_that_ends_sends_what_it_has(loki: StandIn) -> None:
    subprocess.run([sys.executable, "-c", _PROGRAM, loki.url], check=True, stderr=subprocess.DEVNULL)
    assert said(loki) == {str(number) for number in range(300)}


def test_a_process_ends_although_loki_does_not_answer(loki: StandIn) -> None:
    loki.open.clear()
    subprocess.run([sys.executable, "-c", _PROGRAM, loki.url], check=True, stderr=subprocess.DEVNULL, timeout=60)
    assert not loki.taken


def _say(url: str, text: str) -> None:
    logs.configure(Config(loki_url=url))
    logs.log.warning(text)


def _say_on(text: str) -> None:
    logs.log.warning(text)


def test_case_24_the_thread_that_sends_dies_with_a_fork_and_logs_arrive(loki: StandIn) -> None:
    """Both ways to make a child, and the parent after them."""
    logs.configure(Config(loki_url=loki.url))
    logs.log.warning("before")
    eventually(lambda: said(loki) == {"before"})
    fork, spawn = multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")
    forked = fork.Process(target=_say_on, args=("forked",))
    spawned = spawn.Process(target=_say, args=(loki.url, "spawned"))
    for process in (forked, spawned):
        process.start()
        process.join()
        assert process.exitcode == 0
    logs.log.warning("after")
    eventually(lambda: said(loki) == {"before", "forked", "spawned", "after"})
    assert len(sent(loki)) == 4


def test_case_24_a_fork_while_lines_wait_does_not_send_them_twice(loki: StandIn) -> None:
    loki.open.clear()
    logs.configure(Config(loki_url=loki.url))
    for number in range(50):
        logs.log.warning("%d", number)
    child = multiprocessing.get_context("fork").Process(target=_say_on, args=("forked",))
    child.start()
    loki.open.set()
    child.join()
    eventually(lambda: len(said(loki)) == 51)
    assert len(sent(loki)) == 51


# ---- a worker and its children

_CHILD = """
import os, sys
from pathlib import Path
from clerk import logs
from clerk.config import Config
logs.configure(Config(log_dir=Path(sys.argv[1]), loki_url=sys.argv[2]))
with logs.about(subdomain="a.b"):
    for number in range(100):
        logs.log.info("%d " + "x" * 3000, number)
    logs.milestone("ocr", "completed")
os.kill(os.getpid(), 9)
"""

_WORKER = """
import subprocess, sys
from pathlib import Path
from clerk import logs
from clerk.config import Config
logs.configure(Config(log_dir=Path(sys.argv[1]), loki_url=sys.argv[2]), worker="ocr-2")
command = [sys.executable, "-c", sys.argv[3], sys.argv[1], sys.argv[2]]
children = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(2)]
assert [child.wait() for child in children] == [-9, -9]
logs.log.info("the worker itself")
logs.close()
"""


def test_what_a_child_said_before_it_was_killed_is_in_the_file_in_loki_and_on_the_workers_stderr(
    tmp_path: Path, loki: StandIn
) -> None:
    command = [sys.executable, "-c", _WORKER, str(tmp_path), loki.url, _CHILD]
    worker = subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True)
    assert len(sent(loki)) == 203
    in_file = entries(tmp_path / "worker-ocr-2.log")
    assert len(in_file) == 203
    assert {entry["worker"] for entry in in_file} == {"ocr-2"}
    on_stderr = [json.loads(line) for line in worker.stderr.splitlines()]
    assert len(on_stderr) == 203
    assert [entry["subdomain"] for entry in on_stderr if entry["message"] == "ocr_completed"] == ["a.b", "a.b"]


def test_a_child_goes_on_when_its_worker_does_not_listen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(path))
        deaf.listen(1)
        with monkeypatch.context() as patch:
            patch.setenv("CLERK_LOG_SOCKET", str(path))
            patch.setenv("CLERK_WORKER", "ocr-1")
            logs.configure(Config(log_dir=tmp_path))
        for _ in range(200):
            logs.log.info("x" * 10_000)
    assert len(entries(tmp_path / "worker-ocr-1.log")) == 200


def test_stderr_that_is_a_plain_file_gets_only_what_is_wrong(tmp_path: Path) -> None:
    """launchd keeps it for ever, and the worker's own file has the rest."""
    program = (
        "import sys; from pathlib import Path; from clerk import logs; from clerk.config import Config\n"
        "logs.configure(Config(log_dir=Path(sys.argv[1])), worker='ocr-1'); logs.log.info('one'); logs.log.warning('two')"
    )
    with (tmp_path / "err").open("w") as errors:
        subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, stderr=errors)
    assert [entry["message"] for entry in entries(tmp_path / "err")] == ["two"]
    assert [entry["message"] for entry in entries(tmp_path / "worker-ocr-1.log")] == ["one", "two"]


def test_a_child_knows_that_it_is_one(tmp_path: Path) -> None:
    assert not logs.in_child()
    logs.configure(Config(log_dir=tmp_path), worker="ocr-1")
    assert not logs.in_child()
    program = "from clerk import logs; import sys; sys.exit(not logs.in_child())"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_worker_is_called_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert logs.worker_name("ocr") == "ocr-1"
    monkeypatch.setenv("CLERK_WORKER_NUMBER", "7")
    assert logs.worker_name("ocr") == "ocr-7"
    monkeypatch.setenv("CLERK_WORKER_NUMBER", "../x")
    assert logs.worker_name("ocr") == "ocr-1"
