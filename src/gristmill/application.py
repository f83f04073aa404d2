"""What an application brings besides pipelines and tasks: its tables, SQL for the ends of its jobs, checks and routes of
its own."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gristmill.errors import Invalid, did_you_mean, quoted

if TYPE_CHECKING:
    from sqlalchemy import MetaData

_CHECK = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,99}")
_OWN = re.compile(r"(?!gm_|gristmill)[a-z][a-z0-9_]{0,39}")


class Migrations:
    """An application's own tables in the ledger's database: a folder of Alembic revisions, moved by `gristmill db upgrade`.

    Its version is in a table of its own (`NAME_version`), so that its history and the ledger's never meet. With
    `metadata` (SQLAlchemy's), `db check` compares the tables with it. `views` (name and query) are no history: they are
    taken away before anything moves, which they would be in the way of, and made anew when all is where it should be.
    """

    def __init__(
        self,
        name: str,
        folder: Path | str,
        metadata: MetaData | None = None,
        views: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(name, str) or not _OWN.fullmatch(name):
            raise Invalid(
                f"the name of migrations becomes a table's: {name!r} must be small letters, digits and '_',"
                " at most 40, and must not begin with 'gm_' or 'gristmill'"
            )
        if not isinstance(folder, Path | str):
            raise Invalid(f"migrations {name!r}: give the folder of the revisions, not {quoted(folder)}")
        self.name = name
        self.folder = Path(folder).absolute()
        self.metadata = metadata
        self.views = dict(views or {})
        for view, query in self.views.items():
            if not _OWN.fullmatch(view) or not isinstance(query, str):
                raise Invalid(f"migrations {name!r}: views are queries by name, not {quoted(view)}: {query!r:.60}")

    def __repr__(self) -> str:
        return f"<migrations {self.name!r}>"

    @property
    def version_table(self) -> str:
        return f"{self.name}_version"


_STATEMENT = re.compile(r"\s*(with|insert|update|delete)\b", re.IGNORECASE)
_WITH = re.compile(r"\s*with\s+(recursive\s+)?", re.IGNORECASE)


def statements_of(given: str | Sequence[str] | None, where: str) -> tuple[str, ...]:
    """What was declared as `on_terminal`: statements about a table `jobs`. They are kept as text, for others to run."""
    if given is None:
        return ()
    found: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
    for sql in found:
        if not isinstance(sql, str) or not _STATEMENT.match(sql):
            raise Invalid(
                f"{where}: on_terminal is SQL text (INSERT, UPDATE, DELETE; or a list of these), not {sql!r:.60}:"
                " it runs where your code is not loaded"
            )
        if not re.search(r"\bjobs\b", sql):
            raise Invalid(f"{where}: on_terminal must be about the jobs that ended, a table named jobs: {sql!r:.60}")
        if ";" in sql.rstrip("; \n"):
            raise Invalid(f"{where}: on_terminal has one statement in a text, without ';': give a list of several")
        if re.search(r"\bgm_", sql):
            raise Invalid(f"{where}: on_terminal is for your own tables, not for the ledger's (gm_…): {sql!r:.60}")
    return tuple(sql.strip("; \n") for sql in found)


def with_jobs(statement: str, query: str) -> str:
    """The statement with the query as its table `jobs`."""
    begins = _WITH.match(statement)
    if begins is None:
        return f"WITH jobs AS ({query}) {statement}"
    return f"WITH {begins[1] or ''}jobs AS ({query}), {statement[begins.end() :]}"


class Finding:
    """Something that an application's check found wrong, and the mill's verb that mends it (none: a person has to).

    `Finding("the dashboard is old", pipeline="site", subject="a.org", verb="enqueue", task="draw", args={…})`: what comes
    after `verb` is what that method of the mill takes.
    """

    def __init__(
        self,
        detail: str,
        *,
        pipeline: str | None = None,
        subject: str | None = None,
        verb: str | None = None,
        **arguments: Any,
    ) -> None:
        if verb is not None and verb not in VERBS:
            raise Invalid(f"a finding cannot be mended by {verb!r}{did_you_mean(verb, VERBS)}; by {', '.join(VERBS)}")
        if verb is None and arguments:
            raise Invalid(f"a finding without a verb takes no argument {next(iter(arguments))!r}")
        self.detail = detail
        self.pipeline = pipeline
        self.subject = subject
        self.verb = verb
        self.arguments = arguments

    def __repr__(self) -> str:
        return f"<finding {self.subject or ''} {self.detail!r} {self.verb or ''}>"

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "detail": str(self.detail)}


VERBS = ("start", "enqueue", "retry_job", "cancel_job", "cancel_run")  #: how a finding may be mended


class Check:
    """A function of the application that says what it finds wrong. Called directly it is just the function."""

    def __init__(self, fn: Callable[..., Any], name: str | None = None) -> None:
        if not callable(fn) or inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
            raise Invalid(f"a check is a plain function of a context, not {quoted(fn)}")
        self.fn = fn
        self.name = name or str(getattr(fn, "__name__", ""))
        if not _CHECK.fullmatch(self.name):
            raise Invalid(f"a check's name is letters, digits, '_' and '-', not {quoted(self.name)}")
        self.__module__ = fn.__module__
        self.__doc__ = fn.__doc__

    def __call__(self, ctx: Any) -> Any:
        return self.fn(ctx)

    def __repr__(self) -> str:
        return f"<check {self.name!r}>"


def check(fn: Callable[..., Any]) -> Check:
    """Makes a function a check: reconcile asks it, in a child process, what is wrong. It yields `Finding`s."""
    return Check(fn)


class Routes:
    """A function of the application that adds to its HTTP server. Called directly it is just the function."""

    def __init__(self, fn: Callable[[Any], object]) -> None:
        if not callable(fn) or inspect.iscoroutinefunction(fn):
            raise Invalid(f"@routes goes above a plain function of the FastAPI application, not {quoted(fn)}")
        self.fn = fn
        self.name = f"{fn.__module__}.{getattr(fn, '__qualname__', '')}"
        self.__doc__ = fn.__doc__

    def __call__(self, app: Any) -> object:
        return self.fn(app)

    def __repr__(self) -> str:
        return f"<routes {self.name!r}>"


def routes(fn: Callable[[Any], object]) -> Routes:
    """Makes a function one that `gristmill serve` calls with its FastAPI application, before it serves. Nobody else does."""
    return Routes(fn)
