"""Importing an application: by module name, or from a file."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from gristmill.errors import AppError
from gristmill.registry import Registry, pieces_of

_OURS = f"{Path(__file__).parents[1]}{os.sep}"
_INSTALLED = tuple({f"{sysconfig.get_path(kind)}{os.sep}" for kind in ("stdlib", "purelib", "platlib")})

importing = False  # a child is importing its application just now


def load_for_child(sources: Iterable[str]) -> Registry:
    """`load_sources`, during which nobody may open a mill: a program without a main guard would start itself for ever."""
    global importing
    importing = True
    try:
        return load_sources(sources)
    finally:
        importing = False


def load_sources(sources: Iterable[str]) -> Registry:
    """A registry of all that is an application's at the top level of `module:NAME` and `file:PATH` sources."""
    registry = Registry()
    for source in sources:
        kind, _, name = source.partition(":")
        module = load_file(Path(name)) if kind == "file" else importlib.import_module(name)
        for piece in pieces_of(vars(module)):
            registry.add(piece)
    return registry


def load_file(path: Path) -> ModuleType:
    """A program imported under a name of its own, so that its `if __name__ == "__main__"` does not run."""
    name = f"gristmill_app_{path.stem.replace('-', '_').replace('.', '_')}"
    found = sys.modules.get(name)
    if found is not None and getattr(found, "__file__", None) == str(path):
        return found
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise AppError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    module.__gristmill_file__ = True  # type: ignore[attr-defined]
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _place(error: BaseException) -> str:
    """Where in the application it happened; not where in Gristmill, in Python, or in a library that it called; nor in code
    without a file, like what a dataclass makes of itself."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}, line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith((_OURS, "<"))]
    theirs = [frame for frame in theirs if not frame.filename.startswith(_INSTALLED)] or theirs
    return f" ({theirs[-1].filename}, line {theirs[-1].lineno})" if theirs else ""


def _what(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)  # its text has the place already
    return f"{type(error).__name__}: {text}{_place(error)}"


def load_app(app: str) -> Registry:
    """The application that `-A` names: a module or a file."""
    looks_like_file = app.endswith(".py") or "/" in app
    if looks_like_file:
        path = Path(app).absolute()
        if not path.is_file():
            raise AppError(f"there is no file {app!r}; -A wants a Python file or the name of a module")
        source = f"file:{path}"
        if str(path.parent) not in sys.path:
            sys.path.insert(0, str(path.parent))
    else:
        source = f"module:{app}"
        if "" not in sys.path and str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
    try:
        registry = load_sources([source])
    except AppError:
        raise
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) and not looks_like_file else None
        if missing and f"{app}.".startswith(f"{missing}."):
            raise AppError(f"cannot import {app!r}: {error}; -A wants a Python file or the name of a module") from None
        raise AppError(f"cannot import {app!r}: {_what(error)}") from error
    if not registry.tasks:
        raise AppError(f"{app!r} has no pipelines and no tasks at its top level")
    return registry
