"""Names that come from outside and become parts of paths: they are checked or made safe here, and nowhere else."""

from __future__ import annotations

import re
import unicodedata
from typing import Final, Literal, get_args

from clerk.errors import Usage

Kind = Literal["minutes", "agendas"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
STAGES: Final = ("fetch", "ocr", "compilation", "extraction", "deploy")

_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_LONGEST_SUBDOMAIN = 100
_FILES_BESIDE_SITES = {"meetings.db", "sites.db"}  # in STORAGE_DIR; else their names would do for a site
_LONGEST_MEETING = 100  # bytes: file systems allow 255, and a suffix or a name aside may be added
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}(-\d{1,6})?")  # a folder may have as many files of one day


def subdomain(text: str) -> str:
    """The key of a site: `a-z0-9-` labels joined by single dots. Anything else is refused."""
    if len(text) > _LONGEST_SUBDOMAIN or not _SUBDOMAIN.fullmatch(text) or text in _FILES_BESIDE_SITES:
        raise Usage(
            f"{text[:120]!r} is no subdomain: letters a-z, digits and '-', joined by single dots,"
            f" at most {_LONGEST_SUBDOMAIN} characters"
        )
    return text


def meeting(text: str) -> str:
    """A meeting's name as one part of a path: "Parks & Recreation" is "ParksAndRecreation"."""
    text = text.replace("&", "And").replace("/", "And").replace("\\", "And")
    kept = "".join(c for c in text if c.isprintable() and not c.isspace() and c != "*")
    kept = unicodedata.normalize("NFC", kept).strip(".").encode()[:_LONGEST_MEETING].decode(errors="ignore")
    return kept.rstrip(".") or "Meeting"


def is_date(text: str) -> bool:
    """`2026-01-31`, or `2026-01-31-2` for the second document on that date."""
    return _DATE.fullmatch(text) is not None
