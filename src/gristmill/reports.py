"""Jobs that failed for good, to Sentry, if GRISTMILL_SENTRY_DSN is set: one group for each fingerprint, as in `error list`.

A worker tells of what it has written into the ledger, not the process that failed: so a crash, a time limit and an error
are told alike, once, and only when nothing more will be tried.
"""

from __future__ import annotations

import atexit
import logging
import os
from functools import cache
from typing import Any

from gristmill.settings import VERSION

log = logging.getLogger("gristmill.reports")


def on() -> bool:
    return bool(os.environ.get("GRISTMILL_SENTRY_DSN"))


@cache
def _sentry() -> Any:
    """Sentry's client; None: it cannot be had, which is said once and harms nothing."""
    try:
        import sentry_sdk
    except ImportError:
        log.warning("GRISTMILL_SENTRY_DSN is set, but sentry-sdk is not installed; run: pip install 'gristmill[sentry]'")
        return None
    try:
        client = sentry_sdk.Client(
            dsn=os.environ["GRISTMILL_SENTRY_DSN"],
            environment=os.environ.get("SENTRY_ENVIRONMENT"),
            release=os.environ.get("SENTRY_RELEASE") or f"gristmill@{VERSION}",
            default_integrations=False,  # only what is told here: an application may have a Sentry of its own
            auto_enabling_integrations=False,
        )
    except Exception as error:  # a DSN that is none, say
        log.warning("failed jobs are not reported to Sentry: %s", error)
        return None
    atexit.register(client.close, timeout=2)
    return client


def failed(fingerprint: str, kind: str, said: str, traceback: str | None, **about: Any) -> None:
    """One job. `about`: task, stage, run, job, attempt."""
    client = _sentry()
    if client is None:
        return
    client.capture_event(
        {
            "level": "error",
            "fingerprint": [fingerprint],
            "transaction": str(about.get("task")),
            "exception": {"values": [{"type": kind, "value": said}]},
            "tags": {name: str(value) for name, value in about.items() if value is not None},
            "extra": {"traceback": traceback, "show": f"gristmill job show {about.get('job')}"},
        }
    )
