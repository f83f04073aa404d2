"""With this folder on PYTHONPATH, Python starts with a clock that is wrong by CHAOS_SKEW seconds, and says so.

Only the time of day: what measures how long something takes (`time.monotonic`) is right on a host whose clock is wrong.
"""

import datetime
import json
import os
import time
from pathlib import Path
from typing import Any

_by = float(os.environ["CHAOS_SKEW"])
_time, _time_ns = time.time, time.time_ns
_datetime = datetime.datetime
_delta = datetime.timedelta(seconds=_by)


class _AnyDatetime(type):
    def __instancecheck__(cls, what: object) -> bool:
        return isinstance(what, _datetime)


class _Skewed(_datetime, metaclass=_AnyDatetime):
    """Makes plain ones: C code does not know this class."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return _datetime(*args, **kwargs)

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        return _datetime.now(tz) + _delta

    @classmethod
    def utcnow(cls) -> Any:
        return _datetime.now(datetime.UTC).replace(tzinfo=None) + _delta

    @classmethod
    def today(cls) -> Any:
        return _datetime.now() + _delta


time.time = lambda: _time() + _by
time.time_ns = lambda: _time_ns() + int(_by * 1e9)
datetime.datetime = _Skewed  # type: ignore[misc]
with Path(os.environ["CHAOS_SKEWED"]).open("a") as _file:
    _file.write(json.dumps([os.getpid(), os.getppid(), time.time() - _time()]) + "\n")
