"""How a command ends: which error gives which exit code, and the one line that is said about it."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Sequence

import click

from gristmill.cli import show
from gristmill.errors import AppError, DatabaseError, GristmillError, Invalid, NotFound

OK = 0
FAILED = 1  # refused, failed, not found
WITH_ERRORS = 2  # only `start --wait` and `work --run`: the run completed, some items did not
USAGE = 64  # EX_USAGE of sysexits.h
UNAVAILABLE = 69  # EX_UNAVAILABLE
INTERRUPTED = 130  # 128 + SIGINT, as shells say it
PIPE_CLOSED = 141  # 128 + SIGPIPE: who read our output has left

_LONGEST = 1000  # characters of an error
AFTER_WAIT = {"completed": OK, "completed_with_errors": WITH_ERRORS}  # any other end of a run: FAILED


def run(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; says its exit code. Nothing is raised but KeyboardInterrupt before it begins."""
    from gristmill.cli.commands import gristmill

    show.never_fail_on_a_letter()
    _say_warnings()
    try:
        result = _invoke(gristmill, sys.argv[1:] if argv is None else list(argv))
        sys.stdout.flush()
        return result if isinstance(result, int) else OK
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return USAGE
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        _stop_printing()
        return PIPE_CLOSED
    except Exception as error:
        return _explain(error)


class _Notes(logging.Handler):
    """Warnings of a command that has no log are notes for the person."""

    def emit(self, record: logging.LogRecord) -> None:
        show.note(record.getMessage())


def _say_warnings() -> None:
    logger = logging.getLogger("gristmill")
    logger.handlers[:] = [_Notes(logging.WARNING)]
    logger.propagate = False


def _invoke(command: click.Command, argv: list[str]) -> object:
    """As click's own `main` does, which would answer a closed pipe and Ctrl-C in its way, not in ours."""
    if "_GRISTMILL_COMPLETE" in os.environ:  # the shell asks what could come next
        return command.main(argv, prog_name="gristmill")
    try:
        with command.make_context("gristmill", argv) as ctx:
            return command.invoke(ctx)
    except click.exceptions.Exit as stop:  # --help, --version
        return stop.exit_code


def code_of(error: Exception) -> int:
    if isinstance(error, click.UsageError | AppError):
        return USAGE
    if isinstance(error, Invalid):
        return FAILED if isinstance(error, NotFound) else USAGE
    return UNAVAILABLE if isinstance(error, DatabaseError) else FAILED


def message_of(error: Exception) -> str:
    """One line that says what is wrong and what to do."""
    if isinstance(error, click.UsageError):
        return _usage_message(error)
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, GristmillError):
        return str(error)
    if isinstance(error, OSError):
        return str(error)
    return f"this is a bug in Gristmill: {type(error).__name__}: {error}; GRISTMILL_DEBUG=1 shows where"


def _usage_message(error: click.UsageError) -> str:
    if isinstance(error, click.NoSuchOption):
        message = f"no such option {error.option_name!r}{_nearest_option(error)}"
    else:
        message = error.format_message().rstrip(".")
        message = message[:1].lower() + message[1:]
    says_what_to_do = ";" in message or (
        isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter)
    )
    return message if says_what_to_do or error.ctx is None else f"{message}; see {error.ctx.command_path} --help"


def _nearest_option(error: click.NoSuchOption) -> str:
    """Compared without the dashes, which make any two short names look alike."""
    from difflib import get_close_matches

    known = {} if error.ctx is None else {o.lstrip("-"): o for p in error.ctx.command.params for o in p.opts}
    close = get_close_matches(error.option_name.lstrip("-"), [name for name in known if len(name) > 1], n=1)
    return f"; did you mean {known[close[0]]!r}?" if close else ""


def _explain(error: Exception) -> int:
    if os.environ.get("GRISTMILL_DEBUG") == "1":
        traceback.print_exception(error)
    lines = [line.strip() for line in message_of(error).splitlines() if line.strip()] or [type(error).__name__]
    try:
        click.echo(f"Error: {_cut(' '.join(dict.fromkeys([lines[0], lines[-1]])))}", err=True)
        sys.stdout.flush()
    except OSError:
        _stop_printing()
    return code_of(error)


def _cut(line: str) -> str:
    """What somebody typed may be long; what is wrong with it is said before, and what to do at the end."""
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST // 2]} … {line[-_LONGEST // 4 :]}"


def _stop_printing() -> None:
    """Python flushes once more when it exits, and would complain about what cannot be written then either."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
