"""Just enough YAML to write: maps, lists, words, numbers. What might be read as something else is quoted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Not yes, no, on, off, null, numbers, dates, or anything with a sign that means something.
_PLAIN = re.compile(r"(?!(?:y|n|yes|no|on|off|true|false|null|nan|inf)$)[a-z/][a-z0-9_./-]*", re.IGNORECASE)


def dumps(*documents: Any, head: str = "") -> str:
    """`head`: what the first line says to people."""
    texts = ["\n".join(_lines(document)) + "\n" for document in documents]
    return (f"# {head}\n" if head else "") + "---\n".join(texts)


def _lines(value: Any, indent: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _item(f"{indent}{_scalar(name)}:", each, f"{indent}  ")
    else:
        for each in value:
            if isinstance(each, Mapping) and each:
                first, *rest = _lines(each, f"{indent}  ")
                yield f"{indent}- {first.lstrip(' ')}"
                yield from rest
            else:
                yield from _item(f"{indent}-", each, f"{indent}  ")


def _item(start: str, value: Any, indent: str) -> Iterator[str]:
    if not isinstance(value, Mapping | list | tuple):
        yield f"{start} {_scalar(value)}"
    elif not value:
        yield f"{start} {'{}' if isinstance(value, Mapping) else '[]'}"
    elif isinstance(value, Sequence) and all(isinstance(each, str | int) for each in value):
        yield f"{start} [{', '.join(_scalar(each) for each in value)}]"
    else:
        yield start
        yield from _lines(value, indent)


def _scalar(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    return value if _PLAIN.fullmatch(value) else '"' + "".join(map(_character, value)) + '"'


def _character(one: str) -> str:
    if one in '"\\':
        return f"\\{one}"
    if one.isprintable():
        return one
    return f"\\u{ord(one):04x}" if ord(one) <= 0xFFFF else f"\\U{ord(one):08x}"
