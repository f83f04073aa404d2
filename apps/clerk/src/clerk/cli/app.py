"""What all commands share: the settings, the database, and the options that several have."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from clerk.config import Config
    from clerk.plugins import Plugins
    from gristmill import Mill

F = TypeVar("F", bound=Callable[..., Any])

PLUGINS_DIR: Final = "CLERK_PLUGINS_DIR"  # as clerk.pipeline.wiring reads it, in children too


@dataclass
class Place:
    """Where a command works, opened when it is needed."""

    quiet: bool = False

    @cached_property
    def config(self) -> Config:
        from clerk.config import load

        return load()

    @contextmanager
    def open(self, worker: str | None = None, patient: bool = False) -> Iterator[Mill]:
        """The mill; what goes wrong beside the command is said on stderr. `worker`: this process is one, called so;
        `patient`: it waits for a database that is away."""
        from clerk import logs
        from clerk.app import open_mill
        from clerk.outage import patiently

        logs.configure(self.config, worker)
        opening = partial(open_mill, self.config)
        with patiently(opening) if patient else opening() as mill:
            yield mill

    @property
    def plugins(self) -> Plugins:
        from clerk.pipeline import wiring

        return wiring.hooks()

    def say(self, text: str) -> None:
        """What is done, for a person; what was asked for is printed by `line`."""
        if not self.quiet:
            line(text)


def line(text: str = "") -> None:
    """What would steer the terminal is shown, not obeyed."""
    click.echo("".join(c if c.isprintable() else " " if c in "\n\t\r" else f"\\x{ord(c):02x}" for c in text))


def document(value: Any) -> None:
    """One JSON document on stdout; times as RFC 3339."""
    from gristmill.model import to_json

    click.echo(json.dumps(to_json(value), indent=2, ensure_ascii=False))


def plural(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def refuse_silence(yes: bool) -> None:
    """Where there is no terminal to ask on, somebody must have said --yes."""
    if not yes and not is_terminal():
        raise click.UsageError("there is no terminal to ask on; --yes goes on without being asked")


def confirm(question: str) -> None:
    """Who says no is told that it was heard."""
    from clerk.errors import ClerkError

    if not click.confirm(question):
        raise ClerkError("nothing was done")


# ---- options


def checked_subdomain(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
    from clerk import names

    if isinstance(value, tuple):
        return tuple(map(names.subdomain, value))
    return None if value is None else names.subdomain(value)


def site_option(required: bool = False, text: str = "Only this site.") -> Callable[[F], F]:
    names = ["-s", "--subdomain", "--site-id", "subdomain"]
    return click.option(*names, metavar="SITE", required=required, callback=checked_subdomain, help=text)


def site_argument(function: F) -> F:
    return click.argument("subdomain", metavar="SITE", callback=checked_subdomain)(function)


def _be_quiet(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(Place).quiet = True


class Command(click.Command):
    """Takes --quiet too: nobody remembers that options of the whole come before the command."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        taken = {name for parameter in self.params for name in parameter.opts}
        names = [name for name in ("-q", "--quiet") if name not in taken]
        self.params.append(click.Option(names, is_flag=True, hidden=True, expose_value=False, callback=_be_quiet))


pass_place = click.make_pass_decorator(Place, ensure=True)
as_json = click.option("--json", "json_wanted", is_flag=True, help="One JSON document.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Only say what it would do.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


# ---- commands that are imported when they are called


class Lazy(click.Group):
    """Its commands are `module:attribute` by name, and in its help a row for what belongs together."""

    command_class = Command

    def __init__(self, *args: Any, rows: Mapping[str, Mapping[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rows = rows
        self.places = {name: place for row in rows.values() for name, place in row.items()}
        self.other_names: dict[str, str] = {}  # not shown in the help
        self._plugins_of: Path | None = None

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        self._load_plugins()
        place = self.places.get(self.other_names.get(cmd_name, cmd_name))
        if place is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = place.partition(":")
        found: click.Command = getattr(import_module(f"clerk.cli.{module}"), attribute)
        return found

    def list_commands(self, ctx: click.Context) -> list[str]:
        self._load_plugins()
        return [*self.places, *self.commands]

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"{ctx.command_path} has no command {args[0]!r}{_nearest(args[0], self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self._load_plugins()
        with formatter.section("Commands"):
            formatter.write_dl([(", ".join(names), text) for text, names in self.rows.items()])
        if self.commands:
            with formatter.section("Of plugins"):
                formatter.write_dl([(name, command.get_short_help_str()) for name, command in self.commands.items()])

    def _load_plugins(self) -> None:
        """Only where there are some: what they need takes longer to import than all the rest."""
        from clerk.config import variable

        folder = Path(variable(PLUGINS_DIR) or "plugins").absolute()
        if folder == self._plugins_of:
            return
        self._plugins_of = folder
        self.commands.clear()
        if any(folder.glob("[!_]*.py")) or _installed_plugins():
            from clerk.pipeline import wiring

            wiring.hooks().register_cli_commands(self)


def _installed_plugins() -> bool:
    from importlib.metadata import entry_points

    return bool(entry_points(group="clerk.plugins"))


def _nearest(word: str, known: list[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
