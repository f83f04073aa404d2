"""clerk as services: files for launchd, systemd, Compose or Kubernetes, and the commands that put them to work.

Every file says in its first line that it was made here, and holds no secret. What is installed is what the files in the
folder say, so a repeated install changes nothing, a smaller count takes the surplus away, and no list can get lost.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from re import Pattern
from typing import Protocol

from clerk.config import Config
from clerk.errors import ClerkError, Critical, Usage
from clerk.services import compose, kubernetes, launchd, systemd
from clerk.services.plan import MARK, Plan, cron_lines, plan
from clerk.services.sizing import count_text, counts
from clerk.storage import write

__all__ = ["TARGETS", "count_text", "counts", "cron_lines", "default_target", "install", "reload", "uninstall"]


class Target(Protocol):
    """What each of the four modules has."""

    @property
    def names(self) -> Pattern[str]:
        """Of its files, below its folder."""
        ...

    @property
    def ends(self) -> str:
        """What a person types to end what still runs when the files are gone; nothing where `stop` has ended it."""
        ...

    def folder(self, env_folder: Path, /) -> Path: ...

    def check(self) -> None:
        """Refuses who may not install."""
        ...

    def files(self, plan: Plan) -> Mapping[str, str]: ...

    def stop(self, gone: Sequence[Path], /) -> None: ...

    def start(self, every: Sequence[Path], changed: Sequence[Path], /) -> None: ...

    def restart(self, every: Sequence[Path]) -> None:
        """At least one."""
        ...


TARGETS: Mapping[str, Target] = {
    "launchd": launchd,
    "systemd": systemd,
    "compose": compose,
    "kubernetes": kubernetes,
}


def default_target() -> str:
    return "launchd" if sys.platform == "darwin" else "systemd"


def install(
    target: str,
    config: Config,
    env_file: Path | None,
    output: Path | None = None,
    dry_run: bool = False,
) -> list[tuple[Path, str]]:
    """All files, as they are now or (`dry_run`) would be. With `output` they are only written, there, and not started."""
    kind = _target(target)
    chosen = plan(config, env_file)
    folder = output or kind.folder(chosen.folder)
    files = {folder / name: text for name, text in sorted(kind.files(chosen).items())}
    if not dry_run:
        if output is None:
            kind.check()
        _put(kind, folder, files, runs=output is None)
    return list(files.items())


def uninstall(target: str, env_file: Path | None = None, output: Path | None = None) -> list[Path]:
    """Stops and removes what was installed, and says what that was."""
    kind, folder = _where(target, env_file, output)
    gone = _installed(kind, folder)
    if gone and output is None:
        kind.check()
        kind.stop(gone)
    _remove(gone, folder)
    if gone and output is None:
        kind.start([], [])
    return gone


def reload(target: str, env_file: Path | None = None, output: Path | None = None) -> list[Path]:
    """Restarts the workers; each finishes the item at hand first."""
    kind, folder = _where(target, env_file, output)
    found = _installed(kind, folder)
    if not found:
        raise ClerkError(f"no services of clerk are installed in {folder}: clerk install-workers --target {target}")
    kind.check()
    kind.restart(found)
    return found


def _target(name: str) -> Target:
    if name not in TARGETS:
        raise Usage(f"there is no target {name!r}; there are: {', '.join(TARGETS)}")
    return TARGETS[name]


def _where(target: str, env_file: Path | None, output: Path | None) -> tuple[Target, Path]:
    kind = _target(target)
    return kind, output or kind.folder(env_file.absolute().parent if env_file else Path.cwd())


def _put(kind: Target, folder: Path, files: Mapping[Path, str], runs: bool) -> None:
    for path in files:
        if path.exists() and not _is_ours(path):
            raise ClerkError(f"{path} was not made by clerk: move it away, or choose another folder with --output")
    surplus = [path for path in _installed(kind, folder) if path not in files]
    if runs:
        kind.stop(surplus)
    _remove(surplus, folder)
    changed = []
    for path, text in files.items():
        old = path.read_bytes() if path.exists() else None
        if old != text.encode():
            changed += [path] if old is not None else []
            _write(path, text)
    if runs:
        kind.start(list(files), changed)


def _write(path: Path, text: str) -> None:
    try:
        write(path, text.encode())
    except (Critical, OSError) as error:
        raise ClerkError(f"{path} cannot be written: {error.__cause__ or error}") from None


def _installed(kind: Target, folder: Path) -> list[Path]:
    """The files there that have one of our names, and say that they are ours."""
    if not folder.is_dir():
        return []
    found = [*folder.glob("*"), *folder.glob("*/*.yaml")]
    return sorted(p for p in found if kind.names.fullmatch(p.relative_to(folder).as_posix()) and _is_ours(p))


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return MARK.encode() in file.read(300)
    except OSError:
        return False


def _remove(gone: Sequence[Path], folder: Path) -> None:
    try:
        for path in gone:
            path.unlink(missing_ok=True)
        for parent in {path.parent for path in gone} - {folder}:
            if not any(parent.iterdir()):
                parent.rmdir()
    except OSError as error:
        raise ClerkError(f"{error.filename} cannot be removed: {error.strerror}") from None
