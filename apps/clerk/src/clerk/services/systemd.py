"""Linux: one unit for each worker, timers for what runs by the clock, all of it in the journal."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from clerk.errors import ClerkError
from clerk.logs import NUMBER
from clerk.names import STAGES
from clerk.services.plan import GRACE, MARK, Plan, Tick
from clerk.services.programs import call, call_for
from clerk.services.sizing import TICK, Need

FOLDER = Path("/etc/systemd/system")
RUNNING = Path("/run/systemd/system")  # as sd_booted(3) looks

names = re.compile(rf"clerk-(worker@({'|'.join(STAGES)})-[1-9]\d*\.service|(scheduler|reconcile)\.(service|timer))")

ends = ""  # `stop` has


def folder(_: Path) -> Path:
    return FOLDER


def check() -> None:
    if os.geteuid() != 0:
        raise ClerkError("systemd's units are root's: sudo clerk install-workers, or --output DIR to only write them there")
    if not RUNNING.is_dir():
        raise ClerkError("systemd does not run this machine; --output DIR only writes or removes the files there")


def files(plan: Plan) -> Mapping[str, str]:
    made = {f"clerk-worker@{stage}-{number}.service": _worker(plan, stage, number) for stage, number in plan.workers()}
    for tick in plan.ticks:
        made[f"clerk-{tick.name}.service"] = _once(plan, tick)
        made[f"clerk-{tick.name}.timer"] = _timer(tick)
    return made


def _worker(plan: Plan, stage: str, number: int) -> str:
    """`mixed`: only the worker is told to end. What its jobs started goes on until they are done, or the time is up."""
    service = [
        ("Type", "exec"),
        *_common(plan, ["worker", stage], f"clerk-worker-{stage}-{number}", plan.needs[stage]),
        ("Environment", _quoted(f"{NUMBER}={number}")),
        ("Restart", "always"),
        ("RestartSec", "5"),
        ("KillMode", "mixed"),
        ("TimeoutStopSec", str(GRACE)),
    ]
    unit = [("Description", f"clerk: {stage}, worker {number}"), *_NETWORK, ("StartLimitIntervalSec", "0")]
    return _text(Unit=unit, Service=service, Install=[("WantedBy", "multi-user.target")])


def _once(plan: Plan, tick: Tick) -> str:
    service = [("Type", "oneshot"), *_common(plan, tick.words, f"clerk-{tick.name}", TICK), ("TimeoutStartSec", "10min")]
    return _text(Unit=[("Description", f"clerk: {tick.name}"), *_NETWORK], Service=service)


def _timer(tick: Tick) -> str:
    timer = [("OnCalendar", f"*:0/{tick.minutes}"), ("AccuracySec", "1s"), ("Unit", f"clerk-{tick.name}.service")]
    unit = [("Description", f"clerk: {tick.name}, every {tick.minutes} min")]
    return _text(Unit=unit, Timer=timer, Install=[("WantedBy", "timers.target")])


_NETWORK = [("Wants", "network-online.target"), ("After", "network-online.target")]


def _common(plan: Plan, words: Sequence[str], identifier: str, need: Need) -> list[tuple[str, str]]:
    """Secrets stay in `.env`, which clerk itself reads, in its folder: systemd would understand some lines otherwise."""
    path = ":".join(dict.fromkeys([str(plan.program.parent), "/usr/local/bin", "/usr/bin", "/bin"]))
    return [
        ("User", plan.user),
        ("WorkingDirectory", _path(plan.folder)),
        ("Environment", _quoted(f"PATH={path}")),
        ("ExecStart", " ".join(_quoted(word).replace("$", "$$") for word in (str(plan.program), *words))),
        ("MemoryHigh", f"{need.high}M"),
        ("MemoryMax", f"{need.most}M"),
        ("CPUQuota", f"{need.cpu * 100:.0f}%"),
        ("NoNewPrivileges", "yes"),
        ("PrivateTmp", "yes"),
        ("ProtectSystem", "full"),
        ("StandardOutput", "journal"),
        ("StandardError", "journal"),
        ("SyslogIdentifier", identifier),
    ]


def _text(**sections: Sequence[tuple[str, str]]) -> str:
    lines = [f"# {MARK}"]
    for name, directives in sections.items():
        lines += ["", f"[{name}]", *(f"{key}={value}" for key, value in directives)]
    return "\n".join(lines) + "\n"


def _quoted(word: str) -> str:
    word = word.replace("%", "%%")
    if re.fullmatch(r"[\w@%+=:,./-]+", word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _path(path: Path) -> str:
    return str(path).replace("%", "%%")


# ---- what is running


def stop(gone: Sequence[Path]) -> None:
    units = [path.name for path in gone if _is_started(path)]
    if units:
        call_for(units, "systemctl", "disable", "--now")


def start(every: Sequence[Path], changed: Sequence[Path]) -> None:
    call("systemctl", "daemon-reload")
    call_for([path.name for path in every if _is_started(path)], "systemctl", "enable", "--now")
    call_for([path.name for path in changed if _is_started(path)], "systemctl", "restart")


def restart(every: Sequence[Path]) -> None:
    call_for([path.name for path in every if "-worker@" in path.name], "systemctl", "restart")


def _is_started(path: Path) -> bool:
    """By itself; the services of timers are started by these."""
    return "-worker@" in path.name or path.suffix == ".timer"
