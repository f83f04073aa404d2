"""Tokens for the HTTP API: made, looked up by what their bearer says, revoked.

Only the SHA-256 of a token is kept. A slow hash, as for passwords, would protect nothing: a token is 256 random bits, which
nobody can try out; it would only make every request slow.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

from sqlalchemy.exc import IntegrityError

from gristmill.clock import SECOND, to_datetime
from gristmill.errors import Invalid, NotFound, Refused, did_you_mean
from gristmill.ledger.sql import Sql
from gristmill.ledger.stop import audit
from gristmill.ledger.store import Tx, repeatable
from gristmill.watched import Role, Token

_USED_EVERY = 60 * SECOND  # so often is written that a token is used: a request must not cost a commit

_COLUMNS = (
    "id, name, role, hash, created_at, created_by, expires_at, used_at, revoked_at, revoked_by,"
    " CASE WHEN revoked_at IS NOT NULL THEN 'revoked' WHEN expires_at <= {now} THEN 'expired' ELSE 'live' END AS state,"
    f" coalesce(used_at, 0) <= {{now}} - {_USED_EVERY} AS unnoted"
)
_FIND = Sql(f"SELECT {_COLUMNS} FROM gm_token WHERE hash = :hash")
_ALL = Sql(f"SELECT {_COLUMNS} FROM gm_token WHERE (:every OR revoked_at IS NULL) ORDER BY id")
_BY_NAME = Sql("SELECT id FROM gm_token WHERE name = :name AND revoked_at IS NULL")
_ADD = Sql(
    "INSERT INTO gm_token (name, role, hash, created_at, created_by, expires_at)"
    " SELECT :name, :role, :hash, {now}, :by, CAST(:expires AS bigint)"
    " WHERE CAST(:expires AS bigint) IS NULL OR CAST(:expires AS bigint) > {now} RETURNING id"
)
_NOW = Sql("SELECT {now}")
_USED = Sql(f"UPDATE gm_token SET used_at = {{now}} WHERE id = :id AND coalesce(used_at, 0) <= {{now}} - {_USED_EVERY}")
_REVOKE = Sql(
    "UPDATE gm_token SET revoked_at = {now}, revoked_by = :by WHERE name = :name AND revoked_at IS NULL RETURNING id, role"
)


def _written(moment: int | None) -> str | None:
    found = to_datetime(moment)
    return None if found is None else found.isoformat(timespec="seconds")


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def create(tx: Tx, name: str, role: Role, hashed: str, *, after: int | None, until: int | None, by: str) -> int:
    """A new token, whose bearer's words have this hash. It ends after so many microseconds, at a moment, or never."""
    expires = until if after is None else tx.value(_NOW) + after
    if tx.value(_BY_NAME, name=name) is not None:
        raise Refused(f"there is a token {name!r} already; choose another name, or revoke that one: token revoke {name}")
    try:
        number: int | None = tx.value(_ADD, name=name, role=role.value, hash=hashed, expires=expires, by=by)
    except IntegrityError:  # made by another between the two statements
        raise Refused(f"there is a token {name!r} already; choose another name") from None
    if number is None:
        raise Invalid(f"the token {name!r} would be of no use: it expires in the past")
    audit(tx, by, "token.create", f"token {name}", role=role.value, expires=_written(expires))
    return number


def revoke(tx: Tx, name: str, *, by: str) -> None:
    """Ends a token for good; its name may be used again."""
    if not tx.all(_REVOKE, name=name, by=by):
        known = [row.name for row in tx.all(_ALL, every=False)]
        raise NotFound(f"there is no token {name!r} that is not revoked{did_you_mean(name, known)}")
    audit(tx, by, "token.revoke", f"token {name}")


def tokens(tx: Tx, every: bool = False) -> list[Token]:
    """All that are not revoked; `every`: those too."""
    return [_token(row) for row in tx.all(_ALL, every=every)]


def find(tx: Tx, hashed: str) -> tuple[Token, bool] | None:
    """The live token with this hash, and whether it is time to write that it is used.

    An index finds it, which takes longer the more of the hash is right; but that tells nothing about any token's text, since
    nobody can choose a text by its hash.
    """
    row = tx.one(_FIND, hash=hashed)
    if row is None or not hmac.compare_digest(row.hash, hashed) or row.state != "live":
        return None
    return _token(row), bool(row.unnoted)


@repeatable
def note_use(tx: Tx, token: int) -> None:
    tx.run(_USED, id=token)


def _token(row: Any) -> Token:
    return Token(
        id=row.id,
        name=row.name,
        role=Role(row.role),
        state=row.state,
        created_at=to_datetime(row.created_at),
        created_by=row.created_by,
        expires_at=to_datetime(row.expires_at),
        used_at=to_datetime(row.used_at),
        revoked_at=to_datetime(row.revoked_at),
        revoked_by=row.revoked_by,
    )
