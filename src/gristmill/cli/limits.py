"""`limit list|set|close`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from gristmill.cli import show
from gristmill.cli.app import Group, Place, as_json, pass_place
from gristmill.cli.show import Column
from gristmill.errors import quoted

if TYPE_CHECKING:
    from gristmill.model import LimitState


class _OrNone(click.ParamType[Any]):
    """A number, or the word `none`."""

    name = "number"

    def __init__(self, kind: Callable[[str], float]) -> None:
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "none":
            return value
        try:
            return self._kind(value)
        except ValueError:
            what = "a whole number" if self._kind is int else "a number"
            self.fail(f"{value!r} is not {what}, nor 'none'", param, ctx)


at_once_option = click.option("--at-once", type=_OrNone(int), metavar="N", help="How many may run at once; or 'none'.")
per_second_option = click.option(
    "--per-second", type=_OrNone(float), metavar="X", help="How many may start per second; or 'none'."
)


def given(**options: Any) -> dict[str, Any]:
    """The numbers that were given; None: no limit."""
    return {name: None if value == "none" else value for name, value in options.items() if value is not None}


@click.group(cls=Group)
def limit() -> None:
    """List limits and set them: how many jobs of a key at once, or per second."""


@limit.command("list")
@click.argument("name", required=False)
@click.argument("key", required=False)
@as_json
@pass_place
def list_(place: Place, name: str | None, key: str | None, json_wanted: bool) -> None:
    """List limits, and of each the keys that are in use or were set."""
    with place.open() as mill:
        found = mill.limits(name, key)
    if json_wanted:
        return show.document(found)
    if not found and name is not None:
        return show.note(f"limit {quoted(name)} has no such key in use" if key else f"there is no limit {quoted(name)}")
    if not found:
        return show.note("there are no limits; a task declares one with limit=Limit(…), a queue gets one by: queue set")
    print_limits(found)
    return None


@limit.command("set", short_help="Set the numbers of a limit, or of one key of it.")
@click.argument("name")
@click.argument("key", default="")
@at_once_option
@per_second_option
@click.option("--breaker", type=_OrNone(int), metavar="N", help="Failures in a row that open its circuit; or 'none'.")
@click.option("--cooldown", type=float, metavar="S", help="Seconds that an open circuit stays so.")
@click.option("--default", is_flag=True, help="Forget what was set: as the application says.")
@as_json
@pass_place
def set_(place: Place, /, name: str, key: str, default: bool, json_wanted: bool, **options: Any) -> None:
    """Set the numbers of limit NAME, or of one KEY of it; 'none' takes one away.

    They count more than what the application declares, a key's more than those of its limit; what is not given stays.
    """
    numbers = given(**options)
    if bool(numbers) == default:
        raise click.UsageError("give some of --at-once, --per-second, --breaker and --cooldown; or only --default")
    with place.open() as mill:
        found = mill.set_limit(name, key, numbers=None if default else numbers)
    if json_wanted:
        return show.document(found)
    return show.line(f"limit {_named(found)}: {_numbers(found)}")


@limit.command(short_help="Close the circuit of a key: its jobs go on.")
@click.argument("name")
@click.argument("key")
@pass_place
def close(place: Place, name: str, key: str) -> None:
    """Close the circuit of a KEY of limit NAME, before its time: its jobs go on."""
    with place.open() as mill:
        mill.close_circuit(name, key)
    show.line(f"the circuit of {name} {key} is closed")


def _named(limit: LimitState) -> str:
    return f"{limit.name} {limit.key}" if limit.key else limit.name


def words(**numbers: Any) -> str:
    from gristmill.limit import Numbers  # not above: help needs nothing of the engine

    return Numbers(**numbers).words()


def _numbers(limit: LimitState) -> str:
    how = {"breaker": limit.breaker, "cooldown": limit.cooldown}
    return words(at_once=limit.at_once, per_second=limit.per_second, **how)


def print_limits(limits: Sequence[LimitState]) -> None:
    columns = [
        Column("limit"),
        Column("key", free=True),
        *(Column(title, right=True) for title in ("at once", "per second", "running", "ready", "waiting")),
        Column("circuit"),
        Column("set by"),
    ]
    show.table(columns, [_row(limit) for limit in limits], "")


def _row(limit: LimitState) -> list[str]:
    return [
        limit.name,
        limit.key,
        "" if limit.at_once is None else show.count(limit.at_once),
        "" if limit.per_second is None else f"{limit.per_second:g}",
        show.count(limit.running),
        show.count(limit.ready),
        show.count(limit.waiting),
        _circuit(limit),
        limit.set_by,
    ]


def _circuit(limit: LimitState) -> str:
    if limit.circuit is None:
        return ""
    if limit.circuit == "open" and limit.open_until is not None:
        return f"open, one is tried {show.age(limit.open_until)}"
    return f"{limit.circuit}, {limit.failures} of {limit.breaker} failures" if limit.key else limit.circuit
