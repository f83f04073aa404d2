"""Several hosts for real: network namespaces with a worker each, PostgreSQL in another, one host cut off and healed.

Each host has a network, a name and a cable of its own; the cable of one is pulled for several leases in the middle of a
run. Then: every page is there once, no two attempts of a page were at work at the same time, the host that was cut off
stopped its jobs before others had them, and works again. Linux only, as root or with sudo.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from chaos.hosts_app import LONG
from chaos.play import ROOT, Impossible, Play, Violation
from gristmill import Mill
from gristmill.execution.load import load_sources
from gristmill.ledger.migrate import upgrade
from tests import servers
from tests.valkey import running_valkey

TITLE = "three hosts, one of them cut off and healed"
DATABASES = ("none",)
INSIDE = "GRISTMILL_CHAOS_INSIDE"  # this process is in a network namespace of its own
HOSTS = ("ada", "bob", "cid")
LEASE, PAGES, SECONDS, SLOTS = 3.0, 200, 0.4, 2
PATIENCE = 120.0

_WORKER = """
import sys
from gristmill import Mill
from gristmill.execution.load import load_sources
import logging
logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
url, slots, lease, host, delivery, redis_url = sys.argv[1:]
how = {"delivery": delivery} if delivery == "database" else {"delivery": delivery, "redis_url": redis_url}
with Mill.open(url, load_sources(["module:chaos.hosts_app"]), **how) as mill:
    mill.work(slots=int(slots), lease=float(lease), poll=0.5, labels=[f"host={host}"])
"""


def play(play: Play) -> str:
    if reason := impossible():
        raise Impossible(reason)
    become_root = [] if os.geteuid() == 0 else ["sudo", "-n", "--preserve-env=PATH"]
    said = []
    for delivery in (
        ("database", "redis", "rq", "arq") if play.full else (play.dice.choice(["database", "redis", "rq", "arq"]),)
    ):
        inside = ["unshare", "--net", "env", f"{INSIDE}=1", sys.executable, "-m", "chaos.rows.hosts", delivery]
        done = subprocess.run([*become_root, *inside], cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise Violation(f"with delivery {delivery}:\n{done.stdout}{done.stderr}")
        said.append(f"{delivery}: {done.stdout.strip()}")
    return "; ".join(said)


def impossible() -> str:
    """Why there can be no network namespaces here; empty: there can."""
    for program in ("unshare", "nsenter", "ip", "hostname"):
        if shutil.which(program) is None:
            return f"there is no {program}; on Debian and Ubuntu it is in util-linux, iproute2 or hostname"
    become_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    veth = "ip link add gm0 type veth peer name gm1"
    tried = subprocess.run([*become_root, "unshare", "--net", "--uts", "sh", "-c", veth], capture_output=True, text=True)
    return "" if tried.returncode == 0 else f"no network namespace with a cable: {tried.stderr.strip() or 'refused'}"


# ---- hosts and cables


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


class Host:
    """A network namespace with a name, at the end of a cable."""

    def __init__(self, number: int, name: str) -> None:
        self.name, self.cable = name, f"to-{name}"
        self.gateway, address = f"10.77.{number}.1", f"10.77.{number}.2"
        self.keeper = subprocess.Popen(["unshare", "--net", "--uts", "sh", "-c", f"hostname {name}; exec sleep infinity"])
        eventually(lambda: self._answers("hostname", name), f"host {name} is there")
        run("ip", "link", "add", self.cable, "type", "veth", "peer", "name", "up0", "netns", str(self.keeper.pid))
        run("ip", "addr", "add", f"{self.gateway}/24", "dev", self.cable)
        run("ip", "link", "set", self.cable, "up")
        for words in (f"addr add {address}/24 dev up0", "link set up0 up", "link set lo up"):
            run(*self.inside("ip", *words.split()))

    def _answers(self, program: str, wanted: str) -> bool:
        return subprocess.run(self.inside(program), capture_output=True, text=True).stdout.strip() == wanted

    def inside(self, *command: str) -> list[str]:
        return ["nsenter", "--target", str(self.keeper.pid), "--net", "--uts", "--", *command]

    def cut(self) -> None:
        run("ip", "link", "set", self.cable, "down")

    def heal(self) -> None:
        run("ip", "link", "set", self.cable, "up")

    def end(self) -> None:
        self.keeper.kill()
        self.keeper.wait()


@contextlib.contextmanager
def database() -> Iterator[tuple[str, str]]:
    """A server that hosts can reach: its address here, and its address with a place for the gateway."""
    run("ip", "link", "set", "lo", "up")
    servers.SETTINGS["listen_addresses"] = "*"
    with servers.running_server() as (url, _):
        ((rules,),) = servers.execute(url, "SHOW hba_file")
        with Path(rules).open("a") as file:
            file.write("host all all 10.77.0.0/16 trust\n")
        servers.execute(url, "SELECT pg_reload_conf()")
        there = urlsplit(servers.create_database(url))
        upgrade(there.geturl())
        yield there.geturl(), there._replace(netloc=f"{there.username}@%s:{there.port}").geturl()


@contextlib.contextmanager
def worker(host: Host, url: str, delivery: str, redis_url: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", _WORKER, url % host.gateway, str(SLOTS), str(LEASE), host.name]
    command += [delivery, redis_url % host.gateway]
    with log.open("wb") as output:
        process = subprocess.Popen(host.inside(*command), cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    except BaseException:
        print(f"---- {host.name}\n{log.read_text()}", file=sys.stderr)
        raise
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def eventually(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {PATIENCE:g} s: {what}")
        time.sleep(0.05)


# ---- the play


class Ticks:
    """When which attempt of a page was at work, and where."""

    def __init__(self, path: Path) -> None:
        rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        self.rows = [(key, int(attempt), host, float(at)) for key, attempt, host, at in rows]

    def last_on(self, host: str, before: float = float("inf")) -> float:
        return max((at for _, _, where, at in self.rows if where == host and at < before), default=0.0)

    def on_long_pages(self) -> list[str]:
        """Hosts that have just begun one that takes longer than a lease."""
        began: dict[str, tuple[float, str]] = {}
        for key, _, host, at in self.rows:
            if key < LONG and key not in began:
                began[key] = (at, host)
        return [host for at, host in began.values() if time.monotonic() - at < LEASE]

    def overlaps(self) -> list[str]:
        """Pages of which an older attempt was still at work after a newer one had begun."""
        began: dict[tuple[str, int], float] = {}
        for key, attempt, _, at in self.rows:
            began[key, attempt] = min(at, began.get((key, attempt), at))
        return [key for key, attempt, _, at in self.rows if at > began.get((key, attempt + 1), float("inf"))]


def inside(delivery: str) -> None:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gristmill-chaos-")))
        here, there = stack.enter_context(database())
        redis = stack.enter_context(running_valkey(password="between-hosts", bind="0.0.0.0"))
        how: dict[str, Any] = (
            {"delivery": delivery} if delivery == "database" else {"delivery": delivery, "redis_url": redis.url}
        )
        hosts = [Host(n, name) for n, name in enumerate(HOSTS)]
        for host in hosts:
            stack.callback(host.end)
        mill = stack.enter_context(Mill.open(here, load_sources(["module:chaos.hosts_app"]), **how))
        for host in hosts:
            log = folder / f"{host.name}.log"
            stack.enter_context(worker(host, there, delivery, redis.url.replace("127.0.0.1", "%s"), log))
        check(mill, hosts, folder)


def check(mill: Mill, hosts: list[Host], folder: Path) -> None:
    def alive() -> set[str]:
        return {found.host for found in mill.workers()}

    def ticks() -> Ticks:
        return Ticks(folder / "ticks")

    eventually(lambda: alive() == set(HOSTS), "three workers on three hosts")
    started = mill.start("site", "example.org", args={"pages": PAGES, "folder": str(folder), "seconds": SECONDS})
    eventually(lambda: all(ticks().last_on(name) for name in HOSTS), "all of them are at work")
    eventually(lambda: ticks().on_long_pages(), "one of them is on a long page")
    (victim,) = (host for host in hosts if host.name == ticks().on_long_pages()[0])
    victim.cut()
    cut_at = time.monotonic()
    eventually(lambda: victim.name not in alive(), "it is declared lost")
    lost_at = time.monotonic()
    assert lost_at - cut_at > LEASE * 0.5, "its lease was not over"
    time.sleep(2 * LEASE)
    last = ticks().last_on(victim.name)
    assert cut_at + LEASE / 2 < last < lost_at, "its jobs did not go on, or longer than its lease"
    assert not mill.run(started.id).terminal, "there is nothing left for it; make the run longer"
    victim.heal()
    healed_at = time.monotonic()
    eventually(lambda: ticks().last_on(victim.name) > healed_at, "it works again")
    back = ticks().last_on(victim.name) - healed_at
    eventually(lambda: mill.run(started.id).terminal, "the run ends")
    run_ = mill.run(started.id)
    (pages,) = (stage for stage in run_.stages if stage.name == "page")
    assert (run_.state, run_.result("index"), pages.completed) == ("completed", PAGES, PAGES), run_
    assert ticks().overlaps() == [], "two attempts of a page were at work at the same time"
    again = sum(1 for _, attempt in {(key, attempt) for key, attempt, _, _ in ticks().rows} if attempt > 1)
    print(
        f"cut off, it was lost after {lost_at - cut_at:.1f} s (lease {LEASE:g} s), its jobs had stopped"
        f" {lost_at - last:.1f} s before; healed, it worked again after {back:.1f} s;"
        f" {PAGES} pages, each counted once, {again} begun again"
    )


if __name__ == "__main__":
    inside(sys.argv[1])
