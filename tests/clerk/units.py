"""A strict reader of unit files: what it does not know is a problem. It knows what clerk's units say, and no more."""

from __future__ import annotations

import re

_SIZE, _TIME, _UNIT = r"\d+[KMG]", r"\d+(s|min)?", r"[\w@.-]+\.(service|target)"
_WORDS = r'("([^"\\$]|\\.|\$\$)*"|[^\s"\\$]|\$\$| (?=\S))+'  # quoted, or without what would need it
_KNOWN: dict[str, dict[str, str]] = {
    "Unit": {"Description": r"[^\\]+", "Wants": _UNIT, "After": _UNIT, "StartLimitIntervalSec": _TIME},
    "Service": {
        "Type": "exec|oneshot",
        "User": r"[\w.-]+",
        "WorkingDirectory": r"/([^%\\]|%%)*",
        "Environment": r'"\w+=([^"%\\]|%%)*"|\w+=([^\s"%\\]|%%)*',
        "ExecStart": rf"(?=[/\"]){_WORDS}",
        "MemoryHigh": _SIZE,
        "MemoryMax": _SIZE,
        "CPUQuota": r"\d+%",
        "NoNewPrivileges": "yes",
        "PrivateTmp": "yes",
        "ProtectSystem": "full",
        "StandardOutput": "journal",
        "StandardError": "journal",
        "SyslogIdentifier": r"[\w-]+",
        "Restart": "always",
        "RestartSec": _TIME,
        "KillMode": "mixed",
        "TimeoutStopSec": _TIME,
        "TimeoutStartSec": _TIME,
    },
    "Timer": {"OnCalendar": r"\*:0/\d+", "AccuracySec": _TIME, "Unit": _UNIT},
    "Install": {"WantedBy": r"(multi-user|timers)\.target"},
}
_MANY = {"Environment"}


def problems(name: str, text: str) -> list[str]:
    """In words, one for each line that is wrong, and for what is missing."""
    found: list[str] = []
    section = ""
    seen: set[tuple[str, str]] = set()
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            section = line.strip("[]")
            found += [] if section in _KNOWN and line == f"[{section}]" else [f"{name}: no section {line}"]
            continue
        key, sign, value = line.partition("=")
        pattern = _KNOWN.get(section, {}).get(key)
        if not sign or pattern is None:
            found.append(f"{name}: [{section}] knows no {line}")
        elif not re.fullmatch(pattern, value):
            found.append(f"{name}: {key} cannot be {value}")
        elif (section, key) in seen and key not in _MANY:
            found.append(f"{name}: {key} twice")
        seen.add((section, key))
    needed = ("Timer", "OnCalendar") if name.endswith(".timer") else ("Service", "ExecStart")
    return found + ([] if needed in seen else [f"{name}: no {needed[1]}"])
