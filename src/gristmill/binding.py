"""Arguments: checked and converted by type hints when work is asked for, turned back into types when it runs."""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any

import orjson

from gristmill.errors import Invalid, did_you_mean, quoted
from gristmill.settings import KEY_LIMIT, PAYLOAD_LIMIT

# Values of these types are JSON already: no conversion, and no import of pydantic.
_PLAIN = (str, int, float, bool, dict, list, type(None))
_NO_CONTEXT = {"str", "int", "float", "bool", "list", "dict", "tuple", "Path", "pathlib.Path"}  # hints of arguments


def encode(value: Any, what: str) -> str:
    """`value` as JSON text, or a clear error; `what` names it in the message."""
    try:
        data = orjson.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"{what} is not JSON: {error}") from None
    if len(data) > PAYLOAD_LIMIT:
        raise Invalid(
            f"{what} is {len(data) / 1048576:.1f} MiB of JSON; the limit is {PAYLOAD_LIMIT // 1048576} MiB:"
            " store the data elsewhere and pass its path or key"
        )
    if b"null" in data and _has_nan(value):
        raise Invalid(f"{what} is not JSON: NaN and Infinity have no JSON form")
    return data.decode()


def _has_nan(value: Any) -> bool:
    """orjson writes NaN as null without a word."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Mapping):
        return any(map(_has_nan, value.values()))
    if is_dataclass(value) and not isinstance(value, type):
        return any(_has_nan(getattr(value, field.name)) for field in fields(value))
    return isinstance(value, list | tuple) and any(map(_has_nan, value))


def check_key(key: Any, what: str = "key") -> str:
    """A key or subject name: text that any database, terminal and URL can carry."""
    if isinstance(key, str) and key.isprintable() and 0 < len(key) <= KEY_LIMIT and not key.isspace():
        return key
    if not isinstance(key, str):
        raise Invalid(f"{what} must be text, not {type(key).__name__}: {quoted(key)}")
    if not key.strip():
        raise Invalid(f"{what} must not be empty")
    if len(key) > KEY_LIMIT:
        raise Invalid(f"{what} has {len(key)} characters; the limit is {KEY_LIMIT}: {key[:60]!r}…")
    raise Invalid(f"{what} {quoted(key)} holds a character that cannot be printed")


@dataclass(frozen=True)
class Parameter:
    """One parameter of a job's function."""

    name: str
    hint: Any
    required: bool

    @cached_property
    def converter(self) -> Any:
        """pydantic's converter for the hint."""
        return _adapter(self.hint)

    @property
    def adapter(self) -> Any:
        """The same; None where JSON is what the function wants anyway."""
        return None if self.hint is Any or self.hint in _PLAIN else self.converter

    def takes(self, kind: type) -> bool:
        """Whether values of this type go through as they are."""
        return self.hint is Any or (kind is self.hint and kind in _PLAIN)

    def check(self, value: Any, where: str) -> Any:
        """The value as JSON can carry it, or a clear error."""
        if self.takes(type(value)):
            return value
        import pydantic

        try:
            adapter = self.converter
            return adapter.dump_python(adapter.validate_python(value), mode="json")
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False)[0]
            inside = "".join(f"[{part!r}]" for part in first["loc"])
            raise Invalid(f"{where}: argument {self.name!r}{inside}: {first['msg']} (got {quoted(value)})") from None
        except (pydantic.errors.PydanticUserError, ValueError, TypeError) as error:
            raise Invalid(f"{where}: argument {self.name!r}: {error}") from None


def _adapter(hint: Any) -> Any:
    import pydantic

    # A model brings its own configuration, and pydantic refuses a second one.
    if isinstance(hint, type) and (issubclass(hint, pydantic.BaseModel) or hasattr(hint, "__dataclass_fields__")):
        return pydantic.TypeAdapter(hint)
    try:
        return pydantic.TypeAdapter(hint, config=pydantic.ConfigDict(coerce_numbers_to_str=True))
    except pydantic.errors.PydanticUserError:
        return pydantic.TypeAdapter(hint, config=pydantic.ConfigDict(arbitrary_types_allowed=True))


class Parameters:
    """What a function takes besides its context."""

    def __init__(self, fn: Callable[..., Any], where: str) -> None:
        self.where = where
        signature = list(inspect.signature(fn).parameters.values())
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        if not signature or signature[0].kind not in positional:
            raise Invalid(f"{where}: the function must take a context as its first parameter: def f(ctx, …)")
        first = inspect.formatannotation(signature[0].annotation).strip("'")
        if first.partition("[")[0] in _NO_CONTEXT:
            raise Invalid(
                f"{where}: the function gets its context first, and {signature[0].name!r} is to be {first}; write"
                f" def f(ctx, {signature[0].name}: {first}, …)"
            )
        for parameter in signature[1:]:
            if parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL):
                raise Invalid(f"{where}: parameter {parameter.name!r} cannot be given by name; arguments always are")
        self._fn = fn
        self._signature = [p for p in signature[1:] if p.kind is not inspect.Parameter.VAR_KEYWORD]
        self.takes_any = len(self._signature) < len(signature) - 1

    @cached_property
    def by_name(self) -> dict[str, Parameter]:
        hints = _hints(self._fn)
        return {
            p.name: Parameter(p.name, hints.get(p.name, Any), p.default is inspect.Parameter.empty) for p in self._signature
        }

    @cached_property
    def first(self) -> str | None:
        return next(iter(self.by_name), None)

    def prepare(self) -> None:
        """Imports and builds now what the first call would have to."""
        _ = self._converters

    @cached_property
    def _converters(self) -> dict[str, Any]:
        return {name: p.adapter for name, p in self.by_name.items() if p.adapter is not None}

    def check(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments of one job, as JSON can carry them: none unknown, none missing, each of its type."""
        if tuple(values) == self._names and tuple(map(type, values.values())) == self._types:
            return dict(values)  # as most are, where many are asked for
        if not self._required <= values.keys() <= self.by_name.keys():
            self.refuse_unknown(values)
            self.refuse_missing(values)
        return self.check_named(values)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(self.by_name)

    @cached_property
    def _types(self) -> tuple[Any, ...]:
        """Of values that go through as they are; None: of this one no type alone can tell."""
        return tuple(p.hint if p.hint in _PLAIN else None for p in self.by_name.values())

    @cached_property
    def _required(self) -> Set[str]:
        return {name for name, parameter in self.by_name.items() if parameter.required}

    def check_named(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values converted where this function names them, the others as they are."""
        known = self.by_name
        return {n: known[n].check(v, self.where) if n in known else v for n, v in values.items()}

    def takes(self, args: Mapping[str, Any]) -> bool:
        """Whether arguments with these names and values of these types go through as they are."""
        known = self.by_name
        return all(n not in known or known[n].takes(type(v)) for n, v in args.items())

    def refuse_unknown(self, names: Iterable[str]) -> None:
        for name in names:
            if not isinstance(name, str):
                raise Invalid(f"{self.where}: argument names are text, not {quoted(name)}")
            if name not in self.by_name and not self.takes_any:
                raise Invalid(f"{self.where} takes no argument {name!r}{did_you_mean(name, self.by_name)}")

    def refuse_missing(self, *given: Iterable[str]) -> None:
        have = {name for names in given for name in names}
        missing = [n for n, p in self.by_name.items() if p.required and n not in have]
        if missing:
            raise Invalid(f"{self.where} needs argument {', '.join(map(repr, missing))}")

    def select(self, item: Mapping[str, Any] | None, run: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """The call's keyword arguments: the item's, then those of the run that the function names, converted."""
        names = self.by_name
        if item and not run and not self._converters and item.keys() <= names.keys():
            return item
        chosen = dict(item) if item else {}
        if chosen and not self.takes_any and not chosen.keys() <= names.keys():
            chosen = {n: v for n, v in chosen.items() if n in names}
        if run:
            for name, value in run.items():
                if name not in chosen and (name in names or self.takes_any):
                    chosen[name] = value
        for name, adapter in self._converters.items():
            if name in chosen:
                chosen[name] = adapter.validate_python(chosen[name])
        return chosen


def _hints(fn: Callable[..., Any]) -> dict[str, Any]:
    """Resolved type hints; one that cannot be resolved (imported for type checkers only) counts as Any."""
    try:
        return typing.get_type_hints(fn, include_extras=True)
    except (NameError, TypeError):
        pass
    hints: dict[str, Any] = {}
    for name, annotation in getattr(fn, "__annotations__", {}).items():
        holder = type("holder", (), {"__annotations__": {name: annotation}, "__module__": fn.__module__})
        try:
            hints.update(typing.get_type_hints(holder, include_extras=True))
        except (NameError, TypeError):
            hints[name] = Any
    return hints
