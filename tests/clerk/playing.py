"""Sites whose documents are played, for tests about counting: what a source lists and how each reads is written in a file
that children see too. The rest of the pipeline is what it is."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.worker.helpers import lines

PLUGIN = '''
"""A source and an OCR engine that are played."""

import hashlib
import json
import os
import time
from pathlib import Path

from clerk import errors
from clerk.parts import Extracted, Fetched, Found
from clerk.plugins import hookimpl

PLAY = Path(os.environ["CLERK_PLAY"])


def play(subdomain):
    return json.loads((PLAY / f"{subdomain}.json").read_text())


class Played:
    def __init__(self, extra, client):
        self.play = {}

    def find(self, wanted):
        self.play = play(wanted.subdomain)
        with (PLAY / "since").open("a") as file:
            file.write(f"{wanted.since_year}\\n")
        if "find" in self.play:
            raise getattr(errors, self.play["find"])("the index is out of reach")
        for key, what in self.play["documents"].items():
            kind, meeting, date = key.split("/")
            if "after" in what:  # the source takes its time before it lists this one
                from tests.apps.barriers import wait_for

                wait_for(PLAY / what["after"])
            yield Found(f"played://{wanted.subdomain}/{key}", kind, meeting, date)
        if "broken_off" in self.play:
            raise getattr(errors, self.play["broken_off"])("a page of the index is out of reach")

    def get(self, found, known, into):
        key = found.url.split("/", 3)[3]
        what = self.play["documents"][key]
        with (PLAY / "asked").open("a") as file:
            file.write(f"{key}\\n")
        if known is not None:
            with (PLAY / "asked_if_changed").open("a") as file:
                file.write(f"{key}\\n")
        if what.get("get"):
            raise getattr(errors, what["get"])(f"{key} cannot be had{what.get('why', '')}")
        content = json.dumps({"key": key, **what}).encode()
        sha256 = hashlib.sha256(content).hexdigest()
        if known is not None and known.sha256 == sha256:
            return Fetched(found, etag=self.play.get("etag"), unchanged=True)
        path = into / sha256
        path.write_bytes(content)
        return Fetched(found, path, sha256, self.play.get("etag"))


class Waiting:
    """An extractor that says at which page it is, and goes on when the test lets it."""

    label, version = "waiting", "1"

    def extract(self, pages):
        from tests.apps.barriers import mark, wait_for

        for number, page in enumerate(pages, 1):
            here = f"{page.rpartition('/')[2]}.{number}"
            mark(PLAY / "extracting", here)
            wait_for(PLAY / f"go_on_{here}")
            yield Extracted({"persons": [], "orgs": [], "locations": []}, {"votes": []})


@hookimpl
def fetcher_class(label):
    return Played if label == "played" else None


@hookimpl
def extractor(label):
    return Waiting() if label == "waiting" else None


@hookimpl
def upload_static_file(file_path, storage_path):
    assert file_path.is_file()
    with (PLAY / "uploaded").open("a") as file:
        file.write(storage_path + "\\n")


@hookimpl
def post_deploy(site):
    with (PLAY / "post_deploy").open("a") as file:
        file.write(site["subdomain"] + "\\n")
    (PLAY / "post_deploy.json").write_text(json.dumps(site, default=lambda time: time.isoformat()))
'''


@dataclass
class Play:
    """What is played, in a folder."""

    folder: Path
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "plugins").mkdir(parents=True, exist_ok=True)
        (self.folder / "plugins" / "played.py").write_text(PLUGIN)

    def site(self, subdomain: str, documents: dict[str, dict[str, Any]] | None = None, **how: Any) -> None:
        (self.folder / f"{subdomain}.json").write_text(json.dumps({"documents": documents or {}, **how}))

    def extracting(self) -> list[str]:
        """The pages (DATE.NUMBER) that the extractor `waiting` has come to."""
        return lines(self.folder / "extracting")

    def go_on(self, page: str) -> None:
        (self.folder / f"go_on_{page}").touch()


def minutes(count: int, first: int = 0, **what: Any) -> dict[str, dict[str, Any]]:
    """Of this year: a later run does not look at older ones."""
    year = datetime.now(UTC).year
    return {f"minutes/Council/{year}-{n // 28 + 1:02}-{n % 28 + 1:02}": what for n in range(first, first + count)}
