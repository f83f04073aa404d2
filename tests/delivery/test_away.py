"""Redis may vanish at any moment: nothing fails, nobody waits long, all is done; and it is told what is wrong with it."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gristmill import Invalid, Mill, Unavailable
from gristmill.cli.exits import run as command
from gristmill.delivery.health import examine_delivery
from gristmill.delivery.redis import RedisServer, shown
from tests import servers
from tests.apps import everyday
from tests.delivery.conftest import OnRedis, Opener, opener
from tests.valkey import Valkey, running_valkey, tls_in_front
from tests.worker.helpers import all_end, eventually, working

SECRET = "s3cr3t-c4n4ry"
CERTIFICATE = Path(__file__).with_name("localhost.pem")


@pytest.fixture(params=OnRedis)
def delivery(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opened(sqlite_url: str, delivery: str, own_valkey: Valkey) -> Opener:
    return opener(sqlite_url, delivery, own_valkey.url)


@pytest.fixture
def mill(opened: Opener) -> Iterator[Mill]:
    with opened() as mill:
        yield mill


def test_jobs_are_done_while_redis_is_away_and_after_it_is_back(mill: Mill, own_valkey: Valkey) -> None:
    with working(mill, slots=1, poll=0.2):
        all_end(mill, mill.enqueue(everyday.add, args={"a": 0}).id)
        for _ in range(2):
            own_valkey.kill()
            all_end(mill, *(mill.enqueue(everyday.add, args={"a": n}).id for n in range(5)))
            own_valkey.start()
            all_end(mill, mill.enqueue(everyday.add, args={"a": 1}).id)
            own_valkey.flush()
            all_end(mill, mill.enqueue(everyday.add, args={"a": 2}).id)


def test_a_worker_is_rung_for_again_when_redis_is_back(mill: Mill, own_valkey: Valkey) -> None:
    """Without its poll: only the bell can wake it, or that it is back."""
    with working(mill, slots=1, poll=60.0, lease=600.0):
        all_end(mill, mill.enqueue(everyday.add, args={"a": 0}).id)
        own_valkey.kill()
        job = mill.enqueue(everyday.add, args={"a": 1})
        own_valkey.start()
        all_end(mill, job.id)


def test_a_worker_begins_without_redis(mill: Mill, own_valkey: Valkey) -> None:
    own_valkey.kill()
    job = mill.enqueue(everyday.add, args={"a": 1})
    with working(mill, slots=1, poll=0.2):
        all_end(mill, job.id)


def test_a_silent_server_holds_nobody_up_twice(sqlite_url: str, delivery: str) -> None:
    """It takes connections and never answers. Only the first enqueue waits for it, and not for long."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"redis://127.0.0.1:{deaf.getsockname()[1]}/0"
        with opener(sqlite_url, delivery, url)() as mill:
            mill.enqueue(everyday.add, args={"a": 0})
            assert mill.delivery.server.rests  # type: ignore[attr-defined]
            calls: list[object] = []
            mill.delivery.server.client.execute_command = lambda *a, **k: calls.append(a)  # type: ignore[attr-defined]
            for n in range(20):
                mill.enqueue(everyday.add, args={"a": n})
            assert calls == []


def test_a_password_and_a_database_number(sqlite_url: str, delivery: str) -> None:
    with running_valkey(password=SECRET) as server:
        url = server.url.removesuffix("0") + "3"
        with opener(sqlite_url, delivery, url)() as mill, working(mill, slots=1, poll=60.0, lease=600.0):
            all_end(mill, mill.enqueue(everyday.add, args={"a": 0}).id)
            all_end(mill, mill.enqueue(everyday.add, args={"a": 1}).id)
            seen = [child.cmdline() for child in psutil.Process().children(recursive=True)]
            ours = [" ".join(words) for words in seen if "gristmill.execution.child" in words]
            assert ours
            assert not any(SECRET in words for words in ours), "everybody can see command lines"
        assert set(server.client.info("keyspace")) <= {"db3"}


def test_tls(sqlite_url: str, delivery: str, own_valkey: Valkey) -> None:
    with tls_in_front(own_valkey.port, CERTIFICATE) as port:
        url = f"rediss://localhost:{port}/0?ssl_ca_certs={CERTIFICATE}"
        assert examine_delivery(delivery, url)[0].ok
        assert not examine_delivery(delivery, f"rediss://localhost:{port}/0")[0].ok  # nobody vouches for it
        with opener(sqlite_url, delivery, url)() as mill, working(mill, slots=1, poll=60.0, lease=600.0):
            all_end(mill, mill.enqueue(everyday.add, args={"a": 0}).id)
            all_end(mill, mill.enqueue(everyday.add, args={"a": 1}).id)


def test_tls_to_postgresql_is_asked_for_in_its_url(pg_url: str) -> None:
    """The tests' own server has none: who insists is refused, not served in the clear."""
    insisting = f"{pg_url}{'&' if '?' in pg_url else '?'}sslmode=require"
    if servers.execute(pg_url, "SHOW ssl") == [("on",)]:
        Mill.open(insisting).close()
        return
    with pytest.raises(Unavailable, match="SSL"):
        Mill.open(insisting)


# ---- what is said


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("redis://:{}@h:1/2", "redis://:***@h:1/2"),
        ("rediss://me:{}@h/0?password={}", "rediss://me:***@h/0"),
        ("redis://h", "redis://h"),
        ("unix://:{}@/run/redis.sock?db=1", "unix://:***@/run/redis.sock"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, seen: str) -> None:
    assert shown(url.replace("{}", SECRET)) == seen


@pytest.mark.parametrize(
    "url",
    [
        f"http://:{SECRET}@h/0",
        f"redis://:{SECRET}@h:port/0",
        f"redis://:{SECRET}@h/0?db=x",
        f"redis://:{SECRET}/x@h/0",
        f"redis://:{SECRET}#x@h",
        f"redis://:{SECRET}@[::1/0",
        f"redis://:{SECRET}@h/first",
        f"redis://:{SECRET}@h/-1",
        f"redis://h/0?password={SECRET}&bogus=1",
        f"redis://h/0?{SECRET}",
        f"redis://:{SECRET}@h/0?ssl_ca_certs=x",
        f"redis://:{SECRET}@h/0?socket_timeout=60",
        f"redis://:{SECRET}@h/0?decode_responses=True",
        SECRET,
    ],
)
def test_a_malformed_url_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(Invalid, match=r"redis://HOST|%2F|those of redis:// are db, username, password$") as refused:
        RedisServer(url)
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_delivery_that_is_not_there(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Invalid, match="did you mean 'redis'"):
        Mill.open(sqlite_url, delivery="rediss")
    monkeypatch.delenv("REDIS_URL", raising=False)
    with pytest.raises(Invalid, match="GRISTMILL_REDIS_URL"):
        Mill.open(sqlite_url, delivery="redis")


def test_doctor_says_what_is_wrong_with_redis(
    sqlite_url: str, delivery: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def doctor(url: str) -> tuple[int, str]:
        monkeypatch.setenv("GRISTMILL_REDIS_URL", url)
        code = command(["--database", sqlite_url, "doctor", "--delivery", delivery])
        return code, "".join(capfd.readouterr())

    with running_valkey(password=SECRET) as server:
        code, said = doctor(server.url)
        assert code == 0, said
        assert "ok  redis: " in said
        code, wrong = doctor(server.url.replace(SECRET, f"{SECRET}2"))
        assert code == 1
        assert "refuses the password" in wrong
        code, none = doctor(f"redis://127.0.0.1:{server.port}/0")
        assert code == 1
        assert "refuses the password" in none
    code, away = doctor(server.url)
    assert code == 1
    assert "cannot be reached" in away
    assert SECRET not in said + wrong + none + away


def test_doctor_sees_that_enqueuer_and_worker_differ(sqlite_url: str, delivery: str, own_valkey: Valkey) -> None:
    def faults(mill: Mill) -> list[str]:
        return [finding.sentence for finding in mill.doctor() if not finding.ok]

    with (
        opener(sqlite_url, delivery, own_valkey.url)() as mill,
        opener(sqlite_url, "database", "")() as other,
        working(mill, slots=1, poll=0.2),
    ):
        all_end(mill, mill.enqueue(everyday.add, args={"a": 0}).id)
        assert faults(mill) == []
        all_end(mill, other.enqueue(everyday.add, args={"a": 0}).id)
        said = f"jobs in default are told of by database, worker 1 listens to {delivery}: "
        for (fault,) in (faults(mill), faults(other)):
            assert fault.startswith(said)
        with mill.transaction() as connection:  # all is long ago, and what was told last the worker listens to
            connection.exec_driver_sql("UPDATE gm_ringer SET at = at - 600000000")
            connection.exec_driver_sql("UPDATE gm_ringer SET at = at - 10000000 WHERE delivery = 'database'")
        assert faults(mill) == []


def test_no_secret_is_logged(
    sqlite_url: str, delivery: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    with (
        running_valkey(password=SECRET) as server,
        opener(sqlite_url, delivery, server.url.replace(SECRET, f"{SECRET}2"))() as mill,
        working(mill, slots=1, poll=0.2),
    ):
        all_end(mill, mill.enqueue(everyday.add, args={"a": 0}).id)
        eventually(lambda: "cannot be" in caplog.text)
    assert SECRET not in caplog.text
