"""A task whose argument is of a type for which it takes long to build a converter."""

from __future__ import annotations

import time
from typing import Any

from pydantic_core import core_schema

from gristmill import Context, task


class Elaborate(str):
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        time.sleep(1.5)
        return core_schema.no_info_plain_validator_function(cls, serialization=core_schema.to_string_ser_schema())


@task(timeout=0.7)
def read(ctx: Context, text: Elaborate) -> str:
    return f"{type(text).__name__} {text}"
