"""`new`, `change`, `update`, `enqueue`, `purge`: sites and the runs that are asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from clerk.cli.app import (
    Command,
    Place,
    checked_subdomain,
    is_terminal,
    pass_place,
    plural,
    site_argument,
    site_option,
)
from clerk.cli.exits import FAILED, OK
from clerk.errors import ClerkError, Usage

if TYPE_CHECKING:
    from clerk.sites import Description, Enqueued, Options

F = TypeVar("F", bound=Callable[..., Any])

_all_agendas = click.option("--all-agendas", is_flag=True, help="Agendas also where there are minutes.")
_local = click.option("--local", is_flag=True, help="Run it here and now, without workers.")


# ---- new


def _extra(ctx: click.Context, parameter: click.Parameter, value: str | None) -> dict[str, Any] | None:
    if value is None:
        return None
    try:
        found = json.loads(value or "{}")
    except ValueError as error:
        raise click.BadParameter(f"is not JSON: {error}", ctx=ctx, param=parameter) from None
    if not isinstance(found, dict):
        raise click.BadParameter('wants an object, such as {"path": "documents"}', ctx=ctx, param=parameter)
    return found


def _lat_lng(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, str] | None:
    if value is None:
        return None
    if not value:
        return "", ""  # nobody knows where
    lat, _, lng = (part.strip() for part in value.partition(","))
    try:
        inside = abs(float(lat)) <= 90 and abs(float(lng)) <= 180
    except ValueError:
        inside = False
    if not inside:
        raise click.BadParameter(f"{value[:40]!r} is no place; write 37.80,-122.27", ctx=ctx, param=parameter)
    return lat, lng


_DESCRIPTION = (
    click.option("--name", help="As people call it."),
    click.option("--state", help="Such as CA."),
    click.option("--country", help="Such as US."),
    click.option("--kind", help="Such as city, county or school board."),
    click.option("--scraper", metavar="LABEL", help="Who fetches: folder, http_index, feed, legistar, or a plugin's."),
    click.option("--start-year", type=click.IntRange(1000, 9999), metavar="YEAR", help="From when on documents are wanted."),
    click.option("--lat-lng", callback=_lat_lng, metavar="LAT,LNG", help="Where it is."),
    click.option("--extra", callback=_extra, metavar="JSON", help="Settings of its scraper."),
)


def _description(function: F) -> F:
    """The options that say what a site is."""
    for option in reversed(_DESCRIPTION):
        function = option(function)
    return function


@click.command(cls=Command, short_help="Create a site, and run it before all others.")
@click.argument("subdomain", metavar="SITE", required=False)
@_description
@_all_agendas
@_local
@click.option("--no-enqueue", is_flag=True, help="Only create it.")
@pass_place
def new(place: Place, /, all_agendas: bool, local: bool, no_enqueue: bool, **given: Any) -> int:
    """Create SITE and run it, all years, before all others. What is missing is asked for on a terminal."""
    from clerk import sites

    if local and no_enqueue:
        raise click.UsageError("--local runs it, --no-enqueue does not; give one of them")
    described = _described(_asked(given))
    _check_parts(place, described)
    if local:
        check_reader(place, described)
    with place.open() as mill:
        if no_enqueue:
            sites.create(mill, described)
            place.say(f"Created {described.subdomain}")
            _tell_plugins(place, described.subdomain)
            return OK
        asked = sites.create_and_run(mill, described, sites.Options(all_years=True, all_agendas=all_agendas))
        place.say(f"Enqueueing new site {described.subdomain} with high priority")
        try:
            _tell_plugins(place, described.subdomain)
        finally:
            if local:
                _run_here(place, mill, asked)
        if not local and is_terminal() and not mill.workers():
            place.say("No worker is running: `clerk worker all` starts one")
        return OK


def _tell_plugins(place: Place, subdomain: str) -> None:
    """One that fails takes nothing back, and who types the command again would be refused."""
    try:
        place.plugins.post_create(subdomain)
    except ClerkError as error:
        raise ClerkError(f"{subdomain} was created, and what was asked for is done, but {error}") from error


_NEEDED = ("subdomain", "name", "scraper")


def _asked(given: dict[str, Any]) -> dict[str, Any]:
    """What is missing is asked for on a terminal. Elsewhere what no site can be without must be there; the rest may be
    left unsaid."""
    if is_terminal():
        for name, question, usual, check in _questions():
            if given[name] is None or (usual is None and not given[name]):
                given[name] = click.prompt(question, default=usual, show_default=bool(usual), value_proc=_again(check))
        return given
    missing = ["SITE" if name == "subdomain" else f"--{name}" for name in _NEEDED if not given[name]]
    if missing:
        raise click.UsageError(f"missing {', '.join(missing)}; without a terminal nobody can be asked for it")
    return given


def _questions() -> list[tuple[str, str, str | None, Callable[[str], Any]]]:
    """What is asked for, how, what it usually is (None: it must be given), and what makes a value of the answer."""
    from clerk import names
    from clerk.pipeline import wiring

    def scraper(label: str) -> str:
        wiring.fetcher_of(label)
        return label

    ctx = click.get_current_context()
    options = {str(option.name): option for option in ctx.command.params}
    year = options["start_year"].type
    return [
        ("subdomain", "Subdomain", None, names.subdomain),
        ("name", "Name", None, str),
        ("state", "State", "", str),
        ("country", "Country", "US", str),
        ("kind", "Kind", "city", str),
        ("start_year", "Start year", str(datetime.now(UTC).year), lambda text: year.convert(text, None, ctx)),
        ("lat_lng", "Latitude, longitude", "", lambda text: _lat_lng(ctx, options["lat_lng"], text)),
        ("scraper", "Scraper (folder, http_index, feed, legistar, or a plugin's)", None, scraper),
        ("extra", "Settings of the scraper, as JSON", "{}", lambda text: _extra(ctx, options["extra"], text)),
    ]


def _again(check: Callable[[str], Any]) -> Callable[[str], Any]:
    """A wrong answer is said at once, and asked for again."""

    def checked(text: str) -> Any:
        try:
            return check(text)
        except Usage as error:
            raise click.UsageError(str(error)) from error

    return checked


def _described(given: dict[str, Any]) -> Description:
    from clerk import names
    from clerk.sites import Description

    names.subdomain(given["subdomain"])
    said: dict[str, Any] = {name: value or None for name, value in given.items()}  # "" says that nobody knows
    lat, lng = said.pop("lat_lng") or ("", "")
    return Description(**{**said, "extra": said["extra"] or {}}, lat=lat or None, lng=lng or None)


def _check_parts(place: Place, described: Description) -> None:
    """A setting that is wrong, or an engine that cannot work here, is said now and not by a worker."""
    from clerk.pipeline import wiring

    _check_backend(described.extra.get("ocr_backend"))
    wiring.extractor(place.config, described.extra)
    with wiring.source(place.config, described.scraper, described.extra):
        pass


def _check_backend(label: str | None) -> None:
    from clerk.pipeline import wiring

    if label is not None:
        wiring.reader(str(label))


def check_reader(place: Place, site: Description, option: str | None = None) -> None:
    """Where this process is to read a site's documents: who cannot do that here is named before anything is started."""
    from clerk.pipeline import wiring

    wiring.reader(wiring.backend_label(place.config, site.extra, option))


# ---- change


@click.command(cls=Command, short_help="Say something else of a site.")
@site_argument
@_description
@click.option("--moved", nargs=2, metavar="OLD NEW", help="How addresses of its documents began, and how they begin now.")
@pass_place
def change(
    place: Place, /, subdomain: str, lat_lng: tuple[str, str] | None, moved: tuple[str, str] | None, **given: Any
) -> int:
    """Change what is said of SITE: only what is given, and --extra as a whole. It counts from its next run on."""
    from clerk import sites

    new = {name: value for name, value in given.items() if value is not None}
    if lat_lng is not None:
        new |= {"lat": lat_lng[0] or None, "lng": lat_lng[1] or None}
    if not new and moved is None:
        raise click.UsageError(f"nothing to change; `clerk change {subdomain} --help` lists what can be")
    with place.open() as mill:
        described = replace(sites.find(mill, subdomain), **new)
        _check_parts(place, described)
        sites.change(mill, described, moved)
    place.say(f"Changed {subdomain}")
    return OK


# ---- update


@click.command(cls=Command, short_help="Run a site before all others; or the one whose turn it is.")
@site_option(text="This site, before all others.")
@click.option("-n", "--next", "--next-site", "next_site", is_flag=True, help="The site whose turn it is.")
@click.option("-a", "--all-years", is_flag=True, help="From its start year on.")
@_all_agendas
@click.option("--backfill", is_flag=True, help="All years and all agendas.")
@click.option("--skip-fetch", is_flag=True, help="Only what is in the storage already.")
@click.option("--ocr-backend", metavar="LABEL", help="Who reads: tesseract, vision, rapidocr, or a plugin's.")
@click.option("--retry-failed", is_flag=True, help="Also documents that failed for good.")
@_local
@click.option("--batch-size", type=click.IntRange(1, 1000), help="With --next: so many sites (default: 1).")
@click.option("--lookback-hours", type=click.FloatRange(0, 87_600), help="With --next: not run for so long (default: 23).")
@pass_place
def update(
    place: Place,
    /,
    subdomain: str | None,
    next_site: bool,
    local: bool,
    batch_size: int | None,
    lookback_hours: float | None,
    **given: Any,
) -> int:
    """Run a site (-s), before all others; or (--next) start the site whose turn it is."""
    if next_site == (subdomain is not None):
        raise click.UsageError("give one of -s SITE and --next")
    if next_site:
        if local or any(given.values()):
            raise click.UsageError("--next takes only --batch-size and --lookback-hours; the other options go with -s SITE")
        return _next(place, batch_size or 1, 23.0 if lookback_hours is None else lookback_hours)
    if batch_size is not None or lookback_hours is not None:
        raise click.UsageError("--batch-size and --lookback-hours go with --next")
    return update_site(place, str(subdomain), _options(**given), local)


def _options(backfill: bool, **given: Any) -> Options:
    from clerk.sites import Options

    _check_backend(given["ocr_backend"])
    if backfill:
        given |= {"all_years": True, "all_agendas": True}
    return Options(**given)


def update_site(place: Place, subdomain: str, options: Options, local: bool) -> int:
    from clerk import sites

    with place.open() as mill:
        if local:
            check_reader(place, sites.find(mill, subdomain), options.ocr_backend)
        asked = sites.update(mill, subdomain, options)
        place.say(f"Enqueueing {subdomain} with high priority")
        _say_active(place, asked)
        return _run_here(place, mill, asked) if local else OK


def _say_active(place: Place, asked: Enqueued) -> None:
    if not asked.created:
        place.say(f"{asked.subdomain} has an active run already ({asked.run}), which has {asked.priority} priority now")
    if asked.was_waiting:
        place.say(f"Run {asked.follow_up}, which waits to follow it, has the options that were given now, too")
    elif asked.follow_up is not None:
        place.say(f"Run {asked.follow_up} follows it, with the options that were given now")


def _run_here(place: Place, mill: Any, asked: Enqueued) -> int:
    from clerk.commands import local

    if sys.stderr.isatty() and not place.quiet:
        click.echo(f"It is run here; `clerk status -s {asked.subdomain}`, elsewhere, says how far it is", err=True)
    for ended in local.run_to_end(mill, place.config, asked):
        place.say(ended.text)
        for hint in ended.hints:
            place.say(f"`{hint}` says why")
    return OK


def _next(place: Place, batch: int, lookback: float) -> int:
    from clerk import sites

    with place.open() as mill:
        chosen = sites.next_sites(mill, batch, lookback)
    for one in chosen:
        place.say(f"Auto-enqueueing {one.subdomain}")
    if not chosen:
        place.say("No sites eligible for auto-enqueue")
    return OK


# ---- enqueue and purge


@click.command(cls=Command, short_help="Ask for runs of many sites.")
@click.argument("subdomains", metavar="SITE...", nargs=-1, required=True, callback=checked_subdomain)
@click.option("--priority", type=click.Choice(["high", "normal", "low"]), default="normal", show_default=True)
@pass_place
def enqueue(place: Place, subdomains: tuple[str, ...], priority: Any) -> int:
    """Ask for a run of each SITE; low is ordered as normal. Unknown ones are reported, and the rest is enqueued."""
    from clerk import sites

    with place.open() as mill:
        asked, unknown = sites.enqueue(mill, subdomains, priority)
    for one in asked:
        if one.created:
            place.say(f"Enqueued {one.subdomain} (run: {one.run}, priority: {priority})")
        else:
            _say_active(place, one)
    for subdomain in unknown:
        click.echo(f"Error: Site '{subdomain}' not found", err=True)
    return FAILED if unknown else OK


@click.command(cls=Command, short_help="Stop all that is queued or runs of a site.")
@site_argument
@pass_place
def purge(place: Place, subdomain: str) -> int:
    """Cancel what is queued of SITE and stop what runs, within 30 seconds. Its files and its history stay."""
    from clerk import sites

    with place.open() as mill:
        purged = sites.purge(mill, subdomain)
    place.say(f"Found {plural(purged.found, 'job')} for {subdomain}")
    place.say(f"Purged {plural(purged.purged, 'job')}")
    if purged.purged < purged.found:
        left = plural(purged.found - purged.purged, "job")
        click.echo(f"Error: {left} of {subdomain} did not stop within 30 s; their workers end them", err=True)
        return FAILED
    return OK
