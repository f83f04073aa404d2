"""Places to publish to: a folder, another machine by rsync over ssh (both stood in for), an S3 server on loopback."""

from __future__ import annotations

import os
import shutil
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import orjson

from clerk.deploying import FolderDeployer, S3Deployer, deployer
from clerk.parts import Deployer

BUCKET = "published"
RSYNCS = ["rsync-stand-in", *(["rsync"] if shutil.which("rsync") else [])]  # the real one too, where there is one

# What sshd does with the command that it is given: a shell runs it.
SSH = """#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in -o | -p | -l) shift 2 ;; --) shift; break ;; -*) shift ;; *) break ;; esac
done
printf '%s\\n' "$1" >>"$SSH_LOG"
[ "${SSH_FAILS:-}" = "" ] || { echo "ssh: connect to host $1: Connection refused" >&2; exit 255; }
shift
exec /bin/sh -c "$*"
"""

# As much of rsync as the deployer uses: a tree through links, times kept, unchanged files (by the second, as rsync sees
# them, or by their content) linked from another tree.
RSYNC = f"""#!{sys.executable} -IS
import os, shutil, sys
from pathlib import Path
if os.environ.get("SSH_FAILS"):
    sys.exit("rsync: connection unexpectedly closed (0 bytes received so far)")
arguments, left = sys.argv[1:], int(os.environ.get("RSYNC_BREAKS_AFTER", "1000"))
links = [argument.partition("=")[2] for argument in arguments if argument.startswith("--link-dest=")]
source, target = Path(arguments[-2]), Path(arguments[-1].partition(":")[2])
target.mkdir(exist_ok=True)
checksum = "--checksum" in arguments
for folder, _, names in os.walk(source):
    for name in names:
        real = (Path(folder) / name).resolve(strict=True)
        there = target / (Path(folder) / name).relative_to(source)
        there.parent.mkdir(parents=True, exist_ok=True)
        key = lambda path: path.read_bytes() if checksum else (path.stat().st_size, int(path.stat().st_mtime))
        olds = [target / link / there.relative_to(target) for link in links]
        try:
            os.link(next(old for old in olds if old.exists() and key(old) == key(real)), there)
            continue
        except (FileNotFoundError, StopIteration):  # none, or gone just now: it travels, as with rsync
            pass
        if left:
            shutil.copy2(real, there)
            left -= 1
        else:
            (there.parent / f".{{name}}.x1Y2z3").write_bytes(b"half")
            print("rsync: connection unexpectedly closed", file=sys.stderr)
            sys.exit(12)
"""


class Target(Protocol):
    """Where something is published, and what others see there."""

    deployer: Deployer

    def read(self, subdomain: str, name: str) -> bytes | None: ...

    def look(self, subdomain: str) -> dict[str, bytes]:
        """All files of the version that is published at one moment."""

    def identity(self, subdomain: str, name: str) -> object:
        """What stays the same if a file was not brought again."""

    def versions(self, subdomain: str) -> list[str]: ...


class Tree:
    """A folder that is published into, by this machine or by another one."""

    def __init__(self, root: Path, deployer: Deployer) -> None:
        self.root, self.deployer = root, deployer

    def read(self, subdomain: str, name: str) -> bytes | None:
        path = self.root / subdomain / name
        return path.read_bytes() if path.exists() else None

    def look(self, subdomain: str) -> dict[str, bytes]:
        version = (self.root / subdomain).resolve()
        return {str(path.relative_to(version)): path.read_bytes() for path in version.rglob("*") if path.is_file()}

    def identity(self, subdomain: str, name: str) -> object:
        return (self.root / subdomain / name).stat().st_ino

    def versions(self, subdomain: str) -> list[str]:
        """And whatever else lies there, but the lock."""
        return sorted(path.name for path in (self.root / ".versions" / subdomain).iterdir() if path.name != ".lock")


class Store:
    def __init__(self, prefix: str) -> None:
        there = S3Deployer(f"s3://{BUCKET}/{prefix}", grace=timedelta(0))
        self.prefix, self.store = prefix, there._store()
        self.deployer: Deployer = there

    def _get(self, key: str) -> bytes | None:
        import obstore

        try:
            return bytes(obstore.get(self.store, key).bytes())
        except FileNotFoundError:
            return None

    def _current(self, subdomain: str) -> dict[str, dict[str, str]]:
        text = self._get(f"{self.prefix}/{subdomain}/current.json")
        return {} if text is None else dict(orjson.loads(text)["files"])

    def read(self, subdomain: str, name: str) -> bytes | None:
        file = self._current(subdomain).get(name)
        return None if file is None else self._get(file["key"])

    def look(self, subdomain: str) -> dict[str, bytes]:
        return {name: self._get(file["key"]) or b"" for name, file in self._current(subdomain).items()}

    def identity(self, subdomain: str, name: str) -> object:
        import obstore

        head = obstore.head(self.store, self._current(subdomain)[name]["key"])
        return head["path"], head["last_modified"], head["e_tag"]

    def versions(self, subdomain: str) -> list[str]:
        import obstore

        root = f"{self.prefix}/{subdomain}/versions/"
        found = [one["path"].removeprefix(root) for some in obstore.list(self.store, root) for one in some]
        return sorted({path.partition("/")[0] for path in found})


def folder(at: Path) -> Target:
    return Tree(at / "published", FolderDeployer(at / "published"))


@contextmanager
def other_machine(at: Path, rsync: str) -> Iterator[Target]:
    """Its home is a folder whose name a careless shell would split."""
    programs, root = at / "bin", at / "their home; touch x" / "published"
    programs.mkdir()
    for name, text in ({"ssh": SSH} | ({"rsync": RSYNC} if rsync == "rsync-stand-in" else {})).items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    before = dict(os.environ)
    os.environ.update(PATH=f"{programs}{os.pathsep}{before['PATH']}", SSH_LOG=str(at / "ssh.log"))
    try:
        yield Tree(root, deployer(f"clerk@other.example:{root}"))
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """A server and the environment of those who talk to it."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    try:
        request = urllib.request.Request(f"{url}/{BUCKET}", method="PUT")
        with urllib.request.urlopen(request, timeout=10):
            pass
        yield {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }
    finally:
        server.stop()
