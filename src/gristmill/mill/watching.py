"""For those who look on: who they are, what changes, what was done when."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from gristmill.clock import from_datetime
from gristmill.errors import DatabaseError, Invalid, quoted
from gristmill.mill.lazy import lazy
from gristmill.mill.reading import Reading
from gristmill.mill.values import checked_id, choice, delay_of, moment, who
from gristmill.pipeline import check_name
from gristmill.rollup import MINUTE
from gristmill.watched import Ended, Events, Interval, NewToken, Role, Token, Total

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from gristmill.ledger import events as ledger_events
    from gristmill.ledger import minutes as ledger_minutes
    from gristmill.ledger import tokens as ledger_tokens
    from gristmill.ledger.store import Tx
else:
    ledger_events, ledger_minutes, ledger_tokens = lazy("gristmill.ledger", "events", "minutes", "tokens")

_PREFIX = "gm_"  # so that scanners for secrets, and people, see what it is
_PAGE = 1000  # events that one look gives
_INTERVALS = 10_000  # that one look gives
_STEPS = tuple(minutes * MINUTE for minutes in (1, 60, 1440, 10_080))
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

    def event(
        self,
        name: str,
        data: Mapping[str, Any] | None = None,
        *,
        run: int | None = None,
        connection: Connection | None = None,
    ) -> None:
        """Tells those who follow `events` of something of the application's own, like `library.lent`: its name has a dot.

        With `connection` they see it if and when that transaction commits.
        """
        text = ledger_events.own(name, data)
        number = None if run is None else checked_id(run, "run")
        self._doing(connection)(ledger_events.add, name, number, text)

    def events(self, after: str | None = None, *, limit: int = _PAGE) -> Events:
        """What changed after the event with this id, in the order of the commits; without it, from the oldest that is kept.

        Go on after `last`. `reset`: what came next is not kept any more, so look at everything anew, and go on after `last`.
        """
        cursor = None if after is None else ledger_events.Cursor.of(after)
        self._number_events()
        return self._read(ledger_events.after, cursor, max(1, min(limit, _PAGE)))

    def last_event(self) -> str:
        """The id of the newest event: what to go on after, for who has just looked at everything."""
        self._number_events()
        return self.ledger.glance(ledger_events.newest)

    def _number_events(self) -> None:
        """Gives new events their places. A role that may only read leaves that to the housekeeping of workers."""
        if self.ledger.glance(ledger_events.are_new):
            with contextlib.suppress(DatabaseError):
                while self.ledger.do(ledger_events.number):
                    pass

    def history(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        since: datetime | timedelta | float = 3600,
        step: timedelta | float | None = None,
    ) -> list[Interval]:
        """How many jobs ended, how, and how long they took, in intervals of `step` seconds (whole minutes), until now.

        `since`: a moment, or so many seconds ago. There are minutes for two days, then hours; jobs that were removed count.
        Without `step`: a minute; for a long time an hour, a day or a week.
        """
        span = None if step is None else delay_of(step, "step")
        if span is not None and (not span or span % MINUTE):
            raise Invalid(f"step is a whole number of minutes, in seconds: 60, 3600; not {quoted(step)}")
        with self.ledger.reading() as tx:
            self._check_queue(tx, queue)
            now = ledger_minutes.this_minute(tx)
            first = max(0, from_datetime(since) // MINUTE if isinstance(since, datetime) else now - _minutes(since))
            span = span or next(one for one in _STEPS if (now - first) * MINUTE <= one * _INTERVALS)
            if (now - first) * MINUTE > span * _INTERVALS:
                raise Invalid(f"that would be more than {_INTERVALS:,} intervals; choose a longer step, or begin later")
            return ledger_minutes.history(tx, queue, task, first, span // MINUTE)

    def ended(self, *, since: float = 3600, step: float = 60) -> dict[str | None, list[Ended]]:
        """How many jobs ended in intervals of `step` seconds (whole minutes), from so many seconds ago until now: of each
        queue in which some did, and (None) of all together."""

        def look(tx: Tx) -> dict[str | None, list[Ended]]:
            first = ledger_minutes.this_minute(tx) - _minutes(since)
            found: dict[str | None, list[Ended]] = ledger_minutes.ended(tx, first, _minutes(step))
            return found

        return self._read(look)

    def totals(self, *, since: datetime | None = None) -> list[Total]:
        """The same in all, by queue and task, since a moment or since ever: then they only grow."""
        first = 0 if since is None else from_datetime(since) // MINUTE
        return self._read(ledger_minutes.totals, first)


def _minutes(since: timedelta | float) -> int:
    return delay_of(since, "since") // MINUTE
