"""The parts that can be exchanged, as protocols: where documents come from, who reads them, who publishes them.

Each is looked up by its label, built in or from a plugin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypedDict

from clerk.names import Kind
from clerk.storage import Document

# ---- fetching


@dataclass(frozen=True)
class Wanted:
    """What a pass over a site looks for."""

    subdomain: str
    extra: Mapping[str, Any]
    since_year: int  # nothing older is looked at
    all_agendas: bool = False  # else agendas only where there are no minutes


@dataclass(frozen=True)
class Known:
    """What is known of a document from earlier passes, for a conditional request."""

    sha256: str
    etag: str | None = None
    modified: str | None = None  # Last-Modified, as the server said it


@dataclass(frozen=True)
class Found:
    """A document that a source lists. It is not here yet."""

    url: str  # http(s):// or a path of a folder source; what it is known by at its source
    kind: Kind
    meeting: str  # safe already: clerk.names.meeting
    date: str  # YYYY-MM-DD; a second one of that day gets -2 when it is stored


@dataclass(frozen=True)
class Fetched:
    """What came of downloading a document. Exactly one of `path` (new content, in a temporary place) and `unchanged`."""

    found: Found
    path: Path | None = None
    sha256: str = ""
    etag: str | None = None
    modified: str | None = None
    content_type: str = "application/pdf"
    unchanged: bool = False


class Fetcher(Protocol):
    """Where the documents of a site come from. Errors: `clerk.errors.Transient`, `Unreadable`, `Critical`."""

    def find(self, wanted: Wanted) -> Iterator[Found]:
        """All that the source lists, from `since_year` on; those with agendas and minutes as they come."""
        ...

    def get(self, found: Found, known: Known | None, into: Path) -> Fetched:
        """Brings one document, into a file under the folder `into`; not, if the source says that it is what is known."""
        ...


class Page(Protocol):
    """A page of an index, all of it in memory."""

    @property
    def url(self) -> str: ...  # where it came from in the end

    @property
    def content_type(self) -> str: ...

    @property
    def charset(self) -> str | None: ...  # as its header says

    @property
    def data(self) -> bytes: ...

    @property
    def text(self) -> str: ...

    def json(self) -> Any: ...


class Web(Protocol):
    """What a fetcher asks the web with: addresses, TLS, size, time, and how often a host is asked are seen to there."""

    max_bytes: int  # of a document

    def page(self, url: str, accept: str = ..., types: str = ...) -> Page:
        """A page of an index; `types`: what its content type must match, if it has one."""
        ...

    def get(self, found: Found, known: Known | None, into: Path) -> Fetched:
        """A document, as `Fetcher.get` promises it."""
        ...


FetcherClass = Callable[[Mapping[str, Any], Web], Fetcher]  # of the settings of a site; built in or of a plugin


# ---- reading


@dataclass(frozen=True)
class PageText:
    number: int  # from 1
    text: str = ""
    error: str | None = None  # why it has none
    source: str = ""  # "layer", "tesseract", "vision", "rapidocr", "html"


class OcrBackend(Protocol):
    label: str

    def read(self, image: Path, languages: str) -> str:
        """The text on an image of one page."""
        ...


# ---- extracting


class Entity(TypedDict):
    text: str
    confidence: float


class Entities(TypedDict):
    persons: list[Entity]
    orgs: list[Entity]
    locations: list[Entity]


class Tally(TypedDict):
    ayes: int | None
    nays: int | None
    abstain: int | None
    absent: int | None


class MemberVote(TypedDict):
    name: str
    vote: str  # "aye", "nay", "abstain", "absent"


class Vote(TypedDict):
    motion_by: str | None
    seconded_by: str | None
    result: str  # "passed", "failed", "tabled", "unknown"
    tally: Tally
    individual_votes: list[MemberVote]
    raw_text: str


class Votes(TypedDict):
    votes: list[Vote]


@dataclass(frozen=True)
class Extracted:
    entities: Entities
    votes: Votes


class Extractor(Protocol):
    label: str
    version: str  # caches made by another one are made anew

    def extract(self, pages: Sequence[str]) -> Iterable[Extracted]:
        """Of all pages of one document, in order: who is named in an early roll call is known on later pages. Who takes
        long gives each page as it is done, so that others see how far it is."""
        ...


# ---- publishing


@dataclass(frozen=True)
class Publication:
    """What is published of a site: names, as others will see them, and the files they are now."""

    subdomain: str
    version: str  # of this publication; later ones sort higher
    files: Mapping[str, Path] = field(default_factory=dict)


class Deployer(Protocol):
    def deploy(self, publication: Publication) -> None:
        """Brings all of it there, then switches in one step; what was published stays if anything fails."""
        ...


def document_of(found: Found, date: str) -> Document:
    return Document(found.kind, found.meeting, date)
