"""What all pages share: templates, the menu, what was looked at a moment ago, and how fast runs go."""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PackageLoader, StrictUndefined
from starlette.routing import BaseRoute

from gristmill.mill import Mill
from gristmill.model import Run
from gristmill.progress import Pace
from gristmill.settings import VERSION
from gristmill.web import charts, cures, graph, phrases

STATIC = Path(__file__).parent / "static"
T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """A line of the menu."""

    title: str
    path: str
    key: str = ""  #: `g` and then this goes there


@dataclass(frozen=True)
class Extra:
    """Pages of an application: a line of the menu, the routes, and the folder of their templates, which extend
    `base.html`."""

    title: str
    path: str
    routes: Sequence[BaseRoute]
    templates: Path | None = None


MENU = (
    Entry("Overview", "/", "o"),
    Entry("Subjects", "/subjects", "s"),
    Entry("Runs", "/runs", "r"),
    Entry("Jobs", "/jobs", "j"),
    Entry("Errors", "/errors", "e"),
    Entry("Queues", "/queues", "q"),
    Entry("Workers", "/workers", "w"),
    Entry("Schedules", "/schedules", "c"),
    Entry("Limits", "/limits", "l"),
    Entry("Locks", "/locks", "k"),
    Entry("Audit", "/audit", "a"),
    Entry("Settings", "/settings", "t"),
)


@dataclass
class Site:
    mill: Mill
    extras: Sequence[Extra] = ()
    events: bool = False  #: the API tells what changes: pages look at once
    recent: Recent = field(default_factory=lambda: Recent())
    paces: Paces = field(default_factory=lambda: Paces())

    def __post_init__(self) -> None:
        folders = [FileSystemLoader(extra.templates) for extra in self.extras if extra.templates is not None]
        loader = ChoiceLoader([PackageLoader("gristmill.web"), *folders])
        self.templates = Environment(
            loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        self.templates.filters.update(phrases.FILTERS, cure=cures.cure)
        self.templates.globals.update(
            charts=charts, graph=graph, query=phrases.query, static_url=static_url, version=VERSION
        )
        for name, file in (("parts", "parts.html"), ("tables", "runtable.html")):  # macros, known everywhere
            self.templates.globals[name] = self.templates.get_template(file).module
        self.menu = [*MENU, *(Entry(extra.title, extra.path) for extra in self.extras)]


class Recent:
    """What was read a moment ago: many who watch the same page cost one look."""

    _MOST = 100  # things that are kept, old ones too: pages with whatever was searched for may be many, and large
    _WORTH = 30  # times as long as a look took, what it found may be kept: so 3% of the time goes into looking

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: dict[str, threading.Lock] = {}
        self._known: dict[str, tuple[float, float, Any]] = {}  # since when, until when, and what

    def get(self, name: str, seconds: float, look: Callable[[], T], longest: float = 0.0) -> T:
        """What was read within so many seconds; where it took long to read, within up to `longest`."""
        asked = time.monotonic()
        with self._lock:
            if len(self._turns) > self._MOST:
                self._tidy(asked)
            turn = self._turns.setdefault(name, threading.Lock())
        with turn:
            known = self._known  # what is being looked at while somebody forgets is kept where nobody looks any more
            since, until, value = known.get(name, (-math.inf, -math.inf, None))
            began = time.monotonic()
            if began >= until and since < asked:  # what another began to read after we asked is new
                value = look()
                ended = time.monotonic()
                known[name] = (began, began + max(seconds, min(self._WORTH * (ended - began), longest)), value)
            found: T = value
            return found

    def _tidy(self, now: float) -> None:
        """Leaves what is too old, and what could not be read. (A list: others add to it meanwhile.)"""
        self._known = {name: kept for name, kept in list(self._known.items()) if kept[1] > now}
        self._turns = {name: turn for name, turn in self._turns.items() if name in self._known or turn.locked()}

    def forget(self) -> None:
        """Somebody changed something, and wants to see it."""
        self._known = {}


class Paces:
    """How fast the runs go that somebody looks at."""

    _KEPT = 200  # runs

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paces: dict[int, Pace] = {}

    def of(self, run: Run) -> Pace:
        with self._lock:
            pace = self._paces.pop(run.id, None) or Pace()
            self._paces[run.id] = pace
            if len(self._paces) > self._KEPT:
                del self._paces[next(iter(self._paces))]
            pace.look([run], time.monotonic())
            return pace


@cache
def static_url(name: str) -> str:
    """With a mark of its content, so that browsers may keep it for ever."""
    mark = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?{mark}"
