"""Gristmill keeps large sets of documents moving through pipelines, and can always say where each one is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gristmill.settings import VERSION

if TYPE_CHECKING:
    from gristmill.application import Finding, Migrations, check, routes
    from gristmill.backends import (
        ArqQueueBackend,
        DatabaseQueueBackend,
        MockQueueBackend,
        QueueBackend,
        RedisQueueBackend,
        RqQueueBackend,
        queue_backend,
    )
    from gristmill.errors import (
        EndRun,
        GristmillError,
        Invalid,
        Later,
        LockLost,
        LockTimeout,
        NotFound,
        Permanent,
        Refused,
        Skip,
        Unavailable,
        Unspent,
    )
    from gristmill.execution.context import Context
    from gristmill.limit import Limit
    from gristmill.mill import Mill
    from gristmill.pipeline import Pipeline, Task, task
    from gristmill.retention import Retention
    from gristmill.retry import Retries
    from gristmill.schedule import Schedule

__version__ = VERSION

__all__ = [
    "ArqQueueBackend",
    "Context",
    "DatabaseQueueBackend",
    "EndRun",
    "Finding",
    "GristmillError",
    "Invalid",
    "Later",
    "Limit",
    "LockLost",
    "LockTimeout",
    "Migrations",
    "Mill",
    "MockQueueBackend",
    "NotFound",
    "Permanent",
    "Pipeline",
    "QueueBackend",
    "RedisQueueBackend",
    "Refused",
    "Retention",
    "Retries",
    "RqQueueBackend",
    "Schedule",
    "Skip",
    "Task",
    "Unavailable",
    "Unspent",
    "check",
    "queue_backend",
    "routes",
    "task",
]

# Children import an application's modules, and those import this one: nothing heavy may load before it is asked for.
_HOME = {
    "ArqQueueBackend": "gristmill.backends",
    "DatabaseQueueBackend": "gristmill.backends",
    "MockQueueBackend": "gristmill.backends",
    "QueueBackend": "gristmill.backends",
    "RedisQueueBackend": "gristmill.backends",
    "RqQueueBackend": "gristmill.backends",
    "queue_backend": "gristmill.backends",
    "Context": "gristmill.execution.context",
    "Finding": "gristmill.application",
    "Limit": "gristmill.limit",
    "Migrations": "gristmill.application",
    "Mill": "gristmill.mill",
    "Pipeline": "gristmill.pipeline",
    "Retention": "gristmill.retention",
    "Retries": "gristmill.retry",
    "Schedule": "gristmill.schedule",
    "Task": "gristmill.pipeline",
    "check": "gristmill.application",
    "routes": "gristmill.application",
    "task": "gristmill.pipeline",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'gristmill' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME.get(name, "gristmill.errors")), name)
    globals()[name] = value
    return value
