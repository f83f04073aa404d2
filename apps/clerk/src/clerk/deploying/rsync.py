"""Publishing onto another machine by rsync over SSH, with the same folders as on this one.

Nothing that comes from outside is part of a shell's text: the remote programs below are constants, and what they work
with are their arguments, quoted. The other machine needs rsync and GNU or BusyBox `mv`.
"""

from __future__ import annotations

import re
import secrets
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from clerk import storage
from clerk.deploying.folder import VERSIONS, version_of
from clerk.deploying.publication import checked, refuse_older
from clerk.errors import ClerkError, Critical, Transient, Usage
from clerk.parts import Publication
from clerk.scratch import Scratch

_HOST = r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:]+\])"
_SCP = re.compile(rf"({_HOST}):(.*)", re.DOTALL)
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=15")
_RSYNC = (
    "--recursive",
    "--copy-links",
    "--times",
    "--omit-dir-times",
    "--chmod=D755,F644",
    "--protect-args",
    "--timeout=120",
)
_COMMAND_SECONDS = 120
_SSH_LOST = 255
_RSYNC_LOST = {10, 12, 23, 24, 30, 35, _SSH_LOST}  # socket, stream, files that changed or went meanwhile, time-outs

# $1 root, $2 versions of the site, $3 link, $4 how many. Says which version is published, then the last ones that were
# not finished: what has arrived of them need not travel again.
_BEGIN = """set -eu
mkdir -p -- "$1"
cd -- "$1"
mkdir -p -- "$2"
if [ -L "$3" ]; then printf 'published %s\\n' "$(readlink -- "$3")"
elif [ -e "$3" ]; then echo "$3 is no link that clerk has made" >&2; exit 3; fi
find "$2" -maxdepth 1 -type d -name '.new-*' | LC_ALL=C sort -r | head -n "$4" | sed 's/^/unfinished /'
"""

# $1 root, $2 versions of the site, $3 link, $4 version. One at a time, where flock is; says which one was there if it is
# a later one. Earlier ones that were not finished need not be: whoever is still at one of them is told so.
_SWITCH = """set -eu
cd -- "$1"
exec 9>"$2/.lock"
if command -v flock >/dev/null; then flock 9; fi
is_later() { [ "$1" != "$2" ] && [ "$(printf '%s\\n' "$1" "$2" | LC_ALL=C sort | tail -n 1)" = "$1" ]; }
before=
if [ -L "$3" ]; then before=$(readlink -- "$3"); before=${before##*/}; fi
if is_later "${before%.*}" "${4%.*}"; then rm -rf -- "$2/.new-$4"; printf '%s\\n' "$before"; exit 0; fi
mv -T -- "$2/.new-$4" "$2/$4"
sync -f -- "$2/$4" 2>/dev/null || sync
ln -s -- "$2/$4" "$2/.new-link-$4"
mv -T -- "$2/.new-link-$4" "$3"
for old in "$2"/*; do
    case ${old##*/} in "$4" | "$before") ;; *) rm -rf -- "$old" ;; esac
done
for old in "$2"/.new-*; do
    name=${old##*/.new-} name=${name#link-}
    if is_later "${4%.*}" "${name%.*}"; then rm -rf -- "$old"; fi
done
"""

_UNFINISHED = 15  # that rsync links from; it takes twenty folders


@dataclass(frozen=True)
class Remote:
    host: str  # with the user, if there is one
    path: str
    port: int | None = None


def remote(target: str) -> Remote | None:
    """What a target says of another machine; None if it is no such target."""
    if target.startswith(("ssh://", "rsync://")):
        return _of_url(target)
    found = _SCP.fullmatch(target)
    return None if found is None or "://" in target else _checked(Remote(found[1], found[2].removeprefix("~/")), target)


def _of_url(target: str) -> Remote:
    try:
        url = urlsplit(target)
        host, port = url.netloc.rpartition(":")[0] if url.port else url.netloc, url.port
    except ValueError:
        host, port, url = "", None, urlsplit("")
    return _checked(Remote(host, unquote(url.path), port), target)


def _checked(there: Remote, target: str) -> Remote:
    if (
        not re.fullmatch(_HOST, there.host)
        or there.path in ("", "/")
        or there.path[0] == "-"
        or not there.path.isprintable()
    ):
        raise Usage(
            f"DEPLOY_TARGET wants user@host:/path or ssh://user@host:22/path, without a password, not {target[:80]!r}"
        )
    return there


class RsyncDeployer:
    def __init__(self, there: Remote) -> None:
        self.there = there
        self._ssh = (*_SSH, *(("-p", str(there.port)) if there.port else ()))

    def deploy(self, publication: Publication) -> None:
        where = f"{self.there.host}:{self.there.path}"
        versions = f"{VERSIONS}/{checked(publication).subdomain}"
        now = f"{publication.version}.{secrets.token_hex(4)}"
        before, unfinished = self._begin(versions, publication.subdomain)
        refuse_older(publication, version_of(before), where)
        try:
            self._bring(publication, versions, now, [before, *unfinished] if before else unfinished)
        except ClerkError:  # a later one may have been published meanwhile, and this one's folder removed
            refuse_older(publication, version_of(self._begin(versions, publication.subdomain)[0]), where)
            raise
        later = self._there(_SWITCH, self.there.path, versions, publication.subdomain, now)
        refuse_older(publication, version_of(later), where)

    def _begin(self, versions: str, link: str) -> tuple[str, list[str]]:
        """Which version is published, and which were not finished."""
        said = self._there(_BEGIN, self.there.path, versions, link, str(_UNFINISHED))
        found = [(what, path.rpartition("/")[2]) for what, _, path in (line.partition(" ") for line in said.splitlines())]
        published = next((name for what, name in found if what == "published"), "")
        return published, [name for what, name in found if what == "unfinished"]

    def _bring(self, publication: Publication, versions: str, now: str, there: list[str]) -> None:
        """Only what is not there yet travels: rsync links the rest from the version before, or from one that was broken
        off, whose files are whole. What is as long and as old, by the second, is the same PDF; of a database that is not
        enough."""
        pdfs = {name: path for name, path in publication.files.items() if name.endswith(".pdf")}
        rest = {name: path for name, path in publication.files.items() if name not in pdfs}
        to = f"{self.there.host}:{self.there.path}/{versions}/.new-{now}/"
        for files, options in ((pdfs, []), (rest, ["--checksum"])):
            if files:
                self._rsync(files, [*options, *(f"--link-dest=../{one}" for one in there)], to)

    def _rsync(self, files: Mapping[str, Path], options: list[str], to: str) -> None:
        with storage.critical_if_nobody_can(), Scratch("publish") as scratch:
            for name, source in files.items():
                (scratch.path / name).parent.mkdir(parents=True, exist_ok=True)
                (scratch.path / name).symlink_to(source.absolute())
            _run(["rsync", *_RSYNC, *options, "-e", shlex.join(self._ssh), "--", f"{scratch.path}/", to], None, _RSYNC_LOST)

    def _there(self, program: str, *arguments: str) -> str:
        """Runs a program on the other machine. ssh joins its arguments with spaces for a shell there, so they are quoted."""
        command = shlex.join(["sh", "-c", program, "clerk", *arguments])
        host = self.there.host.replace("[", "").replace("]", "")  # ssh takes an IPv6 address as it is
        return _run([*self._ssh, "--", host, command], _COMMAND_SECONDS, {_SSH_LOST}).strip()


def _run(command: list[str], seconds: float | None, lost: set[int]) -> str:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=seconds, check=False
        )
    except FileNotFoundError:
        raise Critical(f"the program {command[0]} is missing; install it, or choose another DEPLOY_TARGET") from None
    except subprocess.TimeoutExpired:
        raise Transient(f"{command[0]} had not ended after {seconds:.0f} s") from None
    if done.returncode == 0:
        return done.stdout
    said = " ".join(done.stderr.split())[-400:] or "it said nothing"
    kind = Transient if done.returncode in lost else ClerkError
    raise kind(f"{command[0]} failed with {done.returncode}: {said}")
