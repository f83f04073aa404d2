"""Publishing into a folder of this machine.

<root>/<subdomain>                       a link to the version that others see
<root>/.versions/<subdomain>/<version>   that one, and the one before
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from clerk import storage
from clerk.deploying.publication import checked, refuse_older
from clerk.errors import ClerkError, Transient
from clerk.parts import Publication

VERSIONS = ".versions"
_UNFINISHED = ".new-"


class FolderDeployer:
    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    def has(self, subdomain: str) -> bool:
        """Whether others see something of this site."""
        return storage.SiteFiles(self.root, subdomain).database.is_file()

    def deploy(self, publication: Publication) -> None:
        versions = self.root / VERSIONS / checked(publication).subdomain
        link = self.root / publication.subdomain
        with storage.critical_if_nobody_can(), storage.locked(versions / ".lock"):
            _sweep(versions, lambda name: name.startswith(_UNFINISHED))
            before = _current(link)
            refuse_older(publication, version_of(before.name) if before else None, str(self.root))
            now = versions / f"{publication.version}.{secrets.token_hex(4)}"
            _stage(publication, versions, now, before)
            _switch(link, now)
            kept = {now.name, before.name if before else ""}
            _sweep(versions, lambda name: not name.startswith(".") and name not in kept)


def version_of(folder: str) -> str:
    """Folders have a random end: a deploy that is done again never writes into what others see."""
    return folder.rpartition(".")[0]


def _current(link: Path) -> Path | None:
    if link.is_symlink():
        return link.parent / link.readlink()
    if link.exists():
        raise ClerkError(f"{link} is no link that clerk has made; move it away, then publish again")
    return None


def _stage(publication: Publication, versions: Path, now: Path, before: Path | None) -> None:
    unfinished = versions / f"{_UNFINISHED}{now.name}"
    unfinished.mkdir()
    try:
        for name, source in publication.files.items():
            _bring(source, unfinished / name, before / name if before else None)
        for folder, _, _ in os.walk(unfinished):
            storage.sync(Path(folder))
        unfinished.rename(now)
        storage.sync(versions)
    except FileNotFoundError as error:
        raise Transient(f"{error.filename} went while it was published; publish again") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _bring(source: Path, target: Path, before: Path | None) -> None:
    """A PDF that does not change is one file with several names. The database is a file of its own: nobody who opens
    what is published can write into the storage."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.suffix == ".pdf":
        if _linked(source, target):
            return
        if before is not None and _same(source, before) and _linked(before, target):
            return
    shutil.copy2(source, target)
    target.chmod(0o644)
    storage.sync(target)


def _linked(existing: Path, target: Path) -> bool:
    with contextlib.suppress(OSError):  # another file system, or one without hard links, or not our file
        os.link(existing, target)
        return True
    return False


def _same(one: Path, other: Path) -> bool:
    with contextlib.suppress(OSError):
        a, b = one.stat(), other.stat()
        return (a.st_size, a.st_mtime_ns) == (b.st_size, b.st_mtime_ns)
    return False


def _switch(link: Path, now: Path) -> None:
    aside = now.parent / f"{_UNFINISHED}link-{now.name}"
    aside.symlink_to(now.relative_to(link.parent))
    aside.replace(link)
    storage.sync(link.parent)


def _sweep(versions: Path, goes: Callable[[str], bool]) -> None:
    """Best effort: what cannot be removed now is for the next time, the publication is done."""
    for entry in list(versions.iterdir()):
        if goes(entry.name):
            if entry.is_symlink():
                entry.unlink(missing_ok=True)
            else:
                shutil.rmtree(entry, ignore_errors=True)
