"""The list of checks, and what each of them is given: fresh places, on either database."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from accept.clerk.place import Place
from tests import servers


class Scene:
    """`name`: of the check, so that its folders are told apart."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._server = ""
        self._lock = threading.Lock()
        self._made = 0

    def place(self, database: str = "SQLite", *, upgraded: bool = True, empty: bool = False) -> Place:
        """A folder that nobody was in before, with a database of its own. `empty`: without a setting, or a storage."""
        with self._lock:
            self._made += 1
            url = "" if database == "SQLite" else servers.create_database(self._postgres())
            made = Place(self._folder / f"place{self._made}" / ("here" if empty else ""), url, empty)
        if upgraded:
            made.clerk("db", "upgrade")
        return made

    def _postgres(self) -> str:
        self._server = self._server or self._stack.enter_context(servers.postgres_server())
        return self._server


@dataclass(frozen=True)
class Check:
    """`does` raises `Fails`, or says what was measured."""

    number: int
    title: str
    does: Callable[[Scene], str]


CHECKS: dict[int, Check] = {}


def check(number: int, title: str) -> Callable[[Callable[[Scene], str]], Callable[[Scene], str]]:
    def add(does: Callable[[Scene], str]) -> Callable[[Scene], str]:
        CHECKS[number] = Check(number, title, does)
        return does

    return add
