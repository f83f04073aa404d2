"""Hook points inside a verb: something happens after its n-th statement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from gristmill.ledger.sql import Sql
from gristmill.ledger.store import Tx

P = ParamSpec("P")
T = TypeVar("T")
After = Callable[[int], None]


class HookedTx(Tx):
    """A transaction that says how many statements it has executed, after each."""

    def __init__(self, tx: Tx, after: After) -> None:
        self.__dict__.update(tx.__dict__)
        self._after = after
        self._statements = 0

    def execute(self, sql: Sql, **given: Any) -> Any:
        result = super().execute(sql, **given)
        self._executed()
        return result

    def run_many(self, *args: Any, **kwargs: Any) -> int:
        changed = super().run_many(*args, **kwargs)
        self._executed()
        return changed

    def copy(self, *args: Any) -> None:
        super().copy(*args)
        self._executed()

    def _executed(self) -> None:
        self._statements += 1
        self._after(self._statements)


def hooked(verb: Callable[Concatenate[Tx, P], T], after: After) -> Callable[Concatenate[Tx, P], T]:
    """The same verb, with `after(n)` called after its n-th statement."""

    def with_hook(tx: Tx, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return verb(HookedTx(tx, after), *args, **kwargs)

    return with_hook
