"""The facade: what an application, the command line and the pages call."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from gristmill.clock import Clock
from gristmill.errors import Invalid, SchemaMismatch
from gristmill.execution import load
from gristmill.mill.lazy import lazy
from gristmill.mill.many import Many
from gristmill.mill.mending import Mending
from gristmill.mill.watching import Watching
from gristmill.mill.working import Working
from gristmill.registry import Piece, Registry
from gristmill.settings import database_url

if TYPE_CHECKING:
    from gristmill.ledger import engines, fresh, migrate, standing, store
else:
    engines, fresh, migrate, standing, store = lazy("gristmill.ledger", "engines", "fresh", "migrate", "standing", "store")

__all__ = ["Mill"]


class Mill(Mending, Many, Watching, Working):
    """A ledger together with the pipelines and tasks of an application. Make one with `Mill.open`."""

    @classmethod
    def open(
        cls,
        url: str | None = None,
        *pieces: Piece | Registry,
        create: bool = True,
        delivery: str | None = None,
        redis_url: str | None = None,
        clock: Clock | None = None,
    ) -> Self:
        """Opens a database with an application's pipelines and tasks. A new SQLite file is set up on first use, unless
        `create` is False. `delivery`: how workers learn of work, `database` unless the environment says otherwise; all but
        that need Redis."""
        if load.importing:
            raise Invalid(
                "a program that opens a mill when it is imported cannot be run by workers, whose children import it:"
                " put that part under `if __name__ == '__main__':`"
            )
        registry = Registry()
        for given in pieces:
            for piece in given.pieces() if isinstance(given, Registry) else [given]:
                registry.add(piece)
        ledger = store.Ledger(database_url(url), clock)
        try:
            if ledger.is_sqlite and not create and not ledger.path.exists():
                shown = engines.shown(ledger.url)
                raise SchemaMismatch(f"there is no database {shown}; run: gristmill --database {shown} db upgrade")
            if ledger.is_sqlite and create and ledger.revision() is None:
                if registry.migrations:
                    migrate.upgrade(ledger.url.render_as_string(hide_password=False), own=registry.own())
                else:
                    fresh.make(ledger)
            ledger.check_schema()
            if registry.migrations:
                standing.check_own(ledger, registry.own())
            return cls(ledger, registry, delivery, redis_url)
        except BaseException:
            ledger.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._locks is not None:
            self._locks.close()
        self.delivery.close()
        self.ledger.close()
