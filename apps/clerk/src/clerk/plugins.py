"""Parts and hooks from outside: installed packages (entry points `clerk.plugins`), then the files of the plugins folder.

In that order they are asked. Where one answer is wanted the first one wins; other hooks run in all of them.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pluggy

from clerk.errors import ClerkError
from clerk.parts import Extractor, FetcherClass, OcrBackend, Publication

if TYPE_CHECKING:
    import click

hookspec = pluggy.HookspecMarker("clerk")
hookimpl = pluggy.HookimplMarker("clerk")

GROUP = "clerk.plugins"


class Hooks:
    """What a plugin may say. It takes those arguments that it wants."""

    @hookspec(firstresult=True)
    def fetcher_class(self, label: str) -> FetcherClass | None:
        """What makes the fetcher with this label, of a site's settings and of what it can ask the web with."""

    @hookspec(firstresult=True)
    def fetcher_extra(self, label: str) -> Mapping[str, Any] | None:
        """Settings that sites of this fetcher have unless they have their own."""

    @hookspec(firstresult=True)
    def ocr_backend(self, label: str) -> OcrBackend | None:
        """The OCR engine with this label."""

    @hookspec(firstresult=True)
    def extractor(self, label: str) -> Extractor | None:
        """What extracts entities and votes, with this label."""

    @hookspec
    def deploy_municipality(self, subdomain: str, publication: Publication) -> None:
        """Publishes a site, in place of what DEPLOY_TARGET says."""

    @hookspec
    def post_deploy(self, site: Mapping[str, Any]) -> None:
        """A site was published; the run ends after this. It may be called again for the same publication."""

    @hookspec
    def upload_static_file(self, file_path: Path, storage_path: str) -> None:
        """Brings a file to where static files are served."""

    @hookspec
    def post_create(self, subdomain: str) -> None:
        """A site was created."""

    @hookspec
    def pre_compilation(self, subdomain: str) -> None:
        """The database of a site is about to be compiled."""

    @hookspec
    def post_compilation(self, subdomain: str) -> None:
        """The database of a site was compiled."""

    @hookspec
    def register_cli_commands(self, cli: click.Group) -> None:
        """Adds commands to `clerk`."""


_NAMES = [name for name in vars(Hooks) if not name.startswith("_")]


class Plugins:
    """The hooks of all plugins, as functions. An error in one names the plugin."""

    def __init__(self, modules: Mapping[str, object]) -> None:
        self._manager = pluggy.PluginManager("clerk")
        self._manager.add_hookspecs(Hooks)
        self._of_file = {str(getattr(module, "__file__", "")): name for name, module in modules.items()}
        for name, module in reversed(list(modules.items())):  # pluggy asks the last one first
            _register(self._manager, name, module)

    def fetcher_class(self, label: str) -> FetcherClass | None:
        found: FetcherClass | None = self._call("fetcher_class", label=label)
        return found

    def fetcher_extra(self, label: str) -> Mapping[str, Any]:
        return self._call("fetcher_extra", label=label) or {}

    def ocr_backend(self, label: str) -> OcrBackend | None:
        found: OcrBackend | None = self._call("ocr_backend", label=label)
        return found

    def extractor(self, label: str) -> Extractor | None:
        found: Extractor | None = self._call("extractor", label=label)
        return found

    @property
    def deploys(self) -> bool:
        """Whether a plugin publishes, so that the built-in deployer does not."""
        return bool(self._manager.hook.deploy_municipality.get_hookimpls())

    def deploy_municipality(self, publication: Publication) -> None:
        self._call("deploy_municipality", subdomain=publication.subdomain, publication=publication)

    def post_deploy(self, site: Mapping[str, Any]) -> None:
        self._call("post_deploy", site=site)

    def upload_static_file(self, file_path: Path, storage_path: str) -> None:
        self._call("upload_static_file", file_path=file_path, storage_path=storage_path)

    def post_create(self, subdomain: str) -> None:
        self._call("post_create", subdomain=subdomain)

    def pre_compilation(self, subdomain: str) -> None:
        self._call("pre_compilation", subdomain=subdomain)

    def post_compilation(self, subdomain: str) -> None:
        self._call("post_compilation", subdomain=subdomain)

    def register_cli_commands(self, cli: click.Group) -> None:
        self._call("register_cli_commands", cli=cli)

    def _call(self, hook: str, **arguments: Any) -> Any:
        try:
            return getattr(self._manager.hook, hook)(**arguments)
        except ClerkError:
            raise  # a plugin that says what kind of failure it is
        except Exception as error:
            files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
            names = [self._of_file[file] for file in files if file in self._of_file]
            raise ClerkError(f"{hook} of the plugin {names[-1] if names else '?'} failed: {_said(error)}") from error


def load(folder: Path | None) -> Plugins:
    """All plugins. A folder that is not there has none."""
    return Plugins({**dict(_installed()), **dict(_files(folder))})


def _installed() -> Iterator[tuple[str, object]]:
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        name = f"{entry.name} ({entry.value})"
        with _named(name):
            yield name, entry.load()


def _files(folder: Path | None) -> Iterator[tuple[str, ModuleType]]:
    if folder is None or not folder.is_dir():
        return
    for path in sorted(folder.absolute().glob("*.py")):
        if not path.name.startswith("_"):
            with _named(str(path)):
                yield str(path), _imported(path)


def _imported(path: Path) -> ModuleType:
    name = f"clerk_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("it is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and the like look for themselves there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _register(manager: pluggy.PluginManager, name: str, module: object) -> None:
    with _named(name):
        manager.register(module, name=name)
        known = {hook for hook in _NAMES for impl in getattr(manager.hook, hook).get_hookimpls() if impl.plugin is module}
        for attribute, value in vars(module).items() if isinstance(module, ModuleType) else ():
            own = inspect.isfunction(value) and value.__module__ == getattr(module, "__name__", None)
            if own and attribute in _NAMES and attribute not in known:
                raise ClerkError(
                    f"{attribute} is not marked; write @hookimpl before it (from clerk.plugins import hookimpl)"
                )
        for hook in manager.get_hookcallers(module) or []:
            if not hook.has_spec():
                near = difflib.get_close_matches(hook.name, _NAMES, n=1)
                raise ClerkError(f"there is no hook {hook.name}{f'; did you mean {near[0]}' if near else ''}")


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """Whatever a plugin does wrong while it is loaded is said with its name."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise ClerkError(f"the plugin {name} cannot be loaded: {_said(error)}") from error


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split())[:300]
    return text if isinstance(error, ClerkError) else f"{type(error).__name__}: {text}"
