"""compilation and deploy: all text as one database, and that database where others see it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy import text

from clerk.compiling import compile_site, merge_extractions, write_sites
from clerk.deploying import deployer, publication
from clerk.pipeline import wiring
from clerk.pipeline.outcomes import note_change, refuse_if_given_up
from clerk.pipeline.working import working
from gristmill import Context, Skip


def compile_text(ctx: Context) -> int:
    """Says how many pages are in it."""
    with working(ctx) as work:
        hooks = wiring.hooks()
        hooks.pre_compilation(work.subdomain)
        compiled = compile_site(work.files, work.run, lambda pages: ctx.progress(pages, message="pages"))
        hooks.post_compilation(work.subdomain)
        with ctx.transaction() as connection:
            note_change(connection, ctx, pages=compiled.pages)
        return compiled.pages


def publish(ctx: Context) -> str:
    """Says which publication it is. All of it may run again: the same files are published once more, under a later name."""
    with working(ctx) as work:
        refuse_if_given_up(ctx)
        merge_extractions(work.files, work.run)
        if work.config.dev_mode:
            raise Skip("CIVIC_DEV_MODE")
        hooks, site = wiring.hooks(), asdict(work.site)
        made = publication(work.files, site, work.run)
        if hooks.deploys:
            hooks.deploy_municipality(made)
        else:
            deployer(work.config.deploy_target).deploy(made)
        for name, path in made.files.items():
            if path.suffix == ".pdf":
                hooks.upload_static_file(path, f"{work.subdomain}/{name}")
        hooks.post_deploy(site)
        write_sites(work.config.storage, _all_sites(ctx))
        return made.version


def _all_sites(ctx: Context) -> list[dict[str, Any]]:
    columns = "subdomain, name, state, country, kind, scraper, pages, start_year, lat, lng, last_updated, last_deployed"
    with ctx.transaction() as connection:
        rows = connection.execute(text(f"SELECT {columns} FROM clerk_site ORDER BY subdomain"))  # noqa: S608 - constants
        return [dict(row) for row in rows.mappings()]
