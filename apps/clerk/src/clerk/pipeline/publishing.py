"""compilation and deploy: all text as one database, and that database where others see it."""

from __future__ import annotations

import socket
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from clerk import sites, storage
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
        hooks = wiring.hooks()
        made = publication(work.files, asdict(work.site), work.run)
        if hooks.deploys:
            hooks.deploy_municipality(made)
        else:
            deployer(work.config.deploy_target).deploy(made)
            storage.write(work.files.published, f"{work.config.deploy_target}\n{socket.gethostname()}\n".encode())
        for name, path in made.files.items():
            if path.suffix == ".pdf":
                hooks.upload_static_file(path, f"{work.subdomain}/{name}")
        hooks.post_deploy(_published(ctx))
        write_sites(work.config.storage, lambda: _all_sites(ctx))
        return made.version


def _published(ctx: Context) -> dict[str, Any]:
    """The site, with the time of this. It is written down before the job ends, for the lists that others write meanwhile."""
    with ctx.transaction() as connection:
        note_change(connection, ctx, last_deployed=datetime.now(UTC))
        return sites.seen(connection, str(ctx.subject))


def _all_sites(ctx: Context) -> list[dict[str, Any]]:
    with ctx.transaction() as connection:
        return sites.listed(connection)
