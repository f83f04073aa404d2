"""Publishing into an object store that speaks S3.

<prefix>/<subdomain>/current.json                 what others read first: the version and the key of each of its files
<prefix>/<subdomain>/versions/<version>/…         its database, its description, and a copy of that list
<prefix>/<subdomain>/files/<sha256>.pdf           PDFs by their content: they stay, and so do links to them

Credentials, region and endpoint are those of the environment or of `.env` (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL and so on).
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast
from urllib.parse import urlsplit

import orjson

from clerk.config import variable
from clerk.deploying.folder import version_of
from clerk.deploying.publication import checked, content_type, refuse_older
from clerk.errors import ClerkError, Transient, Usage
from clerk.parts import Publication
from clerk.storage import sha256_of

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config, S3Store

_NOT_CACHED = "no-cache"
_SAID = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_ENDPOINT_URL")
_GRACE = timedelta(
    days=1
)  # longer than any deploy lives: until then a version that nobody points to may be one in the making
_CLIENT: ClientConfig = {"timeout": "300s", "allow_http": True}  # whether it is http is said by AWS_ENDPOINT_URL
_RETRIES: RetryConfig = {"max_retries": 5, "retry_timeout": timedelta(seconds=60)}


class File(TypedDict):
    key: str
    size: int
    modified: int  # nanoseconds; with the size it tells that a PDF need not be read again


class Listing(TypedDict):
    version: str  # the name of its folder: the version and a random end
    before: str | None
    files: dict[str, File]


class S3Deployer:
    def __init__(self, target: str, grace: timedelta = _GRACE) -> None:
        url = urlsplit(target)
        if not url.netloc or url.query or url.fragment or "@" in url.netloc:
            raise Usage(f"DEPLOY_TARGET wants s3://bucket/prefix, not {target[:80]!r}")
        self.bucket, self.prefix, self.grace = url.netloc, url.path.strip("/"), grace

    def deploy(self, publication: Publication) -> None:
        root = f"{self.prefix}/{checked(publication).subdomain}".lstrip("/")
        with _understood(f"s3://{self.bucket}/{root}"):
            store = self._store()
            before = _listing(store, f"{root}/current.json")
            refuse_older(publication, before and version_of(before["version"]), f"s3://{self.bucket}/{root}")
            listing: Listing = {
                "version": f"{publication.version}.{secrets.token_hex(4)}",
                "before": before and before["version"],
                "files": {},
            }
            for name, path in publication.files.items():
                listing["files"][name] = _bring(store, root, listing["version"], name, path, before)
            text = orjson.dumps(listing, option=orjson.OPT_INDENT_2)
            _put(store, f"{root}/versions/{listing['version']}/files.json", text)
            now = _listing(store, f"{root}/current.json")  # to bring it all may have taken long
            refuse_older(publication, now and version_of(now["version"]), f"s3://{self.bucket}/{root}")
            _put(store, f"{root}/current.json", text)
            self._sweep(store, f"{root}/versions", listing)

    def _store(self) -> S3Store:
        from obstore.store import S3Store

        said = cast("S3Config", {name.lower(): value for name in _SAID if (value := variable(name))})
        return S3Store(self.bucket, config=said, retry_config=_RETRIES, client_options=_CLIENT)

    def _sweep(self, store: S3Store, versions: str, listing: Listing) -> None:
        import obstore

        kept, now = {listing["version"], listing["before"]}, datetime.now(UTC)
        for some in obstore.list(store, versions):
            old = [
                one["path"]
                for one in some
                if one["path"].removeprefix(f"{versions}/").partition("/")[0] not in kept
                and now - one["last_modified"] >= self.grace
            ]
            if old:
                obstore.delete(store, old)


def _listing(store: S3Store, key: str) -> Listing | None:
    import obstore
    from obstore.exceptions import NotFoundError

    try:
        listing: Listing = orjson.loads(bytes(obstore.get(store, key).bytes()))
        return listing
    except (NotFoundError, FileNotFoundError):
        return None
    except ValueError as error:
        raise ClerkError(f"{key} is nothing that clerk has written: {error}; move it away, then publish again") from None


def _bring(store: S3Store, root: str, version: str, name: str, path: Path, before: Listing | None) -> File:
    stat = path.stat()
    known = (before["files"] if before else {}).get(name)
    if not name.endswith(".pdf"):
        file: File = {"key": f"{root}/versions/{version}/{name}", "size": stat.st_size, "modified": stat.st_mtime_ns}
    elif known is not None and (known["size"], known["modified"]) == (stat.st_size, stat.st_mtime_ns):
        return known
    else:
        file = {"key": f"{root}/files/{sha256_of(path)}.pdf", "size": stat.st_size, "modified": stat.st_mtime_ns}
        if _is_there(store, file):
            return file
    _put(store, file["key"], path)
    return file


def _is_there(store: S3Store, file: File) -> bool:
    import obstore
    from obstore.exceptions import NotFoundError

    with contextlib.suppress(NotFoundError, FileNotFoundError):
        return obstore.head(store, file["key"])["size"] == file["size"]
    return False


def _put(store: S3Store, key: str, content: Path | bytes) -> None:
    import obstore

    attributes = {"Content-Type": content_type(key)}
    if isinstance(content, bytes):
        attributes["Cache-Control"] = _NOT_CACHED
    obstore.put(store, key, content, attributes=attributes)


@contextlib.contextmanager
def _understood(where: str) -> Iterator[None]:
    from obstore import exceptions

    try:
        yield
    except FileNotFoundError as error:
        raise Transient(f"{error.filename or error} went while it was published; publish again") from error
    except (PermissionError, exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise ClerkError(f"{where} refuses these credentials: {_short(error)}") from error
    except (exceptions.BaseError, ConnectionError, TimeoutError) as error:
        raise Transient(f"{where} could not be written: {_short(error)}") from error


def _short(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]
