"""`token create|list|revoke`: who may use the HTTP API."""

from __future__ import annotations

import click

from gristmill.cli import show, values
from gristmill.cli.app import Group, Place, as_json, pass_place
from gristmill.cli.show import Column


@click.group(cls=Group)
def token() -> None:
    """Make, list and revoke tokens for the HTTP API."""


@token.command(short_help="Make a token, and print it once.")
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(["viewer", "operator", "admin"]),
    default="viewer",
    show_default=True,
    help="What its bearer may do: read; act too; all.",
)
@click.option("--expires", type=values.duration, metavar="AFTER", help="How long it is good: 12h, 90d. Without: for ever.")
@as_json
@pass_place
def create(place: Place, name: str, role: str, expires: float | None, json_wanted: bool) -> None:
    """Make a token NAME for a person or a program, and print it: this once, since only a hash of it is kept."""
    with place.open() as mill:
        made = mill.create_token(name, role, expires=expires)
    if json_wanted:
        return show.document(made)
    show.line(made.text)
    until = f" until {show.moment(made.token.expires_at)}" if made.token.expires_at else ""
    return show.note(f"token {name} is good for {role}{until}; keep it, nobody can show it again")


@token.command("list", short_help="List tokens.")
@click.option("--all", "every", is_flag=True, help="Also those that were revoked.")
@as_json
@pass_place
def list_(place: Place, every: bool, json_wanted: bool) -> None:
    """List tokens: their names, what they are good for, when each was last used."""
    with place.open() as mill:
        found = mill.tokens(every=every)
    if json_wanted:
        return show.document(found)
    if not found:
        return show.note(f"there are no tokens; make one: {place.command('token', 'create', 'NAME')}")
    columns = [Column("token", free=True), Column("role"), Column("state"), Column("made"), Column("by", free=True)]
    columns += [Column("expires"), Column("last used")]
    rows = [
        [
            each.name,
            each.role.value,
            each.state,
            show.moment(each.created_at),
            each.created_by,
            show.moment(each.expires_at) if each.expires_at else "never",
            show.age(each.used_at) if each.used_at else "never",
        ]
        for each in found
    ]
    return show.table(columns, rows)


@token.command()
@click.argument("name")
@pass_place
def revoke(place: Place, name: str) -> None:
    """Revoke the token NAME, at once and for good."""
    with place.open() as mill:
        mill.revoke_token(name)
    show.line(f"token {name} is revoked")
