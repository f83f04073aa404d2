"""For those who look on: who they are, what changes, what was done when."""

from __future__ import annotations

import contextlib
import secrets
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from gristmill.errors import DatabaseError
from gristmill.mill.lazy import lazy
from gristmill.mill.reading import Reading
from gristmill.mill.values import choice, delay_of, moment, who
from gristmill.pipeline import check_name
from gristmill.watched import NewToken, Role, Token

if TYPE_CHECKING:
    from gristmill.ledger import tokens as ledger_tokens
else:
    (ledger_tokens,) = lazy("gristmill.ledger", "tokens")

_PREFIX = "gm_"  # so that scanners for secrets, and people, see what it is
_LONGEST = 200  # characters of anything that could be a token


class Watching(Reading):
    def create_token(
        self,
        name: str,
        role: str,
        *,
        expires: datetime | timedelta | float | None = None,
        by: str | None = None,
    ) -> NewToken:
        """A token for the HTTP API: `viewer`, `operator` or `admin`. Its `text` is shown this once.

        `expires`: at a moment, or after so many seconds; without it, never.
        """
        check_name(name, "token")
        kind: Role = choice(Role, role, "role")
        until = moment(expires) if isinstance(expires, datetime) else None
        after = None if expires is None or until is not None else delay_of(expires, "expires")
        text = _PREFIX + secrets.token_urlsafe(32)  # 256 bits
        number = self.ledger.do(
            ledger_tokens.create, name, kind, ledger_tokens.digest(text), after=after, until=until, by=by or who()
        )
        return NewToken(text, next(token for token in self.tokens() if token.id == number))

    def tokens(self, *, every: bool = False) -> list[Token]:
        """Tokens in the order in which they were made; `every`: also those that were revoked."""
        return self.ledger.glance(ledger_tokens.tokens, every)

    def revoke_token(self, name: str, *, by: str | None = None) -> None:
        """Ends a token at once and for good."""
        self.ledger.do(ledger_tokens.revoke, name, by=by or who())

    def check_token(self, text: str) -> Token | None:
        """Whose token this is; None: nobody's, or it is expired or revoked."""
        if not isinstance(text, str) or len(text) > _LONGEST:
            return None
        found = self.ledger.glance(ledger_tokens.find, ledger_tokens.digest(text))
        if found is None:
            return None
        token, unnoted = found
        if unnoted:
            with contextlib.suppress(DatabaseError):  # a role that may only read cannot write it, and need not
                self.ledger.do(ledger_tokens.note_use, token.id)
        return token
