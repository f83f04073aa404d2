"""What all commands share: the database, the application, and how a mistyped word is answered."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gristmill.errors import Invalid, did_you_mean

if TYPE_CHECKING:
    from gristmill.application import Migrations
    from gristmill.mill import Mill
    from gristmill.registry import Registry

HOW_TO_NAME_AN_APP = (
    "name one with -A FILE_OR_MODULE, with GRISTMILL_APP,"
    ' or with app = "FILE_OR_MODULE" under [tool.gristmill] in pyproject.toml'
)


@dataclass
class Place:
    """Where a command works: what was given for the database and the application, opened when it is needed."""

    app: str | None = None
    database: str | None = None
    delivery: str | None = None

    @property
    def url(self) -> str:
        from gristmill.settings import database_url

        return database_url(self.database)

    @contextmanager
    def open(self, *apps: Registry) -> Iterator[Mill]:
        """The mill. Without an application nothing new is begun, so a file that is not there is a typo."""
        from gristmill.mill import Mill

        if not apps:
            self.refuse_new_file()
        made = self.is_new_file()
        with Mill.open(self.url, *apps, create=bool(apps), delivery=self.delivery) as mill:
            if made:
                from gristmill.cli import show

                show.note(f"made the database {self.shown()}")
            yield mill

    def refuse_new_file(self) -> None:
        from gristmill.errors import SchemaMismatch
        from gristmill.settings import DEFAULT_DATABASE

        if self.is_new_file():
            forgotten = " (--database or GRISTMILL_DATABASE_URL names another)" if self.url == DEFAULT_DATABASE else ""
            to_make_it = self.command("db", "upgrade")
            raise SchemaMismatch(f"there is no database {self.shown()}{forgotten}; to make it: {to_make_it}")

    def command(self, *words: object) -> str:
        """A command line to paste, with the same database, application and delivery as were given on this one."""
        from gristmill.ledger.engines import parse_url

        app = ["-A", self.app] if self.app else []
        database: list[str] = []
        if self.database:
            database = ["--database", "URL" if parse_url(self.database).password else self.database]
        delivery = ["--delivery", self.delivery] if self.delivery else []
        return shlex.join(["gristmill", *app, *database, *delivery, *map(str, words)])

    def is_new_file(self) -> bool:
        from gristmill.ledger.engines import parse_url

        url = parse_url(self.url)
        path = Path(str(url.database))
        return url.get_backend_name() == "sqlite" and path.parent.is_dir() and not path.exists()

    def shown(self) -> str:
        from gristmill.ledger.engines import parse_url, shown

        return shown(parse_url(self.url))

    def registry(self) -> Registry:
        """The application: as given, from the environment, from pyproject.toml, or from installed packages."""
        found = self.registry_if_any()
        if not found.tasks:
            raise Invalid(f"no application was given; {HOW_TO_NAME_AN_APP}")
        return found

    def registry_if_any(self) -> Registry:
        """The same; empty, where no application was given."""
        from gristmill.execution.load import load_app

        given = self.app or os.environ.get("GRISTMILL_APP") or _app_of_project(Path.cwd())
        return load_app(given) if given else _installed_apps()

    def own(self) -> list[Migrations]:
        """The histories of the application's own tables."""
        return self.registry_if_any().own()


def _app_of_project(start: Path) -> str | None:
    """`app` under [tool.gristmill] in the nearest pyproject.toml that has that table."""
    import tomllib

    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        if not file.is_file():
            continue
        try:
            settings = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("gristmill")
        except (OSError, ValueError) as error:
            raise Invalid(f"cannot read {file}: {error}") from None
        if settings is not None:
            return _project_app(settings, file)
    return None


def _project_app(settings: Any, file: Path) -> str | None:
    app = settings.get("app") if isinstance(settings, dict) else None
    if app is None:
        return None
    if not isinstance(app, str) or not app:
        raise Invalid(f"{file}: app under [tool.gristmill] is the name of a file or module, not {app!r}")
    if app.endswith(".py") or "/" in app:
        return str(file.parent / app)
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    return app


def _installed_apps() -> Registry:
    from importlib.metadata import entry_points

    from gristmill.execution.load import load_app
    from gristmill.registry import Registry

    found = {point.module for point in entry_points(group="gristmill.apps")}
    registry = Registry()
    for module in sorted(found):
        for piece in load_app(module).pieces():
            registry.add(piece)
    return registry


# ---- the options, on every level


def _remember(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    if not value.strip():
        raise click.BadParameter("must not be empty", ctx=ctx, param=parameter)
    setattr(ctx.ensure_object(Place), str(parameter.name), value)


def place_options(*, app_is_shown: bool, where: bool = False, works: bool = False) -> list[click.Parameter]:
    """--app and --database; `where`: the help names the environment variables too; `works`: --delivery too."""
    app, database = "Your code: a Python file or a module.", "sqlite:///FILE or postgresql://HOST/NAME."
    if where:
        app, database = f"{app} [GRISTMILL_APP]", "sqlite:///FILE or postgresql://… [GRISTMILL_DATABASE_URL]"
    delivery = "database, redis, rq or arq (default: database)."
    given: dict[str, Any] = {"expose_value": False, "callback": _remember}
    return [
        click.Option(["-A", "--app"], metavar="APP", help=app, hidden=not app_is_shown, **given),
        click.Option(["--database"], metavar="URL", help=database, **given),
        click.Option(["--delivery"], metavar="NAME", help=delivery, hidden=not works, **given),
    ]


class Command(click.Command):
    """Takes --app and --database too: nobody remembers that options of the whole come before the command."""

    def __init__(self, *args: Any, needs_app: bool = False, works: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += place_options(app_is_shown=needs_app, works=works)


class Group(click.Group):
    """Commands in the order they were added, and a hint for one that is mistyped."""

    command_class = Command

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._outermost = self.name == "gristmill"
        self.rows: dict[str, list[str]] = {}  # what the help says of commands that belong together, by its text
        self.params += place_options(app_is_shown=self._outermost, where=self._outermost)

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """Whoever reads the first page has found --help; its line is better spent on a command."""
        option = super().get_help_option(ctx)
        if option is not None and self._outermost:
            option.hidden = True
        return option

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if not self.rows:
            super().format_commands(ctx, formatter)
            return
        with formatter.section("Commands"):
            formatter.write_dl([(", ".join(names), text) for text, names in self.rows.items()])

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if self.get_command(ctx, word) is None and not word.startswith("-"):
            ctx.fail(f"{ctx.command_path} has no command {word!r}{self._nearest(word)}")
        return super().resolve_command(ctx, args)

    def _nearest(self, word: str) -> str:
        """`retry` is what can be done to several things: which is meant?"""
        under = [f"{name} {word}" for name, group in self.commands.items() if word in getattr(group, "commands", ())]
        if under:
            return f"; did you mean {' or '.join(map(repr, under))}?"
        return did_you_mean(word, self.commands)


pass_place = click.make_pass_decorator(Place, ensure=True)
dry_run_option = click.option("--dry-run", is_flag=True, help="Only say what it would do.")
as_json = click.option("--json", "json_wanted", is_flag=True, help="One JSON document.")
