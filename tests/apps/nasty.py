"""Jobs that misbehave in every way we could think of. Each must be an outcome of that job alone."""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import decimal
import io
import json
import mmap
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from gristmill import Context, Later, Permanent, Retries, Skip, Unspent, task
from tests.apps.barriers import mark, wait_for, wait_for_async

QUICK = Retries(0, delays=[0.01])  # crashes are still tried again: twice


@task
def short(ctx: Context, folder: Path, n: int) -> None:
    mark(folder / "short", str(n))


@task(timeout=0.3, retries=Retries(0))
def shout(ctx: Context, folder: Path) -> None:
    """Short, but there is much to tell of it."""
    mark(folder / "shouted")
    raise ValueError("x" * 15_000)


@task(retries=Retries(0, crashes=0))
def short_or_deadly(ctx: Context, deadly: bool = False) -> None:
    if deadly:
        os._exit(3)


# ---- those that do not end


@task(timeout=0.3)
def sleep_for_ever(ctx: Context) -> None:
    print("about to sleep")
    time.sleep(3600)


@task(timeout=0.3)
def native_for_ever(ctx: Context) -> None:
    """The regular expression engine holds the interpreter: no other thread of the process can do anything."""
    re.match(r"(a+)+$", "a" * 60 + "b")


@task(timeout=0.3)
def deaf_to_signals(ctx: Context) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(3600)


@task(timeout=0.6)
def with_grandchildren(ctx: Context, folder: Path) -> None:
    """A program that it started, and one that this started in turn."""
    shell = subprocess.Popen(["sh", "-c", "sleep 3600 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    assert shell.stdout is not None
    mark(folder / "grandchildren", f"shell {shell.pid}")
    mark(folder / "grandchildren", f"sleep {int(shell.stdout.readline())}")
    shell.wait()


@task(timeout=0.6)
def with_a_detached_grandchild(ctx: Context, folder: Path) -> None:
    """As browsers are started: in a session of its own."""
    program = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    mark(folder / "grandchildren", f"detached {program.pid}")
    program.wait()


@task(timeout=0.3)
def swallow_everything(ctx: Context) -> None:
    while True:
        try:
            while True:
                time.sleep(0.01)
        except BaseException:
            pass


@task(timeout=0.3, retries=Retries(1, delays=[0.01]))
def slow_once(ctx: Context) -> int:
    if ctx.attempt == 1:
        time.sleep(3600)
    return ctx.attempt


@task(timeout=0.3)
async def async_sleep_for_ever(ctx: Context, folder: Path) -> None:
    import asyncio  # not above: the child of a plain function is spared it

    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        mark(folder / "cancelled", str(os.getpid()))
        raise


@task(timeout=0.3)
async def async_block_for_ever(ctx: Context, folder: Path) -> None:
    mark(folder / "blocking", str(os.getpid()))
    wait_for(folder / "never")


@task(timeout=0.3)
async def async_will_not_be_cancelled(ctx: Context) -> None:
    import asyncio  # not above: the child of a plain function is spared it

    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)


@task(timeout=0.3)
async def async_is_done_when_cancelled(ctx: Context) -> str:
    """Turns the cancellation into a result: too late."""
    import asyncio

    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(3600)
    return "as if nothing had happened"


# ---- those whose process dies


@task(retries=QUICK)
def segfault(ctx: Context) -> None:
    print("about to crash")
    ctypes.string_at(0)


@task(retries=QUICK)
def exit_at_once(ctx: Context, code: int = 3) -> None:
    os._exit(code)


@task(retries=QUICK)
def kill_itself(ctx: Context) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@task(retries=QUICK)
def abort(ctx: Context) -> None:
    os.abort()


@task(retries=QUICK)
def overflow_the_stack(ctx: Context) -> None:
    sys.setrecursionlimit(10**9)
    resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))

    class Nested:
        def __repr__(self) -> str:
            return f"{self!r}"

    repr(Nested())


@task(retries=QUICK)
def close_every_descriptor(ctx: Context) -> None:
    os.closerange(0, 4096)


@task(retries=QUICK)
def die_while_it_is_told_of(ctx: Context) -> None:
    """It is through, and its process ends before anybody has heard so."""
    sys.modules["__main__"].Child.report = lambda child: os._exit(4)


@task(retries=QUICK)
def write_to_every_descriptor(ctx: Context, length: int) -> None:
    """Also to the one on which we talk to the supervisor: a message of that length which is no message."""
    for descriptor in range(3, 100):
        with contextlib.suppress(OSError):
            os.write(descriptor, length.to_bytes(4, "big") + b"oops")
    time.sleep(3600)


@task(retries=Retries(0, delays=[0.01], crashes=1))
def crash_once(ctx: Context) -> int:
    if ctx.attempt == 1:
        os._exit(1)
    return ctx.attempt


@task(retries=QUICK)
async def async_crash(ctx: Context, folder: Path) -> None:
    """Dies once all the others run, so that they are in the same process."""
    mark(folder / "culprit", f"{os.getpid()} {ctx.attempt}")
    if ctx.attempt == 1:
        await wait_for_async(folder / "crash")
    os._exit(1)


# ---- memory


@task(memory="300MB")
def eat_memory(ctx: Context) -> int:
    hoard = []
    while True:
        hoard.append(bytearray(8 << 20))


@task
def hoard(ctx: Context, mib: int) -> int:
    return len(bytearray(mib << 20))


@task(memory="200MB", retries=QUICK)
def eat_shared_memory(ctx: Context, folder: Path) -> None:
    """Memory that no limit of the kernel stops, so the supervisor has to."""
    block = mmap.mmap(-1, 512 << 20)
    for start in range(0, 512 << 20, 1 << 20):
        block[start : start + (1 << 20)] = b"x" * (1 << 20)
    wait_for(folder / "never")


@task(memory="250MB", retries=QUICK)
async def async_eat_memory(ctx: Context, folder: Path) -> None:
    mark(folder / "eating", f"{os.getpid()} {ctx.attempt}")
    if ctx.attempt == 1:
        await wait_for_async(folder / "eat")
    block = mmap.mmap(-1, 400 << 20)
    for start in range(0, 400 << 20, 1 << 20):
        block[start : start + (1 << 20)] = b"x" * (1 << 20)
    await wait_for_async(folder / "never")


# ---- errors that are hard to report


@task
def recurse(ctx: Context) -> None:
    def down(n: int) -> int:
        return down(n + 1)

    down(0)


@task
def raise_system_exit(ctx: Context) -> None:
    sys.exit(7)


@task
def raise_keyboard_interrupt(ctx: Context) -> None:
    raise KeyboardInterrupt


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Unstoppable(Exception):
    def __str__(self) -> str:
        raise SystemExit("no words, no process")


@task
def raise_unspeakable(ctx: Context) -> None:
    raise Unspeakable


@task
def raise_unstoppable(ctx: Context) -> None:
    raise Unstoppable


@task
def raise_not_text(ctx: Context) -> None:
    raise ValueError("caf\udce9 \0 " + "x" * 10)


@task
def raise_permanent_with_an_error(ctx: Context) -> None:
    """As people write it: `raise Permanent(error)`."""
    try:
        int("x")
    except ValueError as error:
        raise Permanent(error) from error  # type: ignore[arg-type]


@task
def raise_skip_without_a_reason(ctx: Context) -> None:
    raise Skip(None)  # type: ignore[arg-type]


@task
def raise_later_for_ever(ctx: Context) -> None:
    raise Later(float("inf"))


@task
async def raise_later_for_ever_async(ctx: Context) -> None:
    raise Later("tomorrow")  # type: ignore[arg-type]


@task
def raise_unspent_for_ever(ctx: Context) -> None:
    raise Unspent("nonsense", pause=float("nan") if ctx.attempt == 2 else -1)


_SECONDS: list[Any] = [Decimal("0.01"), timedelta(milliseconds=10), Fraction(1, 100)]


@task
def raise_later_of_any_kind(ctx: Context) -> None:
    if ctx.attempt <= 3:
        raise Later(_SECONDS[ctx.attempt - 1], "soon")


@task
async def raise_later_of_any_kind_async(ctx: Context) -> None:
    if ctx.attempt <= 3:
        raise Later(_SECONDS[ctx.attempt - 1], "soon")


@task(retries=0)
async def raise_what_cannot_be_told(ctx: Context) -> None:
    later = Later(1)
    later.seconds = Decimal(1)  # type: ignore[assignment]
    raise later


@task
def raise_group(ctx: Context) -> None:
    raise ExceptionGroup("several", [ValueError("a"), KeyError("b")])


@task
async def raise_cancelled(ctx: Context) -> None:
    """Nobody cancelled this job: something that it awaited was."""
    import asyncio

    inner = asyncio.ensure_future(asyncio.sleep(60))
    inner.cancel()
    await inner


@task
async def async_system_exit(ctx: Context) -> None:
    sys.exit(7)


# ---- results and progress that cannot be kept


@task
def return_object(ctx: Context) -> object:
    return object()


@task
def return_not_a_number(ctx: Context) -> dict[str, Any]:
    return {"deep": [1.0, float("nan")]}


@task
def return_too_much(ctx: Context) -> str:
    return "x" * (1 << 20)


@task
def return_surrogate(ctx: Context) -> str:
    return "caf\udce9"


@task
def return_itself(ctx: Context) -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@task
def progress_of_no_json(ctx: Context) -> str:
    ctx.progress(1, 2, "fine")
    ctx.progress(decimal.Decimal("1.5"), message=Path("x"))  # type: ignore[arg-type]
    return "done"


@task
def phase_of_odd_names(ctx: Context) -> str:
    """File names that are not UTF-8 are an everyday thing."""
    phase = ctx.phase("files")
    phase.complete("fine")
    phase.fail("caf\udce9.pdf", OSError("cannot read caf\udce9.pdf \0"))
    return "done"


# ---- those that leave a mess behind


@task
def close_standard_descriptors(ctx: Context) -> None:
    for descriptor in (0, 1, 2):
        os.close(descriptor)


@task
def fail_with_descriptors_closed(ctx: Context) -> None:
    for descriptor in (0, 1, 2):
        os.close(descriptor)
    raise LookupError("quietly")


_kept_open: list[Any] = []


@task
def write_a_file_as_stdout(ctx: Context, path: Path) -> None:
    """Closes its output, and so gets its number for a file of its own, which it keeps open."""
    os.close(1)
    file = path.open("wb", buffering=0)
    _kept_open.append(file)
    file.write(b"precious")


@task
def change_directory(ctx: Context, to: Path) -> str:
    os.chdir(to)
    return str(Path.cwd())


@task
def where(ctx: Context) -> str:
    return str(Path.cwd())


@task
def replace_stdout(ctx: Context) -> None:
    sys.stdout = io.StringIO()
    sys.stderr = None
    print("into the void")


@task
def fail_with_stdout_replaced(ctx: Context) -> None:
    sys.stdout = sys.stderr = object()
    raise LookupError("quietly")


@task
def close_stdout(ctx: Context) -> None:
    sys.stdout.close()


@task
def change_signal_handlers(ctx: Context) -> None:
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


@task
def leave_an_alarm(ctx: Context) -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.05)


@task
def leave_a_thread(ctx: Context) -> None:
    threading.Thread(target=time.sleep, args=(3600,), daemon=False).start()


@task
def fork_and_exit(ctx: Context) -> str:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "parent"


@task
def fork_and_return(ctx: Context, folder: Path) -> str:
    """Both return; only the process that was given the job may answer for it."""
    pid = os.fork()
    if pid == 0:
        mark(folder / "forked", f"fork {os.getpid()}")
        return "fork"
    wait_for(folder / "go")
    return "parent"


@task
def print_every_letter(ctx: Context) -> None:
    print("caf\u00e9 \udce9")
    raise LookupError("after it")


@task
def print_much(ctx: Context) -> None:
    line = "x" * 1023 + "\n"
    for _ in range(50 * 1024):
        sys.stdout.write(line)
    raise LookupError("after 50 MB")


@task
def delete_the_environment(ctx: Context) -> None:
    os.environ.clear()


@task
def disable_logging(ctx: Context) -> None:
    import logging

    logging.disable(logging.CRITICAL)
    logging.getLogger().handlers.clear()


@task
def break_the_path(ctx: Context) -> None:
    sys.path.clear()


@task
def world(ctx: Context) -> dict[str, Any]:
    """What a job finds."""
    umask = os.umask(0o077)
    os.umask(umask)
    return {
        "umask": umask,
        "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
        "terminate": str(signal.getsignal(signal.SIGTERM)).partition(" at ")[0],
        "alarm": [str(signal.getsignal(signal.SIGALRM)), *signal.getitimer(signal.ITIMER_REAL)],
        "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "opened": open_files(),
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
    }


def open_files() -> int:
    number = os.dup(0)
    os.close(number)
    return number


@task
def change_the_umask(ctx: Context) -> None:
    os.umask(0o777)


@task
def set_up_once(ctx: Context, n: int) -> int:
    os.environ["SET_UP"] = "1"
    _kept_open.append(n)
    time.sleep(0.01)  # so that each is told of on its own
    return len(_kept_open)


@task
def block_signals(ctx: Context) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


@task
def leave_an_alarm_with_a_handler(ctx: Context) -> None:
    def handle(*_: object) -> None:
        raise RuntimeError("an alarm of a job that is long over")

    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)


@task
def lower_limits(ctx: Context) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))


@task
def leave_every_file_open(ctx: Context) -> None:
    with contextlib.suppress(OSError):
        while True:
            _kept_open.append(os.open(os.devnull, os.O_RDONLY))


@task
def be_nice(ctx: Context) -> None:
    os.nice(1)


@task(retries=Retries(0, crashes=0))
def replace_a_builtin(ctx: Context) -> None:
    builtins.len = lambda _: 0


@task
def cut_every_file(ctx: Context) -> None:
    """Also the few bytes that its process shares with its supervisor."""
    for descriptor in range(3, 100):
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)


@task(retries=QUICK)
def send_to_the_supervisor(ctx: Context, message: list[Any]) -> None:
    """A message that is one, but says nonsense, perhaps of this job."""
    _send(message, ctx.job)
    time.sleep(3600)


def _send(message: list[Any], job: int) -> None:
    body = json.dumps(message).replace('"THIS"', str(job)).encode()
    for descriptor in range(3, 100):
        with contextlib.suppress(OSError):
            os.write(descriptor, len(body).to_bytes(4, "big") + body)


@task(retries=QUICK)
async def async_send_to_the_supervisor(ctx: Context, folder: Path) -> None:
    """Says nonsense once all the others run, so that they are in the same process."""
    mark(folder / "culprit", f"{os.getpid()} {ctx.attempt}")
    if ctx.attempt == 1:
        await wait_for_async(folder / "crash")
    _send(["x"], ctx.job)
    await wait_for_async(folder / "never")


@task
def progress_of_many_digits(ctx: Context) -> None:
    ctx.progress(1, 10**400)


@task
def speak(ctx: Context) -> None:
    """A well-behaved job, whose log must be whole whoever was here before."""
    print("spoken")
    raise LookupError("as it should")
