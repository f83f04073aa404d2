"""What clerk says of its work: JSON lines in a file for each worker, in the journal and in Loki; a few words for people.

A worker's jobs run in child processes, which may be killed at any moment. A child appends to its worker's file by itself,
and hands each line to its worker, which passes it on to stderr and to Loki: so no line waits in a process that may die.
Nothing here ever fails a job, or keeps it waiting.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

from clerk.config import Config
from clerk.logs.console import Console
from clerk.logs.files import AppendingFile
from clerk.logs.lines import ABOUT, FIELDS, Lines, Words, about_now, read
from clerk.logs.relay import Relay, ToWorker
from clerk.masking import masker

if TYPE_CHECKING:
    from clerk.logs.loki import Loki

__all__ = ["FIELDS", "about", "close", "configure", "in_child", "log", "milestone", "worker_name"]

log = logging.getLogger("clerk")

NUMBER: Final = "CLERK_WORKER_NUMBER"  # which of the workers of its type this is; its service says so
_WORKER: Final = "CLERK_WORKER"  # in children: whose they are
_SOCKET: Final = "CLERK_LOG_SOCKET"  # in children: where their worker listens
_NOTHING: Final = logging.CRITICAL + 1  # a level that no line has
_NOISY: Final = ("httpx", "httpcore", "urllib3", "botocore", "alembic")

_ours: list[logging.Handler] = []
_relay: Relay | None = None


def worker_name(kind: str) -> str:
    """`ocr-3`: the third worker of its type on this machine, if its service numbered it; else the first."""
    number = os.environ.get(NUMBER, "1")
    return f"{kind}-{number if number.isdecimal() else 1}"


def in_child() -> bool:
    """Whether a worker started this process for its jobs: then what it logs is its worker's, once it is configured."""
    return _WORKER in os.environ and _relay is None


def configure(config: Config, worker: str | None = None, aloud: bool = True, typed: bool = False) -> None:
    """`worker`: this process is one, and called so. Without it: a worker's child, or a command that a person typed.

    Not `aloud`: a worker beside which something else is shown. `typed`: a person sees by other words what becomes of its
    jobs, and on stderr only what goes wrong beside them. All of it is in its file.
    """
    close()
    mask = masker(config)
    name = worker or os.environ.get(_WORKER)
    lines = Lines(mask, name)
    if name:
        _add(AppendingFile(config.log_dir / f"worker-{name}.log"), lines)
    if worker:
        _speak_for_children(config, worker, mask, aloud, typed)
    else:
        _add(Console(), Words(mask), logging.INFO if name else logging.WARNING)
        if name and _SOCKET in os.environ:
            _add(ToWorker(os.environ[_SOCKET]), lines)
        elif loki := _loki(config.loki_url, name):
            _add(loki, lines)
    logging.getLogger().setLevel(logging.INFO)
    for noisy in _NOISY:
        logging.getLogger(noisy).setLevel(logging.WARNING)


def close() -> None:
    """Sends what is left, for at most two seconds, and is silent from then on."""
    global _relay
    if _relay is not None:
        _relay.close()
        _relay = None
        os.environ.pop(_WORKER, None)
        os.environ.pop(_SOCKET, None)
    while _ours:
        handler = _ours.pop()
        logging.getLogger().removeHandler(handler)
        handler.close()


@contextlib.contextmanager
def about(**fields: Any) -> Iterator[None]:
    """Every line within says these: `about(subdomain="a.b", run_id=7, stage="ocr", job_id=12)`."""
    token = ABOUT.set({**about_now(), **fields})
    try:
        yield
    finally:
        ABOUT.reset(token)


def milestone(
    stage: str, what: Literal["started", "completed", "failed"], *, duration: float | None = None, **fields: Any
) -> None:
    """`ocr_completed` and so on; `coordinator_started` is the hand-over to the next stage. `duration`: seconds."""
    if duration is not None:
        fields["duration"] = round(duration, 3)
    if stage != "coordinator":
        fields.setdefault("stage", stage)
    log.log(logging.ERROR if what == "failed" else logging.INFO, "%s_%s", stage, what, extra={"fields": fields})


def _speak_for_children(config: Config, worker: str, mask: Callable[[str], str], aloud: bool, typed: bool) -> None:
    global _relay
    console = Console()
    words = typed or sys.stderr.isatty()
    level = _NOTHING if not aloud else logging.WARNING if typed or _is_kept() else logging.INFO
    if typed:
        console.addFilter(_is_no_milestone)
    _add(console, Words(mask) if words else Lines(mask, worker), level)
    loki = _loki(config.loki_url, worker)
    if loki:
        _add(loki, Lines(mask, worker))

    def pass_on(line: str) -> None:
        entry = read(line)
        if loki:
            loki.put(entry.at, entry.level, line)
        if not typed and logging.getLevelNamesMapping().get(entry.level, logging.INFO) >= console.level:
            console.write(entry.words() if words else line)

    try:
        _relay = Relay(pass_on)
    except OSError as error:  # children still have their file, and Loki by themselves
        log.warning("children cannot hand over what they log: %s", error)
        return
    os.environ[_WORKER], os.environ[_SOCKET] = worker, str(_relay.path)


def _is_no_milestone(record: logging.LogRecord) -> bool:
    return not hasattr(record, "fields")


def _loki(url: str | None, worker: str | None) -> Loki | None:
    if not url:
        return None
    from clerk.logs.loki import Loki  # HTTP and TLS, which a command that does not use them need not load

    try:
        return Loki(url, worker)
    except ValueError:
        _warn_once(f"LOKI_URL wants http://HOST:PORT or https://HOST, not {url[:80]!r}; nothing is sent to Loki")
        return None


@cache
def _warn_once(text: str) -> None:
    """A process may be configured more than once: for a run that is worked on here, and after it."""
    log.warning(text)


def _is_kept() -> bool:
    """Whether stderr is a plain file, as launchd has it: nobody rotates that, and the worker's own file has all of it."""
    try:
        return stat.S_ISREG(os.fstat(sys.stderr.fileno()).st_mode)
    except (OSError, ValueError, AttributeError):
        return False


def _add(handler: logging.Handler, lines: logging.Formatter, level: int = logging.INFO) -> None:
    handler.setFormatter(lines)
    handler.setLevel(level)
    logging.getLogger().addHandler(handler)
    _ours.append(handler)
