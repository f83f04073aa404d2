"""Modules that are imported when something of them is first used.

Children import applications, and these import Mill: SQLAlchemy alone would cost each child 0.3 s and 20 MiB.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Lazy:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute == "_module":
            self._module = import_module(self._name)
            return self._module
        return getattr(self._module, attribute)


def lazy(package: str, *modules: str) -> list[Lazy]:
    return [Lazy(f"{package}.{module}") for module in modules]
