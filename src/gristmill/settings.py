"""Every setting: its name, default, environment variable and meaning, in one table.

A value comes from the call or the command line, then the environment, then the default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from gristmill.errors import Invalid, did_you_mean, quoted

VERSION = "0.1.0.dev0"
DEFAULT_DATABASE = "sqlite:///gristmill.db"
DEFAULT_QUEUE = "default"
PAYLOAD_LIMIT = 1024 * 1024  # bytes of JSON: a row is a message, not a document store
KEY_LIMIT = 500  # characters: keys are indexed, and PostgreSQL's index rows end at 2,700 bytes
NAME_LIMIT = 100
LABEL_LIMIT = 200  # characters of a label's key, and of its value: both are in one index row


@dataclass(frozen=True)
class WorkerSettings:
    """How a worker behaves. Durations are seconds."""

    slots: int = os.cpu_count() or 1
    async_slots: int = 100
    lease: float = 30.0
    poll: float = 1.0
    grace: float = 30.0
    cancel_grace: float = 5.0
    prefetch: float = 0.02
    batch: int = 5000
    strict: bool = False
    one_line: bool = False
    memory_mib: int = 0
    jobs_mib: int = 0
    labels: tuple[str, ...] = ()
    own_slots: tuple[str, ...] = ()
    recycle: int = 0
    keep_days: float = 0
    keep_audit_days: float = 0
    log_json: bool = False
    debug: bool = False

    def __post_init__(self) -> None:
        for name, (lowest, highest) in _LIMITS.items():
            value = getattr(self, name)
            if not lowest <= value <= highest:
                raise Invalid(f"setting {name!r} must be from {lowest:g} to {highest:g}, not {quoted(value)}")
        for own in self.own_slots:
            queue, _, slots = own.partition("=")
            if not queue or not slots.isdecimal() or not 1 <= int(slots) <= 1024:
                raise Invalid(f"setting 'own_slots' wants QUEUE=N, N from 1 to 1024, not {quoted(own)}")
        if len(self.slots_of()) < len(self.own_slots):
            raise Invalid(f"setting 'own_slots' names a queue twice: {quoted(', '.join(self.own_slots))}")
        if self.strict and self.one_line:
            raise Invalid("settings 'strict' and 'one_line' are two ways to serve queues; choose one")
        if self.poll * 3 > self.lease:
            raise Invalid(f"setting 'poll' ({self.poll:g} s) must be at most a third of 'lease' ({self.lease:g} s)")

    def slots_of(self) -> dict[str, int]:
        """The slots that queues have for themselves."""
        return {queue: int(slots) for queue, _, slots in (own.partition("=") for own in self.own_slots)}


_LIMITS: dict[str, tuple[float, float]] = {
    "slots": (1, 1024),
    "async_slots": (1, 100_000),
    "lease": (0.5, 3600),
    "poll": (0.01, 60),
    "grace": (0, 86_400),
    "cancel_grace": (0, 3600),
    "prefetch": (0, 10),
    "batch": (1, 10_000),
    "memory_mib": (0, 10**7),
    "jobs_mib": (0, 10**8),
    "recycle": (0, 10**9),
    "keep_days": (0, 36_500),
    "keep_audit_days": (0, 36_500),
}

HELP: dict[str, str] = {
    "slots": "child processes that run jobs (default: one per core)",
    "async_slots": "async jobs at once, all in one child process",
    "lease": "a worker that was silent for so long is lost, and its jobs go to others",
    "poll": "how often to look without being told; also how fast a pause takes effect",
    "grace": "on SIGTERM, how long running jobs may go on before they are stopped and returned",
    "cancel_grace": "how long a cancelled job may go on before its process is killed",
    "prefetch": "how much estimated work a child may hold in advance",
    "batch": "the most jobs in one claim for one child",
    "strict": "serve the queues strictly in the order given, instead of by weight",
    "one_line": "serve the queues as one line, high priority first and then who came first, instead of by weight",
    "memory_mib": "the most memory of one child; 0: no limit",
    "jobs_mib": "memory for all jobs that declare theirs, together; 0: what this machine has, less a reserve",
    "labels": "what this worker has, for jobs that need it: gpu, region=eu",
    "own_slots": "slots that a queue has for itself, beside the others: QUEUE=N",
    "recycle": "replace a child after so many jobs; 0: never",
    "keep_days": "for how long `up` and `prune` keep ended runs and jobs whose code has no `keep=`; 0: for ever",
    "keep_audit_days": "for how long `up` and `prune` keep entries of the audit; 0: for ever",
    "log_json": "write the log as lines of JSON, and what jobs log too, each with its run, stage, job and attempt",
    "debug": "refuse what may go wrong one day: a second lock while one is held",
}


def worker_settings(environ: Mapping[str, str] | None = None, **given: Any) -> WorkerSettings:
    """Settings from `given` (None: not given), then `GRISTMILL_<NAME>` in the environment, then the defaults."""
    environ = os.environ if environ is None else environ
    names = {f.name: f.type for f in fields(WorkerSettings)}
    for name in given:
        if name not in names:
            raise Invalid(f"unknown setting {name!r}{did_you_mean(name, names)}")
    values = {
        n: _parse(n, str(t), environ[f"GRISTMILL_{n.upper()}"])
        for n, t in names.items()
        if f"GRISTMILL_{n.upper()}" in environ
    }
    values.update({n: _several(v) if n in _SEVERAL else v for n, v in given.items() if v is not None})
    return WorkerSettings(**values)


_SEVERAL = ("labels", "own_slots")


def _several(value: Any) -> tuple[str, ...]:
    """`a,b`, or a list of such."""
    texts = [value] if isinstance(value, str) else value
    return tuple(part.strip() for text in texts for part in str(text).split(",") if part.strip())


def _parse(name: str, kind: str, text: str) -> Any:
    if name in _SEVERAL:
        return _several(text)
    try:
        if kind == "bool":
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[text.lower()]
        return int(text) if kind == "int" else float(text)
    except (ValueError, KeyError):
        raise Invalid(f"GRISTMILL_{name.upper()}={text!r} is not a {kind}") from None


DELIVERIES = ("database", "redis", "rq", "arq")


def delivery_name(given: str | None = None, environ: Mapping[str, str] | None = None) -> str:
    environ = os.environ if environ is None else environ
    name = given or environ.get("GRISTMILL_DELIVERY") or DELIVERIES[0]
    if name not in DELIVERIES:
        raise Invalid(f"unknown delivery {name!r}{did_you_mean(name, DELIVERIES)}")
    return name


def redis_url(given: str | None = None, environ: Mapping[str, str] | None = None) -> str | None:
    environ = os.environ if environ is None else environ
    return given or environ.get("GRISTMILL_REDIS_URL") or environ.get("REDIS_URL")


def database_url(given: str | None = None, environ: Mapping[str, str] | None = None) -> str:
    environ = os.environ if environ is None else environ
    return given or environ.get("GRISTMILL_DATABASE_URL") or environ.get("DATABASE_URL") or DEFAULT_DATABASE
