"""Odd payloads, command lines, requests and forms: each is taken or refused in one clear line, nothing is half done, no
worker dies."""

from __future__ import annotations

import contextlib
import io
import os
import random
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import click

from chaos import forms, odd, oracle, requests
from chaos.play import ROOT, Play, Violation
from gristmill import Mill
from gristmill.cli.commands import gristmill
from gristmill.cli.exits import run
from gristmill.errors import GristmillError
from tests.ledger import invariants

TITLE = "odd payloads, command lines, requests and forms"
DATABASES = ("SQLite", "PostgreSQL")
LINE = 2000  # characters: nobody reads a longer one
_THERE = "SELECT (SELECT count(*) FROM gm_job WHERE run_id IS NULL), (SELECT count(*) FROM gm_run)"
_NEVER = {"up", "work", "serve", "watch", "restore", "backup"}  # loops, and files
_LOOPS = {"--wait", "--every", "-A", "--database", "--delivery"}


def play(play: Play) -> str:
    play.apps = ("chaos.odd",)
    oracle.watch(play.mill)
    crew = play.crew(2)
    crew.ready()
    payloads, lines, processes = play.pick(600, 7000), play.pick(300, 2950), play.pick(4, 50)
    taken = _payloads(play, payloads)
    longest = oracle.settle(play)
    oracle.check(play, failing=True)
    codes = _lines(play, lines) + _processes(play, processes)
    statuses = requests.send(play, play.pick(300, 3000))
    pages = forms.send(play, play.pick(300, 3000))
    _tidy(play.mill)
    longest = max(longest, oracle.settle(play))
    if broken := invariants.broken(play.mill.ledger):  # some command lines delete: what is gone need not be there
        raise Violation(f"does not hold: {broken}")
    if dead := [worker.pid for worker in crew.workers if not worker.alive]:
        raise Violation(f"{len(dead)} workers died")
    if crashed := oracle.rows(play.mill, "SELECT id, error FROM gm_job WHERE error_class IN ('crash', 'memory')"):
        raise Violation(f"{len(crashed)} jobs ended their process: {crashed[:3]}")
    if shown := [line for line in crew.logs() if "Traceback" in line]:
        raise Violation(f"a worker showed a traceback: {shown[:1]}")
    answers, told, exits = (
        ", ".join(f"{n} x {code}" for code, n in sorted(one.items())) for one in (statuses, pages, codes)
    )
    return (
        f"{payloads} payloads: {taken} taken and ended, {payloads - taken} refused in one line with nothing left behind;"
        f" {sum(codes.values())} command lines, {processes} of them processes (exit codes {exits}): no traceback;"
        f" {sum(statuses.values())} requests to a server ({answers}), each refused one a clear problem that changed nothing;"
        f" {sum(pages.values())} pages and forms ({told}): the same;"
        f" no worker died; longest pause {longest:.1f} s"
    )


def _tally(found: Counter[int]) -> str:
    return ", ".join(f"{number} x {code}" for code, number in sorted(found.items()))


def _tidy(mill: Mill) -> None:
    """What a command line may have paused, limited, put off or scheduled for ever does not go on."""
    for schedule in mill.schedules():
        mill.remove_schedule(schedule.name)
    for queue in mill.queues():
        mill.resume(queue.name)
        mill.set_queue(queue.name, limits={"at_once": None, "per_second": None})
    mill.cancel_runs(state=["queued", "in_progress", "waiting"])
    mill.cancel_jobs(state="queued")


# ---- payloads


def _payloads(play: Play, count: int) -> int:
    """Says how many were taken."""
    dice, taken, wrong = play.dice, 0, list[str]()
    for n in range(count):
        act = dice.choice(_ACTS)
        (before,) = oracle.rows(play.mill, _THERE)
        try:
            what = act(play, dice, n)
        except GristmillError as error:
            wrong += _not_clear(f"{act.__name__} {n}", str(error))
            (after,) = oracle.rows(play.mill, _THERE)
            if after != before:
                wrong.append(f"{act.__name__} {n}: refused, and there is one more: {error}")
        except Exception:
            wrong.append(f"{act.__name__} {n}: {traceback.format_exc(limit=-2)[-600:]}")
        else:
            taken += 1
            play.acknowledge(*what)
    if wrong:
        raise Violation(f"{len(wrong)} payloads: {'; '.join(wrong[:4])}")
    return taken


def _args(dice: random.Random) -> Any:
    value = odd.draw(dice)
    return value if dice.random() < 0.3 else {"value": value}


def _enqueue(play: Play, dice: random.Random, n: int) -> tuple[str, int]:
    return "job", play.mill.enqueue("take", args=_args(dice)).id


def _enqueue_how(play: Play, dice: random.Random, n: int) -> tuple[str, int]:
    names = ("queue", "priority", "delay", "at", "unique", "unique_scope", "once", "timeout", "retries", "needs")
    how = {name: odd.draw(dice, 0.001) for name in dice.sample(names, dice.choice((1, 1, 2)))}
    job = play.mill.enqueue("take", args={"n": n}, **how)
    if job.finished_at is None and how.keys() & {"delay", "at", "needs", "queue"}:
        play.mill.cancel_job(job.id)  # nobody would wait for it
    return "job", job.id


def _start(play: Play, dice: random.Random, n: int) -> tuple[str, int]:
    subject = odd.draw(dice) if dice.random() < 0.5 else f"subject {n}"
    return "run", play.mill.start("flow", subject, args=_args(dice) if dice.random() < 0.5 else {}).id


def _emit(play: Play, dice: random.Random, n: int) -> tuple[str, int]:
    return "run", play.mill.start("flow", f"emits {n}", args={"seed": dice.randrange(10**9)}).id


def _give(play: Play, dice: random.Random, n: int) -> tuple[str, int]:
    return "job", play.mill.enqueue("give", args={"seed": dice.randrange(10**9), "huge": 0.02}).id


def _say(play: Play, dice: random.Random, n: int) -> tuple[str, int]:
    return "job", play.mill.enqueue("say", args={"seed": dice.randrange(10**9)}).id


Act = Callable[[Play, random.Random, int], tuple[str, int]]
_ACTS: list[Act] = [_enqueue, _enqueue, _enqueue_how, _start, _emit, _give, _say]


def _not_clear(what: str, said: str) -> Iterator[str]:
    if "\n" in said.strip() or len(said) > LINE or not said.strip():
        yield f"{what}: not one clear line ({len(said)} characters): {said[:200]!r}"
    if "Traceback" in said or "this is a bug" in said:
        yield f"{what}: {said[:500]!r}"


# ---- command lines


def _commands() -> list[tuple[list[str], click.Command]]:
    found: list[tuple[list[str], click.Command]] = []

    def walk(command: click.Command, path: list[str]) -> None:
        if isinstance(command, click.Group):
            for name, inner in command.commands.items():
                walk(inner, [*path, name])
        elif path[0] not in _NEVER | {"db"} or path == ["db", "current"]:
            found.append((path, command))

    walk(gristmill, [])
    return found


def _word(dice: random.Random, number: int) -> str:
    """A word of a command line, often one that nearly means something. No NUL: no process could be given one."""
    if dice.random() < 0.4:
        return dice.choice((str(number), "1", "take", "flow", "default", "subject 1", "a=1", "seed=x", "3s", "* * * * *"))
    try:
        text = repr(value) if not isinstance(value := odd.draw(dice, 0), str) else value
    except (RecursionError, ValueError):  # too deep, too many digits
        text = dice.choice(("[", '{"a":', "9")) * 5000
    return text[:10_000].replace("\0", "") or "x"


def _line(dice: random.Random, path: list[str], command: click.Command) -> list[str]:
    words = list(path)
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            words += [_word(dice, dice.randint(1, 50)) for _ in range(dice.choice((1, 1, 1, 0, 2)))]
        elif parameter.opts[0] in _LOOPS or dice.random() < 0.6:
            continue
        else:
            flag = isinstance(parameter, click.Option) and parameter.is_flag
            words += [parameter.opts[0], *([] if flag else [_word(dice, dice.randint(1, 50))])]
    if dice.random() < 0.1:
        words.append(_word(dice, 1))
    return words


def _lines(play: Play, count: int) -> Counter[int]:
    """In this process. Says which exit codes there were."""
    commands, codes, wrong = _commands(), Counter[int](), list[str]()
    fixed = ["--database", play.url, "-A", "chaos.odd"]
    for _ in range(count):
        words = _line(play.dice, *play.dice.choice(commands))
        output, errors = (io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", write_through=True) for _ in "12")
        try:
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors), _no_input():
                code = run([*fixed, *words])
        except BaseException as error:
            wrong.append(f"{words[:6]!r}: {type(error).__name__}: {error}")
            continue
        codes[code] += 1
        wrong += _answered(words, code, errors.buffer.getvalue().decode("utf-8", "replace"))
    _refuse(wrong)
    return codes


@contextlib.contextmanager
def _no_input() -> Iterator[None]:
    """Whoever asks a question gets no answer."""
    before, sys.stdin = sys.stdin, io.StringIO()
    try:
        yield
    finally:
        sys.stdin = before


def _processes(play: Play, count: int) -> Counter[int]:
    commands, codes, wrong = _commands(), Counter[int](), list[str]()
    for _ in range(count):
        words = [word.encode("utf-8", "surrogatepass") for word in _line(play.dice, *play.dice.choice(commands))]
        line: list[str | bytes] = [sys.executable, "-m", "gristmill", "--database", play.url, "-A", "chaos.odd", *words]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, env={**os.environ})
        codes[done.returncode] += 1
        wrong += _answered([os.fsdecode(word) for word in words], done.returncode, done.stderr.decode("utf-8", "replace"))
    _refuse(wrong)
    return codes


def _answered(words: list[str], code: int, errors: str) -> Iterator[str]:
    shown = " ".join(words)[:200]
    if code not in (0, 1, 64):
        yield f"{shown!r}: exit code {code}: {errors[-300:]!r}"
    said = [line for line in errors.splitlines() if line.startswith("Error:")]
    if code and len(said) != 1 and words[0] != "doctor":  # which says what is wrong as its answer
        yield f"{shown!r}: exit code {code} with {len(said)} errors: {errors[-300:]!r}"
    for line in said:
        yield from _not_clear(repr(shown), line)
    if "Traceback" in errors:
        yield f"{shown!r}: {errors[-600:]}"


def _refuse(wrong: list[str]) -> None:
    if wrong:
        raise Violation(f"{len(wrong)} command lines: " + "\n  ".join(wrong[:5]))
