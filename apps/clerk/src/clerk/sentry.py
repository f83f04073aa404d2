"""Errors to Sentry, grouped by what went wrong and not by the document that it went wrong with.

Whatever is logged as an error is reported. Who logs says of which kind it is, in the field `kind` (`pdf-failed-to-read`,
`pdf-failed-to-process`, or `fetch-error` with a `host`); without one, errors of one class in one stage are one group.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from clerk import __version__
from clerk.config import Config
from clerk.logs.lines import FIELDS, about_now
from clerk.masking import masker

if TYPE_CHECKING:
    from sentry_sdk.types import Event, Hint

UNREADABLE: Final = "pdf-failed-to-read"
UNPROCESSED: Final = "pdf-failed-to-process"
FETCH: Final = "fetch-error"
RECOVERED_TWICE: Final = "site-recovered-twice"

log = logging.getLogger("clerk.sentry")


def configure(config: Config) -> bool:
    """Whether errors are reported. What is wrong with Sentry itself is said once, and harms nothing."""
    if not config.sentry_dsn:
        return False
    try:
        import sentry_sdk
        from sentry_sdk.integrations.logging import LoggingIntegration, ignore_logger
    except ImportError:
        log.warning("SENTRY_DSN is set, but sentry-sdk is not installed: pip install 'gristmill-clerk[sentry]'")
        return False
    mask = masker(config)

    def before_send(event: Event, hint: Hint) -> Event | None:
        about = _about(hint)
        event["fingerprint"] = fingerprint(about, hint)
        event.setdefault("tags", {}).update({name: str(about[name]) for name in FIELDS if about.get(name) is not None})
        if about.get("kind"):
            event["tags"]["kind"] = str(about["kind"])
        return _masked(event, mask)  # type: ignore[no-any-return]

    try:
        sentry_sdk.init(
            dsn=config.sentry_dsn,
            environment=config.sentry_environment,
            traces_sample_rate=config.sentry_sample_rate,
            release=f"clerk@{__version__}",
            before_send=before_send,
            include_local_variables=False,  # they hold settings, and pages of text
            auto_enabling_integrations=False,  # each would import what it is for
            integrations=[LoggingIntegration(level=logging.INFO, event_level=logging.ERROR)],
            shutdown_timeout=2,
        )
    except Exception as error:  # a DSN that is none, say
        log.warning("errors are not reported to Sentry: %s", mask(str(error)))
        return False
    ignore_logger("clerk.loki")
    return True


def fingerprint(about: Mapping[str, Any], hint: Mapping[str, Any]) -> list[str]:
    """What has the same is one group."""
    kind = about.get("kind")
    if kind == FETCH:
        return [FETCH, str(about.get("host") or "unknown host")]
    if kind:
        return [str(kind)]
    error = (hint.get("exc_info") or (None, None, None))[1]
    if error is not None:
        return [str(about.get("stage") or "clerk"), type(error).__name__]
    if about.get("stage") and about.get("error"):
        kind = about.get("error_class") or str(about["error"]).partition(":")[0]  # of one that was killed: how
        return [str(about["stage"]), str(kind)[:100]]
    record = hint.get("log_record")
    return [record.name, str(record.msg)] if record is not None else ["{{ default }}"]


def _about(hint: Mapping[str, Any]) -> Mapping[str, Any]:
    record = hint.get("log_record")
    return {**about_now(), **({**vars(record), **getattr(record, "fields", {})} if record is not None else {})}


def _masked(value: Any, mask: Any) -> Any:
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {name: _masked(each, mask) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(each, mask) for each in value]
    return value
