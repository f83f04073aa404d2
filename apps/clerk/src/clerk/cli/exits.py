"""How a command ends: which error gives which exit code, and the one line that is said about it."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import click

from clerk.errors import ClerkError

OK = 0
FAILED = 1  # refused or failed
USAGE = 2  # a bad option, value, queue, worker type or subdomain
NO_DATABASE = 3  # out of reach, or its schema is not at head
INTERRUPTED = 130  # 128 + SIGINT, as shells say it
PIPE_CLOSED = 141  # 128 + SIGPIPE: who read our output has left

_LONGEST = 1000  # characters of an error
_NO_DATABASE = {"DatabaseError", "OperationalError", "InterfaceError"}  # the engine's, SQLAlchemy's and the drivers'
_FAILED = {"GristmillError"}


def run(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; says its exit code. Nothing is raised but KeyboardInterrupt before it begins."""
    from clerk.cli.commands import clerk

    return run_command(clerk, sys.argv[1:] if argv is None else argv)


def run_command(command: click.Command, argv: Sequence[str], name: str = "clerk") -> int:
    """The same for any command; `name`: what a person types for it."""
    _never_fail_on_a_letter()
    try:
        result = _invoke(command, list(argv), name)
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
    finally:
        if (logs := sys.modules.get("clerk.logs")) is not None:
            logs.close()


def _invoke(command: click.Command, argv: list[str], name: str) -> object:
    """As click's own `main` does, which would answer a closed pipe and Ctrl-C in its way, not in ours."""
    if "_CLERK_COMPLETE" in os.environ:  # the shell asks what could come next
        return command.main(argv, prog_name=name)
    try:
        with command.make_context(name, argv) as ctx:
            return command.invoke(ctx)
    except click.exceptions.Exit as stop:  # --help, --version
        return stop.exit_code


def code_of(error: Exception) -> int:
    if isinstance(error, click.UsageError):
        return USAGE
    if isinstance(error, ClerkError):
        return error.exit_code
    return NO_DATABASE if _is_any(error, _NO_DATABASE) else FAILED


def message_of(error: Exception) -> str:
    """What is wrong and what to do."""
    if isinstance(error, click.UsageError):
        return _usage_message(error)
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, ClerkError | OSError) or _is_any(error, _FAILED):
        return str(error)
    if _is_any(error, _NO_DATABASE):
        return f"the database cannot be used: {str(error).partition('[SQL:')[0]}"
    return f"this is a bug in clerk: {type(error).__name__}: {error}; CLERK_DEBUG=1 shows where"


def _is_any(error: Exception, names: set[str]) -> bool:
    """By name: to import these classes takes longer than most commands."""
    return any(kind.__name__ in names for kind in type(error).__mro__)


def _usage_message(error: click.UsageError) -> str:
    message = error.format_message().rstrip(".")
    message = message[:1].lower() + message[1:]
    complete = ";" in message or (isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter))
    return message if complete or error.ctx is None else f"{message}; see {error.ctx.command_path} --help"


def _explain(error: Exception) -> int:
    if os.environ.get("CLERK_DEBUG") == "1":
        traceback.print_exception(error)
    lines = [line.strip() for line in message_of(error).splitlines() if line.strip()] or [type(error).__name__]
    said = mask(_printable(" ".join(dict.fromkeys([lines[0], lines[-1]]))))
    try:
        click.echo(f"Error: {_cut(said)}", err=True)
        sys.stdout.flush()
    except OSError:
        _stop_printing()
    return code_of(error)


def mask(line: str) -> str:
    """Without passwords, also those that only the settings know."""
    from clerk.config import load
    from clerk.masking import masked, masker

    try:
        return masker(load())(line)
    except (ClerkError, OSError):  # the settings are what is wrong
        return masked(line)


def _printable(line: str) -> str:
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in line)


def _cut(line: str) -> str:
    """What somebody typed may be long; what is wrong with it is said before, and what to do at the end."""
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST // 2]} … {line[-_LONGEST // 4 :]}"


def _never_fail_on_a_letter() -> None:
    """Names come from anywhere; a terminal that cannot show one of their letters shows a question mark."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _stop_printing() -> None:
    """Python flushes once more when it exits, and would complain about what cannot be written then either."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
