"""Every setting: its variable, default and meaning, in one table. A value comes from the environment, then from `.env`."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from dotenv import dotenv_values

from clerk.errors import Usage

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST = 365 * 86_400.0
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off", ""}


def duration(text: str) -> float:
    """`90`, `90s`, `10m`, `1h`, `1d`: seconds."""
    found = _DURATION.fullmatch(text.strip().lower())
    if not found or not float(found[1]):
        raise ValueError("wants a time such as 90s, 10m or 2h")
    seconds = float(found[1]) * _SECONDS[found[2]]
    if seconds > _LONGEST:
        raise ValueError("wants a time of at most 365 days")
    return seconds


def rate(text: str) -> float:
    """`2/s`, `30/m`, `2`: times a second."""
    number, _, unit = text.partition("/")
    per = {"": 1, "s": 1, "m": 60, "h": 3600}.get(unit.strip())
    if per is None or not float(number) > 0:
        raise ValueError("wants a rate such as 2/s or 30/m")
    if float(number) / per < 1 / 86_400:
        raise ValueError("wants a rate of at least one a day")
    return float(number) / per


def boolean(text: str) -> bool:
    if text.strip().lower() in _TRUE | _FALSE:
        return text.strip().lower() in _TRUE
    raise ValueError("wants 1 or 0")


def count(text: str) -> int:
    if not text.strip().isdecimal() or int(text) > 10_000:
        raise ValueError("wants a whole number from 0 to 10000")
    return int(text)


def at_least_one(text: str) -> int:
    if count(text) < 1:
        raise ValueError("wants a whole number from 1")
    return int(text)


def share(text: str) -> float:
    if not 0 <= float(text) <= 1:
        raise ValueError("wants a number from 0 to 1")
    return float(text)


def database(text: str) -> str:
    return "postgresql" + text.removeprefix("postgres") if text.startswith("postgres://") else text


def _of(variable: str, default: Any, parse: Callable[[str], Any] = str) -> Any:
    return field(default=default, metadata={"variable": variable, "parse": parse})


@dataclass(frozen=True)
class Config:
    """What the environment says. Times are seconds."""

    database_url: str = _of("DATABASE_URL", "sqlite:///civic.db", database)
    redis_url: str | None = _of("REDIS_URL", None)
    storage: Path = _of("STORAGE_DIR", Path("../sites"), Path)

    fetch_workers: int | None = _of("FETCH_WORKERS", None, count)  # None: what this machine can do
    ocr_workers: int | None = _of("OCR_WORKERS", None, count)
    compilation_workers: int | None = _of("COMPILATION_WORKERS", None, count)
    extraction_workers: int | None = _of("EXTRACTION_WORKERS", None, count)
    deploy_workers: int | None = _of("DEPLOY_WORKERS", None, count)

    sites_per_minute: int = _of("SITES_PER_MINUTE", 1, at_least_one)  # that the installed scheduler starts

    fetch_timeout: float = _of("FETCH_JOB_TIMEOUT", 3600.0, duration)
    ocr_timeout: float = _of("OCR_JOB_TIMEOUT", 600.0, duration)
    compilation_timeout: float = _of("COMPILATION_JOB_TIMEOUT", 1800.0, duration)
    extraction_timeout: float = _of("EXTRACTION_JOB_TIMEOUT", 7200.0, duration)
    deploy_timeout: float = _of("DEPLOY_JOB_TIMEOUT", 600.0, duration)

    ocr_backend: str = _of("DEFAULT_OCR_BACKEND", "tesseract")
    ocr_lang: str | None = _of("OCR_LANG", None)  # None: eng+spa where both are installed, else eng
    split_pages: int = _of("OCR_SPLIT_PAGES", 100, at_least_one)
    chunk_size: int = _of("PDF_CHUNK_SIZE", 20, at_least_one)
    pdf_read_timeout: float = _of("PDF_READ_TIMEOUT", 60.0, duration)
    pdf_convert_timeout: float = _of("PDF_CONVERT_TIMEOUT", 300.0, duration)
    text_layer_min_chars: int = _of("TEXT_LAYER_MIN_CHARS", 50, count)
    keep_pdfs: bool = _of("KEEP_PDFS", True, boolean)

    extraction: bool = _of("ENABLE_EXTRACTION", True, boolean)
    spacy_processes: int = _of("SPACY_N_PROCESS", 2, at_least_one)
    confidence: float = _of("ENTITY_CONFIDENCE_THRESHOLD", 0.7, share)

    deploy_target: str = _of("DEPLOY_TARGET", "./published")
    dev_mode: bool = _of("CIVIC_DEV_MODE", False, boolean)
    dashboard_token: str | None = _of("DASHBOARD_TOKEN", None)

    log_dir: Path = _of("LOG_DIR", Path("logs"), Path)
    loki_url: str | None = _of("LOKI_URL", None)
    sentry_dsn: str | None = _of("SENTRY_DSN", None)
    sentry_environment: str = _of("SENTRY_ENVIRONMENT", "production")
    sentry_sample_rate: float = _of("SENTRY_TRACES_SAMPLE_RATE", 0.0, share)

    failed_retention_days: int = _of("FAILED_RETENTION_DAYS", 7, at_least_one)
    fetch_rate: float = _of("FETCH_RATE_PER_HOST", 2.0, rate)
    max_document_mb: int = _of("MAX_DOCUMENT_MB", 500, at_least_one)
    allow_private: bool = _of("FETCH_ALLOW_PRIVATE", False, boolean)  # documents may be on loopback or in the own network


VARIABLES: Mapping[str, str] = {f.metadata["variable"]: f.name for f in fields(Config)}


def load(environ: Mapping[str, str] | None = None, folder: Path | None = None) -> Config:
    """The settings of this process; `folder`: where the search for `.env` begins, upwards."""
    environ = os.environ if environ is None else environ
    given = {**_dotenv(Path.cwd() if folder is None else folder), **environ}
    values: dict[str, Any] = {}
    for one in fields(Config):
        text = given.get(one.metadata["variable"])
        if not text:
            continue  # unset, or set to nothing
        try:
            values[one.name] = one.metadata["parse"](text)
        except ValueError as error:
            raise Usage(f"{one.metadata['variable']} {error}, not {text[:80]!r}") from None
    return Config(**values)


def variable(name: str, environ: Mapping[str, str] | None = None, folder: Path | None = None) -> str | None:
    """A variable that is not in the table, such as the one that holds a token; it is looked for in the same places."""
    given = os.environ if environ is None else environ
    return given.get(name) or _dotenv(Path.cwd() if folder is None else folder).get(name) or None


def dotenv_file(folder: Path) -> Path | None:
    """The nearest `.env`, in this folder or above it."""
    return next((at / ".env" for at in (folder, *folder.parents) if (at / ".env").is_file()), None)


def seen_by_others(path: Path) -> str | None:
    """What is wrong if somebody else can read it: passwords are in it."""
    mode = stat.S_IMODE(path.stat().st_mode)
    return f"{path} can be read by others ({mode:o}): chmod 600 {path}" if mode & 0o077 else None


def _dotenv(folder: Path) -> dict[str, str]:
    path = dotenv_file(folder.absolute())
    if path is None:
        return {}
    if not path.stat().st_mode & stat.S_IRUSR:
        raise Usage(f"{path} cannot be read")
    try:
        return {name: value for name, value in dotenv_values(path).items() if value is not None}
    except (OSError, UnicodeDecodeError) as error:
        raise Usage(f"{path} cannot be read: {error}") from None
