"""`run-local` and `run-stage`: the pipeline in this process, without workers."""

from __future__ import annotations

from pathlib import Path

import click

from clerk.cli.app import Command, Place, pass_place, site_argument, site_option
from clerk.cli.exits import OK
from clerk.cli.sites import check_reader, update_site
from clerk.names import STAGES


@click.command(cls=Command, short_help="Run a site here and now, without workers.")
@site_argument
@pass_place
def run_local(place: Place, subdomain: str) -> int:
    """Run all of SITE in this process, as `update -s SITE --local` does; exit 1 if the run fails."""
    from clerk.sites import Options

    return update_site(place, subdomain, Options(), local=True)


@click.command(cls=Command, short_help="Run one stage of a site here and now.")
@click.argument("stage", type=click.Choice(STAGES))
@site_option(required=True, text="Of this site.")
@click.option("--proceed", is_flag=True, help="Then go on with the stages after it.")
@click.option("--pdf-path", type=click.Path(path_type=Path), metavar="F", help="With ocr: only this document.")
@pass_place
def run_stage(place: Place, stage: str, subdomain: str, proceed: bool, pdf_path: Path | None) -> int:
    """Run one STAGE of a site in this process, on what is there from those before it; exit 1 if it fails."""
    from clerk import sites
    from clerk.commands import local
    from clerk.pipeline import wiring

    if pdf_path is not None and stage != "ocr":
        raise click.UsageError(f"--pdf-path names what ocr is to read; {stage} takes all of the site")
    with place.open() as mill:
        site = sites.find(mill, subdomain)
        if stage == "ocr" or (stage == "fetch" and proceed):
            check_reader(place, site)
        if pdf_path is not None:
            backend = wiring.reader(wiring.backend_label(place.config, site.extra))
            place.say(local.read_one(mill, place.config, subdomain, pdf_path, backend))
            if not proceed:
                return OK
        place.say(local.run_stage(mill, place.config, stage, subdomain, proceed).text)
    return OK
