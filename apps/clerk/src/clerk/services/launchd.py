"""macOS: one agent for each worker, in the folder of the user who is logged in."""

from __future__ import annotations

import os
import plistlib
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clerk.errors import ClerkError
from clerk.logs import NUMBER
from clerk.names import STAGES
from clerk.services.plan import GRACE, MARK, Plan
from clerk.services.programs import call, works

_PREFIX = "com.civicband"
# What launchd gives is only the system's; tesseract and rsync are Homebrew's, on Apple silicon and on Intel.
_PATH = ("/opt/homebrew/bin", "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin")
_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
_TRIES = 50

names = re.compile(rf"{re.escape(_PREFIX)}\.(worker\.({'|'.join(STAGES)})\.[1-9]\d*|scheduler|reconcile)\.plist")

ends = ""  # `stop` has


def folder(_: Path) -> Path:
    return Path.home() / "Library" / "LaunchAgents"


def check() -> None:
    if os.geteuid() == 0:
        raise ClerkError("agents belong to the user who is logged in: install without sudo")


def files(plan: Plan) -> Mapping[str, str]:
    made: dict[str, dict[str, Any]] = {}
    for stage, number in plan.workers():
        made[f"{_PREFIX}.worker.{stage}.{number}"] = {
            **_common(plan, ["worker", stage], f"worker-{stage}-{number}", {NUMBER: str(number)}),
            "KeepAlive": True,
            "ExitTimeOut": GRACE,
            "ThrottleInterval": 10,
            "ProcessType": "Standard",
        }
    for tick in plan.ticks:
        common = _common(plan, tick.words, tick.name, {})
        made[f"{_PREFIX}.{tick.name}"] = {**common, "StartInterval": tick.minutes * 60}
    return {f"{label}.plist": _text({"Label": label, **keys}) for label, keys in made.items()}


def _common(plan: Plan, words: Sequence[str], log: str, environment: Mapping[str, str]) -> dict[str, Any]:
    path = ":".join(dict.fromkeys([str(plan.program.parent), *_PATH]))
    errors = plan.path(plan.config.log_dir) / f"{log}.err.log"  # what it logs goes to a file that it turns over itself
    return {
        "ProgramArguments": [str(plan.program), *words],
        "WorkingDirectory": str(plan.folder),
        "EnvironmentVariables": {"PATH": path, **environment},
        "RunAtLoad": True,
        "StandardOutPath": "/dev/null",
        "StandardErrorPath": str(errors),
    }


def _text(keys: Mapping[str, Any]) -> str:
    text = plistlib.dumps(dict(keys), sort_keys=False).decode()
    return text.replace(_HEAD, f"{_HEAD}<!-- {MARK} -->\n", 1)


# ---- what is running


def stop(gone: Sequence[Path]) -> None:
    for path in gone:
        works("launchctl", "bootout", _service(path))  # not if it is not there, which is as good


def start(every: Sequence[Path], changed: Sequence[Path]) -> None:
    for path in every:
        _make_log_folder(path)
        if works("launchctl", "print", _service(path)):
            if path not in changed:
                continue
            works("launchctl", "bootout", _service(path))
        _bootstrap(path)


def restart(every: Sequence[Path]) -> None:
    """launchd starts again what ended, so the signal to end is enough: the item at hand is finished first."""
    for path in every:
        if ".worker." in path.name:
            call("launchctl", "kill", "SIGTERM", _service(path))


def _bootstrap(path: Path) -> None:
    """One that was just told to go may take its time, and until then it cannot come."""
    for _ in range(_TRIES):
        if works("launchctl", "bootstrap", _domain(), str(path)):
            return
        time.sleep(GRACE / _TRIES)
    call("launchctl", "bootstrap", _domain(), str(path))


def _make_log_folder(path: Path) -> None:
    """launchd does not, and then refuses to start the program."""
    try:
        Path(plistlib.loads(path.read_bytes())["StandardErrorPath"]).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClerkError(f"the folder of logs {error.filename} cannot be made: {error.strerror}") from None


def _domain() -> str:
    return f"gui/{os.getuid()}"


def _service(path: Path) -> str:
    return f"{_domain()}/{path.name.removesuffix('.plist')}"
